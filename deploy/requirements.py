"""Prints what the project depends on, and what its extras named as arguments add, one requirement a line.

For a layer of the image that holds the dependencies without the project.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main(extras: list[str]) -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    sys.stdout.write("\n".join([*wanted, ""]))


if __name__ == "__main__":
    main(sys.argv[1:])

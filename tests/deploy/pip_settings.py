"""How pip is set up on this machine, for a build that is to find packages where this machine finds them.

Names no index itself: it passes on what `pip config` says, and the local files and folders that are named there.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.deploy.tools import call

_LINE = re.compile(r"(?::env:|global|install)\.\.?([a-z-]+)=(.*)")
# How pip talks, not where it looks.
_LEFT_OUT = frozenset({"config-file", "cache-dir", "require-virtualenv", "user", "target", "quiet", "verbose", "log"})


def read_settings() -> dict[str, str]:
    """By option; the environment beats the files."""
    lines = call(sys.executable, "-m", "pip", "config", "list").splitlines()
    found = [match for line in lines if (match := _LINE.fullmatch(line)) and match[1] not in _LEFT_OUT]
    found.sort(key=lambda match: match[0].startswith(":env:"))
    return {match[1]: str(ast.literal_eval(match[2])) for match in found}


def as_file(settings: dict[str, str]) -> str:
    lines = (f"{name} = {' '.join(value.split())}" for name, value in settings.items())
    return "\n".join(["[global]", *lines, ""])


def local_paths(settings: dict[str, str]) -> list[Path]:
    """What the settings name on this machine's disk, none inside another."""
    paths = sorted({path for value in settings.values() for path in _paths_in(value) if path.exists()})
    return [path for path in paths if not any(parent in paths for parent in path.parents)]


def _paths_in(value: str) -> Iterator[Path]:
    for word in value.split():
        if word.startswith("file://"):
            # An index's pages may point at files that lie beside its folder.
            yield Path(unquote(urlsplit(word).path)).parent
        elif word.startswith("/"):
            yield Path(word)

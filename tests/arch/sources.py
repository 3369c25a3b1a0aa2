"""The project's Python sources as an import graph, read with `ast`: nothing is imported, so nothing runs.

Knows how to find imports; does not know which of them are allowed.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOP_FOLDERS = ("bench", "cli", "engine", "multimodal", "parsers", "server", "tests", "training")


@dataclass(frozen=True)
class Import:
    """One imported name."""

    name: str  # dotted; may end in something that is no module: `from a import b` gives `a.b`
    line: int
    at_start: bool  # runs when the importing module is loaded, not only when a function is called


def imports_of(source: str) -> list[Import]:
    return list(_imports_under(ast.parse(source), at_start=True))


def _imports_under(node: ast.AST, at_start: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, node.lineno, at_start) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        if node.level:
            raise ValueError(f"line {node.lineno}: relative import; write the full path")
        yield from (Import(f"{node.module}.{alias.name}", node.lineno, at_start) for alias in node.names)
    elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        for typed in node.body:
            yield from _imports_under(typed, at_start=False)
        for untyped in node.orelse:
            yield from _imports_under(untyped, at_start)
    else:
        in_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr):  # most of a tree, and an import is a statement
                yield from _imports_under(child, at_start and not in_function)


def module_files() -> dict[str, Path]:
    """Dotted name of every module and package of the project → its file."""
    files = {}
    for folder in TOP_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


@cache
def read_modules() -> dict[str, list[Import]]:
    """Dotted name of every module and package of the project → what it imports."""
    return {name: imports_of(path.read_text(encoding="utf-8")) for name, path in module_files().items()}


def loaded_with(root: str, modules: dict[str, list[Import]]) -> dict[str, str]:
    """Everything that loading module `root` loads, ours or not → the module of ours that asked for it first."""
    asked_by = {root: root}
    waiting = [root]
    while waiting:
        asker = waiting.pop()
        names = [asker, *(found.name for found in modules[asker] if found.at_start)]
        for name in (step for dotted in names for step in _steps(dotted)):
            if name in asked_by:
                continue
            asked_by[name] = asker
            if name in modules:
                waiting.append(name)
    return asked_by


def _steps(dotted: str) -> list[str]:
    """`a.b.c` → a, a.b, a.b.c: loading the last loads the others first."""
    parts = dotted.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]

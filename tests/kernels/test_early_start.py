"""Every kernel that may begin before its turn waits for those before it, first of all and on every way through it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.arch.sources import ROOT

KERNELS = [path.read_text() for path in (ROOT / "engine/kernels").glob("*.py")]
# What may come before: places, and weights on their way.
HARMLESS = {"let_next_begin", "prefetch", "minimum", "program_id", "arange", "range", "static_range", "to", "cdiv"}


def launched_early(tree: ast.Module) -> Iterator[str]:
    """Names of kernels that are launched with `**early()`."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Subscript):
            spread = [ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg is None]
            if "early()" in spread:
                yield ast.unparse(call.func.value)


def faults_in(*sources: str) -> list[str]:
    trees = [ast.parse(source) for source in sources]
    functions = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)}
    launched = sorted({name for tree in trees for name in launched_early(tree)})
    return [f"{name}: {fault}" for name in launched for fault in faults_of(functions[name])]


def faults_of(kernel: ast.FunctionDef) -> Iterator[str]:
    for statement in kernel.body:
        if ast.unparse(statement) == "wait_for_earlier()":
            return
        for node in ast.walk(statement):
            if isinstance(node, ast.Return):
                yield f"line {node.lineno}: a way around the wait"
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] not in HARMLESS:
                yield f"line {node.lineno}: {ast.unparse(node.func)} before the wait"
    yield "never waits"


def test_kernels_wait_before_they_touch_anything() -> None:
    assert faults_in(*KERNELS) == []


def test_most_kernels_begin_early() -> None:
    launched = {name for source in KERNELS for name in launched_early(ast.parse(source))}
    assert {"_latent_write", "_absorb_queries", "_quantised_rms_norm", "_mla_values", "_topk_of_row"} <= launched


WAITS = "def _one(x):\n    at = x + tl.program_id(0)\n    prefetch(at)\n    wait_for_earlier()\n    tl.store(x, 1)\n"
LAUNCH = "def one(x):\n    _one[(1,)](x, num_warps=4, **early())\n"


@pytest.mark.parametrize(
    ("kernel", "faults"),
    [
        (WAITS, []),
        (
            WAITS.replace("    wait_for_earlier()\n", ""),
            ["_one: line 4: tl.store before the wait", "_one: never waits"],
        ),
        (WAITS.replace("prefetch(at)", "y = tl.load(at)"), ["_one: line 3: tl.load before the wait"]),
        (WAITS.replace("prefetch(at)", "if at: return"), ["_one: line 3: a way around the wait"]),
        (
            WAITS.replace("    wait", "    if at:\n        wait"),
            [
                "_one: line 5: wait_for_earlier before the wait",
                "_one: line 6: tl.store before the wait",
                "_one: never waits",
            ],
        ),
    ],
)
def test_what_breaks_the_rule_is_found(kernel: str, faults: list[str]) -> None:
    assert faults_in(kernel + LAUNCH) == faults

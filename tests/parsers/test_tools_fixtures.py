"""Every fixture of the format is read as its rules say: whole, in one chunk, by characters and in random pieces."""

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.tool_fixture_adapter import adapter

FOLDER = Path(__file__).parents[1] / "fixtures" / "tool_calls"
OPTIONS = argparse.Namespace(random=5, seed=1, every_cut=False, cut_calls="open")


def _load_check() -> Any:
    spec = importlib.util.spec_from_file_location("tool_calls_check", FOLDER / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.check


check = _load_check()
# `further.jsonl`: written from the same rules, what the set itself leaves open.
FIXTURES = [
    json.loads(line)
    for name in ("fixtures.jsonl", "further.jsonl")
    for line in (FOLDER / name).read_text(encoding="utf-8").split("\n")
    if line
]


@pytest.mark.parametrize("kind", sorted({fixture["kind"] for fixture in FIXTURES}))
def test_fixtures_of_a_kind_are_read_as_the_rules_say(kind: str) -> None:
    problems = {
        fixture["id"]: found
        for fixture in FIXTURES
        if fixture["kind"] == kind and (found := check(fixture, adapter, OPTIONS))
    }
    assert problems == {}

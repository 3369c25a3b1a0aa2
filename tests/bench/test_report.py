"""What is said beside a benchmark's figures, and where they are kept."""

import argparse
import json
import random
from pathlib import Path

import pytest

from bench.report import add_out, keep, p99, spread


@pytest.mark.parametrize(("count", "rank"), [(1, 1), (40, 40), (100, 99), (101, 100), (1000, 990)])
def test_p99_is_the_least_value_that_99_of_100_do_not_exceed(count: int, rank: int) -> None:
    values = [float(value) for value in range(1, count + 1)]
    random.Random(0).shuffle(values)
    assert p99(values) == rank


@pytest.mark.parametrize("arguments", [[], ["--out", "kept"]])
def test_figures_are_written_where_out_says_and_nowhere_else(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    add_out(parser)
    results = Path(__file__).parents[2] / "bench" / "results"
    keep("no_benchmark", {"cores": 2}, {"ms": spread([1.0, 2.0])}, parser.parse_args(arguments).out)
    assert not (results / "no_benchmark.json").exists()
    written = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*.json")}
    assert set(written) == ({"kept/no_benchmark.json"} if arguments else set())
    for path in written.values():
        assert json.loads(path.read_text())["ms"] == {"median": 1.5, "least": 1.0, "most": 2.0, "runs": 2}

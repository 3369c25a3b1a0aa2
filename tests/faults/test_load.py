"""Load at a smaller size than the figures that are quoted: `python -m bench.load` runs the large ones."""

from typing import Any

import pytest

from bench.load import LIVEZ, measured

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.parametrize(
    ("scenario", "flags"),
    [
        ("burst", {"streams": 1200, "tokens": 300}),
        ("soak", {"requests": 1500, "tokens": 20}),
        ("steady", {"streams": 64, "tokens": 500}),
        ("paths", {"requests": 10_000}),
        ("paths", {"requests": 2000, "gateway_workers": 2}),
        ("slow", {"readers": 50, "tokens": 4000, "write_timeout": 3.0}),
    ],
)
def test_a_gateway_bears(scenario: str, flags: dict[str, Any]) -> None:
    rows = measured(scenario, **flags)
    assert [row for row in rows if row.met is False and row.figure != LIVEZ] == []
    assert any(row.met for row in rows)


def test_a_worker_of_the_bundled_checkpoint_bears_what_a_gateway_does() -> None:
    rows = measured("soak", real=True, requests=300, tokens=12)
    assert [row for row in rows if row.met is False] == []

"""`canitoolcall probe` against the whole program: before a worker that answers as an able model would, and with the
bundled checkpoint.

Which tool weak weights choose, and whether their thinking ends, is theirs; what is asserted holds for any: every
scenario is answered, streamed as whole, by the protocol, with nothing leaked, and a forced call is valid if it is made.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from canitoolcall.probe import BUILTIN_SCENARIOS, EQUIVALENCE_CHECK, probe

from tests.e2e.conftest import Start
from tests.e2e.server_process import MODEL, ROOT

# What a model may do wrong by itself.
_OF_THE_MODEL = ("expected", "call 0", "call 1", "call 2", "argument values lost", "get_weather call", "hint:")


@pytest.mark.e2e
def test_every_scenario_passes_streamed_and_whole(start_server: Start, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/worker"
    command = [sys.executable, "-m", "tests.support.probe_worker", "--listen", address]
    with subprocess.Popen(command, cwd=ROOT) as worker:
        try:
            report = probe(start_server("--worker", address).base_url, MODEL, timeout_s=60)
        finally:
            worker.kill()
    assert len(BUILTIN_SCENARIOS) == 9
    assert report.summary() == {"pass": 3 * 9, "fail": 0, "error": 0, "skip": 0}, report.render_text()


@pytest.mark.slow
def test_every_scenario_is_answered_by_the_protocol(start_server: Start) -> None:
    server = start_server("--max-model-len", "1024")  # an answer that finds no end comes to one
    report = probe(server.base_url, MODEL, timeout_s=120)
    assert len({one.scenario_id for one in report.outcomes}) == 9
    shown = report.render_text()
    assert not {one.status for one in report.outcomes} & {"error", "skip"}, shown
    for one in report.outcomes:
        if one.check == EQUIVALENCE_CHECK:
            assert one.status == "pass", shown
        elif one.scenario_id == "forced-tool-choice":
            assert one.status == "pass" or (one.detail or "").startswith("expected at least 1 tool call"), shown
        elif one.status == "fail":
            assert all(part.startswith(_OF_THE_MODEL) for part in (one.detail or "").split("; ")), shown
    print(shown)  # noqa: T201 for `pytest -s`

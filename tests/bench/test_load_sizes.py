"""Loads of a size that would show nothing are refused, and a probe has an answer however soon it is told to end."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from bench.load import LEAST_PROBED_S, LoadError, measured, probed_for_s
from bench.report import ROOT


def test_steady_streams_last_as_long_as_they_are_to_be_probed() -> None:
    assert probed_for_s(streams=64, tokens=500) == pytest.approx(500 / 50 - 0.64 - 2)
    assert probed_for_s(streams=64, tokens=332) == pytest.approx(LEAST_PROBED_S)


@pytest.mark.parametrize(
    ("scenario", "flags", "told"),
    [
        ("steady", {"tokens": 331}, "64 streams can be probed for 4 s with --tokens ≥ 332, got 331"),
        ("steady", {"streams": 250, "tokens": 50}, "--tokens ≥ 425, got 50"),
        ("overhead", {"rounds": 2}, "--rounds must be ≥ 3, got 2"),
    ],
)
def test_sizes_that_show_nothing_are_refused_before_a_server_is_started(
    scenario: str, flags: dict[str, Any], told: str
) -> None:
    with pytest.raises(LoadError, match=told):
        measured(scenario, **flags)


class _Alive(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.e2e
def test_a_probe_that_is_told_to_end_at_once_has_asked_once() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Alive) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            command = [sys.executable, "-m", "bench.load_probe", str(server.server_port)]
            said = subprocess.run(command, input="end\n", capture_output=True, text=True, cwd=ROOT, check=True).stdout
        finally:
            server.shutdown()
            thread.join()
    p50_ms, p99_ms, count = json.loads(said)
    assert 0 < p50_ms <= p99_ms
    assert count >= 1

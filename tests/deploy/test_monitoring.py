"""A real Prometheus, set up as for the compose file, reads a real server: the dashboard's queries find figures."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.deploy.tools import ROOT, free_port, unpacked
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.slow

FOLDER = ROOT / "deploy" / "prometheus"
WAIT_S = 90.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path / "server.log")
    yield process
    process.kill()


@pytest.fixture
def prometheus(server: ServerProcess, tmp_path: Path) -> Iterator[str]:
    """Its address."""
    settings = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
    [job] = settings["scrape_configs"]
    job["static_configs"][0]["targets"] = [server.url.removeprefix("http://").replace("localhost", "127.0.0.1")]
    settings["rule_files"] = [str(FOLDER / name) for name in settings["rule_files"]]
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    command = [
        str(unpacked("prometheus", "prometheus")),
        f"--config.file={file}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address={address}",
    ]
    with (tmp_path / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    yield f"http://{address}"
    process.terminate()
    process.wait(30)


def ask(prometheus: str, path: str, **query: str) -> Any:
    try:
        reply = httpx.get(f"{prometheus}/api/v1/{path}", params=query, timeout=10)
    except httpx.TransportError:  # it has not begun to listen
        return None
    return reply.json()["data"] if reply.status_code == httpx.codes.OK else None


def test_every_query_of_the_dashboard_finds_figures_and_no_alert_fires(
    server: ServerProcess, prometheus: str, dashboard: dict[str, Any]
) -> None:
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    asked = {query: query.replace("$__rate_interval", "1m").replace("$__range", "1h") for query in queries}
    deadline_s = time.monotonic() + WAIT_S
    empty = list(queries)
    while empty:
        assert time.monotonic() < deadline_s, f"nothing is found by {empty}"
        server.post("/v1/chat/completions", messages=[{"role": "user", "content": "What is 12 + 30?"}])
        server.post("/v1/chat/completions", messages=[])  # an error, for the panel that shows them
        time.sleep(1)
        empty = [query for query in empty if not (ask(prometheus, "query", query=asked[query]) or {}).get("result")]
    [target] = ask(prometheus, "targets")["activeTargets"]
    assert (target["health"], target["labels"]["job"]) == ("up", "dots3")
    [group] = ask(prometheus, "rules")["groups"]
    assert {(rule["health"], rule["state"]) for rule in group["rules"]} == {("ok", "inactive")}

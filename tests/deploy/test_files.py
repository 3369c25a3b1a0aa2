"""The files of the deployment pass the linters of the programs that will read them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.tools import ROOT, call, installed, unpacked

pytestmark = pytest.mark.slow


def in_this_environment(program: str) -> Path:
    return Path(sys.executable).with_name(program)


@pytest.fixture(scope="module")
def promtool() -> Path:
    return unpacked("promtool", "prometheus")


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    assert call(in_this_environment("hadolint"), "--failure-threshold", "info", "Dockerfile") == ""


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_docker_compose_reads_the_compose_file(profile: str) -> None:
    shown = call(installed("docker-compose", "docker-compose"), "--profile", profile, "config")
    services = yaml.safe_load(shown)["services"]
    active = {name for name, service in services.items() if profile in service["profiles"]}
    suffix = "-cpu" if profile == "cpu" else ""
    assert active == {f"gateway{suffix}", f"worker{suffix}", "prometheus", "grafana"}
    for name in (f"gateway{suffix}", f"worker{suffix}"):
        assert services[name]["read_only"] is True
        assert Path(next(v["source"] for v in services[name]["volumes"] if v["target"] == "/model")).is_dir()


def test_prometheus_accepts_its_configuration_and_rules(promtool: Path) -> None:
    call(promtool, "check", "config", "deploy/prometheus/prometheus.yml")
    assert "SUCCESS: 5 rules found" in call(promtool, "check", "rules", "deploy/prometheus/alerts.yml")


def test_each_alert_fires_on_its_trouble_alone(promtool: Path) -> None:
    call(promtool, "test", "rules", "tests/deploy/alerts_test.yml")


def test_prometheus_can_read_every_query_of_the_dashboard(
    promtool: Path, dashboard: dict[str, Any], tmp_path: Path
) -> None:
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(queries) > 30
    rules = [
        {"record": f"panel:{place}", "expr": query.replace("$__rate_interval", "1m").replace("$__range", "1h")}
        for place, query in enumerate(queries)
    ]
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")
    assert f"SUCCESS: {len(queries)} rules found" in call(promtool, "check", "rules", file)


def test_the_manifests_are_valid_kubernetes() -> None:
    manifests = [f"deploy/kubernetes/cpu/{name}.yaml" for name in ("deployment", "service")]
    call(in_this_environment("kubernetes-validate"), "--strict", *manifests, timeout_s=120)


def test_a_build_sends_only_what_the_image_is_made_of() -> None:
    """The context as Docker reads it, as far as git does not ignore it."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sent = [line.removeprefix("!") for line in lines if line.startswith("!")]
    files = call("git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *sent).splitlines()
    assert {"pyproject.toml", "README.md", "deploy/healthcheck.py"} <= set(files)
    assert sum(os.path.getsize(ROOT / file) for file in files) < 64 * 2**20

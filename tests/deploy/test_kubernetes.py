"""What the manifests must say for the server to be probed, drained and watched."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from server.middleware import PROBES
from server.settings import load_settings
from tests.deploy.tools import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"


def read(name: str) -> dict[str, Any]:
    content = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    spec = read("cpu/deployment.yaml")["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


@pytest.fixture(scope="module")
def server(pod: dict[str, Any]) -> dict[str, Any]:
    [container] = pod["containers"]
    assert isinstance(container, dict)
    return container


def test_probes_ask_paths_that_need_no_key(server: dict[str, Any]) -> None:
    paths = {kind: server[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
    assert set(paths.values()) <= PROBES


def test_the_pod_is_not_killed_before_it_has_drained(pod: dict[str, Any], server: dict[str, Any]) -> None:
    [_, pause_s] = server["lifecycle"]["preStop"]["exec"]["command"]
    environ = {variable["name"]: variable["value"] for variable in server["env"] if "value" in variable}
    grace_s = load_settings({}, environ).grace_period
    assert pod["terminationGracePeriodSeconds"] >= float(pause_s) + grace_s + 10


def test_kubernetes_adds_no_variable_that_would_be_taken_for_a_setting(pod: dict[str, Any]) -> None:
    assert read("cpu/service.yaml")["metadata"]["name"] == "dots3"
    assert pod["enableServiceLinks"] is False


def test_the_pod_has_no_more_rights_than_it_needs(pod: dict[str, Any], server: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["automountServiceAccountToken"] is False
    assert server["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {mount["mountPath"] for mount in server["volumeMounts"]} == {"/tmp", "/dev/shm"}


def test_service_and_pod_monitor_find_the_pods(server: dict[str, Any]) -> None:
    labels = read("cpu/deployment.yaml")["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"] for port in server["ports"]}
    service = read("cpu/service.yaml")["spec"]
    monitor = read("podmonitor.yaml")["spec"]
    assert service["selector"] == labels == monitor["selector"]["matchLabels"]
    assert {port["targetPort"] for port in service["ports"]} <= ports
    [endpoint] = monitor["podMetricsEndpoints"]
    assert (endpoint["port"] in ports, endpoint["path"]) == (True, "/metrics")


def test_the_gpu_variant_changes_the_same_container(server: dict[str, Any]) -> None:
    patch = read("gpu/deployment-patch.yaml")
    base = read("cpu/deployment.yaml")
    assert [patch[key] for key in ("apiVersion", "kind")] == [base[key] for key in ("apiVersion", "kind")]
    assert patch["metadata"]["name"] == base["metadata"]["name"]
    [container] = patch["spec"]["template"]["spec"]["containers"]
    assert container["name"] == server["name"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    environ = {variable["name"]: variable["value"] for variable in container["env"]}
    assert load_settings({}, environ).model_names == ("dots3-note",)

"""What docker-compose.yml must say for gateway and worker to find each other, stay well and stop in order."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from server.settings import load_settings
from tests.deploy.tools import ROOT

USER = "10001"


def seconds(text: str) -> int:
    found = re.fullmatch(r"([0-9]+)s", text)
    assert found, f"must be a number of seconds, got {text}"
    return int(found[1])


@pytest.fixture(params=["", "-cpu"], ids=["gpu", "cpu"])
def pair(request: pytest.FixtureRequest, compose: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    services = compose["services"]
    return services[f"gateway{request.param}"], services[f"worker{request.param}"]


def test_gateway_and_worker_share_socket_media_and_checkpoint(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    gateway, worker = pair
    address = worker["command"][worker["command"].index("--listen") + 1]
    assert address.startswith("ipc:///run/dots3/")
    assert gateway["command"] == ["serve", "--worker", address]
    model = worker["command"][worker["command"].index("--model") + 1]
    for service in pair:
        volumes = [volume for volume in service["volumes"] if isinstance(volume, str)]
        assert set(volumes) == {"run:/run/dots3", "shm:/dev/shm"}
        [checkpoint] = [volume for volume in service["volumes"] if not isinstance(volume, str)]
        assert (checkpoint["target"], checkpoint["read_only"]) == (model, True)
    assert gateway["environment"]["DOTS3_MODEL"] == model


def test_the_shared_memory_belongs_to_the_user_of_the_images(compose: dict[str, Any]) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert set(re.findall(r"^USER (.*)$", dockerfile, re.MULTILINE)) == {f"{USER}:{USER}"}
    for name in ("run", "shm"):
        assert compose["volumes"][name]["driver_opts"]["type"] == "tmpfs"
    assert f"uid={USER},gid={USER}" in compose["volumes"]["run"]["driver_opts"]["o"]
    assert "mode=1777" in compose["volumes"]["shm"]["driver_opts"]["o"]


def test_the_gateway_stops_first_and_has_time_for_its_grace_period(
    pair: tuple[dict[str, Any], dict[str, Any]], compose: dict[str, Any]
) -> None:
    gateway, worker = pair
    [dependency] = gateway["depends_on"]
    assert compose["services"][dependency] is worker or compose["services"][dependency] == worker
    assert seconds(gateway["stop_grace_period"]) >= float(gateway["environment"]["DOTS3_GRACE_PERIOD"]) + 10
    assert seconds(worker["stop_grace_period"]) >= 10


def test_no_service_has_more_rights_than_it_needs(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    for service in pair:
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["restart"] == "unless-stopped"
        # Docker mounts it without `exec` by default, and then no compiled kernel can be loaded.
        assert service["tmpfs"] == ["/tmp:exec,mode=1777"]


def test_only_the_gpu_profile_asks_for_a_gpu(compose: dict[str, Any]) -> None:
    with_gpu = {name: service for name, service in compose["services"].items() if "deploy" in service}
    assert with_gpu.keys() == {"worker"}
    [device] = with_gpu["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert with_gpu["worker"]["build"]["args"] == {"DEVICE": "cuda"}


def test_every_service_belongs_to_a_profile_and_every_image_is_pinned(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert set(service["profiles"]) <= {"cpu", "gpu"}, name
        tag = service["image"].partition(":")[2]
        assert tag, name
        assert tag != "latest", name


def test_ports_are_open_to_this_machine_alone_unless_it_is_told_otherwise(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert len(ports) == 4
    assert all(port.startswith("${BIND:-127.0.0.1}:") for port in ports)


def test_the_gateway_takes_its_settings(compose: dict[str, Any]) -> None:
    environ = {name: default_of(value) for name, value in compose["x-gateway"]["environment"].items()}
    settings = load_settings({"worker": ["ipc:///run/dots3/worker"]}, environ)
    assert settings.model_names == ("dots3-note-tiny",)


def default_of(text: str) -> str:
    """`${NAME:-value}` becomes its value."""
    return re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", text)


def test_prometheus_asks_the_gateway_where_it_listens(compose: dict[str, Any]) -> None:
    content = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    [job] = content["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["gateway:8000"]}]
    assert compose["services"]["gateway-cpu"]["networks"]["default"]["aliases"] == ["gateway"]
    assert (ROOT / "deploy" / "prometheus" / content["rule_files"][0]).is_file()


def test_grafana_is_provisioned_from_files_that_are_there(compose: dict[str, Any]) -> None:
    grafana = compose["services"]["grafana"]
    mounts = dict(volume.split(":")[:2] for volume in grafana["volumes"] if volume.startswith("./"))
    inside = {target: ROOT / source for source, target in mounts.items()}
    assert all(folder.is_dir() for folder in inside.values())
    dashboards = inside["/etc/dots3/dashboards"]
    [provider] = yaml.safe_load(
        (inside["/etc/grafana/provisioning"] / "dashboards" / "dots3.yml").read_text(encoding="utf-8")
    )["providers"]
    assert provider["options"]["path"] == "/etc/dots3/dashboards"
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (dashboards / home.rpartition("/")[2]).is_file()

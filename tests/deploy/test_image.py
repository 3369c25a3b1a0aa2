"""The images are built as a user would build them, started with a read-only root, asked a chat, and stopped."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.deploy.container import Container
from tests.deploy.images import Images
from tests.deploy.tools import CACHE, ROOT, call, free_port, installed
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.slow

MODEL = "dots3-note-tiny"
READY_S = 120.0
STOP_S = 45.0  # docker-compose.yml's stop_grace_period

StartContainer = Callable[..., Container]


@pytest.fixture(scope="module")
def server_image(images: Images) -> str:
    return images.build("server")


@pytest.fixture(scope="module")
def gateway_image(images: Images) -> str:
    return images.build("gateway")


@pytest.fixture
def start(images: Images) -> Iterator[StartContainer]:
    running: list[Container] = []

    def begin(image: str, name: str, command: list[str], **options: Any) -> Container:
        running.append(Container(images, image, name, command, **options))
        return running[-1]

    yield begin
    for container in reversed(running):
        container.close()


def wait_until_ready(container: Container, url: str) -> float:
    """Seconds since its start."""
    while time.monotonic() - container.started_at < READY_S:
        assert container.process.poll() is None, f"it ended:\n{container.said()}"
        try:
            if httpx.get(f"{url}/readyz", timeout=2).status_code == httpx.codes.OK:
                return time.monotonic() - container.started_at
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"not ready within {READY_S} s:\n{container.said()}")


def start_outside(log: Path) -> float:
    """Seconds to readiness without a container, just after: what the machine's other work leaves of its speed."""
    began_s = time.monotonic()
    server = ServerProcess(log)
    ready_s = time.monotonic() - began_s
    server.terminate()
    server.kill()
    return ready_s


def assert_chat_is_answered(url: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "What is 12 + 30?"}], "temperature": 0}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert reply.status_code == httpx.codes.OK, reply.text
    [choice] = reply.json()["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"].strip()


def pins_in(lines: Iterable[str]) -> dict[str, str]:
    """Names as packaging compares them, to versions."""
    pairs = (line.partition("==") for line in lines if "==" in line)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, _, version in pairs}


def assert_every_package_is_pinned(container: Container) -> None:
    listed = container.call("pip", "list", "--format=freeze")
    assert listed.returncode == 0, listed.stderr
    direct = call(sys.executable, "deploy/requirements.py", "tracing").splitlines()
    pinned = pins_in([*direct, *(ROOT / "deploy" / "constraints.txt").read_text(encoding="utf-8").splitlines()])
    others = pins_in(listed.stdout.splitlines()).items() - pinned.items()
    # The project itself, what the base image brought, and torch, which the Dockerfile reads from pyproject.toml.
    assert {name for name, _ in others} == {"dots3", "pip", "torch"}, f"constraints.txt: {sorted(others)}"


def test_the_image_says_how_it_is_run(images: Images, server_image: str, gateway_image: str) -> None:
    for image in (server_image, gateway_image):
        config = images.config(image)
        assert config.user == "10001:10001"
        assert config.command == ["dots3", "serve"]
        assert config.ports == ["8000/tcp"]
        assert config.env["DOTS3_HOST"] == "0.0.0.0"


def test_the_image_serves_a_chat_from_a_read_only_root_and_stops_in_order(
    images: Images, server_image: str, start: StartContainer, figures: dict[str, Any], tmp_path: Path
) -> None:
    config = images.config(server_image)
    port = free_port()
    container = start(server_image, "server", config.command, env={"DOTS3_PORT": str(port)})
    url = f"http://127.0.0.1:{port}"

    ready_s = wait_until_ready(container, url)
    assert container.root_is_read_only()
    assert_chat_is_answered(url)
    checked = container.call(*config.health_check)
    assert checked.returncode == 0, checked.stderr
    [worker] = httpx.get(f"{url}/health", timeout=10).json()["workers"]

    asked_s = time.monotonic()
    assert container.stop(STOP_S) == 0, container.said()
    stop_s = time.monotonic() - asked_s
    assert not Path(f"/proc/{worker['pid']}").exists(), "the worker outlives its server"
    assert container.call(*config.health_check).returncode == 1
    assert_every_package_is_pinned(container)
    figures["server"] = {
        "image_bytes": container.num_bytes,
        "ready_s": ready_s,
        "ready_outside_a_container_s": start_outside(tmp_path / "server.log"),
        "stop_s": stop_s,
    }


def test_gateway_and_worker_speak_over_a_socket_as_in_the_compose_file(
    gateway_image: str, server_image: str, start: StartContainer, figures: dict[str, Any]
) -> None:
    compose = call(installed("docker-compose", "docker-compose"), "--profile", "cpu", "config")
    services = yaml.safe_load(compose)["services"]
    sockets = CACHE / "sockets"
    sockets.mkdir(parents=True, exist_ok=True)
    os.chown(sockets, 10001, 10001)
    folders = {ROOT / "models" / MODEL: "/model", sockets: "/run/dots3"}
    port = free_port()

    def run(service: str, image: str, **env: str) -> Container:
        described = services[service]
        environ = described.get("environment", {}) | env
        return start(image, service, ["dots3", *described["command"]], env=environ, folders=folders)

    # In the order that the compose file asks for.
    worker = run("worker-cpu", server_image)
    gateway = run("gateway-cpu", gateway_image, DOTS3_PORT=str(port))
    url = f"http://127.0.0.1:{port}"
    ready_s = wait_until_ready(gateway, url)
    assert_chat_is_answered(url)
    assert gateway.root_is_read_only()
    assert worker.root_is_read_only()
    assert "No module named 'torch'" in gateway.call("python3", "-c", "import torch").stderr

    assert gateway.stop(STOP_S) == 0, gateway.said()
    assert worker.stop(STOP_S) == 0, worker.said()
    figures["gateway"] = {"image_bytes": gateway.num_bytes, "ready_beside_its_worker_s": ready_s}

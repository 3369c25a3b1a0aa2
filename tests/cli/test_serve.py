"""`dots3 serve` before it serves: its options are the settings, and what cannot be is refused by name."""

import dataclasses
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from server.settings import Settings


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["serve", *args])
    return result.exit_code, result.output


def test_every_setting_is_an_option() -> None:
    code, text = run("--help")
    assert code == 0
    for field in dataclasses.fields(Settings):
        name = field.name.replace("_", "-")
        assert (f"--{name}" in text) or (name == "model" and "[MODEL]" in text.upper())
    assert "--config" in text
    assert "--no-enable-prefix-caching" in text


@pytest.mark.parametrize("told", ["as if one [1]", "layer [1]", "alike [on]", "graphs [off]", "listen on [127.0.0.1]"])
def test_defaults_are_told_as_they_would_be_given(told: str) -> None:
    assert told in " ".join(run("--help")[1].split())


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--port", "99999"], "--port must be an integer from 0 to 65535, got '99999'"),
        (["--device", "tpu"], "--device must be one of auto, cpu, cuda, got 'tpu'"),
        (["--attention-data-parallel"], "--attention-data-parallel needs --tensor-parallel-size of at least 2, got 1"),
        (["--vllm-args", "--block-size 16"], "--vllm-args needs --engine vllm, got --engine native"),
        (["--engine", "vllm", "--worker", "ipc:///w"], "--engine vllm starts a worker, --worker connects to one"),
        (["--speculative-tokens", "4"], "--speculative-tokens must be an integer from 0 to 3, got '4'"),
        (["--gateway-workers", "0"], "--gateway-workers must be an integer from 1 to 256, got '0'"),
        (["--allowed-local-media-path", "/nowhere"], "--allowed-local-media-path must be a folder, got '/nowhere'"),
        (["--ssl-certfile", __file__], "--ssl-certfile and --ssl-keyfile"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(args: list[str], told: str) -> None:
    code, text = run(*args)
    assert code == 2
    assert told in text


def test_an_unknown_option_is_refused() -> None:
    code, text = run("--prot", "9000")
    assert code == 2
    assert "--prot" in text


def test_an_unknown_key_of_the_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "dots3.yaml").write_text("max-num-seq: 4\n")
    code, text = run("--config", str(tmp_path / "dots3.yaml"))
    assert code == 2
    assert "max_num_seq in" in text


@pytest.mark.e2e
def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    code, _ = run(str(tmp_path))
    assert code == 2


@pytest.mark.e2e
def test_a_port_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _ = run("--port", str(taken.getsockname()[1]))
    assert code == 2

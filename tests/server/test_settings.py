"""Settings: where values come from, which rank they have, and that a wrong one stops the start by name."""

from pathlib import Path
from typing import Any

import pytest

from server.settings import BUNDLED_MODEL, SettingsError, load_settings


def test_without_anything_the_defaults_hold() -> None:
    settings = load_settings({}, {})
    assert (settings.host, settings.port, settings.unknown_fields) == ("127.0.0.1", 8000, "refuse")
    assert settings.model == str(BUNDLED_MODEL)
    assert settings.model_names == ("dots3-note-tiny",)
    assert settings.keys == ()


def test_a_flag_beats_the_environment_and_that_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "dots3.yaml"
    file.write_text("port: 1\nmax-queue: 1\nmax_num_seqs: 1\nserved-model-name: [a, b]\n")
    settings = load_settings({"config": str(file), "port": 3}, {"DOTS3_PORT": "2", "DOTS3_MAX_QUEUE": "2", "PATH": "/"})
    assert (settings.port, settings.max_queue, settings.max_num_seqs) == (3, 2, 1)
    assert settings.model_names == ("a", "b")


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "dots3.yaml"
    file.write_text("port: 1\n")
    assert load_settings({}, {"DOTS3_CONFIG": str(file)}).port == 1


@pytest.mark.parametrize(
    ("flags", "environ", "named"),
    [
        ({"port": "x"}, {}, ["--port", "'x'"]),
        ({"port": 70000}, {}, ["--port", "70000"]),
        ({"port": True}, {}, ["--port"]),
        ({}, {"DOTS3_PORT": "-1"}, ["DOTS3_PORT", "'-1'"]),
        ({}, {"DOTS3_PROT": "1"}, ["DOTS3_PROT", "'1'"]),
        ({"gpu_memory_utilization": "1.5"}, {}, ["--gpu-memory-utilization", "1.5"]),
        ({"gpu_memory_utilization": "nan"}, {}, ["--gpu-memory-utilization", "nan"]),
        ({"dtype": "float64"}, {}, ["--dtype", "float64", "bfloat16"]),
        ({"enable_prefix_caching": "perhaps"}, {}, ["--enable-prefix-caching", "perhaps"]),
        ({"kv_cache_memory_bytes": "4 apples"}, {}, ["--kv-cache-memory-bytes", "4 apples"]),
        ({"allowed_origins": ["example.com/x"]}, {}, ["--allowed-origins", "example.com/x"]),
        ({"request_timeout": 0}, {}, ["--request-timeout", "0"]),
        ({"host": ""}, {}, ["--host"]),
        ({"api_key_file": "/nowhere/at/all"}, {}, ["--api-key-file", "/nowhere/at/all"]),
        ({"quantization": "fp8"}, {}, ["--quantization", "fp8"]),
        ({"attention_data_parallel": True}, {}, ["--attention-data-parallel", "--tensor-parallel-size", "got 1"]),
        (
            {"attention_data_parallel": True, "tensor_parallel_size": 2, "engine": "vllm"},
            {},
            ["--attention-data-parallel", "--data-parallel-size"],
        ),
        ({"ssl_certfile": __file__}, {}, ["--ssl-certfile", "--ssl-keyfile"]),
        ({"otlp_traces_endpoint": "collector:4318"}, {}, ["--otlp-traces-endpoint", "'collector:4318'"]),
        ({"max_concurrency_per_key": 2}, {}, ["--max-concurrency-per-key", "--api-key"]),
        ({"config": "/nowhere/at/all"}, {}, ["/nowhere/at/all"]),
    ],
)
def test_a_wrong_value_stops_the_start_and_is_named_with_its_source(
    flags: dict[str, Any], environ: dict[str, str], named: list[str]
) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, environ)
    assert all(part in str(caught.value) for part in named), caught.value


def test_fp8_cache_rows_may_be_asked_for() -> None:
    assert load_settings({}, {"DOTS3_KV_CACHE_DTYPE": "fp8"}).kv_cache_dtype == "fp8"
    with pytest.raises(SettingsError, match=r"--kv-cache-dtype must be .*auto.*fp8.*'int4'"):
        load_settings({"kv_cache_dtype": "int4"}, {})


@pytest.mark.parametrize("text", ["prot: 1\n", "port: many\n", "- port\n", "port: [1\n", "1: 2\n"])
def test_a_wrong_file_stops_the_start_and_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "dots3.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=r"dots3\.yaml"):
        load_settings({"config": str(file)}, {})


def test_sizes_and_switches_are_read_from_text() -> None:
    settings = load_settings({}, {"DOTS3_KV_CACHE_MEMORY_BYTES": "4GiB", "DOTS3_ENABLE_PREFIX_CACHING": "no"})
    assert settings.kv_cache_memory_bytes == 4 * 2**30
    assert settings.enable_prefix_caching is False


def test_keys_come_from_flags_and_file_and_are_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nsecret-b\n\n")
    settings = load_settings({"api_key": ["secret-a"], "api_key_file": str(file)}, {})
    assert settings.keys == ("secret-a", "secret-b")
    assert "secret" not in repr(settings)
    file.write_text("# none yet\n")
    with pytest.raises(SettingsError, match="must hold at least one key"):
        load_settings({"api_key_file": str(file)}, {})
    file.write_bytes(b"secret-\xff\n")
    with pytest.raises(SettingsError, match="printable ASCII"):
        load_settings({"api_key_file": str(file)}, {})
    for environ in ({"DOTS3_API_KEY": "secret with spaces"}, {"DOTS3_API_KEYS": "secret"}):
        with pytest.raises(SettingsError) as caught:
            load_settings({}, environ)
        assert "secret" not in str(caught.value)

"""Every knob of the gateway, frozen: from flags, `DOTS3_…` in the environment and a YAML file, in this order of rank.

The only file of the gateway that reads the environment. An unknown key or bad value stops the start and is named with
its source. Knows nothing of what the knobs are for.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from engine.config.engine import MAX_SPECULATIVE_TOKENS
from server.option_values import (
    Parser,
    boolean,
    choice,
    folder,
    fraction,
    many,
    memory_size,
    origin,
    origin_and_path,
    readable_file,
    seconds,
    text,
    whole,
)

ENV_PREFIX = "DOTS3_"
BUNDLED_MODEL = Path(__file__).resolve().parents[1] / "models" / "dots3-note-tiny"
_PORT_MAX = 65535


class SettingsError(ValueError):
    """A key or value that stops the start; the message names both and where they came from."""


def _option(default: Any, parse: Parser, help_text: str, secret: bool = False) -> Any:
    metadata = {"parse": parse, "help": help_text, "secret": secret}
    return dataclasses.field(default=default, repr=not secret, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    model: str = _option(str(BUNDLED_MODEL), text, "checkpoint folder")
    host: str = _option("127.0.0.1", text, "address to listen on")
    port: int = _option(8000, whole(0, _PORT_MAX), "port to listen on; 0: any free one")
    uds: str | None = _option(None, text, "listen on this Unix socket instead")
    served_model_name: tuple[str, ...] = _option((), many(text), "names that requests may use; default: the folder's")

    device: str = _option("auto", choice("auto", "cpu", "cuda"), "where the model runs")
    dtype: str = _option("auto", choice("auto", "bfloat16", "float32"), "of weights and activations")
    quantization: str = _option("auto", choice("auto", "none", "fp8"), "of the weights")
    kv_cache_dtype: str = _option("auto", choice("auto", "fp8"), "of the cached rows; fp8 takes about half")
    max_model_len: int | None = _option(None, whole(1), "tokens of prompt and answer together")
    max_num_seqs: int | None = _option(None, whole(1), "sequences that run at once")
    max_num_batched_tokens: int | None = _option(None, whole(1), "tokens of one step")
    gpu_memory_utilization: float = _option(0.9, fraction, "share of the GPU's memory that may be used")
    kv_cache_memory_bytes: int | None = _option(None, memory_size, "memory for cached rows")
    enable_prefix_caching: bool = _option(True, boolean, "reuse the rows of prompts that begin alike")
    enforce_eager: bool = _option(False, boolean, "capture no graphs")
    tensor_parallel_size: int = _option(1, whole(1, 64), "GPUs that share every layer")
    enable_expert_parallel: bool = _option(False, boolean, "experts are spread over the GPUs")
    attention_data_parallel: bool = _option(False, boolean, "every GPU attends for, and caches, its own sequences")
    speculative_tokens: int | None = _option(
        None,
        whole(0, MAX_SPECULATIVE_TOKENS),
        "drafted at most for each step of a sequence; default: what dots3 plan recommends",
    )
    seed: int | None = _option(None, whole(0, 2**63 - 1), "of requests that bring none")

    engine: str = _option("native", choice("native", "vllm"), "which worker runs the model")
    vllm_args: str | None = _option(None, text, "further arguments of a vLLM worker")
    worker_python: str | None = _option(None, text, "the Python that runs the worker")
    worker: tuple[str, ...] = _option((), many(text), "connect to this worker instead of starting one")
    wire_key: str | None = _option(None, readable_file, "key file of the channel to the workers")
    gateway_workers: int = _option(1, whole(1, 256), "gateway processes on one port, limits as if one")

    api_key: tuple[str, ...] = _option((), many(text), "a key that clients may use", secret=True)
    api_key_file: str | None = _option(None, readable_file, "file with one key a line")
    max_concurrency_per_key: int | None = _option(None, whole(1), "requests of one key at once")
    allowed_origins: tuple[str, ...] = _option((), many(origin), "web origins that may call; *: all")
    allowed_media_domains: tuple[str, ...] = _option((), many(text), "hosts that media may be fetched from")
    allowed_local_media_path: str | None = _option(None, folder, "folder that file: media may be read from")
    max_queue: int = _option(512, whole(0), "sequences that may wait")
    max_queue_tokens: int = _option(4 * 2**20, whole(1), "prompt tokens of all requests that run or wait")
    max_connections: int = _option(8192, whole(1), "open connections of a gateway process")
    max_body_bytes: int = _option(100 * 2**20, memory_size, "size of a request body")
    request_timeout: float = _option(1800.0, seconds, "for a whole request")
    write_timeout: float = _option(60.0, seconds, "for a client to take what was written, or to send more")
    grace_period: float = _option(30.0, seconds, "for running requests when the server stops")
    unknown_fields: str = _option("refuse", choice("refuse", "ignore"), "unknown top-level fields of a request")

    tool_call_parser: str = _option("dots", choice("dots"), "how tool calls are read")
    reasoning_parser: str = _option("dots", choice("dots"), "how thinking is read")
    chat_template: str | None = _option(None, readable_file, "a chat template instead of the checkpoint's")
    log_level: str = _option("info", choice("debug", "info", "warning", "error"), "what is logged")
    log_format: str = _option("text", choice("text", "json"), "how it is logged")
    otlp_traces_endpoint: str | None = _option(None, origin_and_path, "where traces go, as OTLP over HTTP")
    ssl_certfile: str | None = _option(None, readable_file, "certificate, for HTTPS")
    ssl_keyfile: str | None = _option(None, readable_file, "its key")

    @cached_property
    def model_names(self) -> tuple[str, ...]:
        """What requests may call the model; the first is the one that answers carry."""
        return self.served_model_name or (Path(self.model).resolve().name,)

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that clients may use; empty: none is asked for."""
        if self.api_key_file is None:
            return self.api_key
        lines = Path(self.api_key_file).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        return (*self.api_key, *(line.strip() for line in lines if line.strip() and not line.startswith("#")))


_FIELDS = {field.name: field for field in dataclasses.fields(Settings)}
# Taken by the command line already, built later. Other values than these stop the start rather than have no effect.
_ONLY_YET: dict[str, tuple[Any, ...]] = {
    "quantization": ("auto", "none"),
}


def load_settings(flags: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings:
    """`flags`: those that were given, by field name; `config` among them names the file."""
    environ = os.environ if environ is None else environ
    config = flags.get("config") or environ.get(ENV_PREFIX + "CONFIG")
    values: dict[str, Any] = {}
    if config is not None:
        values |= _parsed(_read_file(str(config)), lambda name: f"{name} in {config}")
    from_environ = {
        name[len(ENV_PREFIX) :].lower(): value for name, value in environ.items() if name.startswith(ENV_PREFIX)
    }
    values |= _parsed(from_environ, lambda name: ENV_PREFIX + name.upper())
    values |= _parsed(flags, lambda name: "--" + name.replace("_", "-"))
    settings = Settings(**values)
    _check_together(settings)
    return settings


def _read_file(path: str) -> dict[str, Any]:
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"--config {path}: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise SettingsError(f"--config {path}: must hold one mapping of option names to values")
    return {key.replace("-", "_"): value for key, value in content.items()}


def _parsed(given: Mapping[str, Any], named: Any) -> dict[str, Any]:
    values = {}
    for name, raw in given.items():
        if name == "config" or raw is None:
            continue
        field = _FIELDS.get(name)
        if field is None:
            given_text = "" if "key" in name else f" (value given: {str(raw)[:100]!r})"
            raise SettingsError(f"{named(name)}: no such setting{given_text}")
        try:
            values[name] = field.metadata["parse"](raw)
        except ValueError as error:
            got = "" if field.metadata["secret"] else f", got {str(raw)[:100]!r}"
            raise SettingsError(f"{named(name)} must be {error}{got}") from error
        if name in _ONLY_YET and values[name] not in _ONLY_YET[name]:
            raise SettingsError(f"{named(name)} {raw!r} is not supported in this version")
    return values


def _check_together(settings: Settings) -> None:
    if (settings.ssl_certfile is None) != (settings.ssl_keyfile is None):
        raise SettingsError("--ssl-certfile and --ssl-keyfile are only of use together")
    if settings.worker and settings.worker_python is not None:
        raise SettingsError("--worker-python starts a worker, --worker connects to one: give one of them")
    if settings.worker and settings.engine != "native":
        raise SettingsError(f"--engine {settings.engine} starts a worker, --worker connects to one: give one of them")
    if settings.vllm_args is not None and settings.engine != "vllm":
        raise SettingsError(f"--vllm-args needs --engine vllm, got --engine {settings.engine}")
    if settings.attention_data_parallel:
        if settings.engine == "vllm":
            raise SettingsError("--attention-data-parallel is vLLM's --data-parallel-size: give it in --vllm-args")
        if settings.tensor_parallel_size < 2:
            ranks = settings.tensor_parallel_size
            raise SettingsError(f"--attention-data-parallel needs --tensor-parallel-size of at least 2, got {ranks}")
    if settings.api_key_file is not None and not settings.keys:
        # Whoever names a file wants the server locked.
        raise SettingsError(f"--api-key-file {settings.api_key_file}: must hold at least one key, a line each")
    if settings.max_concurrency_per_key is not None and not settings.keys:
        raise SettingsError("--max-concurrency-per-key needs --api-key or --api-key-file")
    # FastAPI brings the API of OpenTelemetry, which alone makes no traces.
    has_sdk = find_spec("opentelemetry") is not None and find_spec("opentelemetry.sdk") is not None
    if settings.otlp_traces_endpoint is not None and not has_sdk:
        raise SettingsError("--otlp-traces-endpoint needs OpenTelemetry: pip install 'dots3[tracing]'")
    for key in settings.keys:
        if not key.isascii() or not key.isprintable() or " " in key:
            raise SettingsError("--api-key: every key must be printable ASCII without spaces")

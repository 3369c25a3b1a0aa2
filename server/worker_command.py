"""The command line that starts a local worker as the settings want it. Knows the worker's flags, not its code."""

from __future__ import annotations

import os
import sys

from server.settings import Settings

_PASSED_ON = (
    "device",
    "dtype",
    "kv_cache_dtype",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "seed",
    "wire_key",
    "log_level",
)


def worker_command(settings: Settings, name: str, address: str) -> list[str]:
    command = [settings.worker_python or sys.executable, "-m", "engine.runtime.worker"]
    command += ["--listen", address, "--model", settings.model, "--worker-id", name, "--parent-pid", str(os.getpid())]
    for option in _PASSED_ON:
        if (value := getattr(settings, option)) is not None:
            command += [_flag(option), str(value)]
    return [*command, _flag("enable_prefix_caching" if settings.enable_prefix_caching else "no_enable_prefix_caching")]


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")

"""The command line that starts a local worker as the settings want it. Knows the worker's flags, not its code."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from server.settings import Settings

WORKER_MODULES = {"native": "engine.runtime.worker", "vllm": "engine.vllm.worker"}
_PASSED_ON = (
    "device",
    "dtype",
    "kv_cache_dtype",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "speculative_tokens",
    "seed",
    "wire_key",
    "log_level",
    "log_format",
)


def worker_command(settings: Settings, name: str, folder: Path) -> list[str]:
    """`folder` is the gateway's own, in which the worker listens."""
    command = [settings.worker_python or sys.executable, "-m", WORKER_MODULES[settings.engine]]
    command += ["--listen", worker_address(folder, name), "--model", settings.model, "--worker-id", name]
    command += ["--parent-pid", str(os.getpid()), "--parent-folder", str(folder)]
    for option in _PASSED_ON:
        if (value := getattr(settings, option)) is not None:
            command += [_flag(option), str(value)]
    if settings.tensor_parallel_size > 1:
        command += [_flag("tensor_parallel_size"), str(settings.tensor_parallel_size)]
    for switch in ("enable_expert_parallel", "attention_data_parallel"):
        if getattr(settings, switch):
            command.append(_flag(switch))
    if settings.engine == "vllm":
        command += [_flag("enforce_eager")] * settings.enforce_eager
        # In one word, since what is in it may look like a flag.
        command += [f"{_flag('vllm_args')}={settings.vllm_args}"] * (settings.vllm_args is not None)
    return [*command, _flag("enable_prefix_caching" if settings.enable_prefix_caching else "no_enable_prefix_caching")]


def worker_address(folder: Path, name: str) -> str:
    return f"ipc://{folder}/{name}"


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")

"""The command line of a local worker carries what the settings say, and nothing that they leave open."""

import os
import sys
from pathlib import Path

from server.settings import Settings
from server.worker_command import worker_command


def test_settings_become_flags() -> None:
    settings = Settings(model="/models/m", device="cpu", max_model_len=100, seed=0, enable_prefix_caching=False)
    command = worker_command(settings, "worker-0", Path("/run/w"))
    assert command[:3] == [sys.executable, "-m", "engine.runtime.worker"]
    pairs = dict(zip(command[3:-1:2], command[4:-1:2], strict=True))
    assert pairs == {
        "--listen": "ipc:///run/w/worker-0",
        "--model": "/models/m",
        "--worker-id": "worker-0",
        "--parent-pid": str(os.getpid()),
        "--parent-folder": "/run/w",
        "--device": "cpu",
        "--dtype": "auto",
        "--kv-cache-dtype": "auto",
        "--max-model-len": "100",
        "--gpu-memory-utilization": "0.9",
        "--seed": "0",
        "--log-level": "info",
        "--log-format": "text",
    }
    assert command[-1] == "--no-enable-prefix-caching"


def test_ranks_are_asked_for_where_there_are_several() -> None:
    command = worker_command(Settings(tensor_parallel_size=4, enable_expert_parallel=True), "w", Path("/w"))
    assert command[command.index("--tensor-parallel-size") + 1] == "4"
    assert "--enable-expert-parallel" in command
    assert "--attention-data-parallel" not in command
    command = worker_command(Settings(tensor_parallel_size=4, attention_data_parallel=True), "w", Path("/w"))
    assert "--attention-data-parallel" in command


def test_fp8_cache_rows_are_asked_of_the_worker() -> None:
    command = worker_command(Settings(kv_cache_dtype="fp8"), "w", Path("/w"))
    assert command[command.index("--kv-cache-dtype") + 1] == "fp8"


def test_how_many_drafts_there_are_is_the_workers_choice_unless_it_is_said() -> None:
    assert "--speculative-tokens" not in worker_command(Settings(), "w", Path("/w"))
    command = worker_command(Settings(speculative_tokens=0), "w", Path("/w"))
    assert command[command.index("--speculative-tokens") + 1] == "0"


def test_another_python_may_run_it() -> None:
    assert worker_command(Settings(worker_python="/env/bin/python"), "w", Path("/w"))[0] == "/env/bin/python"

"""This worker's flags, and what becomes of them on vLLM's own command line. Knows nothing of vLLM's code.

The flags are those of our own engine's worker. What is none of them goes to vLLM as it is, behind everything that is
set here, so that it counts where both say something.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from engine.config.worker_flags import add_shared_flags
from engine.vllm.hosted import DOTS3

MAX_LOGPROBS = 20  # the gateway takes no more
_PASSED_ON = (
    "dtype",
    "kv_cache_dtype",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "seed",
)
# Of Dots3 NOTE, known to be good: vLLM's sparse attention has kernels for this size of block alone.
_OF_DOTS3 = ("--block-size", "64")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="dots3 worker --engine vllm",
        description="Serve a checkpoint by vLLM's engine to gateways. Further flags are vLLM's own.",
        allow_abbrev=False,  # what is cut short may be a flag of vLLM
    )
    add_shared_flags(made)
    add = made.add_argument
    add("--device", default="auto", choices=("auto", "cpu", "cuda"), help="vLLM runs where it was built for")
    add("--dtype", default="auto", choices=("auto", "bfloat16", "float32"))
    add("--enforce-eager", action="store_true")
    add("--tensor-parallel-size", type=int, default=1, metavar="N")
    add("--enable-expert-parallel", action="store_true")
    add("--speculative-tokens", type=int, default=0, metavar="N", help="drafted for each step of a sequence")
    add("--vllm-args", default="", metavar="ARGUMENTS", help="further arguments of vLLM, in one string")
    return made


def vllm_arguments(flags: argparse.Namespace, further: Sequence[str]) -> list[str]:
    """ValueError for what cannot be read."""
    try:
        last = [*shlex.split(flags.vllm_args), *further]
    except ValueError as error:
        raise ValueError(f"--vllm-args cannot be read: {error}, got {flags.vllm_args!r}") from error
    return [*_of_flags(flags), *(_OF_DOTS3 if _model_type(flags.model) == DOTS3 else ()), *last]


def _of_flags(flags: argparse.Namespace) -> Iterator[str]:
    yield from ("--model", str(flags.model))
    # Priorities count, every grammar is one that our own engine would take, and as many alternatives as a gateway asks.
    yield from ("--scheduling-policy", "priority", "--max-logprobs", str(MAX_LOGPROBS))
    yield from ("--structured-outputs-config", json.dumps({"backend": "guidance"}))
    for option in _PASSED_ON:
        if (value := getattr(flags, option)) is not None:
            yield from (_flag(option), str(value))
    yield _flag("enable_prefix_caching" if flags.enable_prefix_caching else "no_enable_prefix_caching")
    yield from ("--tensor-parallel-size", str(flags.tensor_parallel_size))
    for switch in ("enforce_eager", "enable_expert_parallel"):
        if getattr(flags, switch):
            yield _flag(switch)
    if flags.speculative_tokens:
        drafts = {"method": "mtp", "num_speculative_tokens": flags.speculative_tokens}
        yield from ("--speculative-config", json.dumps(drafts))


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


def _model_type(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")

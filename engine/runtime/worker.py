"""The worker's process: flags → engine → Ready → loop → ordered stop. Started by command line, never imported by a
gateway. The only place of the engine that looks at the environment, which decides nothing but how torch's threads wait.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.config.capacity import recommended_drafts
from engine.config.engine import EngineConfig
from engine.config.log_format import set_up_logging
from engine.config.model import ModelConfig
from engine.config.worker_flags import add_shared_flags
from engine.runtime.drain import Drain
from engine.runtime.mailroom import Mailroom, Stopping
from engine.wire import blobs
from engine.wire.channel import RouterEnd, WireKey

if TYPE_CHECKING:
    from engine.runtime.build import Built

EXIT_FAILED = 1
EXIT_REFUSED = 2  # a flag, the checkpoint or the address is wrong: starting again would not help
_PARENT_CHECK_S = 0.25
_ORPHAN_GRACE_S = 10.0

log = logging.getLogger("engine.runtime.worker")  # also where the module runs as __main__


def main(arguments: Sequence[str] | None = None) -> int:
    return serve(parser().parse_args(arguments), build_engine)


def serve(flags: argparse.Namespace, build: Callable[[argparse.Namespace], Built]) -> int:
    """Until it is told to stop; the exit status."""
    set_up_logging(flags.log_level, flags.log_format)
    blobs.sweep()
    try:
        router = RouterEnd(flags.listen, WireKey.from_file(flags.wire_key) if flags.wire_key else None)
        built = build(flags)
    except (ValueError, OSError) as error:
        log.critical("cannot start: %s", error)
        return EXIT_REFUSED
    mailroom = Mailroom(router, built.ready, built.loop.beat)
    drain = Drain(built.loop, mailroom, flags.grace_period)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, drain.take_signal)
    if flags.parent_pid is not None:
        threading.Thread(target=_stop_after_parent, args=(flags.parent_pid, mailroom), daemon=True).start()
    # What lives as long as the process need not be looked through by the collector in the middle of a step.
    gc.collect()
    gc.freeze()
    mailroom.start()
    log.info("ready on %s, process %d", flags.listen, built.ready.pid)
    try:
        return 0 if built.loop.run(mailroom) else EXIT_FAILED
    finally:
        mailroom.close()
        if built.team is not None:
            built.team.close()
        if flags.parent_folder is not None and os.getppid() != flags.parent_pid:
            shutil.rmtree(flags.parent_folder, ignore_errors=True)


def build_engine(flags: argparse.Namespace) -> Built:
    # Before torch is loaded, with which its thread pool comes: threads that wait for work must not spin, or every
    # operation waits for whoever else uses the cores (100 times as long on two busy ones).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    from engine.runtime.build import build, pick_device

    ranks = flags.tensor_parallel_size
    # One core is left to the gateway: where it takes turns with a thread of torch, all the others wait for that one.
    threads = flags.threads or max(1, (len(os.sched_getaffinity(0)) - 1) // ranks)
    torch.set_num_threads(threads)
    engine = EngineConfig.for_device(
        pick_device(flags.device),  # type: ignore[arg-type]
        dtype=None if flags.dtype == "auto" else flags.dtype,
        kv_cache_dtype=flags.kv_cache_dtype,
        max_model_len=flags.max_model_len,
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        max_encoder_tokens=flags.max_encoder_tokens,
        encoder_cache_bytes=flags.encoder_cache_bytes,
        gpu_memory_utilization=flags.gpu_memory_utilization,
        cache_bytes=flags.kv_cache_memory_bytes,
        enable_prefix_caching=flags.enable_prefix_caching,
        tensor_parallel_size=ranks,
        enable_expert_parallel=flags.enable_expert_parallel,
        attention_data_parallel=flags.attention_data_parallel,
        seed=flags.seed,
        speculative_tokens=flags.speculative_tokens,
    )
    if flags.speculative_tokens is None:
        engine = replace(engine, speculative_tokens=recommended_drafts(ModelConfig.from_folder(flags.model), engine))
    worker_id = flags.worker_id or f"worker-{os.getpid()}"
    if ranks == 1:
        return build(flags.model, engine, worker_id)
    from engine.runtime.parallel import Place, Team

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # of one host: its name need not lead to an address
    team = Team(Place(0, str(flags.model), engine, threads, "", flags.log_level, flags.log_format))
    try:
        return build(flags.model, engine, worker_id, team)
    except BaseException:
        team.close()
        raise


def _stop_after_parent(parent_pid: int, mailroom: Mailroom) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_PARENT_CHECK_S)
    log.warning("process %d, which started this worker, is gone: stopping", parent_pid)
    mailroom.inbox.put(Stopping())
    time.sleep(_ORPHAN_GRACE_S)
    os._exit(EXIT_FAILED)  # the main thread hangs in a step, and nobody else is there to see that


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="dots3 worker", description="Serve a checkpoint's engine to gateways.")
    add_shared_flags(made)
    add = made.add_argument
    add("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add("--dtype", default="auto", choices=("auto", "bfloat16", "float32"), help="auto: float32 on CPU")
    add("--threads", type=int, metavar="N", help="of torch on the CPU; default: one less than there are cores")
    add("--max-encoder-tokens", type=int, metavar="TOKENS", help="of pictures and sounds encoded in one step")
    add("--encoder-cache-bytes", type=int, metavar="BYTES", help="for the embeddings of pictures and sounds")
    add("--tensor-parallel-size", type=int, default=1, metavar="N", help="ranks that share every layer, a GPU each")
    add("--enable-expert-parallel", action="store_true", help="each rank holds whole experts")
    add("--attention-data-parallel", action="store_true", help="each rank attends for sequences of its own")
    add(
        "--speculative-tokens",
        type=int,
        metavar="N",
        help="drafted at most for each step of a sequence, up to 3; default: as many as pay there",
    )
    return made


if __name__ == "__main__":
    sys.exit(main())

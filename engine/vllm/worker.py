"""The process that hosts vLLM: flags → `AsyncLLM` → Ready → requests → ordered stop. Started by command line only.

It speaks the wire of our own engine's worker, so that a gateway cannot tell them apart but by what they announce. The
environment is looked at for nothing but how vLLM logs.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shlex
import shutil
import signal
import sys
import threading
import uuid
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec

from engine.config.log_format import set_up_logging
from engine.vllm import guard
from engine.vllm.arguments import parser, vllm_arguments
from engine.vllm.figures import POOL
from engine.vllm.grammar import Grammars
from engine.vllm.hosted import HostedEngine
from engine.vllm.media import prompt_of
from engine.vllm.post import Post
from engine.vllm.requests import Requests
from engine.wire import blobs
from engine.wire.channel import RouterEnd, WireKey
from engine.wire.messages import Beat, Message

EXIT_FAILED = 1
EXIT_REFUSED = 2  # a flag, the checkpoint or the address is wrong: starting again would not help
# vLLM compiles at the first use of a size, and tells of steps only when they are over. That its engine has died it
# tells at once; this is for one that hangs.
PROGRESS_DEADLINE_S = 60.0
_ORPHAN_GRACE_S = 10.0
_LOOK_S = 0.05
_NOTICE_S = 1.0  # several beats: gateways have heard that nothing should come any more

log = logging.getLogger("engine.vllm.worker")  # also where the module runs as __main__


def main(arguments: Sequence[str] | None = None) -> int:
    flags, further = parser().parse_known_args(arguments)
    set_up_logging(flags.log_level, flags.log_format)
    if find_spec("vllm") is None:
        log.critical(
            "cannot start: %s has no vLLM. It wants an environment of its own: make one by `make vllm-env` (or install "
            "'dots3[vllm]' into one) and name its Python by --worker-python",
            sys.executable,
        )
        return EXIT_REFUSED
    # Its own lines go where all others go, and it reports to nobody.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    blobs.sweep()
    try:
        chosen = vllm_arguments(flags, further)
        router = RouterEnd(flags.listen, WireKey.from_file(flags.wire_key) if flags.wire_key else None)
    except (ValueError, OSError) as error:
        log.critical("cannot start: %s", error)
        return EXIT_REFUSED
    log.info("vLLM is started with %s", shlex.join(chosen))
    if (watchman := guard.start()) is not None:
        log.debug("process %d ends what vLLM leaves", watchman.pid)
    try:
        return asyncio.run(_serve(flags, router, chosen))
    finally:
        if flags.parent_folder is not None and os.getppid() != flags.parent_pid:
            shutil.rmtree(flags.parent_folder, ignore_errors=True)


async def _serve(flags: argparse.Namespace, router: RouterEnd, chosen: Sequence[str]) -> int:
    try:
        engine = HostedEngine(chosen)
    except (ValueError, OSError, RuntimeError) as error:  # what vLLM calls a bad argument, model or device
        log.critical("cannot start: %s", error, exc_info=error)
        return EXIT_REFUSED if isinstance(error, ValueError) else EXIT_FAILED
    try:
        return await Worker(flags, router, engine).run()
    finally:
        engine.close()


class Worker:
    """Made and run inside one event loop."""

    def __init__(self, flags: argparse.Namespace, router: RouterEnd, engine: HostedEngine) -> None:
        self._engine = engine
        self._grace_s: float = flags.grace_period
        self._parent_pid: int | None = flags.parent_pid
        self._address: str = flags.listen
        self._draining = False
        self._stop = asyncio.Event()
        self._died: str | None = None
        self._probe = blobs.probe()
        name = flags.worker_id or f"worker-{os.getpid()}"
        probe = "" if self._probe is None else self._probe.name
        self._ready = engine.ready(name, os.getpid(), flags.model, uuid.uuid4().hex, probe)
        self._grammars = Grammars(flags.model, self._ready.vocab_size)
        kinds = self._ready.media.kinds if self._ready.media is not None else ()
        self._requests = Requests(
            engine, engine.num_drafts, partial(prompt_of, kinds=kinds), self._grammars.text_of, self._send, self._die
        )
        self._post = Post(router, self._ready, self._beat, self._requests.take, self._requests.left)

    async def run(self) -> int:
        """Until it is told to stop; the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._take_signal)
        watch = loop.create_task(self._watch())
        self._post.start()
        log.info("ready on %s, process %d", self._address, self._ready.pid)
        try:
            await self._stop.wait()
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            self._grammars.close()
            await self._requests.close("the worker is shutting down" if self._died is None else None)
            await self._post.close()
        if self._died is not None:
            log.critical("the worker stops: %s", self._died)
            return EXIT_FAILED
        return 0

    def _send(self, peer: bytes, messages: Sequence[Message]) -> None:
        self._post.send(peer, messages)

    def _beat(self) -> Beat:
        figures, busy = self._engine.figures, self._requests.num_choices
        # vLLM tells of a step and not of its end: what it last said may be about requests that are over.
        running = min(figures.running, busy)
        return Beat(
            figures.steps + self._requests.moves,
            busy > 0,
            running,
            busy - running,
            {POOL: figures.usage},
            figures.preemptions,
            figures.prefix_queries,
            figures.prefix_hits,
            tuple(figures.drafted),
            tuple(figures.accepted),
            progress_deadline_s=PROGRESS_DEADLINE_S,
            draining=self._draining,
        )

    def _die(self, reason: str) -> None:
        self._died = self._died or f"vLLM's engine has died: {reason}"
        self._stop.set()

    def _take_signal(self) -> None:
        """The first drains, a second one ends at once."""
        if self._draining or self._grace_s == 0:
            self._stop.set()
        self._draining = True

    async def _watch(self) -> None:
        """For what nobody tells: the engine's death while nothing runs, the parent's, and that all is drained."""
        drained_s = 0.0
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._engine.died:
                self._die("it told so in its own lines")
            if self._parent_pid is not None and os.getppid() != self._parent_pid:
                log.warning("process %d, which started this worker, is gone: stopping", self._parent_pid)
                # vLLM may hang while it ends, and nobody else is there to see that.
                ending = threading.Timer(_ORPHAN_GRACE_S, os._exit, (EXIT_FAILED,))
                ending.daemon = True
                ending.start()
                self._parent_pid = None
                self._stop.set()
            if self._draining:
                drained_s += _LOOK_S
                if drained_s >= self._grace_s or (drained_s >= _NOTICE_S and self._requests.num_choices == 0):
                    self._stop.set()


if __name__ == "__main__":
    sys.exit(main())

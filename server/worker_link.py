"""The gateway's connection to one worker: what it sends lands with the request it belongs to, and its death ends all.

One task reads; another listens for silence. Owns what is known of the worker: Ready, beats, progress. Knows nothing of
how it was started.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from engine.wire.channel import DealerEnd, WireKey
from engine.wire.codec import WireError, decode_to_gateway, encode
from engine.wire.messages import Abort, Beat, Failed, Message, Ready, Stop, Submit, ToGateway, Tokens
from server.engine_client import Event, Offer, WorkerHealth, WorkerState
from server.errors import RequestError
from server.mailbox import Mailbox
from server.turns import Turns

logger = logging.getLogger(__name__)

_WATCH_S = 0.25
_WOKEN_A_TURN = 8  # requests that are told of new tokens in one turn of the event loop: two milliseconds of work
# How much of an answer of unknown length counts as work ahead, when workers are compared.
EXPECTED_TOKENS = 512


@dataclass(frozen=True)
class Patience:
    """How long a worker may give no sign: a beat, and progress where it has work."""

    stalled_after_s: float = 2.0  # not ready; later, where the worker says that its steps take longer
    lost_after: float = 3.0  # times that: dead, and so is all that it was asked


class _Silence(NamedTuple):
    times_patience: float
    for_s: float
    of: str


class WorkerLink:
    """Start it inside a running event loop, and close it there."""

    def __init__(
        self,
        name: str,
        address: str,
        key: WireKey | None = None,
        patience: Patience = Patience(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.address = address
        self.restarts = 0
        self.ready: Ready | None = None  # as last announced, whether or not that worker still lives
        self.on_lost: Callable[[], None] | None = None  # called when silence has made it dead
        self.turns = Turns(_WOKEN_A_TURN)
        self._gateway_id = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._key = key
        self._patience = patience
        self._clock = clock
        self._channel: DealerEnd | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._submissions: dict[str, LinkSubmission] = {}
        self.outstanding_tokens = 0  # work asked for and not finished, about
        self._count = 0
        self._state: WorkerState = "starting"
        self._since = time.time()
        self._detail: str | None = None
        self._pid: int | None = None
        self._is_supervised = False  # somebody here started its process, and tells of its end
        self._is_up = asyncio.Event()
        self._may_resume = False  # the worker fell silent, and is not known to have ended
        self._beat: Beat | None = None
        self._beat_at = self._progress_at = clock()

    # ---- life

    def start(self) -> None:
        self._channel = DealerEnd(self.address, self._gateway_id, self._key)
        for work in (self._read, self._watch):
            task = asyncio.create_task(work(), name=f"{self.name} {work.__name__}")
            task.add_done_callback(self._task_ended)
            self._tasks.append(task)

    async def close(self) -> None:
        """Idempotent. Requests still running fail."""
        self._fail_all("draining", "The server has ended before the answer")
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._channel is not None:
            self._channel.close()

    async def until_ready(self) -> Ready:
        await self._is_up.wait()
        assert self.ready is not None
        return self.ready

    def starting(self, pid: int) -> None:
        """A process was started that will listen here."""
        self._pid, self._is_supervised = pid, True
        self._change("starting")

    def died(self, reason: str) -> None:
        """The worker's process has ended: everything that it was asked fails at once."""
        self._may_resume = False
        self._down(reason)

    # ---- what is known

    def health(self) -> WorkerHealth:
        state, since, detail = self._state, self._since, self._detail
        if state == "ready" and (silence := self._silence()).times_patience > 1:
            patience_s = silence.for_s / silence.times_patience
            state, since = "stalled", time.time() - silence.for_s + patience_s
            detail = f"no {silence.of} for {silence.for_s:.1f} s"
        return WorkerHealth(
            self.name, self._pid, state, since, self._beat, self.restarts, detail, self.outstanding_tokens
        )

    def _silence(self) -> _Silence:
        """The worst of them."""
        now, patience_s = self._clock(), self._patience.stalled_after_s
        deadline_s = patience_s if self._beat is None else max(patience_s, self._beat.progress_deadline_s)
        no_beat_s, no_progress_s = now - self._beat_at, now - self._progress_at
        return max(
            _Silence(no_beat_s / patience_s, no_beat_s, "sign of life"),
            _Silence(no_progress_s / deadline_s, no_progress_s, "progress"),
        )

    # ---- requests

    def submit(self, request: Submit, cached_tokens: int = 0) -> LinkSubmission:
        """`cached_tokens`: of the prompt, which are no work, as far as is known."""
        self._count += 1
        wire_id = f"{self._gateway_id}/{self._count}"
        submission = LinkSubmission(self, wire_id, request, cached_tokens)
        if not self.send(msgspec.structs.replace(request, request_id=wire_id)):
            raise RequestError("engine_dead", f"worker {self.name} is not connected")
        self._submissions[wire_id] = submission
        self.outstanding_tokens += submission.cost
        return submission

    def send(self, message: Message) -> bool:
        """False if nobody is connected."""
        return self._channel is not None and self._channel.send(encode([message]))

    def _fail_all(self, code: str, message: str) -> None:
        submissions, self._submissions = self._submissions, {}
        self.outstanding_tokens = 0
        for wire_id, submission in submissions.items():
            submission.put(Failed(wire_id, code, message))

    # ---- what comes in

    async def _read(self) -> None:
        assert self._channel is not None
        while True:
            frame = await self._channel.receive()
            try:
                messages = decode_to_gateway(frame)
            except WireError as error:
                # Tokens may have been in it, so that no running answer can be trusted any more.
                logger.error("worker %s sent nonsense: %s", self.name, error)
                self._detail = str(error)
                self._give_up("internal_error", "the worker sent nonsense")
                continue
            self._take(messages)

    def _take(self, messages: Sequence[ToGateway]) -> None:
        for message in messages:
            if isinstance(message, Tokens):  # nearly all
                if (submission := self._submissions.get(message.request_id)) is not None:
                    submission.put(message)
            elif isinstance(message, Beat):
                self._take_beat(message)
            elif isinstance(message, Ready):
                self._take_ready(message)
            elif (submission := self._submissions.pop(message.request_id, None)) is not None:
                submission.put(message)
                self.outstanding_tokens -= submission.cost

    def _take_ready(self, ready: Ready) -> None:
        """A new connection: whatever was asked through an earlier one is lost."""
        self._give_up("engine_dead", "the worker has connected anew")
        if not self._is_supervised and self.ready is not None and self.ready.instance != ready.instance:
            self.restarts += 1  # by whoever runs it
        self.ready, self._pid, self._beat = ready, ready.pid, None
        self._beat_at = self._progress_at = self._clock()
        self._may_resume = True
        self._change("ready")
        place = (self.name, ready.pid, ready.device, ready.dtype, ready.kv_cache_dtype or ready.dtype)
        logger.info("worker %s is ready: process %d, %s, %s, cache rows in %s", *place)

    def _take_beat(self, beat: Beat) -> None:
        now = self._clock()
        if beat.draining and self._state == "ready":
            logger.info("worker %s is draining", self.name)
            self._change("draining", "it ends what it has and takes no more")
        known = self._beat
        if known is None or beat.progress != known.progress or not (beat.busy and known.busy):
            self._progress_at = now
        self._beat, self._beat_at = beat, now
        if self._state == "dead" and self._may_resume and self._silence().times_patience <= 1:
            logger.warning("worker %s gives signs of life again", self.name)
            self._change("ready")

    async def _watch(self) -> None:
        ticked_at = self._clock()
        while True:
            await asyncio.sleep(_WATCH_S)
            now = self._clock()
            if now - ticked_at > 4 * _WATCH_S:  # it was this process that slept: the worker's signs are still unread
                self._beat_at = self._progress_at = now
            ticked_at = now
            if self._state in ("ready", "draining") and (reason := self._lost()) is not None:
                self._down(reason)
                if self.on_lost is not None:
                    self.on_lost()

    def _lost(self) -> str | None:
        assert self._channel is not None
        if not self._is_supervised and not self._channel.is_connected:
            return "the connection to it has ended"
        silence = self._silence()
        if silence.times_patience <= self._patience.lost_after:
            return None
        return f"no {silence.of} for {silence.for_s:.1f} s"

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed", task.get_name(), exc_info=error)
            self._may_resume = False
            self._down(f"the gateway's connection failed: {error!r}")

    # ---- states

    def _down(self, reason: str) -> None:
        logger.error("worker %s is dead: %s", self.name, reason)
        self._change("dead", reason)
        self._give_up("engine_dead", f"the worker is dead: {reason}")

    def _give_up(self, code: str, message: str) -> None:
        """Fails all that runs; a worker that still lives is told to stop it."""
        with contextlib.suppress(WireError):
            for wire_id in self._submissions:
                self.send(Abort(wire_id))
        self._fail_all(code, message)

    def _change(self, state: WorkerState, detail: str | None = None) -> None:
        if state != self._state:
            self._since = time.time()
        self._state, self._detail = state, detail
        if state == "ready":
            self._is_up.set()
        else:
            self._is_up.clear()


class LinkSubmission:
    """Implements server.engine_client.Submission."""

    def __init__(self, link: WorkerLink, wire_id: str, request: Submit, cached_tokens: int) -> None:
        new_tokens = max(0, len(request.prompt_ids) - cached_tokens)
        self.cost = new_tokens + request.n * min(request.sampling.max_tokens, EXPECTED_TOKENS)
        self._link = link
        self._wire_id = wire_id
        self._mailbox = Mailbox(link.turns)
        self._ended = False  # the terminal message has come
        self._closed = False

    def put(self, event: Event) -> None:
        self._ended = not isinstance(event, Tokens)
        if not self._closed:
            self._mailbox.put(event)

    def receive(self, offer: Offer | None = None) -> Coroutine[Any, Any, Sequence[Event]]:
        return self._mailbox.receive(offer)

    def stop(self, index: int, num_tokens: int) -> None:
        self._link.send(Stop(self._wire_id, index, num_tokens))

    def close(self) -> None:
        """The link remembers the request until the worker has confirmed its end."""
        if not (self._ended or self._closed):
            self._link.send(Abort(self._wire_id))
        self._closed = True

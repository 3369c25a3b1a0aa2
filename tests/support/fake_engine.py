"""A scripted engine: the tokens, pauses, failure or death that a test wants, through the real protocol.

It keeps what it was asked: every request submitted, every stop and every abort.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from engine.wire.messages import (
    PROTOCOL_VERSION,
    Failed,
    Finished,
    FinishReason,
    MediaSupport,
    Ready,
    Submit,
    TokenLogprobs,
    Tokens,
)
from server.engine_client import Event, Offer, WorkerHealth, WorkerState
from server.errors import RequestError
from server.mailbox import Mailbox


@dataclass(frozen=True)
class Say:
    """Tokens of one choice, one message for each unless `together`; a choice that is never ended stops at its last."""

    token_ids: Sequence[int]
    index: int = 0
    finish_reason: FinishReason | None = None
    logprobs: Sequence[TokenLogprobs] | None = None
    prompt_logprobs: Sequence[TokenLogprobs | None] | None = None
    together: bool = False


@dataclass(frozen=True)
class Pause:
    """Nothing happens for so long."""

    seconds: float


@dataclass(frozen=True)
class Fail:
    """The request fails."""

    code: str = "internal_error"
    message: str = "the scripted engine failed as it was told to"


@dataclass(frozen=True)
class Die:
    """The worker dies: every request in it fails, and further ones are refused."""


Step = Say | Pause | Fail | Die
Script = Callable[[Submit], Iterable[Step]]


def saying(token_ids: Sequence[int], finish_reason: FinishReason = "stop") -> Script:
    """Every choice of every request says this, a token a message."""
    return lambda request: [Say(token_ids, index, finish_reason) for index in range(request.n)]


READY = Ready(
    protocol_version=PROTOCOL_VERSION,
    worker_id="fake-0",
    pid=4242,
    device="cpu",
    dtype="float32",
    model_path="models/dots3-note-tiny",
    vocab_size=3072,
    max_model_len=8192,
    max_num_seqs=16,
    max_num_batched_tokens=2048,
    page_size=16,
    cache_bytes=1 << 26,
    groups=(),
    media=MediaSupport(kinds=("image", "audio"), max_item_tokens=8192, probe=""),
)


@dataclass
class FakeEngine:
    """Implements server.engine_client.Engine. The script is asked anew for each request."""

    script: Script
    ready: Ready | None = READY
    state: WorkerState = "ready"
    cached_tokens: int = 0
    submitted: list[Submit] = field(default_factory=list)
    stopped: list[tuple[str, int, int]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    _running: dict[str, FakeSubmission] = field(default_factory=dict)
    _since: float = field(default_factory=time.time)

    def health(self) -> tuple[WorkerHealth, ...]:
        pid = self.ready.pid if self.ready else None
        return (WorkerHealth(name="fake-0", pid=pid, state=self.state, since=self._since),)

    def submit(self, request: Submit) -> FakeSubmission:
        if self.state == "dead":
            raise RequestError("engine_dead", "no worker is running", retry_after_s=1)
        self.submitted.append(request)
        submission = FakeSubmission(self, request)
        self._running[request.request_id] = submission
        return submission

    @property
    def running(self) -> int:
        """Requests that have had no terminal message yet."""
        return len(self._running)

    def die(self) -> None:
        self.state = "dead"
        self._since = time.time()
        for submission in list(self._running.values()):
            submission.fail("engine_dead", "the worker died")


class FakeSubmission:
    """Plays the script in a task of its own, begun with the first receive()."""

    def __init__(self, engine: FakeEngine, request: Submit) -> None:
        self._engine = engine
        self._request = request
        self._mailbox = Mailbox()
        self._player: asyncio.Task[None] | None = None
        self._open = set(range(request.n))
        self._said = dict.fromkeys(range(request.n), 0)
        self._ended = False

    async def receive(self, offer: Offer | None = None) -> Sequence[Event]:
        if self._player is None and not self._ended:
            self._player = asyncio.create_task(self._play())
        return await self._mailbox.receive(offer)

    def stop(self, index: int, num_tokens: int) -> None:
        self._engine.stopped.append((self._request.request_id, index, num_tokens))
        if index in self._open:
            self._open.discard(index)
            self._said[index] = num_tokens
            self._finish_when_done()

    def close(self) -> None:
        if not self._ended:
            self._engine.aborted.append(self._request.request_id)
            self._finish(aborted=True)
        if self._player is not None:
            self._player.cancel()

    def fail(self, code: str, message: str) -> None:
        self._end(Failed(self._request.request_id, code, message))

    async def _play(self) -> None:
        for step in self._engine.script(self._request):
            if self._ended:
                return
            match step:
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case Fail(code, message):
                    self.fail(code, message)
                case Die():
                    self._engine.die()
                case Say():
                    await self._say(step)
        for index in sorted(self._open):
            self._put(index, (), "stop")

    async def _say(self, step: Say) -> None:
        size = max(len(step.token_ids), 1) if step.together else 1
        for start in range(0, max(len(step.token_ids), 1), size):
            if step.index not in self._open:
                return
            ids = tuple(step.token_ids[start : start + size])
            reason = step.finish_reason if start + size >= len(step.token_ids) else None
            room = self._request.sampling.max_tokens - self._said[step.index]
            if len(ids) >= room and reason is None:
                ids, reason = ids[:room], "length"
            logprobs = None if step.logprobs is None else tuple(step.logprobs[start : start + size])
            prompt = step.prompt_logprobs if start == 0 else None
            self._put(step.index, ids, reason, logprobs, None if prompt is None else tuple(prompt))
            await asyncio.sleep(0)

    def _put(
        self,
        index: int,
        ids: tuple[int, ...],
        reason: FinishReason | None,
        logprobs: tuple[TokenLogprobs, ...] | None = None,
        prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None,
    ) -> None:
        self._said[index] += len(ids)
        self._mailbox.put(Tokens(self._request.request_id, index, ids, logprobs, reason, prompt_logprobs))
        if reason is not None:
            self._open.discard(index)
            self._finish_when_done()

    def _finish_when_done(self) -> None:
        if not self._open:
            self._finish(aborted=False)

    def _finish(self, aborted: bool) -> None:
        self._end(
            Finished(
                request_id=self._request.request_id,
                prompt_tokens=len(self._request.prompt_ids),
                cached_tokens=self._engine.cached_tokens,
                completion_tokens=sum(self._said.values()),
                queue_s=0.0,
                aborted=aborted,
            )
        )

    def _end(self, terminal: Finished | Failed) -> None:
        if not self._ended:
            self._ended = True
            self._engine._running.pop(self._request.request_id, None)
            self._mailbox.put(terminal)

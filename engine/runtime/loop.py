"""The worker's main loop: take what arrived, schedule, run, account, tell. Owns who gets which answer.

Where the device works by itself, the next step is launched before what the one before brought is looked at. Every
accepted request ends in exactly one Finished or Failed, unless its gateway has left. Does not touch sockets (the
mailroom's thread does) and knows nothing of tensors.
"""

from __future__ import annotations

import contextlib
import logging
import queue
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from engine.runtime.mailroom import Arrived, Compiled, Left, Letter, Stopping
from engine.runtime.media_intake import MediaIntake
from engine.runtime.progress import Progress
from engine.sched.batch import Output, ScheduledBatch
from engine.sched.parts import Part
from engine.sched.request import Request, State
from engine.sched.scheduler import Scheduler
from engine.wire.messages import (
    Abort,
    Beat,
    Failed,
    Finished,
    Message,
    Stop,
    Submit,
    TokenLogprobs,
    Tokens,
    ToWorker,
)
from engine.wire.refused import RefusedError

# A signal that comes right before a wait begins does not end it, and its handler is called only when the wait is over.
_LONGEST_WAIT_S = 0.5
_NO_BATCH_WAIT_S = 0.005  # before the scheduler is asked again when it found nothing to run though requests wait

log = logging.getLogger(__name__)
Outcome = TypeVar("Outcome")


class StepResult(NamedTuple):
    """What a batch brought, for the requests that wanted it."""

    tokens: Mapping[Request, Sequence[int]]
    logprobs: Mapping[Request, Sequence[TokenLogprobs]]  # of all its tokens
    prompt_logprobs: dict[Request, tuple[TokenLogprobs | None, ...]]  # complete ones
    stuck: Mapping[Request, str] = {}  # those that no token can follow, and why
    drafts: Mapping[Request, Sequence[int]] = {}  # of what may come next


class StepRunner(Protocol):
    def run(self, batch: ScheduledBatch) -> StepResult: ...

    def release_ended(self) -> None:
        """Forgets what it keeps of requests that are over; it does so by itself in each run."""
        ...

    def is_fatal(self, error: Exception) -> bool:
        """Whether the device is of no more use after this error."""
        ...


class Launched(Protocol):
    """A step that a device has been given."""

    def result(self) -> StepResult:
        """Waits for it."""
        ...


class Launcher(Protocol):
    """A runner whose device works by itself, on one step after the other."""

    def takes(self, batch: ScheduledBatch) -> bool:
        """Whether it can launch the batch, and then those that follow it."""
        ...

    def launch(self, batch: ScheduledBatch) -> Launched:
        """Unknown tokens of the batch are those of the step that was launched before it."""
        ...


class _Flight(NamedTuple):
    batch: ScheduledBatch
    step: Launched


class Post(Protocol):
    """The loop's side of the mailroom."""

    @property
    def inbox(self) -> queue.SimpleQueue[Letter]: ...

    def post(self, peer: bytes, messages: Sequence[Message]) -> None: ...


class GrammarCompiler(Protocol):
    def compile(self, submit: Submit, done: Callable[[Compiled], None]) -> None:
        """Calls `done` once, from another thread."""
        ...

    def close(self) -> None: ...


class Loop:
    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepRunner,
        vocab_size: int,
        progress: Progress,
        grammars: GrammarCompiler | None = None,
        media: MediaIntake | None = None,
        count_experts: Callable[[], tuple[int, ...]] | None = None,
        launcher: Launcher | None = None,
    ) -> None:
        """Without `grammars` every request that has one is refused, and so it is with `media`. `count_experts`: pairs
        of token and expert by rank, for the beat. Without `launcher` each step is over before the next is planned."""
        self._scheduler = scheduler
        self._runner = runner
        self._launcher = launcher
        self._flight: _Flight | None = None  # the step that runs
        self._vocab_size = vocab_size
        self._progress = progress
        self._grammars = grammars
        self._media = media
        self._inbox: queue.SimpleQueue[Letter] = queue.SimpleQueue()
        self._owners: dict[str, bytes] = {}  # of the living requests
        self._outgoing: defaultdict[bytes, list[Message]] = defaultdict(list)
        self._figures = scheduler.figures()
        self._count_experts = count_experts
        self._expert_load: tuple[int, ...] = ()
        self._busy = False
        self._stopping: Stopping | None = None
        self.draining = False  # told to gateways, and set from any thread

    def beat(self) -> Beat:
        """From any thread."""
        return Beat(
            self._progress.count,
            self._busy,
            *self._figures,
            progress_deadline_s=self._progress.deadline_s,
            expert_load=self._expert_load,
            draining=self.draining,
        )

    def run(self, post: Post) -> bool:
        """Until told to stop. False if it had to end unasked."""
        wait_s: float | None = None
        self._inbox = post.inbox
        try:
            while self._stopping is None:
                self._take_letters(post.inbox, wait_s)
                wait_s = self._step()
                self._send(post)
            return not self._stopping.failed
        finally:
            self._flight = None
            for request_id in tuple(self._owners):
                self._fail(request_id, "engine_dead", "the worker is shutting down")
            self._send(post)
            if self._grammars is not None:
                self._grammars.close()

    # ---- in

    def _take_letters(self, inbox: queue.SimpleQueue[Letter], wait_s: float | None) -> None:
        """All that have arrived; waits so long for the first, None: until it is time to look for a signal."""
        timeout_s = _LONGEST_WAIT_S if wait_s is None else wait_s
        with contextlib.suppress(queue.Empty):
            self._take(inbox.get(timeout=timeout_s) if timeout_s else inbox.get_nowait())
            while self._stopping is None:
                self._take(inbox.get_nowait())
        for finished in self._scheduler.expire():
            self._tell_end(finished)

    def _take(self, letter: Letter) -> None:
        self._busy = True
        self._progress.stamp()
        if isinstance(letter, Arrived):
            self._handle(letter.peer, letter.message)
        elif isinstance(letter, Left):
            for request_id in [name for name, owner in self._owners.items() if owner == letter.peer]:
                self._scheduler.drop(request_id)
                del self._owners[request_id]
            self._outgoing.pop(letter.peer, None)
        elif isinstance(letter, Compiled):
            self._start(letter)
        else:
            self._stopping = letter

    def _handle(self, peer: bytes, message: ToWorker) -> None:
        if isinstance(message, Submit):
            self._submit(peer, message)
        elif self._owners.get(message.request_id) != peer:
            return  # it is over, and its end is on the way
        elif isinstance(message, Abort):
            self._tell_end(self._scheduler.abort(message.request_id))
        elif isinstance(message, Stop):
            self._tell_end(self._scheduler.stop(message.request_id, message.index, message.num_tokens))

    def _submit(self, peer: bytes, submit: Submit) -> None:
        try:
            for ids in _token_ids(submit):
                if ids and not 0 <= min(ids) <= max(ids) < self._vocab_size:
                    raise RefusedError("invalid_value", f"token ids must be from 0 to {self._vocab_size - 1}")
            if submit.grammar is not None and self._grammars is None:
                raise RefusedError("unsupported_value", "this worker holds no answer to a grammar")
            self._scheduler.submit(submit, self._parts(submit))
        except RefusedError as error:
            self._outgoing[peer].append(Failed(submit.request_id, error.code, str(error)))
        else:
            self._owners[submit.request_id] = peer
            if submit.grammar is not None and self._grammars is not None:
                self._grammars.compile(submit, self._inbox.put)

    def _parts(self, submit: Submit) -> tuple[Part, ...]:
        if not submit.media:
            return ()
        if self._media is None:
            raise RefusedError("unsupported_value", "this model takes no media")
        return self._media.parts(submit)

    def _start(self, compiled: Compiled) -> None:
        submit = compiled.submit
        if compiled.refusal is None:
            self._scheduler.start(submit, compiled.matchers)
        elif self._scheduler.is_current(submit):
            self._fail(submit.request_id, compiled.code, f"the grammar cannot be used: {compiled.refusal}")

    # ---- a step

    def _step(self) -> float | None:
        """How long the loop may then wait for letters."""
        if self._stopping is not None:
            return 0
        self._busy = self._has_work
        moved = self._busy and (self._begin() if self._flight is None else self._go_on(self._flight))
        self._busy = self._has_work
        self._figures = self._scheduler.figures()
        if self._count_experts is not None:
            self._expert_load = self._count_experts()
        if not self._busy:
            self._runner.release_ended()
            return None
        return 0 if moved else _NO_BATCH_WAIT_S

    @property
    def _has_work(self) -> bool:
        return self._flight is not None or self._scheduler.has_work

    def _begin(self) -> bool:
        """With nothing under way. Whether there was anything to run."""
        batch = self._scheduler.schedule()
        if batch is None:
            return False
        self._note_begin(batch)
        if self._launcher is not None and self._launcher.takes(batch):
            self._flight = self._launch(batch, self._launcher)
        else:
            self._settle(batch, lambda: self._runner.run(batch))
        return True

    def _go_on(self, flight: _Flight) -> bool:
        """Launches what follows, if that can be told, and only then waits for what runs."""
        following = self._scheduler.follow(flight.batch)
        self._flight = None
        if following is not None and self._launcher is not None:
            self._flight = self._launch(following, self._launcher)
        self._settle(flight.batch, flight.step.result)
        if self._flight is not None:
            self._note_begin(self._flight.batch)
        return True

    def _note_begin(self, batch: ScheduledBatch) -> None:
        self._progress.begin_step(batch.num_tokens + batch.encoder.num_tokens)

    def _launch(self, batch: ScheduledBatch, launcher: Launcher) -> _Flight | None:
        step = self._attempt(batch, lambda: launcher.launch(batch))
        return None if step is None else _Flight(batch, step)

    def _settle(self, batch: ScheduledBatch, run: Callable[[], StepResult]) -> None:
        """Whoever has ended since the batch was planned is told nothing more of it."""
        result = self._attempt(batch, run)
        if result is None:
            return
        self._progress.end_step()
        for request, reason in result.stuck.items():
            self._fail(request.request_id, "invalid_value", reason)
        self._tell(self._scheduler.advance(batch, result.tokens, result.drafts), result)

    def _attempt(self, batch: ScheduledBatch, do: Callable[[], Outcome]) -> Outcome | None:
        """None if it failed, and with it the batch."""
        try:
            return do()
        except Exception as error:  # noqa: BLE001  the one broad except: whatever a batch dies of, the others live on
            self._fail_batch(batch, error)
            return None

    def _fail_batch(self, batch: ScheduledBatch, error: Exception) -> None:
        living = (item.request for item in batch.items if item.request.state is not State.ENDED)
        request_ids = dict.fromkeys(request.request_id for request in living)
        log.error("a step failed, and with it %s", ", ".join(request_ids), exc_info=error)
        for request_id in request_ids:
            self._fail(request_id, "internal_error", "the engine failed in a step of this request")
        if self._runner.is_fatal(error):
            log.critical("the device is of no more use after this error: the worker stops")
            self._stopping = Stopping(failed=True)

    # ---- out

    def _tell(self, outputs: Sequence[Output], result: StepResult) -> None:
        owners, outgoing = self._owners, self._outgoing
        plain = not (result.logprobs or result.prompt_logprobs)
        for output in outputs:
            request, tokens = output.request, output.tokens
            logprobs = None if plain else result.logprobs.get(request)
            message = Tokens(
                request.request_id,
                request.index,
                tokens,
                None if logprobs is None else tuple(logprobs[: len(tokens)]),
                output.finish_reason,
                None if plain else result.prompt_logprobs.get(request),
            )
            outgoing[owners[request.request_id]].append(message)
            if output.finished is not None:
                self._tell_end(output.finished)

    def _tell_end(self, finished: Finished | None) -> None:
        if finished is not None:
            self._outgoing[self._owners.pop(finished.request_id)].append(finished)

    def _fail(self, request_id: str, code: str, message: str) -> None:
        self._scheduler.drop(request_id)
        if (peer := self._owners.pop(request_id, None)) is not None:
            self._outgoing[peer].append(Failed(request_id, code, message))

    def _send(self, post: Post) -> None:
        for peer, messages in self._outgoing.items():
            if messages:
                post.post(peer, messages)
                messages.clear()


def _token_ids(submit: Submit) -> Iterator[Collection[int]]:
    """All that index into the vocabulary: one that is outside would fail the whole batch it comes into."""
    sampling = submit.sampling
    yield submit.prompt_ids
    yield sampling.logit_bias
    yield sampling.allowed_token_ids or ()
    yield from sampling.bad_words_ids

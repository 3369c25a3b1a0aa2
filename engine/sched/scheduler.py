"""Which tokens each step computes: admission, chunked prefill beside decodes, preemption, abort, the end of requests.

Owns every request from submission to its one terminal message, and the cache. Knows nothing of tensors and sockets.

The best ranked running request takes pages from all others and, alone, from the cached prefixes: it always moves on.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from engine.cache.groups import SequencePages
from engine.cache.homes import HomeCaches
from engine.config.capacity import CapacityPlan
from engine.config.engine import EngineConfig
from engine.grammar.matcher import Matcher
from engine.sched.ahead import one_further
from engine.sched.batch import Output, ScheduledBatch
from engine.sched.drafting import DraftPlan
from engine.sched.encodings import Encodings
from engine.sched.parts import Part
from engine.sched.placement import homes_for
from engine.sched.ranked import Ranked
from engine.sched.request import Request, State
from engine.sched.step import Step
from engine.sched.submission import Submission
from engine.wire.messages import Finished, FinishReason, Submit
from engine.wire.refused import RefusedError

_STEPS_BETWEEN_TRIES = 8  # of a request that found no room: looking its prompt up costs time in every step

_NO_DRAFTS: Mapping[Request, Sequence[int]] = {}


class Figures(NamedTuple):
    """For the heartbeat."""

    running: int
    waiting: int
    cache_usage: dict[str, float]
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    drafted_tokens: tuple[int, ...] = ()  # by position
    accepted_tokens: tuple[int, ...] = ()


class Scheduler:
    """One batch is out at a time: `schedule`, run it, `advance`. The other methods may be called in between.

    Or two: while one runs, `follow` may plan the next. Then `advance` the first, before anything else is planned.
    """

    def __init__(self, config: EngineConfig, plan: CapacityPlan, clock: Callable[[], float] = time.monotonic) -> None:
        self._plan = plan
        self._cache = HomeCaches(plan, config.enable_prefix_caching)
        self._encodings = Encodings(plan.encoder_cache_tokens, plan.max_encoder_tokens)
        self._clock = clock
        self._submissions: dict[str, Submission] = {}
        self._waiting = Ranked()
        self._running = Ranked()
        self._deadlines: list[tuple[float, int, str]] = []  # heap of time, arrival, id
        self._alone: dict[int, Request] = {}  # by home; runs without company there until it ends, see _start_over
        self._num_submissions = 0
        self._num_unfinished = 0  # choices
        self._num_steps = 0
        self._next_try = 0  # step at which the head of the queue may look for room again
        self._preemptions = 0
        self._prefix_queries = 0
        self._prefix_hits = 0
        self._drafts = DraftPlan(config.speculative_tokens, plan.max_draft_rows, self._cache)

    # ---- requests come and go

    def submit(self, submit: Submit, parts: tuple[Part, ...] = ()) -> None:
        """`parts`: of its media, in the order of their offsets, none longer than what is kept of encoder outputs."""
        if submit.request_id in self._submissions:
            raise RefusedError("invalid_value", f"request id {submit.request_id!r} is in use")
        length = len(submit.prompt_ids)
        if length == 0:
            raise RefusedError("invalid_value", "the prompt must have at least 1 token, got 0")
        longest = self._plan.max_model_len - min(1, submit.sampling.max_tokens)
        if length > longest:
            raise RefusedError(
                "context_length_exceeded", f"the prompt must have at most {longest} tokens, got {length}"
            )
        now = self._clock()
        kept = self._cache.kept_pages((*submit.keep_offsets, length))
        self._num_submissions += 1
        submission = Submission(submit, parts, self._num_submissions, now, kept, self._plan.max_model_len)
        self._submissions[submit.request_id] = submission
        self._num_unfinished += submit.n
        if submit.deadline_s is not None:
            heapq.heappush(self._deadlines, (now + submit.deadline_s, submission.arrival, submit.request_id))
        if submission.ready:
            self._queue(submission.choices[0])

    def start(self, submit: Submit, matchers: Sequence[Matcher]) -> None:
        """The request's grammar is there, one matcher a choice; until now it has only waited. Late calls do nothing."""
        if not self.is_current(submit):
            return
        submission = self._submissions[submit.request_id]
        for choice, matcher in zip(submission.choices, matchers, strict=True):
            choice.matcher = matcher
        submission.ready = True
        if submission.choices[0].state is State.HELD:
            self._queue(submission.choices[0])
        else:
            self._queue_held(submission)

    def is_current(self, submit: Submit) -> bool:
        """It was submitted, and has not ended since."""
        submission = self._submissions.get(submit.request_id)
        return submission is not None and submission.submit is submit

    def abort(self, request_id: str) -> Finished | None:
        """The terminal message; None if the request is over or was never there."""
        submission = self._submissions.get(request_id)
        return None if submission is None else self._abort(submission)

    def stop(self, request_id: str, index: int, num_tokens: int) -> Finished | None:
        """Ends one choice with its first `num_tokens` tokens. The terminal message if it was the last one."""
        submission = self._submissions.get(request_id)
        if submission is None or not 0 <= index < len(submission.choices):
            return None
        choice = submission.choices[index]
        choice.truncate(num_tokens)
        return self._finish(choice, "stop") if choice.state is not State.ENDED else None

    def expire(self) -> list[Finished]:
        """Aborts what is past its deadline."""
        now = self._clock()
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, arrival, request_id = heapq.heappop(self._deadlines)
            submission = self._submissions.get(request_id)
            if submission is not None and submission.arrival == arrival:  # ids may come again
                expired.append(self._abort(submission))
        return expired

    def drop(self, request_id: str) -> bool:
        """Forgets a request that failed. Whether it was there, so that the caller owes its `Failed`."""
        return self.abort(request_id) is not None

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def request_ids(self) -> list[str]:
        return list(self._submissions)

    def figures(self) -> Figures:
        return Figures(
            running=len(self._running),
            waiting=self._num_unfinished - len(self._running),
            cache_usage=self._cache.usage(),
            preemptions=self._preemptions,
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
            drafted_tokens=tuple(self._drafts.drafted),
            accepted_tokens=tuple(self._drafts.accepted),
        )

    # ---- a step

    def schedule(self) -> ScheduledBatch | None:
        """The next batch; None if there is nothing to do."""
        self._num_steps += 1
        self._encodings.begin_step()
        step = Step(self._plan.max_num_batched_tokens)
        prefills = []
        drafts = self._drafts.begin_step(self._company())
        for request in self._running:
            if request.state is not State.RUNNING:
                continue  # preempted for one before it
            pages, start = request.pages, request.num_computed
            assert pages is not None
            if start != len(request.tokens) - 1 or start < request.num_prompt:
                prefills.append(request)
            elif start < pages.capacity or self._make_room(request, 1, step):
                if drafts or request.drafts:
                    self._add(request, self._drafts.verified_with(request), step)
                else:
                    step.add_token(request)
            else:
                request.drafts = []  # where a device alone knows them, it knows those of the step before
        for request in prefills:
            if step.budget and request.state is State.RUNNING:
                wanted = min(request.num_remaining, step.budget)
                if num_tokens := self._with_media(request, self._make_room(request, wanted, step)):
                    self._add(request, num_tokens, step)
        self._admit(step)
        batch = step.batch()
        return None if batch is None else batch._replace(encoder=self._encodings.work())

    def follow(self, batch: ScheduledBatch) -> ScheduledBatch | None:
        """The next batch while `batch`, in which every item samples and none has drafts, still runs: what `schedule`
        would choose after it, but for a request that ends with it, whose token then counts for nothing. None where
        more than a token for each is to be planned, which takes what `batch` brings.
        """
        company = len(self._running)
        may_start = company < self._plan.max_num_seqs and self._num_steps + 1 >= self._next_try
        drafts = self._drafts.limit(company) and any(item.request.max_drafts for item in batch.items)
        if (self._waiting and may_start) or drafts or batch.encoder.encodes:
            return None  # what is encoded counts as there only when the step has not failed
        if sum(item.request.state is State.RUNNING for item in batch.items) < company:
            return None
        following = one_further(batch, self._cache)
        if following is None or (self._waiting and len(following.items) < company):
            return None  # in the latter case one ends for sure, and another may take its place
        self._num_steps += 1
        return following

    def advance(
        self,
        batch: ScheduledBatch,
        sampled: Mapping[Request, Sequence[int]],
        drafts: Mapping[Request, Sequence[int]] = _NO_DRAFTS,
    ) -> list[Output]:
        """The batch has run. `sampled`: the new tokens of each request in it that samples, which are one more than its
        drafts that turned out right. `drafts`: for the step after."""
        outputs = []
        self._encodings.ran()
        for item in batch.items:
            request = item.request
            pages = request.pages
            if pages is None:
                continue  # ended while the batch ran
            computed = item.start + item.num_tokens
            tokens: tuple[int, ...] = ()
            reason: FinishReason | None = None
            if item.samples:
                tokens, reason = request.extend(sampled[request])
                if item.num_drafts:
                    num_right = len(tokens) - 1
                    self._drafts.saw(request, item.num_drafts, num_right)
                    computed += num_right - item.num_drafts
                if drafts or request.drafts:
                    request.propose(drafts.get(request, ()))
            request.num_computed = computed
            if item.draft_rows:
                self._cache.drafted(pages, item.start, min(computed, len(request.tokens) - 1))
            if computed >= pages.next_event:
                self._cache.computed(pages, request.keys, computed)
            if request.parts:
                self._encodings.computed(request, computed)
            if not item.samples and computed < len(request.tokens):
                continue
            if computed == request.num_prompt and request.index == 0:
                self._queue_held(request.submission)
            if not item.samples:
                reason = "length"
            finished = None if reason is None else self._finish(request, reason)
            outputs.append(Output(request, tokens, reason, finished))
        return outputs

    def _company(self) -> int:
        """Sequences that share the steps to come. Who waits for its turn alone, not for room, counts: a token drafted
        before it runs would have cost less afterwards, in a step of more."""
        running = len(self._running)
        return running if self._next_try else min(running + len(self._waiting), self._plan.max_num_seqs)

    def _add(self, request: Request, num_tokens: int, step: Step) -> None:
        step.add(request, num_tokens, self._drafts.beside(request, num_tokens))

    # ---- room

    def _make_room(self, request: Request, wanted: int, step: Step) -> int:
        """Pages for up to `wanted` more tokens, if need be from requests that rank below. Returns for how many."""
        pages = request.pages
        assert pages is not None
        start = request.num_computed
        if start + wanted <= pages.capacity:
            return wanted
        while (num_tokens := self._cache.grow(pages, start + wanted) - start) == 0:
            victim = self._running.worst_at(pages.home)
            if victim is not None and victim is not request:
                self._preempt(victim, step)
            else:
                if self._running.number_at(pages.home) == 1:
                    self._start_over(request, step)
                return 0
        return num_tokens

    def _preempt(self, request: Request, step: Step) -> None:
        assert request.pages is not None
        self._cache.end(request.pages, resumes=True)
        self._running.remove(request)
        request.preempt()
        self._waiting.add(request)
        step.preempt(request)
        self._preemptions += 1
        self._next_try = 0

    def _start_over(self, request: Request, step: Step) -> None:
        """Nobody else runs there, and yet there is no room: pages lie scattered over slabs that cannot change groups.

        In an empty cache its pages come in order and fit, if it has no company again; `CapacityPlan` sees to that.
        """
        assert request.pages is not None
        home = request.pages.home
        self._preempt(request, step)
        self._cache.drop_cached(home)
        self._alone[home] = request

    # ---- admission

    def _admit(self, step: Step) -> None:
        if self._num_steps < self._next_try:
            return
        while step.budget and len(self._running) < self._plan.max_num_seqs:
            request = self._next_waiting(step)
            if request is None:
                return
            num_tokens = self._start(request, step.budget)
            if num_tokens is None:
                self._next_try = self._num_steps + _STEPS_BETWEEN_TRIES
                return
            if num_tokens == 0:
                return
            self._add(request, num_tokens, step)

    def _next_waiting(self, step: Step) -> Request | None:
        for alone in self._alone.values():
            if alone.state is State.WAITING:
                return alone
        if step.preempted or len(self._alone) == self._plan.homes:
            return None  # nobody takes the place of the preempted at once
        return self._waiting.best

    def _start(self, request: Request, budget: int) -> int | None:
        """Makes it run, if there is room for all its tokens. Returns how many it may compute in this step.

        None: it does not run. 0: it does, but its media cannot be encoded in this step any more.
        """
        homes = homes_for(request, self._running, self._cache, self._alone)
        started = (self._start_at(home, request, budget) for home in homes)
        return next((num_tokens for num_tokens in started if num_tokens is not None), None)

    def _start_at(self, home: int, request: Request, budget: int) -> int | None:
        pages = self._begin(home, request)
        company = self._running.number_at(home)
        if company and not self._cache.has_room(pages, len(request.tokens), spare_pages=company):
            self._cache.end(pages, resumes=True)
            return None
        num_tokens = self._grow_first(request, pages, budget)
        if num_tokens == 0 and company == 0:
            self._cache.end(pages, resumes=True)
            self._cache.drop_cached(home)
            pages = self._begin(home, request)
            num_tokens = self._grow_first(request, pages, budget)
        if num_tokens == 0:
            self._cache.end(pages, resumes=True)
            return None
        self._note_start(request, pages.num_hit)
        self._waiting.remove(request)
        request.run(pages)
        self._running.add(request)
        self._encodings.computed(request, request.num_computed)
        return self._with_media(request, num_tokens)

    def _begin(self, home: int, request: Request) -> SequencePages:
        submission = request.submission
        salt = submission.submit.cache_salt
        return self._cache.begin(home, request.keys, salt, submission.kept, reuse=not request.reads_prompt)

    def _grow_first(self, request: Request, pages: SequencePages, budget: int) -> int:
        return self._cache.grow(pages, min(len(request.tokens), pages.num_hit + budget)) - pages.num_hit

    def _note_start(self, request: Request, num_hit: int) -> None:
        submission = request.submission
        if submission.first_step is None:
            submission.first_step = self._clock()
            submission.cached_tokens = num_hit
            self._prefix_queries += request.num_prompt
            self._prefix_hits += num_hit

    def _with_media(self, request: Request, num_tokens: int) -> int:
        """How many of its next tokens have their embeddings in this step."""
        return self._encodings.reserve(request, request.num_computed, num_tokens) if request.parts else num_tokens

    # ---- queues and ends

    def _queue(self, request: Request) -> None:
        request.wait()
        self._waiting.add(request)
        if self._waiting.best is request:
            self._next_try = 0

    def _queue_held(self, submission: Submission) -> None:
        for choice in submission.held():
            self._queue(choice)

    def _leave(self, request: Request, reason: FinishReason) -> None:
        if request.state is State.RUNNING:
            assert request.pages is not None
            self._cache.end(request.pages, resumes=False)
            self._running.remove(request)
        elif request.state is State.WAITING:
            self._waiting.remove(request)
        self._encodings.release(request)
        request.end(reason)
        self._num_unfinished -= 1
        self._next_try = 0
        for home in [home for home, alone in self._alone.items() if alone is request]:
            del self._alone[home]

    def _abort(self, submission: Submission) -> Finished:
        submission.aborted = True
        for choice in submission.choices:
            if choice.state is not State.ENDED:
                self._leave(choice, "abort")
        return self._close(submission)

    def _finish(self, request: Request, reason: FinishReason) -> Finished | None:
        self._leave(request, reason)
        submission = request.submission
        self._queue_held(submission)
        return self._close(submission) if submission.ended else None

    def _close(self, submission: Submission) -> Finished:
        del self._submissions[submission.submit.request_id]
        finished = submission.finished(self._clock())
        submission.choices = ()  # they know the submission too: without this, only a garbage collection would free them
        return finished

    def check_integrity(self) -> None:
        """For tests."""
        choices = [choice for submission in self._submissions.values() for choice in submission.choices]
        for state, queue in ((State.WAITING, self._waiting), (State.RUNNING, self._running)):
            mine = sorted(choice.rank for choice in choices if choice.state is state)
            assert [request.rank for request in queue] == mine
        assert self._num_unfinished == sum(choice.state is not State.ENDED for choice in choices)
        assert all(choice.num_computed < len(choice.tokens) for choice in choices if choice.state is not State.ENDED)
        for home, alone in self._alone.items():
            there = [request for request in self._running if request.pages is not None and request.pages.home == home]
            assert there in ([], [alone])
        self._encodings.check_integrity([choice for choice in choices if choice.state is not State.ENDED])
        self._cache.check_integrity(request.pages for request in self._running if request.pages is not None)

"""One choice of a submitted request: its tokens, how far they are computed, and its state.

The only place where that state changes. Knows nothing of batches or of how pages are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING

from engine.cache.groups import SequencePages
from engine.config.engine import MAX_SPECULATIVE_TOKENS
from engine.grammar.matcher import Matcher
from engine.sched.draft_rates import DraftRates
from engine.sched.parts import Part, prefix_keys
from engine.wire.messages import FinishReason, Sampling

if TYPE_CHECKING:
    from engine.sched.submission import Submission


class State(Enum):
    HELD = auto()  # until the first choice has computed their common prompt
    WAITING = auto()
    RUNNING = auto()  # has pages
    ENDED = auto()


class Request:
    """Equal only to itself, and hashable: others may key their own state by it."""

    __slots__ = (
        *("__weakref__", "_max_tokens", "_stop_ids", "drafts", "finish_reason", "index", "keys", "matcher"),
        *("max_drafts", "num_computed", "num_prompt", "num_truncated", "pages", "parts", "rank", "rates", "request_id"),
        *("sampling", "state", "submission", "tokens"),
    )

    def __init__(self, submission: Submission, index: int, max_model_len: int) -> None:
        submit = submission.submit
        self.submission = submission
        self.request_id = submit.request_id
        self.parts: tuple[Part, ...] = submission.parts  # its media
        self.index = index
        self.sampling: Sampling = submit.sampling
        self.rank = (submit.priority, submission.arrival, index)  # the lower runs first and is preempted last
        self.tokens = list(submit.prompt_ids)  # the prompt's, then the answer's
        # What the prefix cache compares: the tokens, with media in the place of their placeholders.
        self.keys = prefix_keys(self.tokens, submission.parts) if submission.parts else self.tokens
        self.num_prompt = len(self.tokens)
        self.num_computed = 0
        self.num_truncated = 0  # last tokens of the answer that are not part of it
        self.state = State.HELD
        self.finish_reason: FinishReason | None = None
        self.pages: SequencePages | None = None
        self.matcher: Matcher | None = None  # has accepted the whole answer, so that computing it again changes nothing
        self.drafts: list[int] = []  # for the next step, once everything else is computed
        self.max_drafts = MAX_SPECULATIVE_TOKENS if submit.speculative_tokens is None else submit.speculative_tokens
        self.rates = DraftRates()
        self._stop_ids = frozenset(self.sampling.stop_token_ids)
        self._max_tokens = min(self.sampling.max_tokens, max_model_len - self.num_prompt)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt - self.num_truncated

    @property
    def output_ids(self) -> list[int]:
        return self.tokens[self.num_prompt : self.num_prompt + self.num_output]

    @property
    def num_remaining(self) -> int:
        """Tokens that wait to be computed."""
        return len(self.tokens) - self.num_computed

    @property
    def decodes(self) -> bool:
        """Its next step has one token, with the whole prompt behind it."""
        return self.num_computed >= self.num_prompt and self.num_computed == len(self.tokens) - 1

    @property
    def num_left(self) -> int:
        """Tokens that its answer may still get."""
        return self._max_tokens - len(self.tokens) + self.num_prompt

    def is_full_with(self, num_tokens: int) -> bool:
        """Whether with so many tokens, its prompt's included, the answer is as long as it may be."""
        return num_tokens - self.num_prompt >= self._max_tokens

    @property
    def reads_prompt(self) -> bool:
        """Wants the log-probabilities of its prompt, so that every row of it has to be computed."""
        return self.index == 0 and self.sampling.prompt_logprobs is not None and len(self.tokens) == self.num_prompt

    # ---- transitions

    def wait(self) -> None:
        assert self.state is State.HELD
        self.state = State.WAITING

    def run(self, pages: SequencePages) -> None:
        assert self.state is State.WAITING
        self.state = State.RUNNING
        self.pages = pages
        self.num_computed = pages.num_hit

    def preempt(self) -> None:
        """Its tokens stay, and are computed again."""
        assert self.state is State.RUNNING
        self.state = State.WAITING
        self.pages = None
        self.num_computed = 0
        self.drafts = []

    def end(self, reason: FinishReason) -> None:
        assert self.state is not State.ENDED
        self.state = State.ENDED
        self.finish_reason = reason
        self.pages = None

    def extend(self, tokens: Sequence[int]) -> tuple[tuple[int, ...], FinishReason | None]:
        """Takes sampled tokens up to the one with which the answer is complete. Those, and why it is, if it is."""
        if len(tokens) == 1:
            return tuple(tokens), self._append(tokens[0])
        for number, token in enumerate(tokens, 1):
            if (reason := self._append(token)) is not None:
                return tuple(tokens[:number]), reason
        return tuple(tokens), None

    def propose(self, drafts: Sequence[int]) -> None:
        """For the next step. One that would end the answer need not be tried: it may come of itself behind the others.

        Of the tokens that it may still get, the last is not worth a draft either.
        """
        ends = (place for place, token in enumerate(drafts) if token in self._stop_ids)
        self.drafts = list(drafts[: min(next(ends, len(drafts)), max(0, self.num_left - 1))])

    def _append(self, token: int) -> FinishReason | None:
        self.tokens.append(token)
        if self.keys is not self.tokens:
            self.keys.append(token)
        num_output = len(self.tokens) - self.num_prompt
        if token in self._stop_ids and num_output > self.sampling.min_tokens:
            return "stop"
        if self.matcher is not None:
            self.matcher.accept(token)
            if self.matcher.complete:
                return "stop"
        return "length" if num_output >= self._max_tokens else None

    def truncate(self, num_output: int) -> None:
        """The answer ends with its token `num_output`; what came after it does not count."""
        self.num_truncated += max(0, self.num_output - num_output)

"""One choice of a submitted request: its tokens, how far they are computed, and its state.

The only place where that state changes. Knows nothing of batches or of how pages are found.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from engine.cache.groups import SequencePages
from engine.grammar.matcher import Matcher
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
        *("__weakref__", "_max_tokens", "_stop_ids", "finish_reason", "index", "keys", "matcher", "num_computed"),
        *("num_prompt", "num_truncated", "pages", "rank", "sampling", "state", "submission", "tokens"),
    )

    def __init__(self, submission: Submission, index: int, max_model_len: int) -> None:
        submit = submission.submit
        self.submission = submission
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
        self._stop_ids = frozenset(self.sampling.stop_token_ids)
        self._max_tokens = min(self.sampling.max_tokens, max_model_len - self.num_prompt)

    @property
    def request_id(self) -> str:
        return self.submission.submit.request_id

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its media."""
        return self.submission.parts

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

    def end(self, reason: FinishReason) -> None:
        assert self.state is not State.ENDED
        self.state = State.ENDED
        self.finish_reason = reason
        self.pages = None

    def append(self, token: int) -> FinishReason | None:
        """Takes a sampled token. Returns why the answer is complete with it, if it is."""
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

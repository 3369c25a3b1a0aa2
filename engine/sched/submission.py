"""A submitted request with all its choices: when it came, what of it was cached, and when it is over."""

from __future__ import annotations

from engine.sched.parts import Part
from engine.sched.request import Request, State
from engine.wire.messages import Finished, Submit


class Submission:
    __slots__ = (
        "aborted",
        "arrival",
        "cached_tokens",
        "choices",
        "first_step",
        "kept",
        "parts",
        "ready",
        "received",
        "submit",
    )

    def __init__(
        self,
        submit: Submit,
        parts: tuple[Part, ...],
        arrival: int,
        received: float,
        kept: frozenset[int],
        max_model_len: int,
    ) -> None:
        self.submit = submit
        self.parts = parts  # of its media, in the order of their offsets
        self.arrival = arrival  # counts submissions
        self.received = received  # seconds, as first_step
        self.first_step: float | None = None
        self.kept = kept  # page numbers at whose windows other requests are likely to go on
        self.cached_tokens = 0  # of the prompt
        self.aborted = False
        self.ready = submit.grammar is None  # or its grammar is there
        self.choices: tuple[Request, ...] = tuple(Request(self, index, max_model_len) for index in range(submit.n))

    @property
    def ended(self) -> bool:
        return all(choice.state is State.ENDED for choice in self.choices)

    def held(self) -> list[Request]:
        """Choices that wait for the prompt to be computed by the first."""
        if not self.ready:
            return []
        return [choice for choice in self.choices[1:] if choice.state is State.HELD]

    def finished(self, now: float) -> Finished:
        return Finished(
            request_id=self.submit.request_id,
            prompt_tokens=len(self.submit.prompt_ids),
            cached_tokens=self.cached_tokens,
            completion_tokens=sum(choice.num_output for choice in self.choices),
            queue_s=(now if self.first_step is None else self.first_step) - self.received,
            aborted=self.aborted,
        )

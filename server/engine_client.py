"""The gateway's side of the wire: what any engine looks like from here.

Knows nothing of HTTP, text or how a worker is started.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from engine.wire.messages import Beat, Failed, Finished, Ready, Submit, Tokens

Event = Tokens | Finished | Failed
Offer = Callable[[Sequence[Event]], bool]
WorkerState = Literal["starting", "ready", "stalled", "dead", "draining"]


@dataclass(frozen=True)
class WorkerHealth:
    """What is known of one worker now."""

    name: str
    pid: int | None
    state: WorkerState
    since: float  # unix time of the last change of state
    beat: Beat | None = None
    restarts: int = 0
    detail: str | None = None  # why it is not ready, in words
    outstanding_tokens: int = 0  # work asked for by this gateway and not finished, about


class Submission(Protocol):
    """A request that an engine has taken. Whoever submitted it closes it."""

    async def receive(self, offer: Offer | None = None) -> Sequence[Event]:
        """All that has come since the last call, in order; waits for the first. The last event is terminal.

        While it waits, `offer` is called with what comes, and what it takes (True) is not waited for any more: a task
        that is woken for each token costs more than the token does.
        """
        ...

    def stop(self, index: int, num_tokens: int) -> None:
        """End one choice as finished after `num_tokens` tokens."""
        ...

    def close(self) -> None:
        """Abort what still runs. Idempotent, and never waits."""
        ...


class Engine(Protocol):
    """One worker or many."""

    @property
    def ready(self) -> Ready | None:
        """What the workers serve; None until one of them has said so."""
        ...

    def health(self) -> tuple[WorkerHealth, ...]: ...

    def submit(self, request: Submit) -> Submission:
        """Raises RequestError where no worker can take it."""
        ...

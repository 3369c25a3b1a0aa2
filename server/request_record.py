"""What is kept of one request for the log and for traces: times, counts and reasons, never its content or a key.

Owns the record and the clock that fills it and the metrics. Knows nothing of HTTP or of how either is shown.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from server.deltas import ChoiceDelta, Done
from server.metrics import FINISH_REASONS, Metrics

# Errors whose messages say something of the server's own making. Others may quote what the client sent.
_TOLD = frozenset({"client_closed", "request_timeout", "engine_dead", "request_quarantined", "draining"})

RECORD = "dots3.record"  # key of an ASGI scope


@dataclass
class RequestRecord:
    """Filled by whoever comes to know; what nobody came to know is not shown."""

    request_id: str
    method: str
    path: str
    key: str | None = None  # its name, not the key
    status: int | None = None
    error: str | None = None  # code of server/errors.py; with status 200 it came after the stream had begun
    detail: str | None = None  # why it was aborted
    model: str | None = None
    stream: bool | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    queue_s: float | None = None  # in the worker
    first_token_s: float | None = None  # from receipt of the whole body
    took_s: float | None = None
    finish_reasons: list[str] = field(default_factory=list)  # of the choices that ended
    tries: int | None = None  # if the worker died in the first
    trace_id: str | None = None

    def known(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value not in (None, [])}


class RequestClock:
    """Times one request and counts its tokens, for the metrics and for its record."""

    def __init__(self, metrics: Metrics, record: RequestRecord) -> None:
        self.metrics = metrics
        self.record = record
        self._began_s = time.monotonic()
        self._last_s: dict[int, float] = {}  # when a choice had its latest token
        self._num_tokens = 0

    def asked(self, model: str, stream: bool, prompt_tokens: int) -> None:
        """What the request turned out to be."""
        self.record.model, self.record.stream, self.record.prompt_tokens = model, stream, prompt_tokens

    def delta(self, delta: ChoiceDelta) -> None:
        if count := len(delta.token_ids):
            now_s = time.monotonic()
            last_s = self._last_s.get(delta.index)
            if last_s is None and self.record.first_token_s is None:
                self.record.first_token_s = now_s - self._began_s
                self.metrics.first_token.observe(self.record.first_token_s)
            self._last_s[delta.index] = now_s
            self._num_tokens += count
            self.metrics.tokens.add(count, None if last_s is None else now_s - last_s)
        if delta.finish_reason is not None:
            reason = delta.finish_reason if delta.finish_reason in FINISH_REASONS else "stop"
            self.record.finish_reasons.append(reason)

    def tried_again(self) -> None:
        """What came so far was lost, and comes anew."""
        self.metrics.second_tries.inc()
        self.record.tries = (self.record.tries or 1) + 1
        self.record.finish_reasons.clear()
        self._last_s.clear()
        self._num_tokens = 0

    def done(self, done: Done) -> None:
        self.record.prompt_tokens = done.usage.prompt_tokens
        self.record.completion_tokens = done.usage.completion_tokens
        self.record.cached_tokens = done.usage.cached_tokens
        self.record.queue_s = done.queue_s
        self.metrics.prompt_tokens.inc(done.usage.prompt_tokens)
        self.metrics.queue_time.observe(done.queue_s)
        for rule, uses in done.repairs.items():
            self.metrics.tool_repairs.labels(rule).inc(uses)
        self.metrics.latency.observe(time.monotonic() - self._began_s)
        self._count_ends()

    def failed(self, code: str, message: str, open_choices: int = 0) -> None:
        """The request ended in an error; so many of its choices had no end of their own."""
        self.record.error = code
        if code in _TOLD:
            self.record.detail = message
        self.record.completion_tokens = self._num_tokens
        self.record.finish_reasons += ["abort"] * open_choices
        self.metrics.failed(code)
        if code == "client_closed":
            self.metrics.disconnects.inc()
        self._count_ends()

    def _count_ends(self) -> None:
        for reason in self.record.finish_reasons:
            self.metrics.requests.labels(reason).inc()

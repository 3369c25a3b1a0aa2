"""Figures of the decoding processes for Prometheus. Owns their names; the pool tells what happens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

JobKind = Literal["picture", "sound", "film", "frames"]
# `refused`: the file is to blame. `late`, `broken`: the process was replaced. `left`: nobody wants it any more.
JobResult = Literal["done", "refused", "late", "broken", "left"]
JOB_KINDS: tuple[JobKind, ...] = ("picture", "sound", "film", "frames")
JOB_RESULTS: tuple[JobResult, ...] = ("done", "refused", "late", "broken", "left")

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)


class PoolFigures:
    def __init__(self, registry: CollectorRegistry) -> None:
        # A gauge has to say how it adds up over gateway processes: those of the living are summed.
        self._busy = Gauge(
            "dots3_media_decoders_busy", "Decoding processes at work", registry=registry, multiprocess_mode="livesum"
        )
        self._waiting = Gauge(
            "dots3_media_jobs_waiting",
            "Files that wait for a decoding process",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._jobs = Counter(
            "dots3_media_jobs",
            "Jobs of decoding processes; a film's frames may be several",
            ["kind", "result"],
            registry=registry,
        )
        self._seconds = Histogram(
            "dots3_media_job_seconds", "That a process took for a job", ["kind"], buckets=_SECONDS, registry=registry
        )
        # A series that appears with its first count would hide that count from rates.
        for kind in JOB_KINDS:
            self._seconds.labels(kind)
            for result in JOB_RESULTS:
                self._jobs.labels(kind, result)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        with self._waiting.track_inprogress():
            yield

    @contextmanager
    def job(self, kind: JobKind) -> Iterator[JobOutcome]:
        """For as long as a process works at it. Who leaves early has left, unless the outcome says more."""
        began_s, outcome = time.monotonic(), JobOutcome()
        try:
            with self._busy.track_inprogress():
                yield outcome
        finally:
            self._jobs.labels(kind, outcome.result).inc()
            self._seconds.labels(kind).observe(time.monotonic() - began_s)


class JobOutcome:
    def __init__(self) -> None:
        self.result: JobResult = "left"

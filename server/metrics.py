"""Figures for Prometheus, under the names that dashboards rely on.

Labels are bounded: reasons, codes, groups and workers, all of the server's own making. Counts of the workers are read
from their last beats when somebody asks. Where a server has several gateway processes, each of them tells the figures
of all: counts that outlive a process lie in files that the successor of one that died goes on with. Knows nothing of
HTTP.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
    values,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from engine.config.engine import MAX_SPECULATIVE_TOKENS
from engine.wire.messages import Beat
from parsers.repairs import Repair
from server.engine_client import Engine, WorkerHealth
from server.errors import KINDS
from server.media.pool_figures import PoolFigures
from server.siblings import GAPS, NUM_GAPS, Siblings

_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0)
_LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0)
assert len(_SHORT) + 1 == NUM_GAPS
FINISH_REASONS = ("stop", "length", "abort", "tool_calls")
_MEDIA_KINDS = ("image", "audio", "video")
_MOST_DRAFTS = MAX_SPECULATIVE_TOKENS  # positions, all of which are shown from the start
# Stands for the beat that a worker has not sent yet, so that its series are there as soon as it is.
_SILENT = Beat(0, False, 0, 0, {}, 0, 0, 0)


def share_metrics(folder: Path, place: int) -> None:
    """Before this process makes its Metrics: its counts are to lie in `folder`, under its place among its siblings."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)  # where the library looks whenever it makes a file
    values.ValueClass = values.MultiProcessValue(lambda: place)  # type: ignore[no-untyped-call]


def forget_process(folder: Path, place: int) -> None:
    """The process there has ended: what it counted stays, what it held goes."""
    mark_process_dead(place, str(folder))  # type: ignore[no-untyped-call]


class Metrics:
    """One per app, with registries of its own."""

    def __init__(self, engine: Engine, siblings: Siblings | None = None) -> None:
        """`siblings` that are several: `share_metrics` was called before."""
        # A second series beside each, which nobody here reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        siblings = siblings or Siblings.none()
        registry = CollectorRegistry()
        self.registry = registry if siblings.metrics_folder is None else CollectorRegistry()  # what is told
        self.registry.register(_WorkerFigures(engine))
        if siblings.metrics_folder is not None:
            MultiProcessCollector(self.registry, str(siblings.metrics_folder))  # type: ignore[no-untyped-call]
        self.requests = Counter("dots3_requests", "Choices that ended", ["finish_reason"], registry=registry)
        self.errors = Counter("dots3_request_errors", "Requests that got an error", ["code"], registry=registry)
        self.prompt_tokens = Counter("dots3_prompt_tokens", "Tokens of prompts", registry=registry)
        self.tokens = TokenFigures(siblings)
        self.registry.register(self.tokens)
        self.ignored_keys = Counter("dots3_ignored_keys", "Unknown keys that requests held", registry=registry)
        self.tool_repairs = Counter(
            "dots3_tool_call_repairs", "Uses of the rules for damaged tool calls", ["rule"], registry=registry
        )
        self.first_token = Histogram(
            "dots3_time_to_first_token_seconds",
            "From receipt to the first token",
            buckets=_LONG,
            registry=registry,
        )
        self.latency = Histogram(
            "dots3_request_latency_seconds", "From the whole body to the end", buckets=_LONG, registry=registry
        )
        self.queue_time = Histogram(
            "dots3_queue_time_seconds", "From the worker's receipt to the first step", buckets=_LONG, registry=registry
        )
        self.media_items = Counter("dots3_media_items", "Pictures, sounds and films", ["kind"], registry=registry)
        self.media_decode = Histogram(
            "dots3_media_decode_seconds", "To decode an item", ["kind"], buckets=_LONG, registry=registry
        )
        self.media_pool = PoolFigures(registry)
        # A gauge has to say how it adds up over processes: those of the living are summed.
        self.open_streams = Gauge(
            "dots3_open_streams", "Streams that are being answered", registry=registry, multiprocess_mode="livesum"
        )
        self.disconnects = Counter("dots3_client_disconnects", "Clients that left before the end", registry=registry)
        self.second_tries = Counter(
            "dots3_request_second_tries", "Requests tried again after their worker died", registry=registry
        )
        self.loop_lag = Histogram(
            "dots3_event_loop_lag_seconds", "How late the event loop is", buckets=_SHORT, registry=registry
        )
        self.registry.register(_GatewayFigures(siblings))
        self._show_every_label()

    def _show_every_label(self) -> None:
        """A series that appears with its first count would hide that count from rates."""
        for reason in FINISH_REASONS:
            self.requests.labels(reason)
        for rule in Repair:
            self.tool_repairs.labels(rule.value)
        for kind in _MEDIA_KINDS:
            self.media_items.labels(kind)
            self.media_decode.labels(kind)
        for code in KINDS:
            self.errors.labels(code)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def failed(self, code: str) -> None:
        self.errors.labels(code).inc()


class TokenFigures(Collector):
    """What is counted for every token: plain numbers of the loop's thread, since locks would cost more than they."""

    def __init__(self, siblings: Siblings) -> None:
        numbers = siblings.numbers
        self._num_tokens = numbers["generated"]
        self._counts = [numbers[name] for name in GAPS]  # by the bucket that a gap falls into
        self._sum_ns = numbers["gap_sum_ns"]

    def add(self, num_tokens: int, gap_s: float | None) -> None:
        """`gap_s` since the choice's last token; None before its first."""
        self._num_tokens.add(num_tokens)
        if gap_s is not None:
            self._counts[bisect_left(_SHORT, gap_s / num_tokens)].add(num_tokens)
            self._sum_ns.add(round(gap_s * 1e9))

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily("dots3_generation_tokens", "Tokens generated", self._num_tokens.total())
        bounds = [*map(str, _SHORT), "+Inf"]
        counts = accumulate(count.total() for count in self._counts)
        yield HistogramMetricFamily(
            "dots3_inter_token_latency_seconds",
            "Between tokens of a choice",
            buckets=list(zip(bounds, map(float, counts), strict=True)),
            sum_value=self._sum_ns.total() / 1e9,
        )


class _GatewayFigures(Collector):
    """Memory, CPU time and open files of the gateway; where it is several processes, of each by its place."""

    def __init__(self, siblings: Siblings) -> None:
        self._siblings = siblings

    def collect(self) -> Iterator[Metric]:
        restarts = self._siblings.gateway_restarts.total()
        yield CounterMetricFamily("dots3_gateway_restarts", "Times that a gateway process was started again", restarts)
        if self._siblings.folder is None:
            yield from ProcessCollector(registry=None).collect()
            return
        families: dict[str, Metric] = {}
        for place, pid in self._siblings.pids.items():
            for metric in ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():  # type: ignore[misc]
                family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                for sample in metric.samples:
                    family.add_sample(sample.name, {"gateway": str(place)}, sample.value)
        yield from families.values()


class _WorkerFigures(Collector):
    """What workers said in their last beats, summed; and which of them are up."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        workers = self._engine.health()
        beats = [worker.beat for worker in workers if worker.beat is not None]
        yield GaugeMetricFamily("dots3_requests_running", "Requests that run", sum(beat.running for beat in beats))
        yield GaugeMetricFamily("dots3_requests_waiting", "Requests that wait", sum(beat.waiting for beat in beats))
        yield _usage(beat.cache_usage for beat in beats)
        counts = (
            ("dots3_prefix_cache_queries", "Prompt tokens looked up", sum(beat.prefix_queries for beat in beats)),
            ("dots3_prefix_cache_hits", "Prompt tokens found", sum(beat.prefix_hits for beat in beats)),
            ("dots3_preemptions", "Sequences put back to wait", sum(beat.preemptions for beat in beats)),
        )
        for name, text, value in counts:
            yield CounterMetricFamily(name, text, value)
        yield _by_position("dots3_spec_drafted_tokens", "Drafts checked", [beat.drafted_tokens for beat in beats])
        yield _by_position("dots3_spec_accepted_tokens", "Drafts right", [beat.accepted_tokens for beat in beats])
        yield from _per_worker(workers)

    def describe(self) -> Iterable[Metric]:
        return []  # asks no engine while the app is being built


def _usage(shares: Iterable[dict[str, float]]) -> Metric:
    family = GaugeMetricFamily("dots3_kv_cache_usage_ratio", "Share of the cache's bytes in use", labels=["group"])
    fullest: dict[str, float] = {}
    for usage in shares:
        for group, share in usage.items():
            fullest[group] = max(share, fullest.get(group, 0.0))
    for group, share in fullest.items():
        family.add_metric([group], share)
    return family


def _by_position(name: str, text: str, counts: Sequence[Sequence[int]]) -> Metric:
    """1 is the first draft behind a step's own token: so many steps had drafts."""
    family = CounterMetricFamily(name, text, labels=["position"])
    for place in range(_MOST_DRAFTS):
        family.add_metric([str(place + 1)], sum(one[place] for one in counts if place < len(one)))
    return family


def _per_worker(workers: Iterable[WorkerHealth]) -> Iterator[Metric]:
    labels = ["worker"]
    up = GaugeMetricFamily("dots3_worker_up", "1: would serve a request now", labels=labels)
    outstanding = GaugeMetricFamily(
        "dots3_worker_outstanding_tokens", "Work asked for here and not finished, about", labels=labels
    )
    running = GaugeMetricFamily("dots3_worker_requests_running", "Requests that run there", labels=labels)
    waiting = GaugeMetricFamily("dots3_worker_requests_waiting", "Requests that wait there", labels=labels)
    queries = CounterMetricFamily("dots3_worker_prefix_cache_queries", "Prompt tokens looked up", labels=labels)
    hits = CounterMetricFamily("dots3_worker_prefix_cache_hits", "Prompt tokens found", labels=labels)
    experts = CounterMetricFamily(
        "dots3_worker_expert_tokens", "Pairs of token and expert of each rank", labels=["worker", "rank"]
    )
    restarts = CounterMetricFamily("dots3_worker_restarts", "Times that a worker was started again", labels=[])
    total = 0
    for worker in workers:
        up.add_metric([worker.name], float(worker.state == "ready"))
        outstanding.add_metric([worker.name], worker.outstanding_tokens)
        beat = worker.beat or _SILENT
        running.add_metric([worker.name], beat.running)
        waiting.add_metric([worker.name], beat.waiting)
        queries.add_metric([worker.name], beat.prefix_queries)
        hits.add_metric([worker.name], beat.prefix_hits)
        for rank, load in enumerate(beat.expert_load):
            experts.add_metric([worker.name, str(rank)], load)
        total += worker.restarts
    restarts.add_metric([], total)
    yield from (up, outstanding, running, waiting, queries, hits, experts, restarts)

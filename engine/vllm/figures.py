"""What vLLM tells of each of its steps, summed up for beats. It is one of vLLM's stat loggers, by shape.

A deployment may have several engines (data parallel), each of which tells of itself. Knows nothing of requests.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# vLLM has one pool of blocks for all layers; it is shown under the name of the group that grows with the context.
POOL = "dsa"


class EngineFigures(NamedTuple):
    """Of one engine, now."""

    running: int = 0
    waiting: int = 0
    usage: float = 0.0


class Figures:
    def __init__(self) -> None:
        self.steps = 0
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.drafted: list[int] = []  # by position behind the last token
        self.accepted: list[int] = []
        self._engines: dict[int, EngineFigures] = {}

    @property
    def running(self) -> int:
        return sum(engine.running for engine in self._engines.values())

    @property
    def usage(self) -> float:
        """Of the fullest engine."""
        return max((engine.usage for engine in self._engines.values()), default=0.0)

    # ---- called by vLLM

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        del mm_cache_stats
        self.steps += 1
        if iteration_stats is not None:
            self.preemptions += iteration_stats.num_preempted_reqs
        if scheduler_stats is None:
            return
        self._engines[engine_idx] = EngineFigures(
            scheduler_stats.num_running_reqs, scheduler_stats.num_waiting_reqs, scheduler_stats.kv_cache_usage
        )
        self.prefix_queries += scheduler_stats.prefix_cache_stats.queries
        self.prefix_hits += scheduler_stats.prefix_cache_stats.hits
        if (drafts := scheduler_stats.spec_decoding_stats) is not None:
            _add(self.drafted, drafts.num_draft_tokens_per_pos)
            _add(self.accepted, drafts.num_accepted_tokens_per_pos)

    def log_engine_initialized(self) -> None:
        """Nothing is told before the first step."""

    def log(self) -> None:
        """vLLM's own loggers write lines."""


def _add(sums: list[int], news: list[int]) -> None:
    sums += [0] * (len(news) - len(sums))
    for place, number in enumerate(news):
        sums[place] += number

"""What a decode step should take on a machine, from the bytes that a rank moves and from how measured pieces relate to
that.

The pieces were measured on an H200 with vLLM 0.33 on layers of the released widths in FP8: a layer's attention took
66 µs and 2.5 times its bytes' time, an MLP 40 µs and 1.05 times, head and sampling 1.3 times. Knows nothing of prefills
and of operations, which no decode step of these batches is bound by.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from cli.weight_bytes import TextBytes
from engine.config.capacity import CapacityPlan
from engine.config.model import ModelConfig
from engine.config.sharding import RankShare

_ATTENTION = (66.0, 2.5)  # µs, and times the floor
_MLP = (40.0, 1.05)
_HEAD = (0.0, 1.3)
# All-reduce within a recorded step, of two H200s: µs, and what each further byte takes.
_EXCHANGE_US, _EXCHANGE_TB_S = 10.5, 0.24


class Machine(NamedTuple):
    memory_bytes: int
    copy_tb_s: float  # bytes read and written


MACHINES = {
    "h200": Machine(139 << 30, 4.26),
    "h100-80gb": Machine(79 << 30, 2.97),  # not measured: the H200's share of the bandwidth that is specified
}


class StepTime(NamedTuple):
    least_ms: float  # the bytes alone
    expected_ms: float
    exchange_ms: float  # of the expected time


def decode_step(
    machine: Machine, share: RankShare, ranks: int, text: TextBytes, cache: CapacityPlan, batch: int, context: int
) -> StepTime:
    """One new token of so many sequences of so many tokens. Work is taken to be even over ranks."""
    config, spread = share.config, share.attention_data_parallel
    own = -(-batch // ranks) if spread else batch  # sequences that a rank attends for
    experts = _touched_experts(config, batch) * share.experts / config.moe.experts
    least = expected = 0.0
    for index in range(config.num_layers):
        held = text.layer(index)
        # Of what is there twice, decoding reads one.
        attention = _us(machine, held.attention - _unread(config, index) + own * _rows(config, cache, index, context))
        mlp = _us(machine, held.mlp + experts * held.expert)
        least += attention + mlp
        expected += _taken(attention, _ATTENTION) + _taken(mlp, _MLP)
    head = _us(machine, text.head)
    exchange = 0.0
    if ranks > 1:
        # A gather and the sum of each rank's own rows move half as much each as a sum of all rows on all ranks.
        num_bytes = 2 * batch * config.hidden
        exchange = 2 * config.num_layers * _exchange_us(ranks, num_bytes / 2 if spread else num_bytes)
    return StepTime((least + head) / 1e3, (expected + _taken(head, _HEAD) + exchange) / 1e3, exchange / 1e3)


def _exchange_us(ranks: int, num_bytes: float) -> float:
    """Latency grows with the depth of a tree, bytes with what a ring passes on: not measured for more than two."""
    return _EXCHANGE_US * math.log2(ranks) + num_bytes * 2 * (ranks - 1) / ranks / _EXCHANGE_TB_S / 1e6


def _touched_experts(config: ModelConfig, tokens: int) -> float:
    """Of a layer, where each token chooses at random."""
    moe = config.moe
    return float(moe.experts * (1 - (1 - moe.chosen / moe.experts) ** tokens))


def _rows(config: ModelConfig, cache: CapacityPlan, index: int, context: int) -> int:
    """Bytes of the cache that one query reads in a layer."""
    if config.layer_types[index] == "swa":
        return min(context, cache.window) * sum(part.row_bytes for part in cache.swa.parts)
    keys = sum(part.row_bytes for part in cache.dsa.parts if part.name.startswith("index"))
    row = sum(part.row_bytes for part in cache.dsa.parts) - keys
    top_k = config.indexer.top_k
    return min(context, top_k) * row + (context * keys if context > top_k else 0)


def _unread(config: ModelConfig, index: int) -> int:
    g = config.geometry(config.layer_types[index])
    return 2 * g.heads * (g.nope + g.value) * g.kv_rank


def _us(machine: Machine, num_bytes: float) -> float:
    return num_bytes / machine.copy_tb_s / 1e6


def _taken(floor_us: float, line: tuple[float, float]) -> float:
    fixed_us, times = line
    return fixed_us + times * floor_us

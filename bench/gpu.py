"""What GPU benchmarks share: the ceilings of the machine, measured in the same run, and times of repeated launches.

Nothing is timed on zeros, and buffers that fit into a cache are had in several copies, of which each launch takes the
next.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from bench.report import machine

_COPY_BYTES = (2 << 30, 4 << 30)  # read and written
_COPIES, _COPY_ROUNDS = 8, 5  # the best round counts, as others may use the GPU meanwhile
_MATRIX = 8192
# So much is recorded in one go, where that takes no more rounds: the start of a recording takes 10 µs by itself.
_RECORDED_US, _MOST_ROUNDS = 300, 32


class Ceilings(NamedTuple):
    copy_tb_s: float  # bytes read and bytes written
    bf16_tflop_s: float
    fp8_tflop_s: float | None  # None: this GPU has no FP8

    def floor_us(self, num_bytes: float, flop: float, fp8: bool = False) -> float:
        """No less time is needed to move so many bytes and to do so many operations."""
        rate = self.fp8_tflop_s if fp8 and self.fp8_tflop_s is not None else self.bf16_tflop_s
        return max(num_bytes / self.copy_tb_s, flop / rate) / 1e6


def median_us(launch: Callable[[], Any], repeats: int = 20) -> float:
    """Of replays of a recording of launches, so that the host's time does not count."""
    return medians_us([launch], repeats)


def medians_us(launches: Sequence[Callable[[], Any]], repeats: int = 20) -> float:
    """The launches are alike but for their buffers and take turns."""
    for launch in launches:
        launch()
    torch.cuda.synchronize()
    rounds = 1 + min(_MOST_ROUNDS, int(_RECORDED_US / _replay_us(launches, 3)))
    return _replay_us([*launches] * rounds, repeats) / rounds / len(launches)


def _replay_us(launches: Sequence[Callable[[], Any]], repeats: int) -> float:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    times = []
    for _ in range(repeats + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times[3:])


def ceilings() -> Ceilings:
    copy_tb_s = max(_copy_tb_s(size) for size in _COPY_BYTES)
    a, b = torch.randn(2, _MATRIX, _MATRIX, device="cuda").bfloat16()
    flop = 2 * _MATRIX**3
    bf16_us = median_us(lambda: torch.mm(a, b))
    fp8 = None
    if torch.cuda.get_device_capability() >= (8, 9):
        one = torch.ones((), device="cuda")
        left, right = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).T.contiguous().T
        fp8_us = median_us(lambda: torch._scaled_mm(left, right, one, one, out_dtype=torch.bfloat16))
        fp8 = flop / fp8_us / 1e6
    return Ceilings(copy_tb_s, flop / bf16_us / 1e6, fp8)


def _copy_tb_s(num_bytes: int) -> float:
    """Not recorded: a recorded copy is left to the copy engine, which has two thirds of the memory's bandwidth."""
    source = torch.empty(num_bytes // 16, dtype=torch.int64, device="cuda").random_()
    target = torch.empty_like(source)
    best_us = min(
        _launched_us(launch)
        for launch in (lambda: target.copy_(source), lambda: torch.bitwise_not(source, out=target))
        for _ in range(_COPY_ROUNDS)
    )
    return num_bytes / best_us / 1e6


def _launched_us(launch: Callable[[], Any]) -> float:
    """Of launches that take so long that the host is ahead of them."""
    launch()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(_COPIES):
        launch()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3 / _COPIES


def gpu_machine(commit: str | None) -> dict[str, Any]:
    """`commit`: of the code, where it runs as a copy without its history."""
    facts = machine("torch", "triton")
    facts |= {"device": torch.cuda.get_device_name(), "host": facts["device"]}
    return facts if commit is None else facts | {"commit": commit}

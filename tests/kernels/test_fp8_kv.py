"""FP8 cache rows through the kernels: written, read back, attended to and served by the whole model, as by
the reference.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.kernels import latent_read, mla_decode
from engine.kernels.latent_write import latent_write
from engine.kernels.ops import Ops, ops_for
from engine.kernels.triton_ops import TRITON
from engine.reference.latent import LatentCache, read_latents, write_latents
from engine.reference.latent_write import latent_write as plain_write
from engine.reference.pages import Pages
from engine.reference.rms_norm import Norm
from engine.runtime.graphs import GpuRecorder
from tests.kernels.compare import assert_as_good
from tests.kernels.paged import PagedCache
from tests.kernels.test_engine import SMALL, model_of
from tests.kernels.test_graphs import GraphedModel
from tests.support.paged_run import PagedRun
from tests.support.tiny_model import VOCAB

CPU_OPS = ops_for(torch.device("cpu"))
# Latents of several scales beside one of a single one, narrower than the others' groups.
WIDE = SMALL | {"kv_lora_rank": 256, "swa_kv_lora_rank": 64}
# A prompt whose keys are chosen, decodes alone, a decode beside a prompt, decodes of which some must choose.
STEPS = ({0: 7}, {0: 1}, {0: 1, 1: 3}, {0: 1, 1: 1})


def filled(
    device: str, rank: int, rope: int, page_size: int, lens: tuple[int, ...], magnitudes: float = 0.0
) -> PagedCache:
    """`magnitudes`: powers of ten by which rows are larger or smaller than one."""
    cache = PagedCache(device, lens, page_size=page_size, rank=rank, rope=rope, coded=True)
    sizes = torch.logspace(-magnitudes, magnitudes, sum(lens), device=device)
    rows = torch.randn(sum(lens), rank + rope, device=device) * sizes[:, None]
    write_latents(rows, rank, cache.latent, cache.pages, cache.all_slots())
    return cache


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("rank", "rope", "page_size"), [(64, 16, 16), (128, 32, 1), (384, 64, 64), (512, 64, 64), (1024, 64, 16)]
)
def test_rows_read_back_are_those_of_the_reference(
    device: str, rank: int, rope: int, page_size: int, dtype: torch.dtype
) -> None:
    """Bit by bit, in any order and more than once; all other memory is NaN."""
    cache = filled(device, rank, rope, page_size, (37, 1, 64), magnitudes=3.0)
    every = cache.all_slots()
    slots = torch.cat([every, every.flip(0)[:13]])[torch.randperm(len(every) + 13)]
    arguments = (rank, rope, cache.latent, cache.pages, slots, dtype)
    assert torch.equal(latent_read.read_latents(*arguments), read_latents(*arguments))
    assert latent_read.read_latents(rank, rope, cache.latent, cache.pages, slots[:0], dtype).shape == (0, rank + rope)


@pytest.mark.usefixtures("device")
def test_other_rows_and_slots_are_refused() -> None:
    cache = PagedCache("cpu", (3,), page_size=1, rank=64, rope=16)
    with pytest.raises(ValueError, match="FP8 codes with scales"):
        latent_read.read_latents(64, 16, cache.latent, cache.pages, cache.all_slots())
    cache = PagedCache("cpu", (3,), page_size=1, rank=64, rope=16, coded=True)
    with pytest.raises(ValueError, match=r"int64, got torch\.int32"):
        latent_read.read_latents(64, 16, cache.latent, cache.pages, cache.all_slots().int())
    with pytest.raises(ValueError, match=r"kv_lora_rank must be at most 128 or a multiple of it .*, got 192"):
        latent_read.read_latents(192, 16, cache.latent, cache.pages, cache.all_slots())


def test_a_narrow_latent_is_written_with_one_scale(device: str) -> None:
    """Codes may part where fp32 sums in another order round to the next one: by a step of E4M3 at most."""
    widths = (96, 64, 16)
    cache = PagedCache(device, [40], page_size=16, rank=64, rope=16, coded=True)
    slots = cache.all_slots()[torch.randperm(40)]
    projected = torch.randn(40, sum(widths), device=device)
    norm = Norm.of([torch.rand(width, device=device) + 0.5 for width in widths], 1e-5)
    angle = torch.rand(40, 1, 8, device=device)
    turns = torch.polar(torch.ones_like(angle), angle)
    outcomes = []
    for write in (latent_write, plain_write):
        cache.buffer.fill_(0xFF)
        write(projected, norm, turns, slots, cache.pages, cache.latent, None)
        outcomes.append(read_latents(64, 16, cache.latent, cache.pages, slots))
    ours, plain = outcomes
    assert ours.isfinite().all()
    assert ((ours - plain).abs() <= plain.abs() / 8 + 1e-2).all()
    assert ((ours - plain).abs() > 1e-5).float().mean() < 0.01


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("rank", "window"), [(64, 37), (1024, 20)])
def test_attention_reads_rows_of_any_width(device: str, rank: int, window: int, dtype: torch.dtype) -> None:
    lens, rope, scale = (40, 3, 65), 16, 0.05
    cache = filled(device, rank, rope, 16, lens)
    q = torch.randn(len(lens), 4, rank + rope, device=device).to(dtype)
    attended = mla_decode.swa_mla_decode(q, cache.latent, cache.rows, window, rank, scale)
    ours = mla_decode.combine(attended, dtype)
    plain, exact = [], []
    for sequence, length in enumerate(lens):
        slots = cache.slots(sequence, torch.arange(max(0, length - window), length))
        rows = read_latents(rank, rope, cache.latent, cache.pages, slots)
        for outcomes, kind in ((plain, dtype), (exact, torch.float64)):
            keys = rows.to(kind)
            outcomes.append((q[sequence].to(kind) @ keys.T * scale).softmax(-1) @ keys[:, :rank])
    assert_as_good(ours, torch.stack(plain), torch.stack(exact))


@pytest.mark.gpu
def test_rows_beyond_four_gigabytes() -> None:
    """In each of the three parts."""
    near = filled("cuda", 64, 16, 16, (20,))
    far = 9 << 30
    buffer = torch.empty(far + len(near.buffer), dtype=torch.uint8, device="cuda")
    buffer[far:] = near.buffer
    parts = []
    for part in near.latent:
        assert part is not None
        begin = part.storage_offset() * part.itemsize
        flat = buffer[begin : begin + (len(buffer) - begin) // 16 * 16].view(part.dtype)
        parts.append(flat.as_strided((len(flat) - part.shape[1] + 1, part.shape[1]), (1, 1)))
    pages = Pages(near.pages.starts + far, near.pages.size)
    slots = near.all_slots()
    ours = latent_read.read_latents(64, 16, LatentCache(*parts), pages, slots)
    assert torch.equal(ours, read_latents(64, 16, near.latent, near.pages, slots))


def hidden_states(config: dict[str, Any], ops: Ops, dtype: torch.dtype, device: str, cache: str) -> list[Tensor]:
    drawn = random.Random(1)
    model = model_of(config, ops, dtype, device)
    run = PagedRun(
        model, dtype="float32" if dtype == torch.float32 else "bfloat16", layout="cuda",
        kv_cache_dtype="fp8" if cache == "fp8" else "auto",
    )  # fmt: skip
    outcomes = []
    for step in STEPS:
        tokens = {name: [drawn.randrange(4, VOCAB) for _ in range(count)] for name, count in step.items()}
        outcomes += run.step(tokens).values()
    return outcomes


def error(ours: list[Tensor], exact: list[Tensor]) -> float:
    pairs = list(zip(ours, exact, strict=True))
    off = sum(float((one.double().cpu() - true.double().cpu()).norm() ** 2) for one, true in pairs)
    return float((off / sum(float(true.double().norm() ** 2) for _, true in pairs)) ** 0.5)


def test_kernels_give_what_the_reference_operations_give(device: str) -> None:
    """In fp32. A value that fp32 noise rounds to the next code moves a row by far less than rounding it at all did."""
    ours = hidden_states(WIDE, TRITON, torch.float32, device, "fp8")
    plain = hidden_states(WIDE, CPU_OPS, torch.float32, device, "fp8")
    exact = hidden_states(WIDE, CPU_OPS, torch.float32, device, "auto")
    assert error(ours, plain) < error(plain, exact) / 4
    assert 1e-5 < error(plain, exact) < 0.05


@pytest.mark.gpu
def test_recorded_steps_are_those_of_the_model() -> None:
    model = model_of(WIDE, TRITON, torch.float32, "cuda")
    graphed = GraphedModel(model, GpuRecorder())
    runs = [PagedRun(one, layout="cuda", kv_cache_dtype="fp8") for one in (model, graphed)]  # type: ignore[arg-type]
    for step in ({0: [5, 9, 7, 8]}, {0: [6]}, {1: [8], 2: [9]}, {0: [4], 1: [5], 2: [6]}):
        plain, ours = (run.step(step) for run in runs)
        for name in step:
            assert (plain[name] - ours[name]).abs().max() < 1e-5
    assert graphed.recorded == 3


@pytest.mark.gpu
def test_bfloat16_with_fp8_rows_is_as_near_as_plain_torch_with_them() -> None:
    """Against fp32 with rows as they are, with nothing to choose: every key is seen, every expert is taken."""
    config = WIDE | {"index_topk": 64, "num_experts_per_tok": WIDE["n_routed_experts"]}
    exact = hidden_states(config, CPU_OPS, torch.float32, "cuda", "auto")
    plain = hidden_states(config, CPU_OPS, torch.bfloat16, "cuda", "fp8")
    ours = hidden_states(config, TRITON, torch.bfloat16, "cuda", "fp8")
    assert error(ours, exact) <= 2 * error(plain, exact)

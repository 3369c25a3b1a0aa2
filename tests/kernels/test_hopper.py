"""Products, experts and prompts' attention for Hopper, on a CPU over torch, against the formula in wider numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.kernels import hopper_experts, hopper_gemm, hopper_prefill
from engine.kernels.moe_rows import sorted_rows
from engine.kernels.target import OCP, Target, target
from engine.reference.fp8_gemm import Fp8Experts, weight_values
from engine.reference.fp8_gemm import fp8_gemm as reference
from engine.reference.fp8_quant import GROUP, dequantised, fp8_quant
from engine.reference.key_mask import key_mask
from engine.reference.mla_prefill import mla_prefill
from tests.kernels import gluon_on_cpu
from tests.kernels.compare import assert_as_good
from tests.kernels.test_moe import chosen_ids, fp8_weight


class _Grid:
    """Launches as the host means them."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, num_warps: int, **constants: Any) -> None:
            assert num_warps in (4, 8)
            across = grid[1] if len(grid) > 1 else 1
            gluon_on_cpu.run(self.function, grid[0], *arguments, neighbours=1, across=across, **constants)

        return launch


@pytest.fixture(autouse=True)
def _where(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == "cuda":
        if not target().has_wgmma:
            pytest.skip("no GPU with warp-group products")
        return
    monkeypatch.setattr(hopper_gemm, "target", lambda: Target("sm_90", OCP, 3, 232_448, has_wgmma=True))
    for module, name in (
        (hopper_gemm, "_hopper_gemm"),
        (hopper_experts, "_hopper_gate_up"),
        (hopper_experts, "_hopper_down"),
        (hopper_prefill, "_hopper_prefill"),
    ):
        monkeypatch.setattr(module, name, _Grid(getattr(module, name)))


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(("rows", "width", "columns"), [(300, 256, 200), (130, 1024, 384), (1, 512, 64)])
def test_products(device: str, rows: int, width: int, columns: int, added: bool) -> None:
    x = fp8_quant(torch.randn(rows, width, device=device))
    weight = fp8_weight(device, columns, width)
    residual = torch.randn(rows, columns, device=device).bfloat16() if added else None
    out = torch.full((rows, columns), float("nan"), dtype=torch.bfloat16, device=device)
    hopper_gemm.hopper_gemm(x, weight, out, residual)
    exact = dequantised(x).double() @ weight_values(weight).double().T + (0 if residual is None else residual)
    assert_as_good(out, reference(x, weight, torch.bfloat16, residual), exact)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("kind", "tokens"), [("spread", 150), ("all the same", 129), ("all the same", 260)])
def test_experts(device: str, kind: str, tokens: int, shared: bool) -> None:
    """Items of 128 rows, of fewer, and without any; one pair is of an expert that is elsewhere."""
    hidden, inter, routed, chosen = 768, 384, 4, 2
    experts = Fp8Experts(
        fp8_weight(device, routed + shared, 2 * inter, hidden),
        fp8_weight(device, routed + shared, hidden, inter),
        shared,
    )
    x = fp8_quant(torch.randn(tokens, hidden, device=device))
    ids = chosen_ids(kind, tokens, routed, chosen).int().to(device)
    ids[1, 0] = routed
    pairs = sorted_rows(ids, routed + shared, shared, GROUP)
    out = torch.full((len(pairs.order), hidden), float("nan"), dtype=torch.bfloat16, device=device)
    hopper_experts.hopper_experts(x, experts, pairs, out)
    of_pair = torch.cat([ids.view(-1), ids.new_full((tokens * shared,), routed)]).long()
    here = torch.ones(len(of_pair), dtype=torch.bool, device=device)
    here[chosen] = False
    rows = torch.cat([torch.arange(tokens).repeat_interleave(chosen), torch.arange(tokens * shared)]).to(device)
    inputs = dequantised(x)[rows][here]
    exact, plain = (each_output(inputs, experts, of_pair[here], coded) for coded in (False, True))
    assert_as_good(out[here], plain.to(out.dtype), exact, 1e-3)


def each_output(rows: Tensor, experts: Fp8Experts, of_pair: Tensor, coded: bool) -> Tensor:
    """Each row through its expert; coded: what lies between the products as FP8."""
    out = torch.empty_like(rows)
    for expert in of_pair.unique().tolist():
        mine = of_pair == expert
        gate, up = (rows[mine] @ weight_values(experts.gate_up)[expert].T).chunk(2, 1)
        active = torch.nn.functional.silu(gate) * up
        if coded:
            active = dequantised(fp8_quant(active))
        out[mine] = active @ weight_values(experts.down)[expert].T
    return out


@pytest.mark.parametrize(
    ("queries", "keys", "heads", "top"),
    [(150, 300, 2, None), (40, 40, 1, None), (130, 500, 1, 60), (1, 64, 1, 5), (129, 129, 1, 200)],
)
def test_prompts(device: str, queries: int, keys: int, heads: int, top: int | None) -> None:
    """Blocks that are seen in full, in part and to the last row; what lies beyond the keys is NaN."""
    expanded = torch.full((keys + 70, heads, 256), float("nan")).bfloat16()
    latents = torch.full((keys + 70, 576), float("nan")).bfloat16()
    expanded[:keys].normal_()
    latents[:keys].normal_()
    expanded, latents = expanded.to(device)[:keys], latents.to(device)[:keys]
    q = torch.randn(queries, heads, 192).bfloat16().to(device)
    mask = None
    if top is not None:
        past = torch.arange(queries)[:, None] + keys - queries
        positions = torch.rand(queries, keys).argsort(1)[:, :top]
        mask = key_mask(torch.where(positions <= past, positions, -1).int(), keys)
        mask[:, 0] |= 1  # each sees one at least
        mask = mask.to(device)
    parts = q, expanded[..., :128], latents[:, 512:], expanded[..., 128:]
    out = torch.full((queries, heads, 128), float("nan"), dtype=torch.bfloat16, device=device)
    hopper_prefill.hopper_prefill(*parts, None, 0.07, mask, out)
    exact = mla_prefill(*(part.double() for part in parts), None, 0.07, mask, None)
    assert_as_good(out, mla_prefill(*parts, None, 0.07, mask, None), exact)


@pytest.mark.parametrize(("queries", "keys", "window"), [(150, 300, 77), (130, 500, 300), (40, 40, 8)])
def test_prompts_with_a_window(device: str, queries: int, keys: int, window: int) -> None:
    expanded = torch.full((keys + 70, 2, 320), float("nan")).bfloat16()
    latents = torch.full((keys + 70, 576), float("nan")).bfloat16()
    expanded[:keys].normal_()
    latents[:keys].normal_()
    expanded, latents = expanded.to(device)[:keys], latents.to(device)[:keys]
    q = torch.randn(queries, 2, 256).bfloat16().to(device)
    parts = q, expanded[..., :192], latents[:, 512:], expanded[..., 192:]
    out = torch.full((queries, 2, 128), float("nan"), dtype=torch.bfloat16, device=device)
    hopper_prefill.hopper_prefill(*parts, window, 0.07, None, out)
    exact = mla_prefill(*(part.double() for part in parts), window, 0.07, None, None)
    assert_as_good(out, mla_prefill(*parts, window, 0.07, None, None), exact)


def test_what_prompts_have_to_be() -> None:
    q, k, rotary, v = (torch.zeros(*shape).bfloat16() for shape in ((8, 2, 192), (8, 2, 128), (8, 64), (8, 2, 128)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hopper_prefill, "INTERPRETED", False)
        patch.setattr(hopper_prefill, "target", lambda: Target("sm_90", OCP, 3, 232_448, has_wgmma=True))
        assert hopper_prefill.serves(q, k, rotary, v)
        assert not hopper_prefill.serves(q, k[..., :64], rotary, v)
        assert not hopper_prefill.serves(q, k, rotary[:, :32], v)
        assert not hopper_prefill.serves(q.float(), k, rotary, v)
        assert not hopper_prefill.serves(q, k, torch.zeros(8, 68).bfloat16()[:, 4:], v)

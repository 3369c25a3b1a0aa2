"""Where rows lie in the cache's memory: addresses against the layout that the capacity plan states, byte by byte."""

from __future__ import annotations

import struct

import pytest
import torch

from engine.config.capacity import CapacityPlan, GroupPlan, plan_capacity
from engine.config.engine import Dtype, EngineConfig
from engine.config.model import ModelConfig
from engine.model.kv_pool import KvPool, PoolPart
from engine.reference.fp8_quant import fp8_quant
from engine.reference.index_write import index_read, index_write
from engine.reference.kv_write import kv_write
from engine.reference.latent import read_latents, write_latents
from tests.support.tiny_model import tiny_config

PAGE_SIZE = 4


def plan_of(dtype: Dtype) -> CapacityPlan:
    engine = EngineConfig(dtype=dtype, page_size=PAGE_SIZE, cache_bytes=1 << 20)
    return plan_capacity(ModelConfig.from_json(tiny_config()), engine, free_bytes=0)


def parts_of(pool: KvPool, plan: CapacityPlan) -> list[tuple[PoolPart, GroupPlan, str]]:
    return [
        (pool.dsa_latent.rows, plan.dsa, "latent"),
        (pool.index_key, plan.dsa, "index_key"),
        (pool.swa_latent.rows, plan.swa, "latent"),
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_lies_where_the_plan_says(dtype: Dtype) -> None:
    plan = plan_of(dtype)
    pool = KvPool(plan, torch.device("cpu"))
    pool.buffer.zero_()
    size = 4 if dtype == "float32" else 2
    for part, group, name in parts_of(pool, plan):
        row = group.part(name)
        last_page = plan.num_slabs * group.pages_per_slab - 1
        for page in (0, 1, group.pages_per_slab, last_page):
            for layer, place in ((0, 0), (group.num_layers - 1, PAGE_SIZE - 1), (1, 2)):
                address = part.of_slots(torch.tensor([page * PAGE_SIZE + place]))
                kv_write(torch.arange(1.0, row.width + 1)[None], part.layers[layer], address)
                slab, number = divmod(page, group.pages_per_slab)
                start = slab * plan.slab_bytes + number * group.page_bytes + row.offset_bytes
                start += ((layer * PAGE_SIZE) + place) * row.row_bytes
                raw = pool.buffer[start : start + row.row_bytes]
                values = raw.view(torch.float32 if size == 4 else torch.bfloat16)
                assert values.tolist() == list(range(1, row.width + 1))
                assert not pool.buffer[:start].any()
                assert not pool.buffer[start + row.row_bytes :].any()
                pool.buffer.zero_()


def test_no_two_rows_share_a_byte() -> None:
    """Both groups have pages in every slab here, as never at once in use; within a group nothing overlaps."""
    plan = plan_of("float32")
    pool = KvPool(plan, torch.device("cpu"))
    for group in plan.groups:
        pool.buffer.zero_()
        written = 0
        for part, owner, name in parts_of(pool, plan):
            if owner.name != group.name:
                continue
            width = group.part(name).width
            slots = torch.arange(plan.num_slabs * group.pages_per_slab * PAGE_SIZE)
            for layer in part.layers:
                kv_write(torch.ones(len(slots), width), layer, part.of_slots(slots))
                written += len(slots) * width
        ones = (pool.buffer.view(torch.int32) == struct.unpack("i", struct.pack("f", 1.0))[0]).sum()
        assert int(ones) == written


def test_pages_and_slots_agree() -> None:
    plan = plan_of("float32")
    pool = KvPool(plan, torch.device("cpu"))
    pages = torch.tensor([[3, 0], [7, 11]])
    slots = (pages[..., None] * PAGE_SIZE + torch.arange(PAGE_SIZE)).flatten(-2)
    for part, _, _ in parts_of(pool, plan):
        assert torch.equal(part.of_pages(pages), part.of_slots(slots))


def test_fp8_index_keys_have_scales() -> None:
    config = ModelConfig.from_json(tiny_config())
    plain = plan_capacity(config, EngineConfig.for_device("cuda", cache_bytes=1 << 24), free_bytes=0)
    pool = KvPool(plain, torch.device("cpu"))
    rows = pool.index_cache(1)
    addresses = pool.index_addresses(lambda part: part.of_slots(torch.tensor([70, 3, 129])))
    keys = torch.randn(3, config.indexer.width) * torch.tensor([[1e-2], [1.0], [1e3]])
    index_write(keys, rows, addresses)
    assert ((index_read(rows, addresses) - keys).abs() <= keys.abs().amax(1, keepdim=True) / 16).all()


@pytest.mark.parametrize("group", ["dsa", "swa", "mtp"])
def test_a_coded_row_lies_where_the_plan_says_and_reads_back_as_it_was_but_for_fp8(group: str) -> None:
    """Codes, scales and rotary key, each byte by byte; latents of 256 values have two scales, of 64 one."""
    config = ModelConfig.from_json(tiny_config(kv_lora_rank=256, swa_kv_lora_rank=64, num_nextn_predict_layers=1))
    engine = EngineConfig(kv_cache_dtype="fp8", page_size=PAGE_SIZE, cache_bytes=1 << 21, speculative_tokens=1)
    plan = plan_capacity(config, engine, free_bytes=0)
    pool = KvPool(plan, torch.device("cpu"))
    found = {"dsa": (pool.dsa_latent, plan.dsa), "swa": (pool.swa_latent, plan.swa), "mtp": (pool.mtp_latent, plan.mtp)}
    latents, owner = found[group]
    assert latents is not None
    assert owner is not None
    geometry = config.dsa if group == "dsa" else config.swa
    rank, rope = geometry.kv_rank, geometry.rope
    last_page = plan.num_slabs * owner.pages_per_slab - 1
    for page, layer, place in ((0, 0, 0), (owner.pages_per_slab, owner.num_layers - 1, 2), (last_page, 0, 3)):
        pool.buffer.fill_(0xFF)
        row = torch.randn(1, rank + rope) * torch.logspace(-3, 3, rank + rope)
        slot = latents.of_slots(torch.tensor([page * PAGE_SIZE + place]))
        write_latents(row, rank, latents.cache(layer), latents.pages, slot)
        codes, scales = fp8_quant(row[:, :rank], min(rank, 128))
        written = {"latent": codes, "latent_scale": scales, "rope": row[:, rank:].bfloat16()}
        slab, number = divmod(page, owner.pages_per_slab)
        expected = torch.full_like(pool.buffer, 0xFF)
        for name, values in written.items():
            part = owner.part(name)
            start = slab * plan.slab_bytes + number * owner.page_bytes + part.offset_bytes
            start += (layer * PAGE_SIZE + place) * part.row_bytes
            expected[start : start + part.row_bytes] = values.contiguous().view(torch.uint8).flatten()
        assert torch.equal(pool.buffer, expected)
        read = read_latents(rank, rope, latents.cache(layer), latents.pages, slot)
        largest = row[:, :rank].view(-1, min(rank, 128)).abs().amax(1, keepdim=True)
        off = (read - row)[:, :rank].view(-1, min(rank, 128)).abs()
        # Half of the last of E4M3's three bits, and half of its smallest step for small values.
        assert (off <= row[:, :rank].view_as(off).abs() / 16 + largest / 448 / 1024).all()
        assert torch.equal(read[:, rank:], row[:, rank:].bfloat16().float())


def test_coded_rows_are_named_by_slot() -> None:
    config = ModelConfig.from_json(tiny_config())
    plan = plan_capacity(config, EngineConfig(kv_cache_dtype="fp8", page_size=PAGE_SIZE, cache_bytes=1 << 20), 0)
    latents = KvPool(plan, torch.device("cpu")).swa_latent
    assert latents.of_pages(torch.tensor([[3, 0], [7, 11]])).tolist() == [
        [12, 13, 14, 15, 0, 1, 2, 3],
        [28, 29, 30, 31, 44, 45, 46, 47],
    ]
    assert latents.of_slots(torch.tensor([5, 2])).tolist() == [5, 2]

"""The byte budget: bytes per token of the released config, slabs with little waste, limits that can be reached."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.config.capacity import CapacityPlan, GroupPlan, cache_budget, pages_of_window, plan_capacity
from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig

ROOT = Path(__file__).resolve().parents[2]
RELEASED = ModelConfig.from_json(json.loads((ROOT / "tests/fixtures/chat/config.released.json").read_text()))
TINY = ModelConfig.from_folder(ROOT / "models/dots3-note-tiny")
GIB = 1 << 30


def released_plan(**settings: Any) -> CapacityPlan:
    return plan_capacity(RELEASED, EngineConfig.for_device("cuda", **settings), 60 * GIB)


def tiny_plan(**settings: Any) -> CapacityPlan:
    return plan_capacity(TINY, EngineConfig.for_device("cpu", **settings), 16 * GIB)


def rows(group: GroupPlan) -> list[tuple[str, str, int]]:
    return [(part.name, part.dtype, part.width) for part in group.parts]


def test_the_released_config_at_bf16_takes_16692_bytes_a_token_and_36_8_megabytes_a_window() -> None:
    plan = released_plan()
    assert plan.dsa.bytes_per_token == 16_692
    assert plan.window_bytes == 33 * 513 * 2176
    report = plan.report()
    assert "16,692 B/token" in report
    assert "36.8 MB a sequence" in report


def test_the_released_config_at_fp8_takes_about_half() -> None:
    plan = released_plan(kv_cache_dtype="fp8")
    assert plan.dsa.bytes_per_token == 13 * (656 + 132)  # 788 a layer, of which 132 are the index key's
    assert 0.5 < plan.window_bytes / released_plan().window_bytes < 0.55
    assert [row[:2] for row in rows(plan.swa)] == [
        ("latent", "float8_e4m3"),
        ("latent_scale", "float32"),
        ("rope", "bfloat16"),
    ]


def test_a_gpu_keeps_index_keys_as_fp8_with_a_scale_and_a_cpu_in_the_dtype_of_the_cache() -> None:
    assert rows(released_plan().dsa)[1:] == [("index_key", "float8_e4m3", 128), ("index_scale", "float32", 1)]
    assert rows(tiny_plan().dsa) == [("latent", "float32", 96), ("index_key", "float32", 32)]
    assert rows(tiny_plan(dtype="bfloat16").dsa)[1] == ("index_key", "bfloat16", 32)


@pytest.mark.parametrize("plan", [released_plan(), released_plan(kv_cache_dtype="fp8"), tiny_plan()])
def test_parts_of_a_page_lie_one_after_the_other_and_a_slab_wastes_little(plan: CapacityPlan) -> None:
    for group in plan.groups:
        end = 0
        for part in group.parts:
            assert end <= part.offset_bytes < end + 16
            assert part.offset_bytes % 16 == 0
            end = part.offset_bytes + group.num_layers * plan.page_size * part.row_bytes
        assert end <= group.page_bytes < end + 16
        assert group.pages_per_slab * group.page_bytes > 0.98 * plan.slab_bytes
        assert group.pages_per_slab * group.page_bytes <= plan.slab_bytes
    assert plan.num_slabs >= 32


def test_groups_are_told_apart_by_whether_they_grow() -> None:
    plan = tiny_plan()
    assert [(group.name, group.num_layers, group.grows) for group in plan.groups] == [
        ("dsa", 4, True),
        ("swa", 6, False),
    ]
    assert plan.window == 65


@pytest.mark.parametrize(("window", "pages"), [(1, 1), (2, 2), (16, 2), (17, 2), (18, 3), (33, 3), (34, 4), (513, 33)])
def test_a_window_touches_so_many_pages_at_most(window: int, pages: int) -> None:
    touched = {(start + window - 1) // 16 - start // 16 + 1 for start in range(16)}
    assert pages_of_window(window, 16) == max(touched) == pages


def test_the_longest_request_is_what_the_cache_holds_if_that_is_less_than_the_model_knows() -> None:
    assert tiny_plan().max_model_len == 8192
    small = tiny_plan(cache_bytes=4 << 20)
    assert 0 < small.max_model_len < 8192
    assert small.slabs_for(small.max_model_len) == small.num_slabs
    assert tiny_plan(max_model_len=100).max_model_len == 100


def test_a_length_that_was_asked_for_is_refused_if_the_cache_or_the_model_cannot_have_it() -> None:
    with pytest.raises(ValueError, match=r"max_model_len \(8000\): give it \d+ bytes"):
        tiny_plan(max_model_len=8000, cache_bytes=4 << 20)
    with pytest.raises(ValueError, match=r"at most max_position_embeddings \(8192\), got 8193"):
        tiny_plan(max_model_len=8193)
    with pytest.raises(ValueError, match="cache of 0 bytes"):
        tiny_plan(cache_bytes=1000)


def test_the_bytes_that_a_refusal_names_are_enough() -> None:
    with pytest.raises(ValueError, match="give it") as caught:
        tiny_plan(max_model_len=8000, cache_bytes=4 << 20)
    enough = int(str(caught.value).split("give it ")[1].split()[0])
    assert tiny_plan(max_model_len=8000, cache_bytes=enough).max_model_len == 8000


def test_the_budget_comes_from_the_settings_or_from_the_free_memory() -> None:
    assert cache_budget(EngineConfig(cache_bytes=123), 0) == 123
    assert cache_budget(EngineConfig.for_device("cuda", gpu_memory_utilization=0.5), 10 * GIB) == 5 * GIB
    assert cache_budget(EngineConfig(), 100 * GIB) == GIB
    assert cache_budget(EngineConfig(), 2 * GIB) == GIB // 2


def test_settings_have_the_defaults_of_their_device_under_what_is_given() -> None:
    cpu, cuda = EngineConfig.for_device("cpu"), EngineConfig.for_device("cuda", page_size=None, dtype="float32")
    assert cpu == EngineConfig()
    assert (cpu.dtype, cpu.page_size, cpu.cache_dtype) == ("float32", 16, "float32")
    assert (cuda.dtype, cuda.page_size, cuda.max_num_seqs) == ("float32", 64, 256)
    assert EngineConfig.for_device("cuda", kv_cache_dtype="fp8").cache_dtype == "fp8"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"device": "tpu"}, "device must be one of cpu, cuda, got 'tpu'"),
        ({"dtype": "float16"}, "dtype must be one of float32, bfloat16, got 'float16'"),
        ({"page_size": 0}, "page_size must be at least 1, got 0"),
        ({"max_model_len": -1}, "max_model_len must be at least 1, got -1"),
        ({"max_num_seqs": 600}, r"max_num_batched_tokens must be at least max_num_seqs \(600\).*got 512"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization must be .* got 1.5"),
        ({"kv_cache_dtype": "fp4"}, "kv_cache_dtype must be one of auto, fp8, got 'fp4'"),
    ],
)
def test_a_bad_setting_is_named_with_its_value(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        EngineConfig(**settings)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="no setting pagesize"):
        EngineConfig.for_device("cpu", pagesize=3)


@pytest.mark.parametrize(("field", "rank"), [("kv_lora_rank", 192), ("swa_kv_lora_rank", 1000)])
def test_a_latent_that_cannot_be_cut_into_groups_of_128_is_refused_for_fp8(field: str, rank: int) -> None:
    text = json.loads((ROOT / "tests/fixtures/chat/config.released.json").read_text()) | {field: rank}
    model = ModelConfig.from_json(text)
    plan_capacity(model, EngineConfig.for_device("cuda"), 60 * GIB)
    with pytest.raises(ValueError, match=f"^{field} must be at most 128 or a multiple of it .* fp8, got {rank}$"):
        plan_capacity(model, EngineConfig.for_device("cuda", kv_cache_dtype="fp8"), 60 * GIB)


def test_latents_of_up_to_128_values_have_one_scale_on_every_device() -> None:
    for device in ("cpu", "cuda"):
        plan = plan_capacity(
            TINY, EngineConfig.for_device(device, kv_cache_dtype="fp8", speculative_tokens=1), 16 * GIB
        )
        fp8, index = "float8_e4m3", [("index_key", "float8_e4m3", 32), ("index_scale", "float32", 1)]
        assert rows(plan.dsa) == [("latent", fp8, 64), ("latent_scale", "float32", 1), ("rope", "bfloat16", 32), *index]
        assert rows(plan.swa) == [("latent", fp8, 128), ("latent_scale", "float32", 1), ("rope", "bfloat16", 16)]
        assert plan.mtp is not None
        assert rows(plan.mtp) == rows(plan.swa)

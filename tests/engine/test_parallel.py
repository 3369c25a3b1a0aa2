"""A model shared by ranks computes what one process does: heads, widths and experts split, odd sizes, FP8 tiles."""

import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from engine.config.encoders import SAMPLES_PER_TOKEN
from engine.config.model import ModelConfig
from engine.sched.parts import Part
from tests.support.engine_run import Text
from tests.support.rank_run import (
    answers_in_a_small_cache,
    answers_of_one,
    encoded_by_one,
    encoded_by_ranks,
    logits_of_one,
    logits_of_ranks,
)
from tests.support.tiny_model import VOCAB, tiny_config, write_checkpoint

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]

LIMIT = 1e-4  # of the largest logit
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4}


class Case(NamedTuple):
    ranks: int
    expert_parallel: bool
    fp8: bool
    changes: dict[str, Any]
    base: str = "plain"
    attention_data_parallel: bool = False


# Widths, vocabularies and experts that the ranks do not divide evenly, where that is allowed; with FP8, widths of which
# the last rank has less than the others or nothing, gates of which a rank has a part of a tile, and parts that begin
# amid one.
CASES = {
    "two ranks": Case(2, False, False, {"vocab_size": VOCAB + 5}),
    "four ranks, tied embeddings": Case(4, False, False, {"vocab_size": VOCAB + 1}, "wide-latents"),
    "two ranks, whole experts": Case(2, True, False, {"moe_intermediate_size": 41}, "grouped"),
    "four ranks, whole experts": Case(4, True, False, {"num_experts_per_tok": 1}),
    "two ranks, FP8": Case(2, False, True, {"intermediate_size": 352, "moe_intermediate_size": 256}),
    "four ranks, whole experts, FP8": Case(
        4, True, True, {"intermediate_size": 576, "moe_shared_expert_intermediate_size": 192, "v_head_dim": 44}
    ),
    "two ranks, own sequences": Case(
        2, False, False, {"vocab_size": VOCAB + 5, "num_attention_heads": 3, "num_key_value_heads": 3}, "plain", True
    ),
    "four ranks, own sequences, whole experts, FP8": Case(
        4, True, True, {"intermediate_size": 576, "moe_shared_expert_intermediate_size": 192}, "grouped", True
    ),
}
MORE = {
    "two ranks, own sequences, whole experts": Case(2, True, False, {"moe_intermediate_size": 41}, "grouped", True),
    "four ranks, own sequences": Case(4, False, False, {"vocab_size": VOCAB + 1}, "wide-latents", True),
    "two ranks, own sequences, FP8": Case(
        2, False, True, {"intermediate_size": 352, "moe_intermediate_size": 256, "v_head_dim": 44}, "plain", True
    ),
    "three ranks, own sequences": Case(
        3, False, False, {"intermediate_size": 159, "moe_intermediate_size": 42}, "plain", True
    ),
}


def texts(vocab: int) -> list[Text]:
    """A prompt in several pieces, one beside decodes, and one of a single token."""
    drawn = random.Random(1)
    lengths = ((70, 66, 0), (31, 24, 2), (7, 1, 3))
    return [
        Text(f"text-{length}", [drawn.randrange(4, vocab) for _ in range(length)], prompt, arrives=step)
        for length, prompt, step in lengths
    ]


def cases() -> list[Any]:
    more = [pytest.param(case, id=name, marks=pytest.mark.slow) for name, case in MORE.items()]
    return [*(pytest.param(case, id=name) for name, case in CASES.items()), *more]


@pytest.mark.parametrize("case", cases())
def test_ranks_compute_what_one_process_does(case: Case, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    write_checkpoint(folder, tiny_config(case.base, **(HEADS | case.changes)), seed=2)
    if case.fp8:
        from training.quantise import write_quantised

        write_quantised(folder, tmp_path / "fp8")
        folder = tmp_path / "fp8"
    config = ModelConfig.from_folder(folder)
    asked = texts(config.vocab_size)
    wanted = logits_of_one(folder, asked)
    found = logits_of_ranks(
        folder,
        asked,
        tmp_path / "ranks",
        case.ranks,
        enable_expert_parallel=case.expert_parallel,
        attention_data_parallel=case.attention_data_parallel,
    )
    assert len(found) == (1 if case.attention_data_parallel else case.ranks)
    assert wanted.shape == (sum(len(text.ids) - 1 for text in asked), config.vocab_size)
    for logits in found:
        assert torch.equal(logits, found[0])
        assert float((logits - wanted).abs().max() / wanted.abs().max()) < LIMIT


def test_ranks_with_small_caches_preempt_and_find_prefixes_without_a_change(tmp_path: Path) -> None:
    """Seven texts, four of which begin alike, in caches of two ranks that hold two of them each."""
    folder = tmp_path / "plain"
    write_checkpoint(folder, tiny_config("plain", **HEADS), seed=2)
    drawn = random.Random(4)
    stem = [drawn.randrange(4, VOCAB) for _ in range(24)]

    def text(number: int) -> Text:
        begin = stem if number % 2 == 0 else stem[::-1][: 4 + number]
        ids = [*begin, *(drawn.randrange(4, VOCAB) for _ in range(85))]
        return Text(f"text-{number}", ids, len(begin) + 5, keep_offsets=(24,), arrives=number // 2 * 5)

    asked = [text(number) for number in range(7)]
    wanted = answers_of_one(folder, asked)
    found = answers_in_a_small_cache(folder, asked, tmp_path / "ranks", 2, cache_bytes=3 << 16)
    assert wanted.shape == found.shape == (7 * 80, VOCAB)
    assert float((found - wanted).abs().max() / wanted.abs().max()) < LIMIT


def media_parts() -> list[Part]:
    """Three pictures and two sounds of different sizes, in turns."""
    drawn = np.random.default_rng(3)

    def picture(number: int, height: int, width: int) -> Part:
        pixels = drawn.integers(0, 256, (height, width, 3), np.uint8)
        return Part("image", (b"p", number), 0, height * width // 784, pixels.shape, memoryview(pixels.tobytes()))

    def sound(number: int, tokens: int) -> Part:
        samples = drawn.normal(0, 0.1, SAMPLES_PER_TOKEN * tokens).astype(np.float32)
        return Part("audio", (b"s", number), 0, tokens, samples.shape, memoryview(samples.tobytes()))

    return [picture(0, 28, 28), sound(0, 5), picture(1, 84, 56), sound(1, 3), picture(2, 56, 28)]


def test_items_encoded_by_several_ranks_come_out_as_by_one(tmp_path: Path) -> None:
    """Four ranks, of which one has no picture and two no sound."""
    bundled = Path("models/dots3-note-tiny")
    parts = media_parts()
    wanted = encoded_by_one(bundled, parts)
    found = encoded_by_ranks(bundled, parts, tmp_path / "ranks", 4)
    assert wanted.shape == found.shape == (1 + 5 + 6 + 3 + 2, ModelConfig.from_folder(bundled).hidden)
    assert float((found - wanted).abs().max() / wanted.abs().max()) < LIMIT

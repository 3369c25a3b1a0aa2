"""The tokens that the whole engine takes, always the likeliest, are those that transformers takes, while it is sure.

Where the reference's best token is ahead by less than the margin, rounding may decide, and texts may part from there.
How many of its steps are such is told at the end of the test run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config.model import ModelConfig
from server.tokenizer import Tokenizer
from tests.support.loop_run import LoopRun, submit_of
from tests.support.tiny_model import CASES, VOCAB, tiny_config, write_checkpoint

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
STEPS = 256
MARGIN = 1e-3  # of logits
MOST_UNSURE = 0.01  # of all steps

Record = Callable[[str, object], None]


@torch.no_grad()
def greedy(reference: Any, ids: list[int]) -> tuple[list[int], list[float]]:
    """The reference's next tokens, and how far each was ahead of the runner-up."""
    from transformers import DynamicCache

    cache = DynamicCache(config=reference.config)
    tokens, margins = [], []
    new = ids
    for _ in range(STEPS):
        logits = reference(torch.tensor([new]), cache=cache, use_cache=True).logits[0, -1]
        best = logits.topk(2)
        tokens.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
        new = tokens[-1:]
    return tokens, margins


def assert_greedy_alike(folder: Path, reference: Any, prompts: list[list[int]], record: Record) -> None:
    """Equal up to the first unsure step of each; all prompts at once, in chunks of odd sizes."""
    engine = LoopRun(folder, cache_bytes=1 << 27, max_num_batched_tokens=67)
    asked = [submit_of(str(number), ids, max_tokens=STEPS) for number, ids in enumerate(prompts)]
    answers = engine.answers(asked)
    unsure = compared = 0
    for number, ids in enumerate(prompts):
        tokens, margins = greedy(reference, ids)
        sure = next((step for step, margin in enumerate(margins) if margin < MARGIN), STEPS)
        assert answers[str(number)].only[:sure] == tokens[:sure]
        unsure += sum(margin < MARGIN for margin in margins)
        compared += sure
    steps = STEPS * len(prompts)
    record(
        "greedy steps with a margin below 1e-3",
        f"{unsure} of {steps} ({unsure / steps:.2%}, at most {MOST_UNSURE:.0%}); {compared} compared, all equal",
    )
    assert unsure <= MOST_UNSURE * steps
    assert compared >= steps / 2  # else it says little


@pytest.mark.parametrize("case", sorted(CASES))
def test_greedy_tokens_of_a_random_model(case: str, tmp_path: Path, record_property: Record) -> None:
    reference = write_checkpoint(tmp_path, tiny_config(case))
    drawn = random.Random(6)
    prompts = [[drawn.randrange(4, VOCAB) for _ in range(length)] for length in (5, 66)]
    assert_greedy_alike(tmp_path, reference, prompts, record_property)


def test_greedy_tokens_of_the_bundled_checkpoint(record_property: Record) -> None:
    from transformers import Dots3NoteForCausalLM

    folder = ROOT / "models" / "dots3-note-tiny"
    reference = Dots3NoteForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_folder(folder)
    text = (ROOT / "README.md").read_text()
    prompts = [tokenizer.encode_text(part) for part in (text[:40], text[900:3500])]
    assert max(map(len, prompts)) > ModelConfig.from_folder(folder).indexer.top_k
    assert_greedy_alike(folder, reference, prompts, record_property)

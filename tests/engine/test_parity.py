"""The text model gives transformers' logits, however a sequence is cut into steps and whatever runs beside it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.config.model import ModelConfig
from engine.model.load import load_model
from tests.support.numerics import Stretch, assert_logits_match
from tests.support.paged_run import PagedRun
from tests.support.tiny_model import CASES, VOCAB, tiny_config, write_checkpoint
from tests.support.twins import CPU, Twins, make_twins

pytestmark = pytest.mark.e2e

BeforeStep = Callable[[Mapping[int, list[int]], Mapping[int, int]], None]
LENGTHS = (130, 33, 5, 64)  # the longest goes far past the window and past top-k in every case


@pytest.fixture(scope="module", params=sorted(CASES))
def twins(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Twins:
    return make_twins(request.param, tmp_path_factory.mktemp(request.param), LENGTHS)


def chunked(run: PagedRun, ids: list[int], cuts: list[int]) -> Tensor:
    bounds = [0, *cuts, len(ids)]
    return torch.cat([run.step({0: ids[start:end]})[0] for start, end in pairwise(bounds)])


def cuts_of(name: str, length: int) -> list[int]:
    return {
        "at once": [],
        "odd chunks": [9, 10, 31, 77],
        "two halves": [length // 2],
        "prompt, then tokens": list(range(length - 40, length)),
        "token by token": list(range(1, length)),
    }[name]


@pytest.mark.parametrize("steps", ["at once", "odd chunks", "two halves", "prompt, then tokens", "token by token"])
def test_one_sequence_however_it_is_cut(twins: Twins, steps: str) -> None:
    answer = twins.answers[0]
    assert answer.certain > 100  # else the comparison says little
    hidden = chunked(PagedRun(twins.model), twins.prompts[0], cuts_of(steps, LENGTHS[0]))
    assert_logits_match(twins.model.logits(hidden)[: answer.certain], answer.logits[: answer.certain])


def mixed_steps(run: PagedRun, prompts: list[list[int]], before_step: BeforeStep = lambda *_: None) -> list[Tensor]:
    """Hidden states of each prompt. Prefill chunks beside decodes; sequences begin late, end early, and one starts over
    as after a preemption."""
    drawn = random.Random(1)
    done: list[list[Tensor]] = [[] for _ in prompts]
    begins = [0, 6, 9, 3]
    preempted = False
    for step in range(400):
        batch = {}
        for name, ids in enumerate(prompts):
            position = sum(map(len, done[name]))
            if step >= begins[name] and position < len(ids):
                size = 1 if drawn.random() < 0.6 else drawn.randrange(1, 14)
                batch[name] = ids[position : position + size]
        if not batch:
            break
        before_step(batch, {name: sum(map(len, done[name])) for name in batch})
        for name, hidden in run.step(batch).items():
            done[name].append(hidden)
        if not preempted and sum(map(len, done[0])) > 50:
            preempted = True
            run.end(0)
            done[0].clear()
    assert preempted
    return [torch.cat(parts) for parts in done]


def test_sequences_of_all_lengths_in_one_batch(twins: Twins) -> None:
    for answer, hidden in zip(twins.answers, mixed_steps(PagedRun(twins.model), twins.prompts), strict=True):
        logits = twins.model.logits(hidden)
        assert logits.shape == answer.logits.shape
        assert_logits_match(logits[: answer.certain], answer.logits[: answer.certain])


def test_every_row_of_a_mixed_batch_once_the_choices_are_the_references(twins: Twins) -> None:
    model, forced = twins.forced()

    def force(batch: Mapping[int, list[int]], begun: Mapping[int, int]) -> None:
        decodes = [name for name, ids in batch.items() if len(ids) == 1 and begun[name]]
        order = decodes + [name for name in batch if name not in decodes]
        stretches = [Stretch(twins.answers[name], begun[name], begun[name] + len(batch[name])) for name in order]
        forced.next_step(stretches, len(decodes))

    for answer, hidden in zip(twins.answers, mixed_steps(PagedRun(model), twins.prompts, force), strict=True):
        assert_logits_match(model.logits(hidden), answer.logits)


@pytest.mark.parametrize("steps", ["at once", "odd chunks", "token by token"])
def test_every_row_once_the_choices_are_the_references(twins: Twins, steps: str) -> None:
    answer, ids = twins.answers[0], twins.prompts[0]
    model, forced = twins.forced()
    run = PagedRun(model)
    hidden = []
    for start, end in pairwise([0, *cuts_of(steps, len(ids)), len(ids)]):
        forced.next_step([Stretch(answer, start, end)], num_decodes=int(start > 0 and end - start == 1))
        hidden.append(run.step({0: ids[start:end]})[0])
    assert_logits_match(model.logits(torch.cat(hidden)), answer.logits)


def test_the_last_token_of_a_prompt_is_the_same_as_prefill_and_as_decode(twins: Twins) -> None:
    ids = twins.prompts[3][: min(twins.answers[3].certain, LENGTHS[3])]
    outcomes = []
    for prefill in (frozenset[int](), frozenset({0})):
        run = PagedRun(twins.model)
        run.step({0: ids[:-1]})
        outcomes.append(twins.model.logits(run.step({0: ids[-1:]}, prefill=prefill)[0]))
    assert_logits_match(*outcomes)


def test_a_later_chunk_may_start_from_rows_that_another_sequence_computed(twins: Twins) -> None:
    """As after a hit in the prefix cache: the pages are there, and only the rest is computed."""
    answer, ids = twins.answers[1], twins.prompts[1]
    run = PagedRun(twins.model)
    run.step({0: ids[:24]})
    run.share(0, 7)
    hidden = run.step({0: twins.prompts[3][:9], 7: ids[24:]})[7]
    certain = max(0, answer.certain - 24)
    assert certain > 0
    assert_logits_match(twins.model.logits(hidden)[:certain], answer.logits[24 : 24 + certain])


def test_embeddings_in_place_of_ids_give_the_same(twins: Twins) -> None:
    ids = twins.prompts[2]
    by_id = PagedRun(twins.model).step({0: ids})[0]
    by_embedding = PagedRun(twins.model).step({0: ids}, embedded=True)[0]
    assert torch.equal(by_id, by_embedding)


def relative(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


def test_bfloat16_stays_near_float32_where_nothing_is_chosen(tmp_path: Path) -> None:
    """With choices a random model in bf16 tells nothing: other keys and other experts are chosen."""
    body = tiny_config("plain", index_topk=256, num_experts_per_tok=8)
    write_checkpoint(tmp_path, body)
    config = ModelConfig.from_folder(tmp_path)
    ids = [random.Random(2).randrange(4, VOCAB) for _ in range(60)]
    exact = PagedRun(load_model(tmp_path, config, CPU, torch.float32)).step({0: ids})[0]
    model = load_model(tmp_path, config, CPU, torch.bfloat16)
    prefilled = PagedRun(model, dtype="bfloat16").step({0: ids})[0]
    decoded = chunked(PagedRun(model, dtype="bfloat16"), ids, list(range(20, 60)))
    assert prefilled.dtype == torch.bfloat16
    assert relative(prefilled, exact) < 6e-2
    assert relative(decoded, prefilled) < 2e-2


def test_fp8_index_keys_change_nothing_until_keys_are_chosen_by_them(twins: Twins) -> None:
    """The cache as it lies on a GPU."""
    top_k = twins.config.indexer.top_k
    ids = twins.prompts[0][: top_k + 20]
    outcomes = [
        chunked(PagedRun(twins.model, layout=layout), ids, [5, 6, top_k, top_k + 9]) for layout in ("cpu", "cuda")
    ]
    assert torch.equal(outcomes[0][:top_k], outcomes[1][:top_k])
    assert outcomes[1].isfinite().all()

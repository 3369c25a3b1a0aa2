"""The text model gives transformers' logits, however a sequence is cut into steps and whatever runs beside it."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from engine.config.model import ModelConfig
from engine.kernels.ops import ops_for
from engine.model.decoder import TextModel
from engine.model.load import Checkpoint, load_model
from server.tokenizer import Tokenizer
from tests.support.numerics import Answer, ForcedChoices, answer_of, assert_logits_match
from tests.support.paged_run import PagedRun
from tests.support.tiny_model import CASES, VOCAB, tiny_config, write_checkpoint

pytestmark = pytest.mark.e2e

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
# The plain case has a near-tie in the last rows of its longest prompt, after which outputs do part.
SEEDS = {"plain": 3, "grouped": 0, "wide-latents": 0}
LENGTHS = (130, 33, 5, 64)  # the longest goes far past the window and past top-k in every case


class Twins(NamedTuple):
    folder: Path
    config: ModelConfig
    model: TextModel
    prompts: list[list[int]]
    answers: list[Answer]


@pytest.fixture(scope="module", params=sorted(CASES))
def twins(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Twins:
    folder = tmp_path_factory.mktemp(request.param)
    reference = write_checkpoint(folder, tiny_config(request.param), SEEDS[request.param])
    config = ModelConfig.from_folder(folder)
    drawn = random.Random(SEEDS[request.param] + 100)
    prompts = [[drawn.randrange(4, VOCAB) for _ in range(length)] for length in LENGTHS]
    model = load_model(folder, config, CPU, torch.float32)
    return Twins(folder, config, model, prompts, [answer_of(reference, config, ids) for ids in prompts])


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


def test_sequences_of_all_lengths_in_one_batch(twins: Twins) -> None:
    """Prefill chunks beside decodes; sequences begin late, end early, and one starts over as after a preemption."""
    run = PagedRun(twins.model)
    drawn = random.Random(1)
    done: dict[int, list[Tensor]] = {name: [] for name in range(len(LENGTHS))}
    begins = [0, 6, 9, 3]
    preempted = False
    for step in range(400):
        batch = {}
        for name, ids in enumerate(twins.prompts):
            position = sum(map(len, done[name]))
            if step >= begins[name] and position < len(ids):
                size = 1 if drawn.random() < 0.6 else drawn.randrange(1, 14)
                batch[name] = ids[position : position + size]
        if not batch:
            break
        for name, hidden in run.step(batch).items():
            done[name].append(hidden)
        if not preempted and sum(map(len, done[0])) > 50:
            preempted = True
            run.end(0)
            done[0].clear()
    assert preempted
    for name, answer in enumerate(twins.answers):
        logits = twins.model.logits(torch.cat(done[name]))
        assert len(logits) == LENGTHS[name]
        assert_logits_match(logits[: answer.certain], answer.logits[: answer.certain])


@pytest.mark.parametrize("steps", ["at once", "odd chunks", "token by token"])
def test_every_row_once_the_choices_are_the_references(twins: Twins, steps: str) -> None:
    answer, ids = twins.answers[0], twins.prompts[0]
    forced = ForcedChoices(ops_for(CPU), answer)
    with Checkpoint(twins.folder, twins.config, CPU, torch.float32) as weights:
        model = TextModel(weights, twins.config, forced.ops)
    run = PagedRun(model)
    hidden = []
    for start, end in pairwise([0, *cuts_of(steps, len(ids)), len(ids)]):
        forced.next_step(start, end)
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


@torch.no_grad()
def greedy(reference: Any, ids: list[int], count: int) -> tuple[list[int], list[float]]:
    """The reference's next tokens, and how far each was ahead of the runner-up."""
    from transformers import DynamicCache

    cache = DynamicCache(config=reference.config)
    tokens, margins = [], []
    new = ids
    for _ in range(count):
        logits = reference(torch.tensor([new]), cache=cache, use_cache=True).logits[0, -1]
        best = logits.topk(2)
        tokens.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
        new = tokens[-1:]
    return tokens, margins


def assert_greedy_alike(model: TextModel, reference: Any, prompts: list[list[int]], count: int) -> None:
    """Equal tokens up to the first step at which the reference was not sure; all prompts in one batch."""
    expected = [greedy(reference, ids, count) for ids in prompts]
    unsure = [next((step for step, margin in enumerate(m) if margin < 1e-3), count) for _, m in expected]
    few = sum(margin < 1e-3 for _, margins in expected for margin in margins)
    assert few <= 0.01 * count * len(prompts)
    run = PagedRun(model)
    new = dict(enumerate(prompts))
    ours: list[list[int]] = [[] for _ in prompts]
    for _ in range(count):
        for name, hidden in run.step(new).items():
            ours[name].append(int(model.logits(hidden[-1:]).argmax()))
        new = {name: tokens[-1:] for name, tokens in enumerate(ours)}
    for tokens, (theirs, _), sure in zip(ours, expected, unsure, strict=True):
        assert tokens[:sure] == theirs[:sure]
    assert max(unsure) == count  # at least one was compared to its end


def test_greedy_tokens_of_a_random_model(tmp_path: Path) -> None:
    reference = write_checkpoint(tmp_path, tiny_config("plain"))
    model = load_model(tmp_path, ModelConfig.from_folder(tmp_path), CPU, torch.float32)
    drawn = random.Random(3)
    prompts = [[drawn.randrange(4, VOCAB) for _ in range(length)] for length in (5, 21, 40, 66)]
    assert_greedy_alike(model, reference, prompts, 256)


def test_greedy_tokens_of_the_bundled_checkpoint() -> None:
    from transformers import Dots3NoteForCausalLM

    folder = ROOT / "models" / "dots3-note-tiny"
    reference = Dots3NoteForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model = load_model(folder, ModelConfig.from_folder(folder), CPU, torch.float32)
    tokenizer = Tokenizer.from_folder(folder)
    text = (ROOT / "README.md").read_text()
    prompts = [tokenizer.encode_text(part) for part in (text[:40], text[300:1100], text[900:3500])]
    assert max(map(len, prompts)) > model.config.indexer.top_k
    assert_greedy_alike(model, reference, prompts, 64)

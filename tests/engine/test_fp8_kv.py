"""An FP8 cache on a CPU: what the model makes of its rows, however they came to be there, and what its answers lose.

Where rows lie is in `test_kv_pool.py`, the kernels are in `tests/kernels/test_fp8_kv.py`.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from engine.config.geometry import Geometry
from engine.config.model import ModelConfig
from engine.kernels.ops import Ops, ops_for
from engine.model.decoder import TextModel
from engine.model.load import Checkpoint
from engine.reference.fp8_quant import fp8_quant
from engine.reference.kv_write import kv_write
from engine.reference.latent import LatentCache, read_latents, write_latents
from engine.reference.mla_decode import mla_decode
from engine.reference.pages import Pages
from engine.reference.rows import RowList
from tests.engine.test_speculation import engine_with, prompts
from tests.support.engine_run import EngineRun, Text
from tests.support.paged_run import PagedRun
from tests.support.tiny_model import CASES, VOCAB, tiny_config, write_checkpoint
from training.tasks import TASKS

CPU = torch.device("cpu")
MODEL = Path("models/dots3-note-tiny")
# Prompts beside decodes and decodes alone, shorter and longer than top-k and window, whole and in parts.
STEPS = ({0: 9}, {0: 1}, {0: 40, 1: 7}, {0: 1, 1: 1}, {1: 30, 0: 1}, {0: 1}, {0: 1, 1: 1, 2: 1}, {2: 50}, {2: 1, 1: 3})


class Sides(NamedTuple):
    config: ModelConfig
    folder: Path

    def model(self, ops: Ops) -> TextModel:
        with Checkpoint(self.folder, self.config, CPU, torch.float32) as weights:
            return TextModel(weights, self.config, ops)


@pytest.fixture(scope="module", params=sorted(CASES))
def sides(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sides:
    folder = tmp_path_factory.mktemp(request.param)
    changes = {"swa_kv_lora_rank": 256} if request.param == "wide-latents" else {}  # 144 has no groups of 128
    write_checkpoint(folder, tiny_config(request.param, **changes))
    return Sides(ModelConfig.from_folder(folder), folder)


def rounding_ops(config: ModelConfig) -> Ops:
    """Rows as they are, of numbers that an FP8 cache would give back."""
    groups = {g.row: g for g in (config.dsa, config.swa)}

    def write(rows: Tensor, cache: Tensor, addresses: Tensor) -> None:
        g = groups[rows.shape[1]]
        codes = fp8_quant(rows[:, : g.kv_rank], min(g.kv_rank, 128))
        latents = codes.codes.view(torch.float8_e4m3fn).float() * codes.scales.repeat_interleave(min(g.kv_rank, 128), 1)
        kv_write(torch.cat([latents, rows[:, g.kv_rank :].bfloat16().float()], 1), cache, addresses)

    return ops_for(CPU)._replace(kv_write=write, single=None)


def hidden_states(run: PagedRun) -> list[Tensor]:
    drawn = random.Random(1)
    outcomes = []
    for step in STEPS:
        tokens = {name: [drawn.randrange(4, VOCAB) for _ in range(count)] for name, count in step.items()}
        outcomes += run.step(tokens).values()
    return outcomes


def test_coded_rows_count_as_the_numbers_they_stand_for(sides: Sides) -> None:
    """Index keys are FP8 with both."""
    coded = PagedRun(sides.model(ops_for(CPU)), layout="cuda", kv_cache_dtype="fp8")
    rounded = PagedRun(sides.model(rounding_ops(sides.config)), layout="cuda")
    plain = PagedRun(sides.model(ops_for(CPU)), layout="cuda")
    for ours, same, other in zip(*(hidden_states(run) for run in (coded, rounded, plain)), strict=True):
        torch.testing.assert_close(ours, same, rtol=0, atol=2e-5)
        assert (ours - other).abs().max() > 1e-4  # or nothing was rounded


def test_one_token_of_one_sequence_goes_the_way_of_all_others(sides: Sides) -> None:
    """The short way of such steps reads rows as they are alone."""
    runs = [
        PagedRun(sides.model(ops), kv_cache_dtype="fp8") for ops in (ops_for(CPU), ops_for(CPU)._replace(single=None))
    ]
    for one, other in zip(*(hidden_states(run) for run in runs), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "geometry",
    [
        Geometry(heads=128, q_rank=1024, kv_rank=512, nope=128, rope=64, value=128, theta=8e7, window=None),
        Geometry(heads=64, q_rank=1024, kv_rank=1024, nope=192, rope=64, value=128, theta=5e4, window=513),
        Geometry(heads=8, q_rank=128, kv_rank=64, nope=64, rope=32, value=64, theta=8e7, window=None),
    ],
    ids=["dsa", "swa", "narrow"],
)
@pytest.mark.parametrize("num_rows", [1, 40, 600])
def test_what_attention_gives_is_near_what_exact_rows_give(geometry: Geometry, num_rows: int) -> None:
    """Latents of which single values are much larger than the others, as a trained model has them."""
    g = geometry
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(num_rows, g.row, generator=generator)
    rows[:, : g.kv_rank : 37] *= 8
    q = torch.randn(2, 8, g.row, generator=generator)
    pages = Pages(torch.arange(num_rows) * 4 * g.row, 1)
    buffer = torch.zeros(num_rows * 4 * g.row + 4 * g.row, dtype=torch.uint8)

    def part(dtype: torch.dtype, width: int, offset: int) -> Tensor:
        flat = buffer[offset:].view(dtype)
        return flat.as_strided((len(flat) - width + 1, width), (1, 1))

    scales = g.kv_rank // min(g.kv_rank, 128)
    cache = LatentCache(
        part(torch.uint8, g.kv_rank, 0),
        part(torch.float32, scales, g.kv_rank),
        part(torch.bfloat16, g.rope, g.kv_rank + 4 * scales),
    )
    slots = torch.arange(num_rows)
    write_latents(rows, g.kv_rank, cache, pages, slots)
    every = RowList(slots.expand(2, -1).contiguous(), None)
    coded = mla_decode(q, read_latents(g.kv_rank, g.rope, cache, pages, slots), every, g.kv_rank, g.softmax_scale)
    exact = mla_decode(q.double(), rows.double(), every, g.kv_rank, g.softmax_scale).double()
    assert float((coded - exact).norm() / exact.norm()) < 0.05
    assert 1 - float(torch.cosine_similarity(coded.double().flatten(), exact.flatten(), 0)) < 1e-3


@pytest.fixture(scope="module")
def undecided(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    """A model that has no rows to choose among, so that nothing hangs on near-ties."""
    folder = tmp_path_factory.mktemp("undecided")
    write_checkpoint(folder, tiny_config(index_topk=256))
    return Sides(ModelConfig.from_folder(folder), folder).model(ops_for(CPU))


@pytest.mark.e2e
@pytest.mark.parametrize("tight", [False, True])
def test_rows_of_others_and_rows_computed_again_are_as_good_as_own_ones(undecided: TextModel, tight: bool) -> None:
    """Shared prefixes and chunks; in a cache too small for all of them, preempted and resumed as well."""
    drawn = random.Random(5)
    shared = [drawn.randrange(4, VOCAB) for _ in range(33)]
    ids = [shared + [drawn.randrange(4, VOCAB) for _ in range(count)] for count in (60, 41, 50, 35)]
    texts = [Text(str(number), one, 37 + number) for number, one in enumerate(ids)]
    alone = {}
    for text in texts:
        run = EngineRun(undecided, kv_cache_dtype="fp8", enable_prefix_caching=False)
        alone |= run.run([text])
    plan = EngineRun(undecided, kv_cache_dtype="fp8").plan
    size = plan.slabs_for(len(ids[0])) * plan.slab_bytes if tight else 1 << 22
    crowd = EngineRun(undecided, kv_cache_dtype="fp8", max_num_seqs=4, max_num_batched_tokens=19, cache_bytes=size)
    together = crowd.run([text._replace(arrives=5 * number) for number, text in enumerate(texts)])
    assert any(one.cached_tokens for one in together.values())
    assert (crowd.preemptions > 0) == tight
    for name, one in together.items():
        true = torch.cat(alone[name].hidden)
        ours = torch.cat(one.hidden)
        off = (ours - true[torch.tensor(one.positions)]).norm(dim=1) / true.norm(dim=1).mean()
        # What fp32 noise rounds to the next code is seen by the tokens after it; a row of another token moves far more.
        assert off.median() < 1e-4
        assert off.max() < 0.05


@pytest.mark.e2e
def test_drafts_are_made_and_accepted_and_answers_are_those_without() -> None:
    asked = prompts(24)
    plain = engine_with(0, kv_cache_dtype="fp8").answers(asked)
    engine = engine_with(3, kv_cache_dtype="fp8")
    drafted = engine.answers(asked)
    assert sum(drafted[name].only != answer.only for name, answer in plain.items()) <= 2
    beat = engine.loop.beat()
    assert beat.drafted_tokens[0] > beat.accepted_tokens[0] > beat.drafted_tokens[0] / 4


def lost_points(tasks: list[str], items: int) -> tuple[float, float]:
    """Of the quality meter's score, by an FP8 cache instead of fp32 rows: percent, and their error."""
    from training.evaluation.engine_run import ask_engine, load_engine
    from training.evaluation.held_out import Key, Outcome, keys

    torch.set_num_threads(1)
    right: list[dict[Key, bool]] = []
    for fp8 in (False, True):
        found: dict[Key, bool] = {}

        def record(outcome: Outcome, found: dict[Key, bool] = found) -> None:
            found[outcome.question.key] = outcome.right

        ask_engine(load_engine(MODEL, "cpu", None, fp8), list(keys(tasks, items)), record)
        right.append(found)
    plain, coded = right
    assert plain.keys() == coded.keys()
    changed = [int(plain[key]) - int(coded[key]) for key in plain]
    return 100 * sum(changed) / len(changed), 100 * math.sqrt(sum(map(abs, changed))) / len(changed)


@pytest.mark.e2e
def test_an_fp8_cache_loses_nothing_of_short_answers() -> None:
    """At most a point, and twice the error of so few items."""
    lost, error = lost_points(["arithmetic", "copy", "lookup", "identity", "tool_single"], 8)
    assert lost <= 1 + 2 * error


@pytest.mark.slow
def test_an_fp8_cache_loses_at_most_a_point_of_the_meter() -> None:
    tasks = [name for name, task in TASKS.items() if task.kind in ("text", "tools")]
    lost, error = lost_points(tasks, 60)
    assert lost <= 1 + 2 * error

"""The layer that drafts gives what transformers' decoder layer in the same wiring gives, over a paged cache."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from engine.config.capacity import plan_capacity
from engine.config.engine import EngineConfig
from engine.config.model import ModelConfig
from engine.model.context import ForwardContext
from engine.model.kv_pool import KvPool
from engine.model.load import CheckpointError, load_drafter
from engine.model.mtp import Drafter
from tests.support.mtp_reference import ReferenceDrafter, write_drafter
from tests.support.tiny_model import CASES, VOCAB, tiny_config, write_checkpoint

pytestmark = pytest.mark.e2e

LENGTH = 30  # past every window
CPU = torch.device("cpu")


class Twins(NamedTuple):
    drafter: Drafter
    reference: ReferenceDrafter
    config: ModelConfig
    tokens: Tensor  # [rows], the token after each row's own
    hidden: Tensor  # [rows, hidden], as the text model might give them


@pytest.fixture(scope="module", params=sorted(CASES))
def twins(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Twins:
    folder = tmp_path_factory.mktemp(request.param)
    flat = tiny_config(request.param)
    write_checkpoint(folder, flat)
    reference = write_drafter(folder, flat)
    config = ModelConfig.from_folder(folder)
    drafter = load_drafter(folder, config, CPU, torch.float32)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(VOCAB, (LENGTH,), generator=generator)
    return Twins(drafter, reference, config, tokens, torch.randn(LENGTH, config.hidden, generator=generator))


class Paged:
    """One sequence's rows in pages of four, in reverse order; unused memory is NaN."""

    def __init__(self, twins: Twins) -> None:
        engine = EngineConfig(page_size=4, cache_bytes=1 << 20, max_model_len=64, speculative_tokens=3)
        self.pool = KvPool(plan_capacity(twins.config, engine, free_bytes=0), CPU)
        self.pool.buffer.view(torch.float32).fill_(float("nan"))
        self._drafter = twins.drafter
        self._table = torch.arange(15, -1, -1, dtype=torch.int32)

    def slots(self, positions: Tensor) -> Tensor:
        return self._table[positions // 4].long() * 4 + positions % 4

    def write(self, tokens: Tensor, hidden: Tensor, start: int = 0) -> None:
        positions = torch.arange(start, start + len(tokens))
        if len(tokens):
            slots, table = self.slots(positions), self._table[None, :0].expand(len(tokens), 0)
            lens = (positions + 1).tolist()
            context = ForwardContext(positions, range(len(lens) + 1), lens, len(lens), slots, slots, table, table)
            self._drafter.write(tokens, hidden, context, self.pool)

    def forward(self, token: Tensor, hidden: Tensor, position: int) -> Tensor:
        at = torch.tensor([position])
        slots, table = self.slots(at), self._table[None, : position // 4 + 1]
        context = ForwardContext(at, [0, 1], [position + 1], 1, slots, slots, table, table)
        return self._drafter.forward(token.view(1), hidden[None], context, self.pool)[0]


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    assert (ours - theirs).abs().max() <= 1e-5 * (theirs.max() - theirs.min())


@pytest.mark.parametrize("position", [0, 1, 7, 8, 9, LENGTH - 1])
@torch.no_grad()
def test_a_row_behind_written_ones_gives_the_reference_states(twins: Twins, position: int) -> None:
    paged = Paged(twins)
    paged.write(twins.tokens[:position], twins.hidden[:position])
    ours = paged.forward(twins.tokens[position], twins.hidden[position], position)
    assert_close(ours, twins.reference(twins.tokens[: position + 1], twins.hidden[: position + 1])[-1])


@torch.no_grad()
def test_rows_that_are_written_few_at_a_time_are_those_of_a_long_write(twins: Twins) -> None:
    paged = Paged(twins)
    start = 0
    for count in (1, 4, 3, 2, 4, 4):
        paged.write(twins.tokens[start : start + count], twins.hidden[start : start + count], start)
        start += count
    ours = paged.forward(twins.tokens[start], twins.hidden[start], start)
    assert_close(ours, twins.reference(twins.tokens[: start + 1], twins.hidden[: start + 1])[-1])


@torch.no_grad()
def test_three_passes_feed_on_each_other_as_in_the_reference(twins: Twins) -> None:
    paged = Paged(twins)
    paged.write(twins.tokens[:-1], twins.hidden[:-1])
    tokens, states = twins.tokens, twins.hidden
    token, hidden = tokens[-1], states[-1]
    for step in range(3):
        hidden = paged.forward(token, hidden, LENGTH - 1 + step)
        theirs = twins.reference(tokens, states)[-1]
        assert_close(hidden, theirs)
        token = theirs.argmax() * 3  # any token will do
        tokens = torch.cat([tokens, token[None]])
        states = torch.cat([states, theirs[None]])


def test_a_checkpoint_without_the_layer_is_refused_by_name(tmp_path: Path) -> None:
    flat = tiny_config()
    write_checkpoint(tmp_path, flat)
    config = ModelConfig.from_folder(tmp_path)
    with pytest.raises(CheckpointError, match="num_nextn_predict_layers is 0"):
        load_drafter(tmp_path, config, CPU, torch.float32)
    with_it = ModelConfig.from_json(flat | {"num_nextn_predict_layers": 1})
    with pytest.raises(CheckpointError, match=r"missing tensor model\.mtp\.embed_tokens\.weight"):
        load_drafter(tmp_path, with_it, CPU, torch.float32)

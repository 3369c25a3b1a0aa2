"""A step of few new tokens of one sequence: the same as with the operations for any step, whatever its length."""

from itertools import cycle
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from engine.config.model import ModelConfig
from engine.kernels.ops import Ops, ops_for
from engine.model.decoder import TextModel
from engine.model.load import Checkpoint
from tests.support.paged_run import PagedRun
from tests.support.tiny_model import CASES, VOCAB, tiny_config, write_checkpoint

CPU = torch.device("cpu")
NUM_TOKENS = 44  # past every window and top-k of the configs
NUM_PROMPT = 3


class Both(NamedTuple):
    single: TextModel
    general: TextModel


@pytest.fixture(scope="module", params=sorted(CASES))
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder = tmp_path_factory.mktemp(request.param)
    write_checkpoint(folder, tiny_config(request.param))
    config = ModelConfig.from_folder(folder)

    def model(ops: Ops) -> TextModel:
        with Checkpoint(folder, config, CPU, torch.float32) as weights:
            return TextModel(weights, config, ops)

    return Both(model(ops_for(CPU)), model(ops_for(CPU)._replace(single=None)))


def ids(seed: int = 0) -> list[int]:
    return torch.randint(4, VOCAB, (NUM_TOKENS,), generator=torch.Generator().manual_seed(seed)).tolist()


def decoded(run: PagedRun, tokens: list[int], name: int = 0) -> list[Tensor]:
    """Hidden states of each token after the prompt, which are looked at only at the end."""
    run.step({name: tokens[:NUM_PROMPT]})
    return [run.step({name: [token]})[name] for token in tokens[NUM_PROMPT:]]


@pytest.mark.parametrize("layout", ["cpu", "cuda"])
def test_every_step_equals_that_of_the_general_operations(both: Both, layout: str) -> None:
    runs = [PagedRun(model, layout=layout) for model in both]
    for mine, general in zip(*(decoded(run, ids()) for run in runs), strict=True):
        torch.testing.assert_close(mine, general, rtol=0, atol=2e-5)


@pytest.mark.parametrize("layout", ["cpu", "cuda"])
@pytest.mark.parametrize("counts", [(2,), (3,), (4,), (4, 1, 2, 3)], ids=str)
def test_so_does_one_of_a_token_and_its_drafts(both: Both, layout: str, counts: tuple[int, ...]) -> None:
    mine, general = (PagedRun(model, layout=layout) for model in both)
    for run in (mine, general):
        run.step({0: ids()[:NUM_PROMPT]})
    left = ids()[NUM_PROMPT:]
    for count in cycle(counts):
        new, left = left[:count], left[count:]
        if not new:
            break
        hidden = [run.step({0: new}, apart=True)[0] for run in (mine, general)]
        torch.testing.assert_close(*hidden, rtol=0, atol=2e-5)


def test_it_goes_on_where_others_have_written_and_others_go_on_where_it_has(both: Both) -> None:
    """Rows that a step alone writes are read by steps of several sequences, and the other way round."""
    alternating, general = PagedRun(both.single), PagedRun(both.general)
    for run in (alternating, general):
        run.step({0: ids()[:NUM_PROMPT], 1: ids(1)[:NUM_PROMPT]})
    for place in range(NUM_PROMPT, NUM_TOKENS, 2):
        alone = {0: [ids()[place]]}
        together = {0: [ids()[place + 1]], 1: [ids(1)[place]]} if place + 1 < NUM_TOKENS else {1: [ids(1)[place]]}
        for new in (alone, together):
            mine, theirs = alternating.step(new), general.step(new)
            for name in new:
                torch.testing.assert_close(mine[name], theirs[name], rtol=0, atol=2e-5)


def test_a_model_serves_two_caches_in_turn(both: Both) -> None:
    expected = decoded(PagedRun(both.general), ids())
    runs = [PagedRun(both.single), PagedRun(both.single)]
    for run in runs:
        run.step({0: ids()[:NUM_PROMPT]})
    for token, hidden in zip(ids()[NUM_PROMPT:], expected, strict=True):
        for run in runs:
            torch.testing.assert_close(run.step({0: [token]})[0], hidden, rtol=0, atol=2e-5)

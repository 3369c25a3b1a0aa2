"""What the whole engine computes of a text is what transformers computes: through scheduler, cache and runner, after
preemptions, after hits in the prefix cache, and beside whatever else runs.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from engine.sched.batch import ScheduledBatch
from tests.support.engine_run import Computed, EngineRun, Text
from tests.support.numerics import Answer, Stretch, assert_logits_match
from tests.support.tiny_model import CASES
from tests.support.twins import Twins, make_twins

pytestmark = pytest.mark.e2e

PAGE = 4
SHARED = 46  # tokens with which all texts begin: past top-k and window in every case
LENGTHS = (131, 90, 99, 75, 64)
PROMPTS = (67, 60, 51, 50, 52)  # of these so many are the prompt, so that there is much to decode


@pytest.fixture(scope="module", params=sorted(CASES))
def twins(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Twins:
    return make_twins(request.param, tmp_path_factory.mktemp(request.param), LENGTHS, SHARED)


@pytest.fixture(scope="module", params=["before the first near-tie", "all rows, choices forced"])
def engine(request: pytest.FixtureRequest, twins: Twins) -> Checked:
    return Checked(twins, forces=request.param == "all rows, choices forced")


class Checked:
    """Runs texts in an engine whose every row is held against the reference's."""

    def __init__(self, twins: Twins, forces: bool) -> None:
        self._answers = {str(number): answer for number, answer in enumerate(twins.answers)}
        self._model, self._forced = twins.forced() if forces else (twins.model, None)

    def run(self, **settings: object) -> EngineRun:
        return EngineRun(self._model, self._force, page_size=PAGE, **settings)

    def compute(self, run: EngineRun, texts: list[Text]) -> dict[str, Computed]:
        computed = run.run(texts)
        for text in texts:
            self._compare(text, computed[text.name], self._answers[text.name])
        return computed

    def _compare(self, text: Text, computed: Computed, answer: Answer) -> None:
        """Rows that were computed twice are compared twice."""
        assert computed.finished is not None
        assert {*range(max(SHARED, computed.cached_tokens), len(text.ids) - 1)} <= {*computed.positions}
        certain = len(text.ids) if self._forced is not None else answer.certain
        positions = torch.tensor(computed.positions)
        rows = positions < certain
        assert int(rows.sum()) > 5  # else the comparison says nothing
        logits = self._model.logits(torch.cat(computed.hidden)[rows])
        assert_logits_match(logits, answer.logits[positions[rows]])

    def _force(self, batch: ScheduledBatch) -> None:
        if self._forced is not None:
            answers = [self._answers[item.request.request_id] for item in batch.items]
            stretches = [
                Stretch(answer, item.start, item.start + item.num_tokens)
                for answer, item in zip(answers, batch.items, strict=True)
            ]
            self._forced.next_step(stretches, batch.num_decodes)


def texts(twins: Twins, numbers: Iterable[int] = range(len(LENGTHS)), **fields: object) -> list[Text]:
    return [Text(str(number), twins.prompts[number], PROMPTS[number], **fields) for number in numbers]


@pytest.mark.parametrize("num_batched_tokens", [11, 37, 512])
def test_mixed_lengths_in_chunks_of_odd_sizes(twins: Twins, engine: Checked, num_batched_tokens: int) -> None:
    run = engine.run(max_num_seqs=5, max_num_batched_tokens=num_batched_tokens, enable_prefix_caching=False)
    arriving = [text._replace(arrives=4 * number) for number, text in enumerate(texts(twins))]
    engine.compute(run, arriving)
    assert run.widest == len(LENGTHS)
    assert run.mixed_steps > 1


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_preempted_and_resumed(twins: Twins, engine: Checked, prefix_caching: bool) -> None:
    """All five run in a cache that holds two or three of them at their full length."""
    plan = EngineRun(twins.model, page_size=PAGE).plan
    run = engine.run(
        max_num_seqs=5,
        max_num_batched_tokens=23,
        enable_prefix_caching=prefix_caching,
        cache_bytes=plan.slabs_for(max(LENGTHS)) * plan.slab_bytes,
    )
    short = [text._replace(num_prompt=9 + number) for number, text in enumerate(texts(twins))]
    computed = engine.compute(run, short)
    assert run.widest == len(LENGTHS)
    assert run.preemptions >= 3
    assert sum(one.times_computed > 1 for one in computed.values()) >= 2


def test_hits_in_the_prefix_cache(twins: Twins, engine: Checked) -> None:
    run = engine.run(max_num_seqs=5, max_num_batched_tokens=23)
    [first] = engine.compute(run, texts(twins, [0])).values()
    assert first.cached_tokens == 0
    for other in engine.compute(run, texts(twins, range(1, 5))).values():
        assert other.cached_tokens == SHARED // PAGE * PAGE
    [whole] = engine.compute(run, texts(twins, [0])).values()
    assert whole.cached_tokens == (PROMPTS[0] - 1) // PAGE * PAGE

"""Answers with drafts are those without also where whole steps are launched, on the bundled checkpoint: fields,
grammars and prompts of the quality meter. On a CPU, where what is recorded on a GPU is done anew each time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from engine.runtime.draft_graphs import DraftGraphs
from engine.runtime.drafted import DraftedStep, DraftedSteps
from engine.runtime.runner import LaunchedStep, Runner
from engine.sched.batch import ScheduledBatch
from engine.wire.messages import Submit
from tests.engine.test_speculation import VARIED, check, engine_with, one_by_one, prompts
from tests.support.drafted_run import EagerDrafter, choose
from tests.support.loop_run import LoopRun

pytestmark = pytest.mark.e2e


def launching(num_drafts: int, **settings: Any) -> LoopRun:
    """As `engine_with`, but with a loop that launches, as on a GPU."""
    run = engine_with(num_drafts, **settings)
    runner = run.loop._runner
    assert isinstance(runner, Runner)
    drafts = runner._drafts
    assert drafts is not None
    eager: Any = EagerDrafter(drafts._drafter)  # type: ignore[arg-type]
    sampler, plan = runner._sampler, run.loop._scheduler._plan
    graphs = DraftGraphs(eager, drafts._logits, runner._pool, plan, num_drafts, choose, lambda step: step)
    runner._drafted = DraftedSteps(graphs, sampler, torch.device("cpu"))
    run.loop._launcher = runner
    return run


def without_logprobs(submit: Submit) -> Submit:
    return msgspec.structs.replace(submit, sampling=msgspec.structs.replace(submit.sampling, logprobs=None))


def test_fields_and_grammars_mean_the_same() -> None:
    plain = engine_with(0).answers(VARIED)
    told = launching(3).answers(VARIED)
    for name, answer in plain.items():
        assert told[name].choices == answer.choices, name
        assert [*map(len, told[name].logprobs.values())] == [*map(len, answer.logprobs.values())]


@pytest.mark.parametrize("name", ["schema", "thinking", "calls", "unlikely"])
def test_a_grammar_alone_is_launched_with_its_drafts(name: str) -> None:
    """Without log-probabilities, with which steps are waited for."""
    (submit,) = [one for one in VARIED if one.request_id == name]
    submit = without_logprobs(submit)
    run = launching(3)
    runner = run.loop._launcher
    assert isinstance(runner, Runner)
    launches, launch = [], runner.launch

    def noted(batch: ScheduledBatch) -> LaunchedStep | DraftedStep:
        launches.append(batch)
        return launch(batch)

    runner.launch = noted  # type: ignore[method-assign]
    assert run.answers([submit])[name].choices == engine_with(0).answers([submit])[name].choices
    assert any(item.num_drafts for batch in launches for item in batch.items)


def test_answers_to_prompts_of_the_meter_are_the_same() -> None:
    """Without log-probabilities, for which steps would be waited for."""
    asked = prompts(8)
    quiet = [without_logprobs(one) for one in asked]
    check(one_by_one(engine_with(0), asked), one_by_one(launching(3), quiet), most=1)

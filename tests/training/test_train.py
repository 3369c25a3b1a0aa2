"""The training command: every stage on a CPU, resumed, and an optimiser that a bad gradient does not spoil."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from training.encode import IGNORED, Encoder, Example, split_wanted
from training.export import write_checkpoint
from training.optimiser import Optimiser, orthogonalised
from training.packing import lessons
from training.stages import LATE, full_recipe, further_recipe, smoke_recipe
from training.tasks import PRACTICE, TASKS
from training.train import Trainer, main, run


@pytest.mark.e2e
def test_smoke_run_goes_through_every_stage_and_leaves_a_checkpoint(tmp_path: Path) -> None:
    main(tmp_path, smoke=True)
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [e["stage"] for e in entries if "tokens_per_s" in e] == [stage.name for stage in smoke_recipe().stages]
    assert {"loss", "draft3", "indexer_kl", "kept_1024"} <= entries[-2].keys()
    assert (tmp_path / "checkpoint" / "model.safetensors.index.json").exists()


@pytest.mark.e2e
def test_a_stopped_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    stopped = Trainer(smoke_recipe(), torch.device("cpu"))
    assert not run(stopped, tmp_path, workers=0, deadline=0.0)  # after the first stage's last step
    resumed = Trainer(smoke_recipe(), torch.device("cpu"))
    resumed.resume(tmp_path / "state.pt")
    assert (resumed.stage, resumed.step) == (stopped.stage, stopped.step)
    for ours, theirs in zip(resumed.model.state_dict().values(), stopped.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.e2e
def test_a_checkpoint_is_trained_further_on_new_items(tmp_path: Path) -> None:
    recipe = replace(smoke_recipe(), steps_before=7)
    first = Trainer(recipe, torch.device("cpu"))
    write_checkpoint(first.model, tmp_path)
    second = Trainer(recipe, torch.device("cpu"))
    with torch.no_grad():
        second.model.lm_head.weight.zero_()
    second.start_from(tmp_path)
    assert torch.equal(second.model.lm_head.weight, first.model.lm_head.weight.bfloat16().float())
    seen_before = Trainer(smoke_recipe(), torch.device("cpu"))
    assert not torch.equal(next(second.batches(0, 0)).ids, next(seen_before.batches(0, 0)).ids)


def test_stages_follow_each_other_without_a_jump_of_the_rate() -> None:
    for recipe in (full_recipe(1000, 10, 50), further_recipe(1000, 10, 50, steps_before=11450)):
        stages = [stage for stage in recipe.stages if stage.kind != "indexer"]
        for before, after in pairwise(stages):
            assert before.factor(before.steps) == pytest.approx(after.factor(0))
        assert stages[-1].factor(stages[-1].steps) == 0.0


def test_further_training_has_more_of_what_is_learnt_last() -> None:
    first, further = full_recipe(10, 1, 1).stages[1], further_recipe(10, 1, 1, steps_before=12).stages[0]
    more = {name: further.weights[name] / first.weights[name] for name in TASKS}
    wanted = {"tool_dialogue": LATE["tools"], "tool_single": LATE["tool_single"], "sort": LATE["sort"], "copy": 1.0}
    assert {name: more[name] for name in wanted} == pytest.approx(wanted)
    assert min(wanted["tool_dialogue"], wanted["sort"]) > 2


def test_a_larger_share_is_of_a_task_or_of_a_kind_of_tasks() -> None:
    tasks = TASKS | PRACTICE
    assert set(LATE) <= {*tasks, *(task.kind for task in tasks.values())}


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    for shape in ((64, 32), (3, 32, 96)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)).float())
        assert values.min() > 0.5
        assert values.max() < 1.5


def test_a_gradient_that_is_not_finite_moves_nothing_and_is_told() -> None:
    model = torch.nn.Linear(8, 4)
    optimiser = Optimiser(model, muon_lr=0.1, adam_lr=0.1)
    before = model.weight.detach().clone()
    model(torch.full((2, 8), float("inf"))).sum().backward()
    optimiser.step(1.0)
    assert torch.equal(model.weight, before)
    assert optimiser.take_spoilt() == {"weight": 1}
    assert optimiser.take_spoilt() == {}


def test_steps_with_a_spike_are_as_if_they_had_not_been() -> None:
    """Not even the momentum may lead on: its updates are of full size, however long ago its last gradient was."""
    torch.manual_seed(0)
    inputs, wild = torch.randn(16, 8), torch.randn(16, 8) * 1e7
    weights = []
    for spikes in (0, 20):
        model = torch.nn.Linear(8, 4)
        torch.nn.init.ones_(model.weight)
        torch.nn.init.zeros_(model.bias)
        optimiser = Optimiser(model, muon_lr=0.01, adam_lr=0.1)
        for batch in [inputs, inputs, *[wild] * spikes, inputs, inputs]:
            model(batch).square().sum().backward()
            optimiser.step(1.0)
        assert optimiser.take_spoilt() == ({"weight": 20, "bias": 20} if spikes else {})
        weights.append(torch.cat([model.weight.detach().flatten(), model.bias.detach()]))
    assert torch.equal(*weights)


def test_a_spoilt_component_does_not_hold_up_the_others() -> None:
    model = torch.nn.ModuleDict({"mtp": torch.nn.Linear(8, 4), "model": torch.nn.Linear(8, 4)})
    optimiser = Optimiser(model, muon_lr=0.1, adam_lr=0.1)
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    (model["mtp"](torch.full((2, 8), float("nan"))).sum() + model["model"](torch.ones(2, 8)).sum()).backward()
    optimiser.step(1.0)
    same = {name: torch.equal(param, before[name]) for name, param in model.named_parameters()}
    assert same == {"mtp.weight": True, "mtp.bias": True, "model.weight": False, "model.bias": False}


def test_a_lasting_change_of_the_gradients_scale_is_accepted() -> None:
    model = torch.nn.Linear(8, 4)
    optimiser = Optimiser(model, muon_lr=0.01, adam_lr=0.1)
    for scale in [1.0] * 3 + [1000.0] * 60:
        (model(torch.ones(2, 8)).sum() * scale).backward()
        optimiser.step(1.0)
    assert optimiser.take_spoilt()["weight"] < 50


def learnt_text(encoder: Encoder, example: Example) -> str:
    return encoder.tokenizer.decode(example.targets[example.targets != IGNORED].tolist())


@pytest.mark.parametrize("name", ["arithmetic", "tool_single", "picture_shape", "film_when"])
def test_what_is_learnt_begins_where_generation_begins(name: str) -> None:
    encoder = Encoder()
    for index in range(6):
        conversation = TASKS[name].generate("test", index)
        example = encoder(conversation)
        served = encoder.template.render(
            conversation.messages[:-1], conversation.tools, enable_thinking=conversation.thinking
        )
        rendered = encoder.template.render(
            conversation.messages,
            conversation.tools,
            enable_thinking=conversation.thinking,
            add_generation_prompt=False,
        )
        prompt, wanted = split_wanted(rendered, conversation.thinking)
        assert prompt == served
        assert learnt_text(encoder, example) == "".join(segment.text for segment in wanted)
        assert learnt_text(encoder, example).endswith("<|endofassistant|>")


def test_earlier_turns_that_lost_their_thinking_are_no_example() -> None:
    encoder = Encoder()
    seen = {True: 0, False: 0}
    for index in range(60):
        conversation = TASKS["dialogue"].generate("train", index)
        if not conversation.thinking:
            continue
        kept = all("reasoning_content" in m for m in conversation.messages if m["role"] == "assistant")
        answers = learnt_text(encoder, encoder(conversation)).count("<|endofassistant|>")
        turns = sum(m["role"] == "assistant" for m in conversation.messages)
        if kept:
            assert answers == turns
        seen[kept] += 1
    assert seen[True]
    assert seen[False]


def test_prompts_are_learnt_only_where_that_is_wanted_and_never_their_placeholders() -> None:
    encoder = Encoder()
    example = encoder(TASKS["picture_shape"].generate("test", 0))
    assert len(lessons(example, 0.0)) == 1
    answer, prompt = lessons(example, 0.1)
    next_ids = example.ids[prompt.places + 1]
    assert encoder.tokenizer.token_id("<|imgpad|>") not in next_ids
    assert not np.intersect1d(answer.places, prompt.places).size

"""The practice in tools: what the prompt says decides every answer; and the examined tasks are what they were."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from server.chat_template import ChatTemplate
from training.data.conversation import Conversation
from training.data.result_talk import result_talk
from training.data.schema_talk import schema_talk
from training.data.tool_exchanges import REFUSAL
from training.data.tool_practice import tool_steps, tool_talk
from training.data.tools import tool_dialogue, tool_none, tool_parallel, tool_result, tool_single
from training.data.value_talk import NOT_GIVEN, value_talk

PRACTICE = (tool_talk, tool_steps, schema_talk, value_talk, result_talk)
CALLING = (tool_talk, tool_steps, result_talk)
NUM_ITEMS = 300
TEMPLATE = Path(__file__).resolve().parents[1] / "fixtures" / "chat" / "chat_template.jinja"
# Of the first 300 items without their thoughts: figures of two checkpoints can be compared as long as these stay.
EXAMINED = {
    ("tool_single", "train"): "023e896543babec5a2d73f366e1a08fbea3b594b322ce7371eb2eed7673128fc",
    ("tool_single", "test"): "8f01da98e9aae22fa45210951c6882b6840f325a18fc1ca3b6dcbafd8d341dcd",
    ("tool_parallel", "train"): "cbd0b4a5ff8e4d8051fc37182c562f183dd0d47cee679432a8df9f26b910cf13",
    ("tool_parallel", "test"): "cf04c223b7f8bad2044746f1e7263088bdfd93970189e75ec813e2b141f96ccb",
    ("tool_none", "train"): "8fe754fbe60ee6cd992e33afb31aaf955afc9adaa1770702a55093e70e7c1410",
    ("tool_none", "test"): "8a907ce7dd0fb37b900a230d2c9b1333e34b5efa15cfa07ee27b80cfbba5308f",
    ("tool_result", "train"): "d5cd946ad59be7f4d8e4e943545f4e6ef833540068d71a5b8078ac5206bed03d",
    ("tool_result", "test"): "0204985b998972ead9f51be55946670addf34f1edb6941a7cfb843b0bfa5330f",
    ("tool_dialogue", "train"): "0fe1e437fce42b6b118f6ff14dbab68dec6e5bbbdee94bcf1f8f3bd18511e476",
    ("tool_dialogue", "test"): "3ae00be3c8f9987f4764610f1a997f4d6c1bd3fa733723fc0f36fa444071b0c7",
}


@cache
def items(task: Any) -> list[Conversation]:
    """Made once: most tests look at them."""
    return [task("test", index) for index in range(NUM_ITEMS)]


def turns_of(conversation: Conversation) -> list[tuple[str, str]]:
    """What the user said and the answer, for each exchange."""
    turns = []
    for message in conversation.messages:
        if message["role"] == "user":
            said = message["content"]
        elif message["role"] == "assistant" and not message.get("tool_calls"):
            turns.append((said, message["content"]))
    return turns


def parts_of(value: Any) -> list[str]:
    """The values that a text of JSON or words consists of."""
    if isinstance(value, dict | list):
        return [part for inner in (value.values() if isinstance(value, dict) else value) for part in parts_of(inner)]
    return [value if isinstance(value, str) else json.dumps(value)]


def spoken(answer: str) -> list[str]:
    """The values of an answer, which are JSON if it is a list or an object."""
    return parts_of(json.loads(answer)) if answer[0] in '[{"' and answer[-1] in "]}" else [answer]


@pytest.mark.parametrize("task", [tool_single, tool_parallel, tool_none, tool_result, tool_dialogue])
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_examined_tasks_are_what_they_were(task: Any, split: str) -> None:
    digest = hashlib.sha256()
    for conversation in (task(split, index) for index in range(300)):
        said = [{key: m[key] for key in m if key != "reasoning_content"} for m in conversation.messages]
        parts = [conversation.task, said, conversation.tools, conversation.thinking]
        digest.update(json.dumps(parts, ensure_ascii=False).encode())
    assert digest.hexdigest() == EXAMINED[task.__name__, split]


@pytest.mark.parametrize("task", PRACTICE)
def test_an_item_is_the_same_each_time_and_differs_between_splits(task: Any) -> None:
    assert [task("test", index) for index in range(50)] == items(task)[:50]
    assert [task("train", index) for index in range(50)] != items(task)[:50]


@pytest.mark.parametrize("task", PRACTICE)
def test_every_assistant_turn_has_its_thought_or_none_has(task: Any) -> None:
    conversations = items(task)
    for conversation in conversations:
        assert conversation.messages[-1]["role"] == "assistant"
        for message in conversation.messages:
            if message["role"] == "assistant":
                assert ("reasoning_content" in message) == conversation.thinking
                assert bool(message["content"]) != bool(message.get("tool_calls"))
    assert 0.25 < sum(conversation.thinking for conversation in conversations) / NUM_ITEMS < 0.45


@pytest.mark.parametrize("task", CALLING)
def test_every_call_fits_its_schema_and_every_value_was_said_as_it_stands(task: Any) -> None:
    for conversation in items(task):
        declared = {tool["function"]["name"]: tool["function"]["parameters"] for tool in conversation.tools or []}
        said = ""
        for message in conversation.messages:
            said += message["content"] if message["role"] == "user" else ""
            for call in message.get("tool_calls", []):
                name, arguments = call["function"]["name"], call["function"]["arguments"]
                jsonschema.Draft202012Validator(declared[name]).validate(arguments)
                assert list(arguments) == [key for key in declared[name]["properties"] if key in arguments]
                assert all(value in said for value in parts_of(arguments) if value not in ("true", "false"))


def test_a_talk_has_three_to_five_requests_and_ends_with_an_answer() -> None:
    num_calls = 0
    for conversation in items(tool_talk):
        assert 3 <= sum(message["role"] == "user" for message in conversation.messages) <= 5
        assert conversation.messages[-1]["content"]
        num_calls += sum(len(message.get("tool_calls", [])) for message in conversation.messages)
    assert num_calls / NUM_ITEMS > 2.5


def test_a_step_is_one_turn_of_calls_or_a_refusal() -> None:
    wanted = [conversation.messages[-1] for conversation in items(tool_steps)]
    assert all(message.get("tool_calls") or message["content"] == REFUSAL for message in wanted)
    assert {len(message.get("tool_calls", [])) for message in wanted} == {0, 1, 2, 3}


@pytest.mark.parametrize("task", [schema_talk, value_talk, result_talk])
def test_no_question_comes_twice(task: Any) -> None:
    for conversation in items(task):
        questions = [question for question, _ in turns_of(conversation)]
        assert len(set(questions)) == len(questions) <= 8
        thoughts = [message.get("reasoning_content") for message in conversation.messages if message["content"]]
        assert not conversation.thinking or len({*thoughts} - {None}) == len(questions)
    assert sum(len(turns_of(conversation)) for conversation in items(task)) / NUM_ITEMS > 3.5


def test_questions_about_a_schema_are_answered_from_it() -> None:
    seen = set()
    for conversation in items(schema_talk):
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in conversation.tools or []}
        for question, answer in turns_of(conversation):
            for pattern, wanted in SCHEMA_ANSWERS.items():
                if found := re.fullmatch(pattern, question):
                    assert answer == wanted(schemas, *found.groups())
                    seen.add(pattern)
            if re.match("Which function .*(this|can|need)", question):
                assert answer in schemas or answer == REFUSAL
    assert seen == set(SCHEMA_ANSWERS)


def test_what_a_function_does_is_said_as_thoughts_say_it() -> None:
    asked = 0
    for conversation in items(schema_talk):
        thoughts = "\n".join(message.get("reasoning_content", "") for message in conversation.messages)
        for question, answer in turns_of(conversation):
            if found := re.fullmatch(rf"What (?:does {NAME} do|is {NAME} for)\?", question):
                name = found[1] or found[2]
                assert "Functions:" not in thoughts or f"\n{answer}:\n{name}\n" in thoughts
                asked += 1
    assert asked > 30


def test_values_that_a_request_gives_are_listed_in_the_order_of_the_schema() -> None:
    num_lines = 0
    for conversation in items(schema_talk):
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in conversation.tools or []}
        for question, answer in turns_of(conversation):
            if question.startswith("Which values ") and "\n" in question and answer != "None.":
                told = dict([line.split(" = ", 1) for line in answer.split("\n")])
                orders = [[name for name in schema["properties"] if name in told] for schema in schemas.values()]
                assert list(told) in orders
                for value in told.values():
                    assert all(part in question for part in spoken(value) if part not in ("true", "false"))
                num_lines += len(told)
    assert num_lines > NUM_ITEMS / 2


def listed(names: Any) -> str:
    return ", ".join(names) or "None."


NAME = r"([\w.-]+)"
SCHEMA_ANSWERS: dict[str, Any] = {
    rf"Which parameters has {NAME}\?": lambda all_, f: listed(all_[f]["properties"]),
    rf"Which parameters of {NAME} are required\?": lambda all_, f: listed(all_[f].get("required", [])),
    rf"Which parameters of {NAME} are optional\?": lambda all_, f: listed(
        [name for name in all_[f]["properties"] if name not in all_[f].get("required", [])]
    ),
    rf"Is {NAME} of {NAME} required\?": lambda all_, p, f: "Yes." if p in all_[f].get("required", []) else "No.",
    rf"What type is {NAME} of {NAME}\?": lambda all_, p, f: all_[f]["properties"][p]["type"],
    rf"Which values can {NAME} of {NAME} have\?": lambda all_, p, f: listed(all_[f]["properties"][p]["enum"]),
    rf"Which fields has {NAME} of {NAME}\?": lambda all_, p, f: listed(all_[f]["properties"][p]["properties"]),
    rf"What is the first parameter of {NAME}\?": lambda all_, f: next(iter(all_[f]["properties"])),
    rf"What is the last parameter of {NAME}\?": lambda all_, f: [*all_[f]["properties"]][-1],
    rf"What is the parameter after {NAME} of {NAME}\?": lambda all_, p, f: [*all_[f]["properties"]][
        [*all_[f]["properties"]].index(p) + 1
    ],
    rf"Which functions take {NAME}\?": lambda all_, p: listed([f for f in all_ if p in all_[f]["properties"]]),
    "Which functions are there?".replace("?", r"\?"): listed,
}


def test_values_are_answered_as_the_request_has_them() -> None:
    literal = missing = 0
    for conversation in items(value_talk):
        assert conversation.tools is None
        request = conversation.messages[0]["content"]
        for question, answer in turns_of(conversation):
            if "action" in question or "How many" in question:
                continue
            lines = answer.split("\n") if re.search(r"(List|Write down) .*\.$", question) else [f"= {answer}"]
            if answer == NOT_GIVEN:
                missing += 1
                continue
            for line in lines:
                values = [value for value in spoken(line.split("= ", 1)[1]) if value not in ("true", "false")]
                assert all(value in request for value in values), (request, line)
                literal += len(values)
    assert literal > 3 * NUM_ITEMS
    assert missing > NUM_ITEMS / 4


def test_a_list_of_values_keeps_the_order_of_the_question() -> None:
    for conversation in items(value_talk):
        for question, answer in turns_of(conversation):
            if (found := re.search(r"(?:List|Write down) (.*?)(?: of the \w+ call)?\.$", question)) and "=" in answer:
                asked = re.split(", | and ", found[1])
                told = [line.split(" = ")[0] for line in answer.split("\n")]
                assert told == [name for name in asked if name in told]


def test_answers_about_results_state_values_of_the_results() -> None:
    stated = 0
    for conversation in items(result_talk):
        results = "\n".join([m["content"] for m in conversation.messages if m["role"] == "tool"])
        source = results or conversation.messages[0]["content"]
        assert bool(results) == bool(conversation.tools)
        for _, answer in turns_of(conversation):
            if found := re.fullmatch(r"The [a-z ]+ is (.+)\.", answer.split(". The call for ")[0].rstrip(".") + "."):
                told = re.split(r",? (?:and )?the [a-z ]+ is ", found[1])
                values = [value for part in told for value in re.findall(r"^(.+?)(?: for |$)", part)]
                assert all(value in source for value in values), (source, answer)
                stated += len(values)
    assert stated > 3 * NUM_ITEMS


@pytest.mark.parametrize("task", PRACTICE)
def test_an_item_renders_and_its_calls_can_be_read_back(task: Any) -> None:
    template = ChatTemplate(TEMPLATE.read_text(encoding="utf-8"), ["<|user|>", "<|assistant|>", "<|endofassistant|>"])
    for conversation in items(task)[:60]:
        segments = template.render(
            conversation.messages,
            conversation.tools,
            enable_thinking=conversation.thinking,
            add_generation_prompt=False,
        )
        assistant = [message for message in conversation.messages if message["role"] == "assistant"]
        for message, turn in zip(
            assistant, "".join([s.text for s in segments]).split("<|assistant|>")[1:], strict=True
        ):
            turn = turn.split("<|endofassistant|>")[0]
            calls = [call["function"]["name"] for call in message.get("tool_calls", [])]
            assert re.findall(r'<invoke name="(.*?)">', turn) == calls
            assert not conversation.thinking or message["reasoning_content"] in turn

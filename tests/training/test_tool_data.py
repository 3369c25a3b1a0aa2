"""The tool tasks: valid calls, whose every value the user said, and answers that the prompt determines."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from server.chat_template import ChatTemplate
from training.data.conversation import Conversation
from training.data.tool_exchanges import REFUSAL
from training.data.tool_schemas import plural
from training.data.tool_topics import FIELDS, TOPICS, VERBS, YES_NO
from training.data.tool_values import KINDS
from training.data.tools import tool_dialogue, tool_none, tool_parallel, tool_result, tool_single

TASKS = (tool_single, tool_parallel, tool_none, tool_result, tool_dialogue)
NUM_ITEMS = 400
TEMPLATE = Path(__file__).resolve().parents[1] / "fixtures" / "chat" / "chat_template.jinja"


@cache
def items(task: Any) -> list[Conversation]:
    """Made once: most tests look at them."""
    return [task("test", index) for index in range(NUM_ITEMS)]


def calls_of(message: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]


def said_by(conversation: Conversation, role: str) -> str:
    return "\n".join(message["content"] for message in conversation.messages if message["role"] == role)


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from leaves(part)
    else:
        yield value


@pytest.mark.parametrize("task", TASKS)
def test_an_item_is_the_same_each_time_and_differs_between_splits(task: Any) -> None:
    assert [task("test", index) for index in range(50)] == items(task)[:50]
    assert [task("train", index) for index in range(50)] != items(task)[:50]


@pytest.mark.parametrize("task", TASKS)
def test_every_call_is_of_a_declared_function_and_fits_its_schema(task: Any) -> None:
    for conversation in items(task):
        assert conversation.tools is not None
        declared = {tool["function"]["name"]: tool["function"]["parameters"] for tool in conversation.tools}
        assert 1 <= len(declared) == len(conversation.tools) <= 6
        for message in conversation.messages:
            for name, arguments in calls_of(message):
                jsonschema.Draft202012Validator(declared[name]).validate(arguments)
                order = list(declared[name]["properties"])
                assert list(arguments) == [key for key in order if key in arguments]


@pytest.mark.parametrize("task", TASKS)
def test_every_value_of_a_call_was_said_by_the_user_as_it_stands(task: Any) -> None:
    for conversation in items(task):
        said = said_by(conversation, "user")
        for message in conversation.messages:
            for value in leaves([arguments for _, arguments in calls_of(message)]):
                if not isinstance(value, bool):
                    assert (value if isinstance(value, str) else json.dumps(value)) in said


@pytest.mark.parametrize("task", TASKS)
def test_the_wanted_turn_comes_last_and_only_thinking_items_have_thoughts(task: Any) -> None:
    conversations = items(task)
    for conversation in conversations:
        wanted = conversation.messages[-1]
        assert wanted["role"] == "assistant"
        assert bool(wanted["content"]) != bool(wanted.get("tool_calls"))
        assert ("reasoning_content" in wanted) == conversation.thinking
        if not conversation.thinking:
            assert not any("reasoning_content" in message for message in conversation.messages)
    assert 0.4 < sum(conversation.thinking for conversation in conversations) / NUM_ITEMS < 0.6


def test_each_task_wants_what_its_name_says() -> None:
    assert all(len(calls_of(c.messages[-1])) == 1 for c in items(tool_single))
    assert {len(calls_of(c.messages[-1])) for c in items(tool_parallel)} == {2, 3}
    assert not any(calls_of(message) for c in items(tool_none) for message in c.messages)
    assert all(c.messages[-1]["content"] and c.messages[-2]["role"] == "tool" for c in items(tool_result))
    assert {bool(calls_of(c.messages[-1])) for c in items(tool_dialogue)} == {True, False}
    assert 0.4 < sum(c.messages[-1]["content"] == REFUSAL for c in items(tool_none)) / NUM_ITEMS < 0.8


def parameter_lines(conversation: Conversation, name: str, arguments: dict[str, Any]) -> list[str]:
    """What the thought says of each declared parameter."""
    (declared,) = [tool["function"] for tool in conversation.tools or [] if tool["function"]["name"] == name]
    lines = []
    for key in declared["parameters"]["properties"]:
        value = arguments.get(key)
        said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append(f"{key} = {said}" if key in arguments else f"{key}: not given")
    return lines


def choice_of(conversation: Conversation, message: dict[str, Any], meanings: dict[str, str]) -> list[str]:
    """What a thought ends with: each function behind what it does, and its parameters."""
    calls = calls_of(message)
    if not calls:
        return ["no function."]
    parameters = [parameter_lines(conversation, *call) for call in calls]
    names = [[meanings[name], name] for name, _ in calls]
    if len(calls) == 1:
        return names[0] + parameters[0]
    if " to " not in message["reasoning_content"].split("\n")[1 + 2 * len(meanings)]:  # wishes of their own
        blocks = [[f"{n}:", *name, *lines] for n, (name, lines) in enumerate(zip(names, parameters, strict=True), 1)]
        return [line for block in blocks for line in block]
    (varied,) = [lines for lines in zip(*parameters, strict=True) if len(set(lines)) > 1]
    values = [f"{n}. {line}" for n, line in enumerate(varied, 1)]
    blocks = [[f"{n}:", *lines] for n, lines in enumerate(parameters, 1)]
    return [*names[0], *values, *(line for block in blocks for line in block)]


@pytest.mark.parametrize("task", TASKS)
def test_a_thought_tells_what_each_function_does_and_then_looks_at_each_parameter(task: Any) -> None:
    chosen = left_out = 0
    for conversation in items(task):
        names = [tool["function"]["name"] for tool in conversation.tools or []]
        for message in conversation.messages:
            if "reasoning_content" not in message or not (calls_of(message) or message["content"] == REFUSAL):
                continue
            head, *lines = message["reasoning_content"].split("\n")
            told, (wish, *rest) = lines[: 2 * len(names)], lines[2 * len(names) :]
            assert [head, *told[1::2]] == ["Functions:", *names]
            assert "user want" in wish
            meanings = dict(zip(names, told[::2], strict=True))
            assert len(set(meanings.values())) == len(names)
            ending = choice_of(conversation, message, meanings)
            assert rest[-len(ending) :] == ending
            if message["content"] == REFUSAL:
                assert rest[0] not in meanings.values()
            chosen += 1
            left_out += sum(line.endswith(": not given") for line in rest)
    assert chosen > 20
    assert left_out or task is tool_none


FIRST_NOUN = {noun: topic.noun for topic in TOPICS for noun in (topic.noun, *topic.synonyms)}
FIRST_NOUN |= {plural(noun): plural(first) for noun, first in FIRST_NOUN.items()}


def in_first_words(description: str) -> str:
    """What a description says, in the first of all words for its verb and its noun."""
    said = description[0].lower() + description[1:].removesuffix(".").replace("earch for ", "earch ", 1)
    fitting = [(verb, word) for verb in VERBS for word in VERBS[verb].words if said.startswith(f"{word} ")]
    verb, word = max(fitting, key=lambda found: len(found[1]))
    return f"{verb} {FIRST_NOUN[re.sub(r'^(an?|the|my|all) ', '', said.removeprefix(f'{word} '))]}"


def test_what_a_function_does_is_its_description_in_words_that_are_the_same_for_every_wording() -> None:
    told = other_words = 0
    for conversation in items(tool_single):
        for tool in (tool["function"] for tool in conversation.tools or [] if conversation.thinking):
            lines = conversation.messages[-1]["reasoning_content"].split("\n")
            meaning = in_first_words(tool["description"])
            assert lines[lines.index(tool["name"]) - 1] == f"{meaning}:"
            told += 1
            other_words += meaning not in tool["description"].replace(" the ", " ").lower()
    assert 0.1 * told < other_words < 0.9 * told


def test_parallel_calls_of_one_turn_differ() -> None:
    for conversation in items(tool_parallel):
        calls = [json.dumps(call) for call in calls_of(conversation.messages[-1])]
        assert len(set(calls)) == len(calls)


def test_a_result_is_there_for_every_call_of_the_history() -> None:
    for conversation in [*items(tool_result), *items(tool_dialogue)]:
        waiting = 0
        for message in conversation.messages:
            waiting += len(calls_of(message)) if message["role"] == "assistant" else -(message["role"] == "tool")
            assert waiting >= 0
            if message["role"] == "user":
                assert waiting == 0


def test_an_answer_states_values_of_the_results() -> None:
    stated = 0
    for conversation in items(tool_result):
        answer = conversation.messages[-1]["content"]
        results = said_by(conversation, "tool")
        if found := re.fullmatch(r"The [a-z ]+ is (.+)\.", answer):
            parts = re.split(r",? (?:and )?the [a-z ]+ is | for ", found[1])
            stated += parts[0] in results
            assert parts[0] in results
        elif found := re.fullmatch(r"The call failed: (.+)\.", answer):
            assert found[1] in results
    assert stated > NUM_ITEMS / 4


def test_the_number_of_tools_can_be_set() -> None:
    for num_tools in range(1, 7):
        assert len(tool_single("test", 3, num_tools=num_tools).tools or []) == num_tools


@pytest.mark.parametrize("task", TASKS)
def test_an_item_renders_and_its_calls_can_be_read_back(task: Any) -> None:
    template = ChatTemplate(TEMPLATE.read_text(encoding="utf-8"), ["<|user|>", "<|assistant|>", "<|endofassistant|>"])
    for conversation in items(task)[:100]:
        segments = template.render(
            conversation.messages,
            conversation.tools,
            enable_thinking=conversation.thinking,
            add_generation_prompt=False,
        )
        last = "".join(segment.text for segment in segments).rsplit("<|assistant|>", 1)[1]
        read = []
        for name, body in re.findall(r'<invoke name="(.*?)">(.*?)\n</invoke>', last, re.S):
            read.append((name, re.findall(r'\n<parameter name="(.*?)">\n(.*?)\n</parameter>', body, re.S)))
        assert read == [
            (name, [(k, v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)) for k, v in arguments.items()])
            for name, arguments in calls_of(conversation.messages[-1])
        ]


@pytest.mark.e2e
@pytest.mark.parametrize("task", TASKS)
def test_held_out_prompts_are_not_among_the_first_training_ones(task: Any) -> None:
    def prompt(conversation: Conversation) -> str:
        return json.dumps([conversation.tools, conversation.messages[:-1]])

    trained = {prompt(task("train", index)) for index in range(3000)}
    assert not any(prompt(conversation) in trained for conversation in items(task))


def test_no_word_for_a_verb_or_a_noun_has_two_meanings() -> None:
    verbs = Counter(word for verb in VERBS.values() for word in verb.words)
    nouns = Counter(noun for topic in TOPICS for noun in {topic.noun, *topic.synonyms})
    assert max(verbs.values()) == max(nouns.values()) == 1
    assert len({plural(noun) for noun in nouns}) == len(nouns)
    assert not set(verbs) & set(nouns)


def test_topics_name_known_verbs_kinds_and_fields() -> None:
    assert len(TOPICS) >= 80
    assert sum(len(topic.verbs) for topic in TOPICS) >= 250
    for topic in TOPICS:
        assert set(topic.verbs) <= set(VERBS)
        assert set(topic.kinds) <= set(KINDS)
        assert set(topic.fields) <= set(FIELDS)
        assert not set(topic.fields) <= YES_NO

"""Which calls a request allows and requires: every form of `tool_choice`, and what the worker is told of it."""

import json
from typing import Any

import pytest

from engine.wire.grammar import Function, Grammar, JsonObject, JsonSchema, ToolCalls
from server.errors import RequestError
from server.prompt import ValidRequest
from server.schemas.chat import read_chat
from server.schemas.tool_choice import ToolChoice
from tests.support.live_gateway import prompts

HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}, "required": ["a"]}
PUT: dict[str, Any] = {"type": "function", "function": {"name": "put", "parameters": SCHEMA}}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
STRICT: dict[str, Any] = {"type": "function", "function": {"name": "exact", "strict": True, "parameters": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "put"}}


def valid(**fields: Any) -> ValidRequest:
    request, _ = read_chat({"model": "m", "messages": HELLO, **fields}, refuse_unknown=True)
    return prompts().chat(request, "r1", 8192, 3072)


def allowed(mode: Any, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def calls(request: ValidRequest) -> ToolCalls:
    assert request.grammar is not None
    assert isinstance(request.grammar.rule, ToolCalls)
    return request.grammar.rule


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        ({}, ToolChoice("auto")),
        ({"tool_choice": None}, ToolChoice("auto")),
        ({"tool_choice": "none"}, ToolChoice("none")),
        ({"tool_choice": "required"}, ToolChoice("required")),
        ({"tool_choice": NAMED}, ToolChoice("named", ("put",))),
        ({"tool_choice": allowed("auto", "now", "put", "now")}, ToolChoice("auto", ("now", "put"))),
        ({"tool_choice": allowed("required", "now")}, ToolChoice("required", ("now",))),
        ({"function_call": "auto"}, ToolChoice("auto")),
        ({"function_call": "none"}, ToolChoice("none")),
        ({"function_call": {"name": "put"}}, ToolChoice("named", ("put",))),
    ],
)
def test_a_choice_is_read_in_every_form(fields: dict[str, Any], choice: ToolChoice) -> None:
    request, _ = read_chat({"model": "m", "messages": HELLO, "tools": [PUT, NOW], **fields}, refuse_unknown=True)
    assert request.tool_choice == choice


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"tool_choice": "sometimes"}, "invalid_value", "tool_choice"),
        ({"tool_choice": 3}, "invalid_value", "tool_choice"),
        ({"tool_choice": ["auto"]}, "invalid_value", "tool_choice"),
        ({"tool_choice": {}}, "missing_field", "tool_choice.type"),
        ({"tool_choice": {"type": "tool", "name": "put"}}, "invalid_value", "tool_choice.type"),
        ({"tool_choice": {"type": ["function"]}}, "invalid_value", "tool_choice.type"),
        ({"tool_choice": {"type": "function"}}, "missing_field", "tool_choice.function"),
        ({"tool_choice": {"type": "function", "function": "put"}}, "invalid_value", "tool_choice.function"),
        ({"tool_choice": {"type": "function", "function": {}}}, "missing_field", "tool_choice.function.name"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "get"}}},
            "invalid_value",
            "tool_choice.function.name",
        ),
        (
            {"tool_choice": {"type": "function", "function": {"name": ["put"]}}},
            "invalid_value",
            "tool_choice.function.name",
        ),
        ({"tool_choice": {"type": "allowed_tools"}}, "missing_field", "tool_choice.allowed_tools"),
        ({"tool_choice": allowed("none", "put")}, "invalid_value", "tool_choice.allowed_tools.mode"),
        ({"tool_choice": allowed("auto")}, "invalid_value", "tool_choice.allowed_tools.tools"),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["put"]}}},
            "invalid_value",
            "tool_choice.allowed_tools.tools[0].type",
        ),
        (
            {"tool_choice": allowed("auto", "put", "get")},
            "invalid_value",
            "tool_choice.allowed_tools.tools[1].function.name",
        ),
        ({"tools": None, "tool_choice": "required"}, "invalid_value", "tools"),
        ({"tools": [], "tool_choice": "required"}, "invalid_value", "tools"),
        ({"tools": [], "tool_choice": NAMED}, "invalid_value", "tool_choice.function.name"),
        ({"function_call": "required"}, "invalid_value", "function_call"),
        ({"function_call": {}}, "missing_field", "function_call.name"),
        ({"function_call": {"name": "get"}}, "invalid_value", "function_call.name"),
        ({"function_call": "auto", "tool_choice": "auto"}, "invalid_value", "function_call"),
        ({"parallel_tool_calls": "no"}, "invalid_value", "parallel_tool_calls"),
        ({"structured_outputs": {"choice": ["a"]}}, "invalid_value", "structured_outputs.choice"),
        (
            {"tool_choice": "required", "structured_outputs": {"regex": "a"}},
            "invalid_value",
            "structured_outputs.regex",
        ),
    ],
)
def test_a_choice_is_refused_by_name(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        valid(**{"tools": [PUT, NOW], **fields})
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param), caught.value.message


def test_a_refusal_names_the_tools_that_there_are() -> None:
    tools = [{"type": "function", "function": {"name": f"tool_{number}"}} for number in range(1000)]
    with pytest.raises(RequestError) as caught:
        valid(tools=tools, tool_choice={"type": "function", "function": {"name": "x" * 10_000}})
    assert '("tool_0", "tool_1", ' in caught.value.message
    assert "and 992 more" in caught.value.message
    assert 'got "xxx' in caught.value.message
    assert len(caught.value.message) < 500


def test_without_a_choice_calls_are_free() -> None:
    request = valid(tools=[PUT, NOW])
    assert (request.grammar, request.tools, request.max_calls) == (None, (PUT, NOW), None)
    assert request.sampling.bad_words_ids == ()


def test_none_declares_the_tools_masks_the_tags_and_reads_no_call() -> None:
    request = valid(tools=[PUT], tool_choice="none", bad_words=["no"])
    assert "<tools>" in prompts().text(request.prompt_ids)
    assert (request.grammar, request.tools) == (None, ())
    masked = [(prompts().tokenizer.token_id(tag),) for tag in ("<dots_function_call>", "</dots_function_call>")]
    assert list(request.sampling.bad_words_ids[-2:]) == masked
    assert len(request.sampling.bad_words_ids) > 2


def test_required_means_one_call_or_more_all_of_them_strict() -> None:
    rule = calls(valid(tools=[PUT, NOW], tool_choice="required"))
    assert rule == ToolCalls((Function("put", json.dumps(SCHEMA)), Function("now")))
    assert (rule.min_calls, rule.max_calls, rule.free_text) == (1, None, False)
    assert rule.functions[0].parameters is not None
    assert rule.functions[0].parameters.index('"z"') < rule.functions[0].parameters.index('"a"')


def test_a_named_function_is_called_once() -> None:
    request = valid(tools=[PUT, NOW], tool_choice=NAMED)
    assert calls(request) == ToolCalls((Function("put", json.dumps(SCHEMA)),), max_calls=1)
    assert (request.tools, request.max_calls) == ((PUT,), 1)
    assert prompts().text(request.prompt_ids) == prompts().text(valid(tools=[PUT, NOW]).prompt_ids)


def test_strict_functions_are_held_to_their_schemas_among_free_text() -> None:
    rule = calls(valid(tools=[PUT, STRICT]))
    assert [(function.name, function.strict) for function in rule.functions] == [("put", False), ("exact", True)]
    assert (rule.min_calls, rule.max_calls, rule.free_text) == (0, None, True)
    assert calls(valid(tools=[STRICT], parallel_tool_calls=False)).max_calls == 1


def test_allowed_tools_are_the_only_ones_called() -> None:
    rule = calls(valid(tools=[PUT, NOW, STRICT], tool_choice=allowed("auto", "now", "put")))
    assert [function.name for function in rule.functions] == ["put", "now"]
    assert rule.free_text
    rule = calls(valid(tools=[PUT, NOW], tool_choice=allowed("required", "now"), parallel_tool_calls=False))
    assert rule == ToolCalls((Function("now"),), max_calls=1)


def test_with_a_json_form_the_answer_is_calls_or_of_that_form() -> None:
    form = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    request = valid(tools=[PUT, STRICT], response_format=form, parallel_tool_calls=False)
    rule = calls(request)
    assert (rule.min_calls, rule.max_calls, rule.free_text) == (1, 1, False)
    assert rule.answer == JsonSchema(json.dumps(SCHEMA))
    assert [function.strict for function in rule.functions] == [False, True]
    assert request.grammar_field == "response_format.json_schema.schema"
    assert calls(valid(tools=[PUT], structured_outputs={"json": SCHEMA})).answer == rule.answer
    assert calls(valid(tools=[PUT], response_format={"type": "json_object"})).answer == JsonObject()
    assert calls(valid(tools=[PUT], response_format=form, tool_choice="required")).answer is None


def test_one_call_at_most_needs_no_grammar() -> None:
    request = valid(tools=[PUT], parallel_tool_calls=False)
    assert (request.grammar, request.max_calls) == (None, 1)


@pytest.mark.parametrize(
    ("fields", "begins"),
    [
        ({}, "behind_thinking"),
        ({"reasoning_effort": "none"}, "now"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "now"),
        (
            {
                "messages": [*HELLO, {"role": "assistant", "content": "So"}],
                "continue_final_message": True,
                "add_generation_prompt": False,
            },
            "now",
        ),
    ],
)
def test_the_rule_begins_behind_the_thinking(fields: dict[str, Any], begins: str) -> None:
    request = valid(tools=[PUT], tool_choice="required", **fields)
    assert request.grammar == Grammar(calls(request), begins)  # type: ignore[arg-type]


@pytest.mark.parametrize("tools", [[PUT, PUT], [PUT, {"type": "function", "function": {"name": "put"}}]])
def test_two_tools_of_one_name_are_refused(tools: Any) -> None:
    with pytest.raises(RequestError) as caught:
        valid(tools=tools)
    assert caught.value.param == "tools[1]"
    assert "tools[0]" in caught.value.message

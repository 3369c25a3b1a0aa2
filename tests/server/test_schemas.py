"""Request types: what is taken, and that everything else is refused with the field, the limit and the value."""

import json
import tracemalloc
from typing import Any

import pytest

from server.errors import RequestError, error_json
from server.schemas.chat import ChatRequest, read_chat
from server.schemas.completions import CompletionRequest, read_completion
from server.schemas.json_text import read_object
from server.schemas.refusal import IGNORED_FIELDS, PassedOver

USER = {"role": "user", "content": "Hi"}


def chat(**fields: Any) -> ChatRequest:
    return read_chat({"model": "m", "messages": [USER]} | fields, refuse_unknown=True)[0]


def completion(**fields: Any) -> CompletionRequest:
    return read_completion({"model": "m", "prompt": "Hi"} | fields, True)[0]


def tool(name: str = "f", **rest: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name} | rest}


def called(arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f"} | arguments}]}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"  \n", None),
        (b"[]", None),
        (b"null", None),
        (b'"text"', None),
        (b"{", None),
        (b"\xef\xbb\xbf{}", None),
        (b'{"a": "\xff"}', None),
        (b"[" * 100_000, None),
        (b'{"a":' * 100_000, "a"),
        (b'{"b": "]}[:", "tools": [{"a":' + b"[" * 199 + b"]" * 199 + b"}]}", "tools"),
        (b'{"temperature": NaN}', "temperature"),
        (b'{"temperature": -Infinity}', "temperature"),
        (b'{"temperature": 1e999}', "temperature"),
        (b'{"a": [1, {"b": 1e400}]}', "a[1].b"),
        (b'{"messages": [{"role": "user", "content": "\\ud83d"}]}', "messages[0].content"),
        (b'{"stop": ["\\udc00"]}', "stop[0]"),
        (b'{"tools": {"\\ud83d": 1}}', "tools"),
    ],
)
def test_a_body_that_is_no_strict_json_object_is_refused(body: bytes, param: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        read_object(body)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert len(error_json(caught.value)) < 4000


def test_nesting_is_bounded_with_the_limit_and_the_field_named() -> None:
    with pytest.raises(RequestError) as caught:
        read_object(b'{"model": "m", "tools": ' + b"[" * 201 + b"]" * 201 + b"}")
    assert caught.value.message == "`tools`, with the body around it, must be nested ≤ 201 levels deep, got more"
    assert read_object(b'{"tools": ' + b"[" * 200 + b"]" * 200 + b"}")["tools"]


def test_a_long_string_before_deep_nesting_costs_little_memory() -> None:
    for length, field in ((500_000, "tools"), (2_000_000, None)):
        body = b'{"model": "' + b"x" * length + rb'\"\\", "tools": ' + b"[" * 300 + b"]" * 300 + b"}"
        tracemalloc.start()
        with pytest.raises(RequestError, match="must be nested") as caught:
            read_object(body)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert caught.value.param == field
        assert peak_bytes < 4 * length


def test_large_exponents_in_text_and_small_numbers_are_no_fault() -> None:
    assert read_object(b'{"a": "1e999", "b": 1e-999, "c": "\\ud83d\\ude00"}') == {"a": "1e999", "b": 0.0, "c": "😀"}


def test_a_number_out_of_range_is_found_wherever_it_lies_in_a_long_body() -> None:
    for before in range(1 << 16, (1 << 16) - 24, -1):
        head = b'{"a": "'
        with pytest.raises(RequestError, match="`b` must be a finite number"):
            read_object(head + b"x" * (before - len(head)) + b'", "b": 1e999}')
    with pytest.raises(RequestError, match="`b` must be a finite number"):
        read_object(b'{"a": "' + b"x" * 65_200 + b'", "b": ' + b"9" * 400 + b".5}")


NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
INTEGERS = ("top_k", "seed", "n", "max_tokens", "max_completion_tokens", "min_tokens", "top_logprobs", "priority")


@pytest.mark.parametrize("field", NUMBERS + INTEGERS)
@pytest.mark.parametrize("value", ["1", True, [1], {}])
def test_only_a_number_is_a_number(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**{field: value})
    assert (caught.value.code, caught.value.param) == ("invalid_value", field)


@pytest.mark.parametrize("field", INTEGERS)
@pytest.mark.parametrize("value", [0.01, 1e30])
def test_only_an_integer_is_an_integer(field: str, value: float) -> None:
    with pytest.raises(RequestError, match="integer"):
        chat(**{field: value})


@pytest.mark.parametrize("field", ["top_k", "seed", "n", "max_tokens", "max_completion_tokens", "min_tokens"])
def test_an_integer_may_be_written_with_a_point(field: str) -> None:
    value = getattr(chat(**{field: 3.0}), field)
    assert (value, type(value)) == (3, int)


@pytest.mark.parametrize("value", [3, True, {"a": 1}])
def test_stop_of_another_kind_is_told_both_kinds_that_it_may_be(value: Any) -> None:
    with pytest.raises(RequestError, match="`stop` must be a string or a list of strings, got ") as caught:
        chat(stop=value)
    assert caught.value.param == "stop"


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("temperature", -0.1, "≥ 0"),
        ("temperature", 2.1, "≤ 2"),
        ("top_p", 1.1, "≤ 1"),
        ("top_p", -1, "≥ 0"),
        ("top_k", -5, "≥ -1"),
        ("top_k", 10**30, "≤ 2147483647"),
        ("min_p", 2, "≤ 1"),
        ("repetition_penalty", 0, "> 0"),
        ("presence_penalty", -3, "≥ -2"),
        ("frequency_penalty", 3, "≤ 2"),
        ("n", 0, "≥ 1"),
        ("n", 129, "≤ 128"),
        ("max_tokens", 0, "≥ 1"),
        ("max_tokens", -1, "≥ 1"),
        ("max_completion_tokens", -1, "≥ 1"),
        ("max_tokens", 2**63, "≤ 9223372036854775807"),
        ("max_completion_tokens", 0, "≥ 1"),
        ("seed", 2**63, "≤ 9223372036854775807"),
        ("truncate_prompt_tokens", 0, "≥ 1"),
        ("truncate_prompt_tokens", -2, "≥ -1"),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_limit_and_value(field: str, value: float, limit: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**{field: value})
    assert (caught.value.code, caught.value.param) == ("invalid_value", field)
    assert limit in caught.value.message
    assert f"got {value}" in caught.value.message


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": None}, "missing_field", "model"),
        ({"model": 3}, "invalid_value", "model"),
        ({"messages": None}, "missing_field", "messages"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": "Hi"}, "invalid_value", "messages"),
        ({"messages": ["Hi"]}, "invalid_value", "messages[0]"),
        ({"messages": [{}]}, "missing_field", "messages[0].role"),
        ({"messages": [{"role": "robot", "content": ""}]}, "invalid_value", "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": ""}]}, "invalid_value", "messages[0].role"),
        ({"messages": [USER, {"role": "user"}]}, "missing_field", "messages[1].content"),
        ({"messages": [{"role": "user", "content": []}]}, "invalid_value", "messages[0].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "invalid_value", "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["Hi"]}]}, "invalid_value", "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"text": ""}]}]}, "missing_field", "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
            "invalid_value",
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "missing_field",
            "messages[0].content[0].text",
        ),
        ({"messages": [called({"arguments": [1]})]}, "invalid_value", "messages[0].tool_calls[0].function.arguments"),
        ({"messages": [called({"name": None})]}, "missing_field", "messages[0].tool_calls[0].function.name"),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "invalid_value", "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "reasoning": 1}]}, "invalid_value", "messages[0].reasoning"),
        ({"tools": {}}, "invalid_value", "tools"),
        ({"tools": [1]}, "invalid_value", "tools[0]"),
        ({"tools": [{"type": "browser"}]}, "invalid_value", "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "invalid_value", "tools[0].function"),
        ({"tools": [tool("")]}, "invalid_value", "tools[0].function.name"),
        ({"tools": [tool("a" * 129)]}, "invalid_value", "tools[0].function.name"),
        ({"tools": [tool('a"b')]}, "invalid_value", "tools[0].function.name"),
        ({"tools": [tool("a\nb")]}, "invalid_value", "tools[0].function.name"),
        ({"tools": [tool(), tool()]}, "invalid_value", "tools[1]"),
        ({"tools": [tool(parameters=[])]}, "invalid_value", "tools[0].function.parameters"),
        ({"tools": [tool(description=1)]}, "invalid_value", "tools[0].function.description"),
        ({"tools": [tool(strict="yes")]}, "invalid_value", "tools[0].function.strict"),
        ({"tools": [tool()], "functions": [{"name": "f"}]}, "invalid_value", "functions"),
        ({"functions": [{"name": ""}]}, "invalid_value", "functions[0].name"),
        ({"respone_format": {}}, "unknown_field", "respone_format"),
        ({"guided_json": {}}, "unknown_field", "guided_json"),
        ({"stop": ""}, "invalid_value", "stop[0]"),
        ({"stop": ["a", 1]}, "invalid_value", "stop[1]"),
        ({"stop": ["a"] * 65}, "invalid_value", "stop"),
        ({"stop": 3}, "invalid_value", "stop"),
        ({"stop_token_ids": [-1]}, "invalid_value", "stop_token_ids[0]"),
        ({"logit_bias": {"a": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"5": 101}}, "invalid_value", "logit_bias[5]"),
        ({"logit_bias": {"²": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": [1]}, "invalid_value", "logit_bias"),
        ({"allowed_token_ids": []}, "invalid_value", "allowed_token_ids"),
        ({"bad_words": [""]}, "invalid_value", "bad_words[0]"),
        ({"stream": "yes"}, "invalid_value", "stream"),
        ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
        ({"stream": True, "stream_options": {"usage": True}}, "unknown_field", "stream_options.usage"),
        ({"stream": True, "prompt_logprobs": 1}, "invalid_value", "prompt_logprobs"),
        ({"logprobs": 3}, "invalid_value", "logprobs"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"min_tokens": 5, "max_tokens": 4}, "invalid_value", "min_tokens"),
        ({"modalities": ["text", "audio"]}, "invalid_value", "modalities[1]"),
        ({"reasoning_effort": "huge"}, "invalid_value", "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "invalid_value", "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": []}}, "invalid_value", "chat_template_kwargs"),
        ({"chat_template_kwargs": {"self": 1}}, "invalid_value", "chat_template_kwargs"),
        ({"continue_final_message": True}, "invalid_value", "continue_final_message"),
        (
            {"continue_final_message": True, "add_generation_prompt": False},
            "invalid_value",
            "continue_final_message",
        ),
        ({"speculative_tokens": -1}, "invalid_value", "speculative_tokens"),
        ({"request_id": "a\nb"}, "invalid_value", "request_id"),
        ({"cache_salt": 1}, "invalid_value", "cache_salt"),
    ],
)
def test_a_chat_request_is_refused_by_name(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    assert (caught.value.code, caught.value.param) == (code, param), caught.value.message
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"tool_choice": "auto"},
        {"tools": [tool("a.b-c/d e"), tool("__proto__"), tool("名前"), tool("a" * 128)]},
        {"tools": [tool(), tool("g", parameters=True), tool("h", parameters=None), tool("i", parameters={})]},
        {"tools": [], "tool_choice": "none"},
        {"top_p": 0, "top_k": 0, "min_p": 0, "temperature": 0, "presence_penalty": 0, "frequency_penalty": 0},
        {"stop": [], "stop_token_ids": [], "bad_words": []},
        {"reasoning_effort": "xhigh"},
        {"parallel_tool_calls": True},
        {"messages": [{"role": "assistant", "content": ""}]},
        {"messages": [{"role": "assistant", "content": None}]},
        {"messages": [{"role": "assistant"}]},
        {"messages": [{"role": "assistant", "content": []}]},
        {"messages": [called({"arguments": '{"value": "'})]},
        {"messages": [called({"arguments": ""})]},
        {"messages": [called({"arguments": "[]"})]},
        {"messages": [called({"arguments": {"a": 1}})]},
        {"messages": [called({})]},
        {"messages": [USER] * 10_000},
        {"seed": -(2**63)},
    ],
)
def test_a_chat_request_is_taken(fields: dict[str, Any]) -> None:
    assert chat(**fields).model == "m"


@pytest.mark.parametrize(
    ("key", "shown"), [("a", '"a"'), ("²", '"²"'), ("-1", '"-1"'), ("", '""'), ("1" * 12, '"111111111111"')]
)
def test_a_logit_bias_that_is_refused_for_a_key_shows_it(key: str, shown: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(logit_bias={"5": 1, key: 1})
    assert caught.value.message == f"`logit_bias` must have token ids in decimal digits as its keys, got {shown}"


def test_null_counts_as_absent() -> None:
    names = [*ChatRequest.model_fields, "functions", "function_call", "guided_json"]
    nothing: dict[str, Any] = dict.fromkeys(names)
    assert chat(**(nothing | {"model": "m", "messages": [USER]})) == chat()


def test_openai_fields_without_meaning_are_ignored() -> None:
    assert chat(**{name: {"any": "thing"} for name in IGNORED_FIELDS}) == chat()


def test_unknown_fields_are_all_named_and_a_near_one_is_suggested() -> None:
    with pytest.raises(RequestError) as caught:
        chat(temprature=1, foo=2)
    assert "`temprature` (did you mean `temperature`?)" in caught.value.message
    assert "`foo`" in caught.value.message


def test_ten_thousand_unknown_fields_make_a_small_answer() -> None:
    with pytest.raises(RequestError) as caught:
        chat(**{f"field{number}" * 100: 1 for number in range(10_000)})
    assert len(error_json(caught.value)) < 4000


def test_unknown_fields_may_be_passed_over_and_are_counted() -> None:
    request, passed_over = read_chat({"model": "m", "messages": [USER], "foo": 1}, refuse_unknown=False)
    assert request == chat()
    assert passed_over == PassedOver(fields=1)
    assert passed_over.warnings == ["ignored unknown fields: 1"]


def test_unknown_keys_inside_are_passed_over_and_counted() -> None:
    message: dict[str, Any] = {"role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None}
    tools = [tool() | {"cache_control": {}}]
    request, passed_over = read_chat({"model": "m", "messages": [message], "tools": tools}, refuse_unknown=True)
    assert request.messages == [{"role": "assistant", "content": "x"}]
    assert request.tools == [tool()]
    assert passed_over == PassedOver(keys=4)


def test_functions_and_function_call_become_tools() -> None:
    old = chat(functions=[{"name": "f", "parameters": {"type": "object"}}], function_call="auto")
    assert old == chat(tools=[tool("f", parameters={"type": "object"})], tool_choice="auto")
    history = chat(messages=[{"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}])
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert history.messages == [{"role": "assistant", "content": "", "tool_calls": [call]}]


def test_tools_that_may_not_be_called_are_declared_all_the_same() -> None:
    request = chat(tools=[tool()], tool_choice="none")
    assert (request.tools, request.callable_tools) == ([tool()], [])


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, True),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "minimal"}, False),
        ({"reasoning_effort": "low"}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {"enable_thinking": None}}, True),
        ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, True),
    ],
)
def test_thinking_is_switched_by_effort_or_template_argument(fields: dict[str, Any], thinking: bool) -> None:
    assert chat(**fields).thinking is thinking


def test_both_names_of_the_token_limit_work_and_the_newer_one_counts() -> None:
    assert chat().token_limit is None
    assert chat(max_tokens=5).token_limit == 5
    assert chat(max_tokens=5, max_completion_tokens=7).token_limit == 7


def test_logprobs_are_asked_for_in_both_forms() -> None:
    assert chat().num_logprobs is None
    assert chat(logprobs=True).num_logprobs == 0
    assert chat(logprobs=True, top_logprobs=3).num_logprobs == 3
    assert completion().num_logprobs is None
    assert completion(logprobs=0).num_logprobs == 0
    assert completion(logprobs=2, echo=True).num_prompt_logprobs == 2


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Hi", ["Hi"]),
        ("", [""]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["a", "b"], ["a", "b"]),
    ],
)
def test_a_prompt_is_text_or_ids_or_several_of_them(prompt: Any, prompts: list[Any]) -> None:
    assert completion(prompt=prompt).prompts == prompts


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt": None}, "missing_field", "prompt"),
        ({"prompt": 3}, "invalid_value", "prompt"),
        ({"prompt": {}}, "invalid_value", "prompt"),
        ({"prompt": []}, "invalid_value", "prompt"),
        ({"prompt": [[]]}, "invalid_value", "prompt"),
        ({"prompt": [1, "a"]}, "invalid_value", "prompt"),
        ({"prompt": ["a", 1]}, "invalid_value", "prompt"),
        ({"prompt": [1, True]}, "invalid_value", "prompt"),
        ({"prompt": [-1]}, "invalid_value", "prompt"),
        ({"prompt": [2**40]}, "invalid_value", "prompt"),
        ({"prompt": ["a"] * 129}, "invalid_value", "prompt"),
        ({"suffix": "x"}, "unsupported_parameter", "suffix"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"best_of": 2}, "invalid_value", "best_of"),
        ({"logprobs": True}, "invalid_value", "logprobs"),
        ({"logprobs": 21}, "invalid_value", "logprobs"),
        ({"echo": 1}, "invalid_value", "echo"),
        ({"messages": [USER]}, "unknown_field", "messages"),
    ],
)
def test_a_completion_request_is_refused_by_name(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        completion(**fields)
    assert (caught.value.code, caught.value.param) == (code, param), caught.value.message


def test_completions_have_sixteen_tokens_or_none_with_echo() -> None:
    assert completion().token_limit == 16
    assert completion(max_tokens=0, echo=True).token_limit == 0


def test_every_schema_can_be_published() -> None:
    for model in (ChatRequest, CompletionRequest):
        assert json.loads(json.dumps(model.model_json_schema()))["additionalProperties"] is False

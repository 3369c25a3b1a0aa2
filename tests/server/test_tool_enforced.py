"""Enforced calls and forms through the gateway on a real port, before a scripted engine."""

import json
from typing import Any

import pytest

from engine.wire.grammar import ToolCalls
from engine.wire.messages import TokenLogprobs
from tests.support.fake_engine import Fail, Pause, Say
from tests.support.live_gateway import LiveGateway, ids_of, says
from tests.support.sse import read_sse

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": "put", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    },
    {"type": "function", "function": {"name": "now"}},
]
PUT = (
    '\n<dots_function_call>\n<invoke name="put">\n<parameter name="n">\n5\n</parameter>\n</invoke>\n'
    "</dots_function_call>"
)
NOW = '\n<dots_function_call>\n<invoke name="now">\n</invoke>\n</dots_function_call>'
BOTH = (
    '\n<dots_function_call>\n<invoke name="put">\n<parameter name="n">\n5\n</parameter>\n</invoke>\n'
    '<invoke name="now">\n</invoke>\n</dots_function_call>'
)
JSON_OBJECT = {"type": "json_object"}


def answered(gateway: LiveGateway, stream: bool, **fields: Any) -> tuple[str, list[tuple[str, str]], str]:
    """Content, calls and finish reason of the one choice."""
    answer = gateway.chat(stream=stream, **fields)
    assert answer.status_code == 200, answer.text
    if not stream:
        [choice] = answer.json()["choices"]
        message = choice["message"]
        called = [call["function"] for call in message.get("tool_calls", [])]
        calls = [(call["name"], call["arguments"]) for call in called]
        return message["content"] or "", calls, choice["finish_reason"]
    frames = read_sse(answer.content)
    names, arguments = list[str](), list[str]()
    for part in frames.of_choice(0):
        for call in part["delta"].get("tool_calls", []):
            if "name" in call["function"]:
                names.append(call["function"]["name"])
                arguments.append("")
            arguments[call["index"]] += call["function"]["arguments"]
    [reason] = frames.finish_reasons()
    return frames.text(), list(zip(names, arguments, strict=True)), reason


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("said", [PUT + NOW, BOTH, PUT + "\nAnd text.", PUT])
@pytest.mark.parametrize("more", [{}, {"stop": ["<never>"]}, {"tool_choice": "required"}])
def test_one_call_at_most_ends_the_answer_behind_it(
    gateway: LiveGateway, said: str, stream: bool, more: dict[str, Any]
) -> None:
    gateway.engine.script = says("<think>\nHm.\n</think>\n\nWell." + said)
    told = answered(gateway, stream, tools=TOOLS, parallel_tool_calls=False, **more)
    assert told == ("Well.", [("put", '{"n":5}')], "tool_calls")


def test_behind_the_last_call_the_engine_is_told_to_stop(gateway: LiveGateway) -> None:
    gateway.engine.script = lambda _: [Say(ids_of(PUT + " more" * 50)), Pause(5)]
    answer = gateway.chat(tools=TOOLS, parallel_tool_calls=False).json()
    [(_, index, num_tokens)] = gateway.engine.stopped
    assert (index, num_tokens) == (0, answer["usage"]["completion_tokens"])
    assert len(ids_of(PUT, ends=False)) <= num_tokens + 1 < len(ids_of(PUT)) + 3
    assert gateway.engine.running == 0


def test_every_choice_has_its_own_last_call(gateway: LiveGateway) -> None:
    gateway.engine.script = lambda _: [Say(ids_of(said), place, "stop") for place, said in enumerate((BOTH, "No."))]
    answer = gateway.chat(n=2, tools=TOOLS, parallel_tool_calls=False).json()
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["tool_calls", "stop"]
    assert [len(choice["message"].get("tool_calls", [])) for choice in answer["choices"]] == [1, 0]


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_before_the_last_call_are_those_of_the_content(gateway: LiveGateway, stream: bool) -> None:
    ids = ids_of("So.\n" + BOTH + " more")
    entries = [TokenLogprobs(-0.5, 1, (token,), (-0.5,)) for token in ids]
    gateway.engine.script = lambda _: [Say(ids, 0, "stop", logprobs=entries)]
    answer = gateway.chat(stream=stream, tools=TOOLS, parallel_tool_calls=False, logprobs=True)
    if stream:
        parts = [part for part in read_sse(answer.content).of_choice(0) if part["logprobs"]]
        shown = [entry for part in parts for entry in part["logprobs"]["content"]]
    else:
        shown = answer.json()["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in shown) == b"So.\n"


def test_under_a_grammar_text_that_looks_like_a_call_stays_text(gateway: LiveGateway) -> None:
    """A call without its block's opening token could not have been held to a schema."""
    damaged = '<invoke name="put">\n<parameter name="n">\nfive\n</parameter>\n</invoke>'
    strict = [{"type": "function", "function": TOOLS[0]["function"] | {"strict": True}}]
    gateway.engine.script = says(damaged)
    assert answered(gateway, False, tools=strict) == (damaged, [], "stop")
    assert answered(gateway, False, tools=TOOLS)[1] == [("put", '{"n":"five"}')]


def test_a_named_function_finishes_with_tool_calls(gateway: LiveGateway) -> None:
    gateway.engine.script = says(NOW)
    choice = {"type": "function", "function": {"name": "now"}}
    for stream in (False, True):
        assert answered(gateway, stream, tools=TOOLS, tool_choice=choice) == ("", [("now", "{}")], "tool_calls")
        assert answered(gateway, stream, functions=[{"name": "now"}], function_call={"name": "now"})[2] == "tool_calls"
    grammar = gateway.engine.submitted[0].grammar
    assert grammar is not None
    assert isinstance(grammar.rule, ToolCalls)
    assert [function.name for function in grammar.rule.functions] == ["now"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_form_reaches_the_client_as_content_behind_the_thinking(gateway: LiveGateway, stream: bool) -> None:
    text = json.dumps({"a": "<dots_function_call>", "b": [1]})
    gateway.engine.script = says("<think>\nHm.\n</think>\n\n" + text.replace("<", "\\u003c"))
    content, calls, reason = answered(gateway, stream, response_format=JSON_OBJECT)
    assert (json.loads(content), calls, reason) == (json.loads(text), [], "stop")
    gateway.engine.script = says("yes")
    assert gateway.complete(structured_outputs={"choice": ["yes", "no"]}).json()["choices"][0]["text"] == "yes"
    assert gateway.engine.submitted[-1].grammar is not None


ASKED = [
    ({"tools": TOOLS, "tool_choice": "required"}, "tools"),
    ({"response_format": JSON_OBJECT}, "response_format"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex"),
]


@pytest.mark.parametrize(("fields", "param"), ASKED)
@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_the_worker_refuses_is_a_400_that_names_its_field(
    gateway: LiveGateway, fields: dict[str, Any], param: str, stream: bool
) -> None:
    gateway.engine.script = lambda _: [Fail("invalid_value", "it cannot be kept")]
    answer = gateway.chat(stream=stream, **fields)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
    error = answer.json()["error"]
    assert (error["code"], error["param"], error["message"]) == ("invalid_value", param, "it cannot be kept")
    assert gateway.engine.running == 0


@pytest.mark.e2e
def test_a_grammar_may_be_refused_after_five_seconds(gateway: LiveGateway) -> None:
    gateway.engine.script = lambda _: [Pause(5), Fail("invalid_value", "it takes too long")]
    answer = gateway.chat(stream=True, response_format=JSON_OBJECT)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format")

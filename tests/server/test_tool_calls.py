"""Tool calls through the gateway on a real port, before a scripted engine: streamed and whole answers say the same."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from engine.wire.messages import TokenLogprobs
from tests.support.fake_engine import Say
from tests.support.live_gateway import MODEL, LiveGateway, ids_of, says

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "put",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}},
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
PUT = (
    '\n<dots_function_call>\n<invoke name="put">\n<parameter name="text">\na "b" <c>\n\n</parameter>\n'
    '<parameter name="n">\n5\n</parameter>\n</invoke>\n</dots_function_call>'
)
NOW = '\n<dots_function_call>\n<invoke name="now">\n</invoke>\n</dots_function_call>'
PUT_ARGUMENTS = '{"text":"a \\"b\\" <c>\\n","n":5}'


@pytest.fixture
def client(gateway: LiveGateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway.url + "/v1", api_key="x", max_retries=0, timeout=20) as made:
        yield made


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS} | fields


def streamed(client: openai.OpenAI, **fields: Any) -> tuple[str, list[dict[str, str]], list[str], list[Any]]:
    """Content, calls, finish reasons and the deltas of the one choice. Asserts what clients rely on."""
    content, calls, reasons, deltas = "", list[dict[str, str]](), list[str](), list[Any]()
    for chunk in client.chat.completions.create(**asked(stream=True, **fields)):
        for choice in chunk.choices:
            deltas.append(choice.delta)
            content += choice.delta.content or ""
            if choice.finish_reason:
                reasons.append(choice.finish_reason)
            for call in choice.delta.tool_calls or []:
                assert call.function is not None
                assert isinstance(call.function.arguments, str)
                if call.id is not None:
                    assert call.index == len(calls)
                    assert call.type == "function"
                    assert call.function.name
                    calls.append({"id": call.id, "name": call.function.name, "arguments": ""})
                else:
                    assert call.function.name is None
                calls[call.index]["arguments"] += call.function.arguments
    return content, calls, reasons, deltas


def whole(client: openai.OpenAI, **fields: Any) -> tuple[str | None, list[dict[str, str]], str]:
    answer = client.chat.completions.create(**asked(**fields))
    (choice,) = answer.choices
    calls = [
        {"id": call.id, "name": call.function.name, "arguments": call.function.arguments}
        for call in choice.message.tool_calls or []
    ]
    return choice.message.content, calls, choice.finish_reason


@pytest.mark.parametrize(
    ("said", "content", "calls"),
    [
        (PUT, None, [("put", PUT_ARGUMENTS)]),
        (NOW, None, [("now", "{}")]),
        ("<think>\nHm.\n</think>\n\nWait." + PUT + NOW, "Wait.", [("put", PUT_ARGUMENTS), ("now", "{}")]),
        ("a" + NOW + NOW + "\nb", "a\nb", [("now", "{}"), ("now", "{}")]),
    ],
)
def test_calls_come_with_id_name_and_arguments(
    client: openai.OpenAI, gateway: LiveGateway, said: str, content: str | None, calls: list[tuple[str, str]]
) -> None:
    gateway.engine.script = says(said)
    told, told_calls, reason = whole(client)
    assert (told, reason) == (content, "tool_calls")
    assert [(call["name"], call["arguments"]) for call in told_calls] == calls
    assert len({call["id"] for call in told_calls}) == len(calls)

    streamed_content, streamed_calls, reasons, _ = streamed(client)
    assert (streamed_content, reasons) == (content or "", ["tool_calls"])
    assert [(call["name"], call["arguments"]) for call in streamed_calls] == calls
    assert len({call["id"] for call in streamed_calls}) == len(calls)


def test_arguments_stream_while_the_model_writes_them(client: openai.OpenAI, gateway: LiveGateway) -> None:
    text = "All work and no play. " * 20
    gateway.engine.script = says(PUT.replace('a "b" <c>\n', text))
    _, (call,), _, deltas = streamed(client)
    assert json.loads(call["arguments"]) == {"text": text, "n": 5}
    assert sum(bool(delta.tool_calls) for delta in deltas) > 20


def test_a_call_that_the_token_limit_cut_is_left_open(client: openai.OpenAI, gateway: LiveGateway) -> None:
    gateway.engine.script = says(PUT)
    begun = len(ids_of(PUT.partition(" <c>")[0], ends=False))
    _, (call,), reason = whole(client, max_tokens=begun)
    assert (call["arguments"], reason) == ('{"text":"a \\"b\\"', "length")
    _, (call,), reasons, _ = streamed(client, max_tokens=begun)
    assert (call["arguments"], reasons) == ('{"text":"a \\"b\\"', ["length"])


def test_a_stop_string_inside_a_call_leaves_it_open(client: openai.OpenAI, gateway: LiveGateway) -> None:
    gateway.engine.script = says(PUT)
    _, (call,), reason = whole(client, stop=["<c>"])
    assert (call["arguments"], reason) == ('{"text":"a \\"b\\" ', "stop")


def test_without_permission_calls_stay_text(client: openai.OpenAI, gateway: LiveGateway) -> None:
    gateway.engine.script = says("x" + NOW)
    assert whole(client, tool_choice="none", extra_body={"skip_special_tokens": False}) == ("x" + NOW, [], "stop")
    assert whole(client, tools=[]) == ("x" + NOW, [], "stop")


def test_each_choice_has_calls_of_its_own(client: openai.OpenAI, gateway: LiveGateway) -> None:
    gateway.engine.script = lambda _: [Say(ids_of(said), index, "stop") for index, said in enumerate((NOW, "No."))]
    choices = client.chat.completions.create(**asked(n=2)).choices
    assert [choice.finish_reason for choice in choices] == ["tool_calls", "stop"]
    assert [bool(choice.message.tool_calls) for choice in choices] == [True, False]


@pytest.mark.parametrize("said", ["One.\n" + PUT + "\nTwo.", "\n" + NOW, "a\n\nb\n", "<dots_function_call> is a tag"])
@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_those_of_the_content(
    client: openai.OpenAI, gateway: LiveGateway, said: str, stream: bool
) -> None:
    ids = ids_of(said)
    entries = [TokenLogprobs(-0.5, 1, (token,), (-0.5,)) for token in ids]
    gateway.engine.script = lambda _: [Say(ids, 0, "stop", logprobs=entries)]
    content, shown = "", list[Any]()
    if stream:
        for chunk in client.chat.completions.create(**asked(stream=True, logprobs=True)):
            for part in chunk.choices:
                content += part.delta.content or ""
                shown += part.logprobs.content or [] if part.logprobs else []
    else:
        (choice,) = client.chat.completions.create(**asked(logprobs=True)).choices
        content = choice.message.content or ""
        shown = (choice.logprobs.content or []) if choice.logprobs else []
    assert b"".join(bytes(entry.bytes or ()) for entry in shown).decode() == content
    assert bool(shown) == bool(content)


def test_repairs_are_counted_by_rule(client: openai.OpenAI, gateway: LiveGateway) -> None:
    sample = 'dots3_tool_call_repairs_total{rule="invoke_equals"}'
    before = gateway.count(sample)
    gateway.engine.script = says(NOW.replace("<invoke name=", "<invoke="))
    assert [call["name"] for call in whole(client)[1]] == ["now"]
    assert gateway.count(sample) == before + 1

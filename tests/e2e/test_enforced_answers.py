"""Calls and forms that the bundled checkpoint has to keep, through the whole program. What is asserted holds for any
weights: the protocol and the grammar see to it, not what the model happens to say.
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest

from tests.e2e.server_process import MODEL, ServerProcess

pytestmark = pytest.mark.e2e

# Every value is bounded, so that an answer ends by itself.
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
        "windy": {"type": "boolean"},
        "place": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2}]},
    },
    "required": ["unit", "windy"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
ASK: list[Any] = [{"role": "user", "content": "Is it windy in Paris?"}]


def asked(**fields: Any) -> dict[str, Any]:
    """Without thinking, which no grammar bounds."""
    fixed = {"model": MODEL, "messages": ASK, "max_tokens": 800, "reasoning_effort": "none"}
    return fixed | fields


def assert_whole(choice: Any) -> None:
    assert (choice.finish_reason, choice.message.content or None) == ("tool_calls", None)
    for call in choice.message.tool_calls:
        schema = {"get_weather": SCHEMA, "now": {"maxProperties": 0}}[call.function.name]
        jsonschema.validate(json.loads(call.function.arguments), schema)


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_calls_are_made_and_valid_whatever_is_sampled(client: openai.OpenAI, choice: Any) -> None:
    answer = client.chat.completions.create(
        **asked(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, n=4, temperature=2, seed=1, logprobs=True)
    )
    for made in answer.choices:
        assert_whole(made)
        assert made.message.tool_calls is not None
        assert len(made.message.tool_calls) == 1
        if choice is NAMED:
            assert made.message.tool_calls[0].function.name == "get_weather"


def test_thinking_comes_before_the_enforced_call(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        **asked(tools=TOOLS, tool_choice=NAMED, reasoning_effort="low", temperature=0, logit_bias=ends_thinking(client))
    )
    assert_whole(answer.choices[0])


def ends_thinking(client: openai.OpenAI) -> dict[str, int]:
    """Makes the tag that closes thinking likely, so that even weak weights come to an end."""
    body = client.post("/../tokenize", body={"model": MODEL, "prompt": "</think>"}, cast_to=object)
    [token] = body["tokens"]  # type: ignore[index]
    return {str(token): 5}


def test_a_streamed_call_is_the_same(client: openai.OpenAI) -> None:
    fields = asked(tools=TOOLS, tool_choice=NAMED, temperature=0)
    whole = client.chat.completions.create(**fields).choices[0]
    with client.chat.completions.stream(**fields) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert_whole(streamed)
    assert streamed.message.tool_calls is not None
    assert whole.message.tool_calls is not None
    called, told = (made.message.tool_calls[0].function for made in (whole, streamed))
    assert (called.name, called.arguments) == (told.name, told.arguments)


def test_none_never_opens_a_call(server: ServerProcess) -> None:
    answer = server.post(
        "/v1/chat/completions",
        **asked(tools=TOOLS, tool_choice="none", n=4, temperature=2, seed=3, max_tokens=60, return_token_ids=True),
    ).json()
    tags = server.post("/tokenize", prompt="<dots_function_call></dots_function_call>").json()["tokens"]
    assert len(tags) == 2
    for choice in answer["choices"]:
        assert not set(tags) & set(choice["token_ids"])
        assert "tool_calls" not in choice["message"]
        assert choice["finish_reason"] in ("stop", "length")


FORMS: list[tuple[dict[str, Any], Any]] = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}, SCHEMA),
    ({"structured_outputs": {"json": SCHEMA}}, SCHEMA),
    ({"structured_outputs": {"choice": ['{"a": 1}', "[]"]}}, {"enum": [{"a": 1}, []]}),
    ({"structured_outputs": {"regex": '"[ab]{3,5}"'}}, {"type": "string", "minLength": 3, "maxLength": 5}),
    ({"structured_outputs": {"grammar": 'start: "[" digit ("," digit)? "]"\ndigit: "7" | "8"'}}, {"type": "array"}),
    ({"structured_outputs": {"grammar": 'root ::= "[" ("7" | "8") "]"'}}, {"type": "array", "minItems": 1}),
]


@pytest.mark.parametrize(("form", "schema"), FORMS)
def test_forms_are_kept_whatever_is_sampled(server: ServerProcess, form: dict[str, Any], schema: Any) -> None:
    sampled = {"n": 3, "temperature": 2, "seed": 5, "max_tokens": 1500}
    chat = server.post("/v1/chat/completions", **asked(**sampled, **form)).json()
    texts = [choice["message"]["content"] for choice in chat["choices"]]
    completion = server.post("/v1/completions", prompt="The weather is", **sampled, **form).json()
    texts += [choice["text"] for choice in completion["choices"]]
    assert {choice["finish_reason"] for choice in chat["choices"] + completion["choices"]} == {"stop"}
    for text in texts:
        jsonschema.validate(json.loads(text), schema)


def test_calls_or_a_form_whatever_is_sampled(server: ServerProcess) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    fields = asked(tools=TOOLS, response_format=form, parallel_tool_calls=False, n=4, temperature=2, seed=7)
    for choice in server.post("/v1/chat/completions", **fields).json()["choices"]:
        calls = choice["message"].get("tool_calls", [])
        assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
        if calls:
            assert choice["message"]["content"] is None
        else:
            jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)


def test_a_form_works_with_stop_strings_and_streams(server: ServerProcess) -> None:
    form = {"structured_outputs": {"regex": "a{5}bc{5}"}, "temperature": 0}
    for stop, text in (([], "aaaaabccccc"), (["b"], "aaaaa"), (["cc"], "aaaaab")):
        answer = server.post("/v1/chat/completions", **asked(stop=stop, **form)).json()["choices"][0]
        assert (answer["message"]["content"], answer["finish_reason"]) == (text, "stop")
        streamed = server.post("/v1/completions", prompt="Say", stop=stop, stream=True, max_tokens=50, **form).text
        frames = [json.loads(line[6:]) for line in streamed.split("\n\n") if line.startswith('data: {"id"')]
        assert "".join(frame["choices"][0]["text"] for frame in frames) == text


NESTED: dict[str, Any] = {"type": "string"}
for _ in range(8):
    NESTED = {"oneOf": [{"type": "object", "properties": {"a": NESTED}}, {"type": "array", "prefixItems": [NESTED]}]}
BAD_SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}
BAD_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"not": {"required": ["a"]}}}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex"),
    ({"structured_outputs": {"grammar": "start: %$"}}, "structured_outputs.grammar"),
    ({"response_format": BAD_SCHEMA}, "response_format.json_schema.schema"),
    ({"tools": [BAD_TOOL], "tool_choice": "required"}, "tools"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_what_cannot_be_kept_is_refused_before_the_first_byte(
    server: ServerProcess, fields: dict[str, Any], param: str
) -> None:
    for stream in (False, True):
        began_s = time.monotonic()
        answer = server.post("/v1/chat/completions", **asked(stream=stream, **fields))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text[:300]
        assert time.monotonic() - began_s < server.within(5.5)


def test_a_pathological_schema_harms_nobody_else(server: ServerProcess) -> None:
    """Whether it is kept or refused: others are answered meanwhile, and the worker is the same afterwards."""
    worker = server.worker()["pid"]
    form = {"type": "json_schema", "json_schema": {"schema": NESTED}}
    with ThreadPoolExecutor() as pool:
        asking = [
            pool.submit(server.post, "/v1/chat/completions", **asked(response_format=form, max_tokens=5))
            for _ in range(2)
        ]
        answers = [server.post("/v1/completions", prompt="Once", max_tokens=5) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200] * 5
    assert {asked.result().status_code for asked in asking} <= {200, 400}
    assert server.worker()["pid"] == worker

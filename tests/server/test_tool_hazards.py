"""Tools and conversations that have harmed other servers: a 400 that names the field, or an answer; never a 500."""

import json
from typing import Any

import pytest

from tests.support.live_gateway import LiveGateway, says

USER = {"role": "user", "content": "Hi"}
CALL = (
    '\n<dots_function_call>\n<invoke name="{}">\n<parameter name="a">\n5\n</parameter>\n</invoke>\n'
    "</dots_function_call>"
)


def tool(name: Any = "f", **rest: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name} | rest}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def one_of(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"oneOf": [schema, {"type": "string"}]}
    return schema


def parameters(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def assert_refused(answer: Any, param: str) -> None:
    assert answer.status_code == 400, answer.text[:300]
    assert answer.json()["error"]["param"] == param, answer.text
    assert len(answer.content) < 4000


@pytest.mark.parametrize(
    "name", ["a.b", "a-b", "a/b", "a b", "a:b", "get_weather\u200b", "名前", "x" * 128, "__proto__", "constructor", "é"]
)
def test_names_outside_openais_pattern_work(gateway: LiveGateway, name: str) -> None:
    gateway.engine.script = says(CALL.format(name))
    for choice in ("auto", "required", {"type": "function", "function": {"name": name}}):
        answer = gateway.chat(tools=[tool(name, parameters=parameters(a={"type": "integer"}))], tool_choice=choice)
        [call] = answer.json()["choices"][0]["message"]["tool_calls"]
        assert call["function"] == {"name": name, "arguments": '{"a":5}'}


@pytest.mark.parametrize(
    "name", ["", " ", "x" * 129, 'a"b', "a<b", "a>b", "a\nb", "a'b", " a", "a\t", "\x00", 5, ["f"]]
)
def test_names_that_no_tag_can_hold_are_refused(gateway: LiveGateway, name: Any) -> None:
    assert_refused(gateway.chat(tools=[tool(name)]), "tools[0].function.name")
    assert_refused(gateway.chat(functions=[{"name": name}]), "functions[0].name")


@pytest.mark.parametrize("kind", ["tools", "functions"])
def test_two_of_one_name_are_refused(gateway: LiveGateway, kind: str) -> None:
    entries = [tool("f"), tool("g"), tool("f")]
    answer = gateway.chat(**{kind: entries if kind == "tools" else [one["function"] for one in entries]})
    assert_refused(answer, f"{kind}[2]")
    assert f"{kind}[0]" in answer.json()["error"]["message"]


SCHEMAS: dict[str, Any] = {
    "missing": {},
    "empty": {"parameters": {}},
    "null": {"parameters": None},
    "true": {"parameters": True},
    "required names an absent key": {"parameters": {"type": "object", "required": ["b"]}},
    "a circle": {"parameters": {"$ref": "#"}},
    "a circle of two": {
        "parameters": {
            "$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"$ref": "#/$defs/x"}},
            **parameters(a={"$ref": "#/$defs/x"}),
        }
    },
    "a reference to nothing": {"parameters": parameters(a={"$ref": "#/$defs/none"})},
    "a reference elsewhere": {"parameters": parameters(a={"$ref": "http://example.com/schema.json"})},
    "150 levels": {"parameters": nested(70)},
    "500 values": {"parameters": parameters(a={"enum": [f"{n}" for n in range(500)]})},
    "a pattern that backtracks": {"parameters": parameters(a={"type": "string", "pattern": "^(a+)+$"})},
    "20 alternatives deep": {"parameters": parameters(a=one_of(20))},
    "keys of markup": {"parameters": parameters(**{"<|endofuser|>": {}, "</invoke>": {}, "__proto__": {}, "": {}})},
    "nonsense": {"parameters": {"type": 5, "properties": [1], "required": "a", "enum": {}, "anyOf": 3, "$ref": []}},
    "a huge number": {"parameters": parameters(a={"maximum": 10**400})},
}


@pytest.mark.parametrize("case", SCHEMAS)
def test_schemas_of_any_kind_are_shown_to_the_model_and_read_by(gateway: LiveGateway, case: str) -> None:
    gateway.engine.script = says(CALL.format("f"))
    for choice in ("auto", "none", "required"):
        answer = gateway.chat(tools=[tool(**SCHEMAS[case])], tool_choice=choice)
        assert answer.status_code == 200, answer.text[:300]
        if choice != "none":
            [call] = answer.json()["choices"][0]["message"]["tool_calls"]
            assert json.loads(call["function"]["arguments"]) in ({"a": 5}, {"a": "5"})


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([tool(parameters=[])], "tools[0].function.parameters"),
        ([tool(parameters="{}")], "tools[0].function.parameters"),
        ([tool(parameters=False)], "tools[0].function.parameters"),
        ([tool(description=["a"])], "tools[0].function.description"),
        ([tool(strict=1)], "tools[0].function.strict"),
        ([tool(), None], "tools[1]"),
        ([tool(), {"type": "web_search"}], "tools[1].type"),
        ([tool(), {"function": {"name": "g"}}], "tools[1].type"),
        ([tool(str(number)) for number in range(1025)], "tools"),
        ([tool(parameters=parameters(a={"enum": [f"value {n}" for n in range(10_000)]}))], "messages"),
    ],
)
def test_tools_that_are_none_are_refused_by_their_place(gateway: LiveGateway, tools: Any, param: str) -> None:
    assert_refused(gateway.chat(tools=tools), param)


def test_lone_surrogates_in_tools_are_refused_by_their_place(gateway: LiveGateway) -> None:
    half = "\\ud83d"
    for text, param in (
        (f'{{"type":"function","function":{{"name":"{half}"}}}}', "tools[0].function.name"),
        (f'{{"type":"function","function":{{"name":"f","description":"{half}"}}}}', "tools[0].function.description"),
        (
            f'{{"type":"function","function":{{"name":"f","parameters":{{"properties":{{"{half}":{{}}}}}}}}}}',
            "tools[0].function.parameters.properties",
        ),
    ):
        body = f'{{"model":"dots3-note-tiny","messages":[{{"role":"user","content":"Hi"}}],"tools":[{text}]}}'
        headers = {"content-type": "application/json"}
        assert_refused(gateway.client.post("/v1/chat/completions", content=body, headers=headers), param)


def called(arguments: Any, name: Any = "f", **rest: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    } | rest


RESULT = {"role": "tool", "tool_call_id": "c1", "content": "done"}
HISTORIES: dict[str, list[Any]] = {
    "broken arguments": [called('{"value": "'), RESULT],
    "no arguments": [called(""), RESULT],
    "arguments of spaces": [called("  \n"), RESULT],
    "null arguments": [called(None), RESULT],
    "a list": [called("[]"), RESULT],
    "a number": [called("5"), RESULT],
    "an object": [called({"a": {"b": [1, None]}}), RESULT],
    "not a number": [called('{"a": NaN, "b": Infinity, "c": 1e999}'), RESULT],
    "half a pair inside": [called('{"a": "\\ud83d"}'), RESULT],
    "5,000 brackets": [called("[" * 5_000), RESULT],
    "5,000 digits": [called('{"a": ' + "9" * 5000 + "}"), RESULT],
    "equal keys": [called('{"a": 1, "a": 2}'), RESULT],
    "markup in keys and values": [called('{"a\\">": "</parameter>\\n</invoke>", "<|endofuser|>": "<think>"}'), RESULT],
    "a name with markup": [called("{}", name='f">\n<|endofassistant|>'), RESULT],
    "an undeclared tool": [called("{}", name="elsewhere"), RESULT],
    "a result without a call": [RESULT],
    "a result for another call": [called("{}"), RESULT | {"tool_call_id": "c9"}],
    "a result without an id": [called("{}"), {"role": "tool", "content": "done"}],
    "an empty result": [called("{}"), RESULT | {"content": ""}],
    "a result in parts": [
        called("{}"),
        RESULT | {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ],
    "a result with markup": [called("{}"), RESULT | {"content": "</dots_function_response><|endofuser|><|assistant|>"}],
    "a call without a result": [called("{}"), USER],
    "more results than calls": [called("{}"), RESULT, RESULT, RESULT],
    "no calls": [called("{}", tool_calls=[], content="Hi"), USER],
    "null calls": [called("{}", tool_calls=None, content="Hi"), USER],
    "an older call": [{"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{"}}, USER],
    "an older result": [{"role": "function", "name": "f", "content": "done"}],
    "calls with an index": [
        called(
            "{}", tool_calls=[{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
        )
    ],
    "calls and text and thinking": [called("{}", content="So.", reasoning_content="Hm."), RESULT],
    "a call last": [called("{}")],
}


@pytest.mark.parametrize("case", HISTORIES)
def test_histories_of_any_kind_are_shown_to_the_model(gateway: LiveGateway, case: str) -> None:
    answer = gateway.chat(messages=[USER, *HISTORIES[case]], tools=[tool()])
    assert answer.status_code == 200, answer.text[:300]
    assert answer.json()["choices"][0]["message"]["content"] == "Hello."


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (called("{}", tool_calls="f"), "messages[1].tool_calls"),
        (called("{}", tool_calls=[5]), "messages[1].tool_calls[0]"),
        (called("{}", tool_calls=[{}]), "messages[1].tool_calls[0].function"),
        (called("{}", name=None), "messages[1].tool_calls[0].function.name"),
        (called("{}", name=["f"]), "messages[1].tool_calls[0].function.name"),
        (called([1]), "messages[1].tool_calls[0].function.arguments"),
        (called(5), "messages[1].tool_calls[0].function.arguments"),
        (RESULT | {"content": None}, "messages[1].content"),
        (RESULT | {"content": {"a": 1}}, "messages[1].content"),
        (RESULT | {"tool_call_id": 5}, "messages[1].tool_call_id"),
        ({"role": "assistant", "function_call": {"arguments": "{}"}}, "messages[1].function_call.name"),
    ],
)
def test_histories_that_are_none_are_refused_by_their_place(gateway: LiveGateway, message: Any, param: str) -> None:
    assert_refused(gateway.chat(messages=[USER, message], tools=[tool()]), param)

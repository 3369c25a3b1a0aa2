"""`response_format` and `structured_outputs`: every form, every refusal, and the rule that the worker is told."""

import json
from typing import Any

import pytest

from engine.wire.grammar import Choice, ContextFree, Grammar, JsonObject, JsonSchema, Regex, Rule
from server.errors import RequestError
from server.prompt import ValidRequest
from server.schemas.chat import read_chat
from server.schemas.completions import read_completion
from server.schemas.structured import MAX_CHOICES
from tests.support.live_gateway import prompts

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"enum": ["é"]}}}
NAMED: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "now"}}


def chat(**fields: Any) -> ValidRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], **fields}
    return prompts().chat(read_chat(body, refuse_unknown=True)[0], "r1", 8192, 3072)


def complete(**fields: Any) -> ValidRequest:
    request, _ = read_completion({"model": "m", "prompt": "Once", **fields}, refuse_unknown=True)
    return prompts().completion(request, request.prompts[0], "r1", 8192, 3072)


FORMS: list[tuple[dict[str, Any], Rule | None]] = [
    ({}, None),
    ({"response_format": None, "structured_outputs": None}, None),
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, JsonObject()),
    ({"response_format": NAMED}, JsonSchema(json.dumps(SCHEMA, ensure_ascii=False))),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, JsonSchema("{}")),
    ({"structured_outputs": {"json": SCHEMA}}, JsonSchema(json.dumps(SCHEMA, ensure_ascii=False))),
    ({"structured_outputs": {"json": '{"type": "null"}'}}, JsonSchema('{"type": "null"}')),
    (
        {"structured_outputs": {"json": {"maximum": 10**30}, "regex": None}},
        JsonSchema('{"maximum": 1' + "0" * 30 + "}"),
    ),
    ({"structured_outputs": {"regex": "[ab]+"}}, Regex("[ab]+")),
    ({"structured_outputs": {"choice": ["yes", "no", ""]}}, Choice(("yes", "no", ""))),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, ContextFree('start: "a"')),
    ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "text"}}, Regex("a")),
]


@pytest.mark.parametrize(("fields", "rule"), FORMS)
def test_a_form_becomes_the_workers_rule(fields: dict[str, Any], rule: Rule | None) -> None:
    asked, completed = chat(**fields), complete(**fields)
    assert asked.grammar == (None if rule is None else Grammar(rule, "behind_thinking"))
    assert completed.grammar == (None if rule is None else Grammar(rule, "now"))
    assert (asked.grammar_field is None) == (rule is None)
    assert chat(**fields, tools=[TOOL], tool_choice="none").grammar == asked.grammar


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"response_format": "json"}, "invalid_value", "response_format"),
        ({"response_format": {}}, "missing_field", "response_format.type"),
        ({"response_format": {"type": "yaml"}}, "invalid_value", "response_format.type"),
        ({"response_format": {"type": ["text"]}}, "invalid_value", "response_format.type"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "unknown_field", "response_format.schema"),
        ({"response_format": {"type": "json_schema"}}, "missing_field", "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "missing_field",
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": True}}},
            "invalid_value",
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "name": 1}}},
            "invalid_value",
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}},
            "invalid_value",
            "response_format.json_schema.strict",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "scheme": {}}}},
            "unknown_field",
            "response_format.json_schema.scheme",
        ),
        ({"structured_outputs": []}, "invalid_value", "structured_outputs"),
        ({"structured_outputs": {}}, "invalid_value", "structured_outputs"),
        ({"structured_outputs": {"json": None}}, "invalid_value", "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "invalid_value", "structured_outputs"),
        ({"structured_outputs": {"ebnf": "a"}}, "unknown_field", "structured_outputs.ebnf"),
        ({"structured_outputs": {"json": [1]}}, "invalid_value", "structured_outputs.json"),
        ({"structured_outputs": {"json": "{"}}, "invalid_value", "structured_outputs.json"),
        ({"structured_outputs": {"json": "[]"}}, "invalid_value", "structured_outputs.json"),
        ({"structured_outputs": {"regex": ""}}, "invalid_value", "structured_outputs.regex"),
        ({"structured_outputs": {"regex": 5}}, "invalid_value", "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": {}}}, "invalid_value", "structured_outputs.grammar"),
        ({"structured_outputs": {"choice": "yes"}}, "invalid_value", "structured_outputs.choice"),
        ({"structured_outputs": {"choice": []}}, "invalid_value", "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a"] * (MAX_CHOICES + 1)}}, "invalid_value", "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a", 1]}}, "invalid_value", "structured_outputs.choice[1]"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "invalid_value",
            "structured_outputs",
        ),
    ],
)
def test_a_form_is_refused_by_name(fields: dict[str, Any], code: str, param: str) -> None:
    for ask in (chat, complete):
        with pytest.raises(RequestError) as caught:
            ask(**fields)
        assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param), caught.value.message
        assert len(caught.value.message) < 500

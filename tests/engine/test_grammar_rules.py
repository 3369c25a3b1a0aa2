"""What each kind of rule lets through, and what it is refused for."""

import json
from typing import Any

import pytest

from engine.grammar.limits import GrammarError
from engine.grammar.matcher import CompiledGrammar
from engine.grammar.rules import check, grammar_text
from tests.support.grammar_walk import accepts, compiled, stop_id, vocabulary

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "place": {"$ref": "#/$defs/place"},
        "short": {"type": "string", "maxLength": 5},
        "either": {"type": ["string", "integer"], "minimum": 5},
        "factor": {"type": "number"},
        "date": {"type": "string", "format": "date"},
        "code": {"type": "string", "pattern": "^[a-z]+\\d$"},
        "any": {},
        "tags": {"type": "array", "items": {"type": "string"}},
        "never": False,
    },
    "required": ["city", "unit"],
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "next": {"$ref": "#/$defs/place"}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}


def tool_calls(parameters: Any = WEATHER, **more: Any) -> dict[str, Any]:
    functions = [{"name": "weather", "parameters": json.dumps(parameters)}, {"name": "time"}]
    return {"type": "ToolCalls", "functions": functions, **more}


def call(*values: tuple[str, object], name: str = "weather") -> str:
    """As the template renders it."""
    parameters = "".join(f'<parameter name="{key}">\n{value}\n</parameter>\n' for key, value in values)
    return f'\n<dots_function_call>\n<invoke name="{name}">\n{parameters}</invoke>\n</dots_function_call>'


@pytest.fixture(scope="module")
def weather() -> CompiledGrammar:
    return compiled(tool_calls())


def passes(grammar: CompiledGrammar, text: str) -> bool:
    return accepts(grammar.matcher("now", (stop_id(),)), text)


CITY = (("city", "Rome"), ("unit", "C"))


@pytest.mark.parametrize(
    "text",
    [
        call(*CITY),
        call(*CITY).removeprefix("\n"),
        call(*CITY) + call(name="time"),
        call(*reversed(CITY)),
        call(("days", 3), *CITY),
        call(name="time"),
        call(*CITY, ("days", 14)),
        call(*CITY, ("note", "null")),
        call(*CITY, ("place", '{"x": 3, "next": {"x": 4}}')),
        call(*CITY, ("short", "a<b>c")),
        call(*CITY, ("either", "abc")),
        call(*CITY, ("either", 7)),
        call(*CITY, ("factor", "-3.5e7")),
        call(*CITY, ("date", "2024-02-28")),
        call(*CITY, ("code", "abc1")),
        call(*CITY, ("any", '{"x": [1]}'), ("tags", '["a", "b"]')),
        call(("city", ""), ("unit", "F")),
        call(("city", "\n\n two lines \n"), ("unit", "F")),
        call(("city", "<x>y</parameter></x>\n<b>\n</invoke>\n<b>"), ("unit", "F")),
        call(("city", "</parameter> \n</foo>x</parameter> x"), ("unit", "F")),
        call(("city", "<parameter>\n<parameters>\n<inv>"), ("unit", "F")),
    ],
)
def test_calls_as_the_template_renders_them_are_let_through(weather: CompiledGrammar, text: str) -> None:
    assert passes(weather, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Sure!" + call(*CITY),
        call(("city", "Rome")),  # `unit` is required
        call(*CITY, ("city", "Oslo")),
        call(*CITY, ("colour", "red")),
        call(*CITY, ("never", "x")),
        call(*CITY, name="sleep"),
        call(("city", "Rome"), name="time"),
        call(("city", "Rome"), ("unit", "K")),
        call(*CITY, ("days", 15)),
        call(*CITY, ("days", '"3"')),
        call(*CITY, ("place", "{}")),
        call(*CITY, ("short", "abcdef")),
        call(*CITY, ("either", 3)),
        call(*CITY, ("factor", "1e999")),  # no finite number
        call(*CITY, ("date", "2024-02-31")),
        call(*CITY, ("code", "abc")),
        call(("city", 'a\n<parameter name="x">'), ("unit", "C")),
        call(("city", '<parameter name="x">'), ("unit", "C")),
        call(("city", "<invoke x"), ("unit", "C")),
        call(("city", "</parameter>\n</invoke>x"), ("unit", "C")),
    ],
)
def test_other_calls_are_not(weather: CompiledGrammar, text: str) -> None:
    assert not passes(weather, text)


@pytest.mark.parametrize(
    ("bounds", "right", "wrong"),
    [
        ({}, (1, 2, 5), (0,)),
        ({"max_calls": 1}, (1,), (0, 2)),
        ({"min_calls": 2, "max_calls": 3}, (2, 3), (0, 1, 4)),
        ({"min_calls": 0}, (0, 1, 3), ()),
        ({"min_calls": 0, "max_calls": 1}, (0, 1), (2,)),
    ],
)
@pytest.mark.parametrize("free_text", [False, True])
def test_the_number_of_calls(
    bounds: dict[str, int], right: tuple[int, ...], wrong: tuple[int, ...], free_text: bool
) -> None:
    grammar = compiled(tool_calls(**bounds, free_text=free_text))
    text = "text" if free_text else ""
    assert [count for count in (*right, *wrong) if passes(grammar, (text + call(*CITY)) * count)] == list(right)


def test_behind_the_last_call_that_is_allowed_the_answer_is_complete() -> None:
    grammar = compiled(tool_calls(min_calls=0, max_calls=1, free_text=True))
    assert passes(grammar, "Just text, with <tags> and </parameter>.")
    assert passes(grammar, "First text." + call(*CITY))
    assert not passes(grammar, call(*CITY) + " more")


def test_in_free_text_no_call_hides() -> None:
    grammar = compiled(tool_calls(min_calls=0, free_text=True))
    assert not passes(grammar, '<invoke name="weather">\n</invoke>')


ALTERNATIVES = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "anyOf": [
        {"properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        {"$ref": "#/$defs/c"},
    ],
    "$defs": {"c": {"allOf": [{"properties": {"c": {"const": "x"}}}, {"required": ["c", "a"]}]}},
}


def test_alternatives_of_the_arguments_are_kept_apart() -> None:
    grammar = compiled(tool_calls(ALTERNATIVES))
    assert passes(grammar, call(("b", "true")))
    assert passes(grammar, call(("c", "x"), ("a", 1)))
    assert not passes(grammar, call(("c", "x")))
    assert not passes(grammar, call(("a", 1)))


def test_a_bound_that_is_too_large_to_enforce_is_refused_where_all_is_to_be_kept_and_else_costs_nothing() -> None:
    text = call(("a", "<b>x</b> " * 200), ("b", "7"))
    for bound in (1000, 10_000, 10_001):
        schema = {"a": {"type": "string", "maxLength": bound}, "b": {"type": "string", "pattern": "^[0-9]$"}}
        functions = [{"name": "weather", "parameters": json.dumps({"properties": schema}), "strict": False}]
        grammar = compiled({"type": "ToolCalls", "functions": functions})
        assert passes(grammar, text) == (bound > 1000)
        assert not passes(grammar, call(("b", "x")))  # what can be kept beside it is
        functions[0]["strict"] = True
        if bound <= 10_000:
            compiled({"type": "ToolCalls", "functions": functions})
        else:
            told = "the function weather: maxLength of a string must be ≤ 10000 to be enforced, got 10001"
            with pytest.raises(GrammarError, match=told):
                compiled({"type": "ToolCalls", "functions": functions})


@pytest.mark.parametrize("limit", [40, 1000, 10_000])
@pytest.mark.parametrize("least", [0, 4, 20])
def test_a_text_may_end_long_before_its_limit(least: int, limit: int) -> None:
    grammar = compiled(tool_calls({"properties": {"x": {"type": "string", "minLength": least, "maxLength": limit}}}))
    text = "x < y, </b> <p" + "." * least
    assert passes(grammar, call(("x", text)))
    assert not passes(grammar, call(("x", f"{text}</parameter>")))
    assert passes(grammar, call(("x", text + "." * (limit - len(text)))))
    assert not passes(grammar, call(("x", text + "." * (limit + 1 - len(text)))))


def test_more_parameters_than_can_be_counted() -> None:
    names = [f"p{number}" for number in range(90)]
    parameters = {"properties": {name: {"type": "integer"} for name in names}, "required": names[80:]}
    grammar = compiled(tool_calls(parameters))
    required = [(name, 1) for name in names[80:]]
    assert passes(grammar, call(*required))
    assert passes(grammar, call(*required, *[(name, 1) for name in names[:80]]))
    assert not passes(grammar, call(*required[1:]))


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {"x": {"type": ["array", "integer"], "uniqueItems": True}}},
        {"properties": {"x": {"type": "string", "pattern": "(?=a)b"}}},
        {"properties": {"x": {"$ref": "#/nowhere"}}},
        {"properties": {"x": {"type": "integer"}}, "minProperties": 1},
        {"properties": {'a"b': {}}},
        {"$ref": "#"},
        "not an object",
    ],
)
def test_of_a_function_that_is_not_strict_as_much_as_possible_is_kept(parameters: Any) -> None:
    functions = [{"name": "weather", "parameters": json.dumps(parameters), "strict": False}]
    assert passes(compiled({"type": "ToolCalls", "functions": functions}), call(("x", 1)))
    functions[0]["strict"] = True
    with pytest.raises(GrammarError, match="the function weather: "):
        compiled({"type": "ToolCalls", "functions": functions})


@pytest.mark.parametrize(
    ("rule", "right", "wrong"),
    [
        ({"type": "JsonObject"}, ["{}", '{"a": [1, null, "x"]}', '{\n  "a": 1\n}'], ["[]", "1", "{} ", '{"a":\n\n1}']),
        ({"type": "JsonSchema", "schema": '{"type": "integer", "maximum": 5}'}, ["-7", "5"], ["6", "1.5", '"1"']),
        ({"type": "JsonSchema", "schema": '{"type": "string", "format": "int32"}'}, ['"x"'], ["x"]),
        ({"type": "JsonSchema", "schema": "true"}, ["1", "[]"], ["", "x"]),
        ({"type": "Regex", "pattern": "^a+|b$"}, ["a", "aaa", "b"], ["ab", "", "bb"]),
        ({"type": "Regex", "pattern": r"[|(]\|\d/\w"}, ["||5/x", "(|0/_"], ["||٣/x"]),
        ({"type": "Choice", "choices": ["a", "ab", 'c"\n']}, ["a", "ab", 'c"\n'], ["b", "abc"]),
        ({"type": "ContextFree", "text": 'start: "(" start ")" | "x"'}, ["x", "((x))"], ["(x"]),
        ({"type": "ContextFree", "text": 'root ::= "(" root ")" | [xy]+'}, ["xy", "((x))"], ["(x"]),
    ],
)
def test_rules_that_are_no_calls(rule: dict[str, Any], right: list[str], wrong: list[str]) -> None:
    grammar = compiled(rule)
    assert [text for text in (*right, *wrong) if passes(grammar, text)] == right


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"type": "JsonSchema", "schema": "{"}, "the schema is not JSON"),
        ({"type": "JsonSchema", "schema": "[" * 100_000}, "nested too deeply"),
        ({"type": "JsonSchema", "schema": "3"}, "must be an object"),
        ({"type": "JsonSchema", "schema": '{"type": "array", "uniqueItems": true}'}, "uniqueItems"),
        ({"type": "JsonSchema", "schema": '{"$ref": "#/nowhere"}'}, "nowhere"),
        ({"type": "JsonSchema", "schema": '{"allOf": [{"type": "null"}, {"type": "integer"}]}'}, "incompatible types"),
        ({"type": "JsonSchema", "schema": '{"$ref": "#"}'}, "^nothing satisfies it$"),
        ({"type": "ContextFree", "text": "start: x\nx: x"}, "^nothing satisfies it$"),
        ({"type": "Regex", "pattern": "[a"}, "not closed"),
        ({"type": "Regex", "pattern": "a{5,2}"}, "repetition"),
        ({"type": "Regex", "pattern": "(?<!a)b"}, "look-around"),
        ({"type": "Choice", "choices": []}, "at least 1 choice"),
        ({"type": "ContextFree", "text": "start: missing"}, "missing"),
        ({"type": "ContextFree", "text": "root ::= ("}, "cannot be read"),
        ({"type": "ToolCalls", "functions": []}, "at least 1 function"),
        ({"type": "ToolCalls", "functions": [{"name": "f"}], "min_calls": 2, "max_calls": 1}, "cannot be made"),
        ({"type": "ToolCalls", "functions": [{"name": 'f"'}]}, "the name of a function"),
    ],
)
def test_refusals_say_why(rule: dict[str, Any], reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        check(grammar_text(rule, vocabulary()), vocabulary())


def test_an_answer_may_stand_in_place_of_calls() -> None:
    answer = {"type": "JsonSchema", "schema": json.dumps({"type": "object", "properties": {"a": {"enum": [1]}}})}
    grammar = compiled(tool_calls(answer=answer, max_calls=1))
    assert passes(grammar, '{"a":1}')
    assert passes(grammar, call(("city", "Rome"), ("unit", "C")))
    assert not passes(grammar, "")
    assert not passes(grammar, "Well.")
    assert not passes(grammar, '{"a":2}')
    assert not passes(grammar, '{"a":1}' + call(("city", "Rome"), ("unit", "C")))
    assert passes(compiled(tool_calls(answer={"type": "JsonObject"})), '{"b":[2]}')
    with pytest.raises(GrammarError):
        compiled(tool_calls(answer={"type": "JsonSchema", "schema": "5"}))

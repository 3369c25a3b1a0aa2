"""Calls stream as they come, damage is repaired by named rules, and nothing but tags is held back."""

import json
import time
from typing import Any

import pytest

from parsers.control_tags import OPEN_CALL, with_marks
from parsers.events import Event, TextDelta, ToolArgs, ToolEnd, ToolStart
from parsers.registry import response_parser
from parsers.repairs import Repair
from parsers.response import ResponseParser
from parsers.tools_xml import ToolCallParser

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "note": {"type": ["string", "null"]},
        "n": {"type": "integer"},
        "on": {"type": "boolean"},
    },
}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "put", "parameters": SCHEMA}}]
BEGIN = '\n<dots_function_call>\n<invoke name="put">\n'
END = "</invoke>\n</dots_function_call>"


def parameter(key: str, value: str) -> str:
    return f'<parameter name="{key}">\n{value}\n</parameter>\n'


def new_parser() -> ResponseParser:
    return response_parser("dots", "dots", "answer", TOOLS)


def calls_of(events: list[Event]) -> list[tuple[str, str]]:
    calls: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, ToolStart):
            assert event.index == len(calls)
            calls.append((event.name, ""))
        elif isinstance(event, ToolArgs):
            name, arguments = calls[event.index]
            calls[event.index] = (name, arguments + event.text)
    return calls


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def read(raw: str, cut: bool = False) -> tuple[str, list[tuple[str, str]], dict[str, int]]:
    parser = new_parser()
    events = parser.feed(with_marks(raw)) + parser.finish(cut)
    return text_of(events), calls_of(events), dict(parser.repairs)


def test_what_the_template_writes_needs_no_repair() -> None:
    raw = "Now." + BEGIN + parameter("text", "a\n<b>\n") + parameter("n", "5") + END
    assert read(raw) == ("Now.", [("put", '{"text":"a\\n<b>\\n","n":5}')], {})


def test_events_of_a_call_come_in_order() -> None:
    parser = new_parser()
    events = parser.feed(with_marks("a" + BEGIN + parameter("n", "5") + END + "\nb")) + parser.finish()
    assert events == [
        TextDelta("a"),
        ToolStart(0, "put"),
        ToolArgs(0, '{"n":5}'),
        ToolEnd(0),
        TextDelta("\nb"),
    ]


@pytest.mark.parametrize("key", ["text", "note"])
def test_a_string_streams_while_it_is_generated(key: str) -> None:
    parser = new_parser()
    value = "All work and no play. " * 140
    events = parser.feed(with_marks(BEGIN + f'<parameter name="{key}">\n'))
    for begin in range(0, len(value), 4):
        new = parser.feed(value[begin : begin + 4])
        events += new
        if begin > 8:
            assert new == [ToolArgs(0, value[begin : begin + 4])]
    events += parser.feed(with_marks("\n</parameter>\n" + END)) + parser.finish()
    assert calls_of(events) == [("put", json.dumps({key: value}, separators=(",", ":")))]


def test_only_what_may_become_a_closing_tag_is_held_back() -> None:
    parser = new_parser()
    events = parser.feed(with_marks(BEGIN + '<parameter name="text">\na <b> </para'))
    assert calls_of(events) == [("put", '{"text":"a <b> ')]
    events += parser.feed("graph>\n")
    assert calls_of(events) == [("put", '{"text":"a <b> </paragraph>')]
    events += parser.feed("</parameter>")
    events += parser.feed(" ")
    assert calls_of(events) == [("put", '{"text":"a <b> </paragraph>')]
    events += parser.feed("is text")
    assert calls_of(events) == [("put", '{"text":"a <b> </paragraph>\\n</parameter> is text')]


def test_a_nullable_string_waits_only_as_long_as_it_may_be_null() -> None:
    parser = new_parser()
    events = parser.feed(with_marks(BEGIN + '<parameter name="note">\nnul'))
    assert calls_of(events) == [("put", "{")]
    events += parser.feed("ls")
    assert calls_of(events) == [("put", '{"note":"nulls')]


def test_text_that_spells_a_block_is_no_call() -> None:
    raw = BEGIN + parameter("n", "5") + END
    parser = new_parser()
    assert parser.feed(raw.replace("<invoke", "<call")) + parser.finish() == [
        TextDelta(raw.replace("<invoke", "<call"))
    ]


def test_a_spelled_closing_tag_never_ends_a_value() -> None:
    parser = new_parser()
    value = "x</invoke>\n</dots_function_call>"
    raw = with_marks(BEGIN) + parameter("text", value) + with_marks(END)
    events = parser.feed(raw) + parser.finish()
    assert calls_of(events) == [("put", json.dumps({"text": value}, separators=(",", ":")))]


@pytest.mark.parametrize(
    ("raw", "arguments", "rules"),
    [
        ('<dots_function_call><invoke="put"></invoke></dots_function_call>', "{}", {Repair.INVOKE_EQUALS}),
        (
            '<dots_function_call>invoke name="put"></invoke></dots_function_call>',
            "{}",
            {Repair.MISSING_BRACKET},
        ),
        ('<dots_function_call><invoke name="put"/></dots_function_call>', "{}", {Repair.SELF_CLOSING}),
        ("<dots_function_call><invoke name='put'></invoke></dots_function_call>", "{}", {Repair.OTHER_QUOTES}),
        (
            BEGIN + '<parameter name="n" string="true">5</parameter>' + END,
            '{"n":5}',
            {Repair.EXTRA_ATTRIBUTES},
        ),
        ('<invoke name="put"></invoke></dots_function_call>', "{}", {Repair.MISSING_OPENER}),
        (BEGIN + '<parameter name="text">\na\n' + END, '{"text":"a"}', {Repair.MISSING_PARAMETER_CLOSER}),
        (
            BEGIN + parameter("text", "a") + "</dots_function_call>",
            '{"text":"a"}',
            {Repair.MISSING_INVOKE_CLOSER},
        ),
        (BEGIN + END + "\n</dots_function_call>", "{}", {Repair.EXTRA_CLOSER}),
        (BEGIN + parameter("text", "a</invoke>b") + END, '{"text":"a</invoke>b"}', {Repair.CLOSER_IN_VALUE}),
        (BEGIN + parameter("n", "1") + parameter("n", "2") + END, '{"n":1}', {Repair.REPEATED_PARAMETER}),
        (BEGIN + parameter("on", "True") + END, '{"on":true}', {Repair.PYTHON_LITERAL}),
        (BEGIN + parameter("n", "five") + END, '{"n":"five"}', {Repair.TYPE_MISMATCH}),
        (
            '<dots_function_call>{"name":"put","parameters":{"n":1.50}}</dots_function_call>',
            '{"n":1.50}',
            {Repair.JSON_BODY},
        ),
    ],
)
def test_each_repair_is_counted_under_its_name(raw: str, arguments: str, rules: set[Repair]) -> None:
    assert read(raw) == ("", [("put", arguments)], {rule.value: 1 for rule in rules})


def test_a_block_without_a_call_stays_visible() -> None:
    raw = "<dots_function_call>\n<built-in>\n</built-in>\n</dots_function_call>"
    assert read(raw) == (raw, [], {"no_call": 1})


def test_text_between_the_tags_of_a_call_becomes_content() -> None:
    raw = BEGIN + "well, a < b\n" + parameter("n", "5") + END
    assert read(raw) == ("well, a < b\n", [("put", '{"n":5}')], {"text_in_call": 1})


def test_a_call_that_was_cut_short_is_left_open() -> None:
    parser = new_parser()
    events = parser.feed(with_marks(BEGIN + parameter("n", "5") + '<parameter name="text">\nabc\n</par'))
    events += parser.finish(cut=True)
    assert calls_of(events) == [("put", '{"n":5,"text":"abc')]
    assert not any(isinstance(event, ToolEnd) for event in events)
    assert not parser.complete_calls


def test_arguments_are_json_whatever_a_body_spells() -> None:
    body = '{"name":"put","arguments":{"text":"\\ud800x","a":1,"a":2,"b":123456789012345678901234567890}}'
    _, calls, _ = read(f"{OPEN_CALL}{body}")
    assert calls == [("put", '{"text":"\ufffdx","a":2,"b":123456789012345678901234567890}')]
    for bad in ("NaN", "1e999", "[" * 100_000, "01"):
        raw = f'{OPEN_CALL}{{"name":"put","arguments":{{"a":{bad}}}}}'
        assert read(raw)[:2] == (raw, [])


def test_without_tools_markup_is_text() -> None:
    raw = BEGIN + END
    parser = response_parser("dots", "dots", "answer")
    assert text_of(parser.feed(with_marks(raw)) + parser.finish()) == raw


@pytest.mark.parametrize(
    "value",
    [
        "x" * 400_000,
        "</parameter>" * 33_000,
        "\n<parameter name=\"" * 20_000,
        "</parameter>" + " " * 400_000 + "x",
        "\n<invoke name=\"put\">\n" + "</parameter></invoke>" * 19_000 + "x",
    ],
    ids=["prose", "closers", "openers", "space", "example"],
)  # fmt: skip
def test_long_values_take_linear_time(value: str) -> None:
    """Far from any limit here; a quadratic parser would take minutes."""
    parser = ToolCallParser(TOOLS)
    raw = with_marks(BEGIN + parameter("text", value) + END)
    began = time.process_time()
    for begin in range(0, len(raw), 4):
        parser.feed(raw[begin : begin + 4])
    parser.finish()
    assert time.process_time() - began < 10

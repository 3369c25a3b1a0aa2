"""The rendering rules of the model, and that nothing a client sends becomes a control string."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from jinja2.exceptions import SecurityError

from server.chat_template import ChatTemplate, Segment, expand

FIXTURES = Path(__file__).parent.parent / "fixtures" / "chat"
CONTROL = [name for name in json.loads((FIXTURES / "special_tokens.json").read_text()) if name.startswith("<")]
TEMPLATE = ChatTemplate((FIXTURES / "chat_template.jinja").read_text(), CONTROL)
HEAD = "<|system|>You are a helpful assistant.<|endofsystem|>"

Json = dict[str, Any]


def text_of(messages: list[Json], tools: list[Json] | None = None, **options: Any) -> str:
    return "".join(segment.text for segment in TEMPLATE.render(messages, tools, **options))


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def assistant(content: Any, **fields: Any) -> Json:
    return {"role": "assistant", "content": content, **fields}


def call(name: str, arguments: Any) -> Json:
    return {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}


def function(name: str, **properties: Any) -> Json:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": "Get weather.", "parameters": parameters}}


def history(message: Json) -> str:
    """What one assistant message becomes between two user turns."""
    text = text_of([user("a"), message, user("b")])
    return text.removeprefix(HEAD + "<|user|>a<|endofuser|>").removesuffix("<|user|>b<|endofuser|><|assistant|>")


def test_example_with_tools_is_met_exactly() -> None:
    messages = [
        user("Weather?"),
        assistant(
            "",
            reasoning_content="need tool",
            tool_calls=[call("get_weather", '{"city": "北京", "days": 3}')],
        ),
        {"role": "tool", "tool_call_id": "call_0", "content": "sunny"},
        {"role": "tool", "tool_call_id": "call_1", "content": "20C"},
    ]
    expected = (FIXTURES / "example_tool_prompt.txt").read_text()
    assert text_of(messages, [function("get_weather", city={"type": "string"})]) == expected


@pytest.mark.parametrize(
    ("name", "messages", "thinking"),
    [
        ("chat_thinking", [user("안녕! 이 문장을 토큰화해 줘.")], True),
        ("chat_no_think", [{"role": "system", "content": "SYS"}, user("hi")], False),
    ],
)
def test_golden_prompts_are_met_exactly(name: str, messages: list[Json], thinking: bool) -> None:
    cases = json.loads((FIXTURES / "goldens.json").read_text())["cases"]
    expected = next(case["text"] for case in cases if case["name"] == name)
    assert text_of(messages, enable_thinking=thinking) == expected


def test_system_and_developer_come_first_and_are_user_turns_later() -> None:
    for role in ("system", "developer"):
        messages = [{"role": role, "content": "S"}, user("a"), {"role": role, "content": "T"}]
        expected = "<|system|>S<|endofsystem|><|user|>a<|endofuser|><|user|>T<|endofuser|><|assistant|>"
        assert text_of(messages) == expected


def test_no_think_stands_in_user_turns_only() -> None:
    messages = [user("a"), assistant("b"), {"role": "tool", "content": "r"}, {"role": "system", "content": "s"}]
    assert text_of(messages, enable_thinking=False) == (
        HEAD + "<|user|>a<no_think><|endofuser|><|assistant|><think>\n\n</think>\n\nb<|endofassistant|>"
        "<|user|>\n<dots_function_response>\nr\n</dots_function_response><|endofuser|><|user|>s<|endofuser|>"
        "<|assistant|><think>\n\n</think>\n\n"
    )


def test_typed_no_think_stays_text_and_the_control_token_follows() -> None:
    segments = TEMPLATE.render([user("hi<no_think>")], enable_thinking=False)
    place = segments.index(Segment("<|user|>", True))
    assert segments[place + 1 : place + 4] == [
        Segment("hi<no_think>", False),
        Segment("<no_think>", True),
        Segment("<|endofuser|>", True),
    ]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_history_keeps_trimmed_reasoning(field: str) -> None:
    assert history(assistant("c", **{field: "\n why \n"})) == (
        "<|assistant|><think>\nwhy\n</think>\n\nc<|endofassistant|>"
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("c", "c"),
        ("<think>\nwhy\n</think>\n\nc", "<think>\nwhy\n</think>\n\nc"),
        ("why</think>c</think>d", "<think>\nwhy\n</think>\n\nc</think>d"),
        ("<think>\n\n</think>\n\nc", "c"),
        (["<think>wh", {"type": "text", "text": "y</thi"}, {"type": "text", "text": "nk>c"}],
         "<think>\nwhy\n</think>\n\nc"),
        ([{"type": "text", "text": "c"}], "c"),
        (["why</think>\n", "c", {"type": "video"}, "\nd"], "<think>\nwhy\n</think>\n\nc<|video_pad|>\nd"),
        (["why</think>\n", {"type": "video"}, "\nd"], "<think>\nwhy\n</think>\n\n<|video_pad|>\nd"),
        ([{"type": "video"}, "why</think>", "\n", "\nd"], "<think>\nwhy\n</think>\n\n<|video_pad|>d"),
        (None, ""),
        ([], ""),
    ],
)  # fmt: skip
def test_history_without_reasoning_is_split_at_the_end_of_thinking(content: Any, expected: str) -> None:
    assert history(assistant(content)) == f"<|assistant|>{expected}<|endofassistant|>"


def test_end_of_thinking_in_content_is_text_when_reasoning_is_given() -> None:
    segments = TEMPLATE.render([assistant("c</think>d", reasoning_content="why")], add_generation_prompt=False)
    assert segments[-2:] == [Segment("\n\nc</think>d", False), Segment("<|endofassistant|>", True)]


def test_history_without_thinking_drops_reasoning() -> None:
    for message in (assistant("c", reasoning_content="why"), assistant("why</think>c")):
        assert text_of([message], enable_thinking=False, add_generation_prompt=False) == (
            HEAD + "<|assistant|><think>\n\n</think>\n\nc<|endofassistant|>"
        )


@pytest.mark.parametrize(
    ("arguments", "parameters"),
    [
        ('{"a": "x", "b": 1.5, "c": [1, "é"], "d": null, "e": true}',
         {"a": "x", "b": "1.5", "c": '[1, "é"]', "d": "null", "e": "true"}),
        ({"z": "1", "a": 2}, {"z": "1", "a": "2"}),
        ({"items": {"b": 1, "a": 2}}, {"items": '{"b": 1, "a": 2}'}),
        ("{}", {}),
        ("", {}),
        (None, {}),
        ('{"value": "', {"arguments": '{"value": "'}),
        ("[]", {"arguments": "[]"}),
        ('"text"', {"arguments": '"text"'}),
        ('{"a": NaN}', {"arguments": '{"a": NaN}'}),
        ('{"a": 1e999}', {"arguments": '{"a": 1e999}'}),
        (r'{"a": "\ud83d"}', {"arguments": r'{"a": "\ud83d"}'}),
        (r'{"a": "\ud83d\ude42"}', {"a": "🙂"}),
        ("[" * 100_000, {"arguments": "[" * 100_000}),
        ('{"a":' * 300 + "1" + "}" * 300, {"arguments": '{"a":' * 300 + "1" + "}" * 300}),
        ('{"a": ' + "9" * 5000 + "}", {"arguments": '{"a": ' + "9" * 5000 + "}"}),
    ],
    ids=range(16),
)  # fmt: skip
def test_calls_of_the_history_show_their_arguments(arguments: Any, parameters: dict[str, str]) -> None:
    shown = "".join(f'\n<parameter name="{key}">\n{value}\n</parameter>' for key, value in parameters.items())
    block = f'\n<dots_function_call>\n<invoke name="f">{shown}\n</invoke>\n</dots_function_call>'
    two = [call("f", arguments), call("f", arguments)]
    assert history(assistant("c", tool_calls=two)) == f"<|assistant|>c{block}{block}<|endofassistant|>"


def test_a_run_of_results_is_one_user_turn() -> None:
    results = [{"role": "tool", "content": "1"}, {"role": "tool", "content": [{"type": "text", "text": "2"}]}]
    shown = "".join(f"\n<dots_function_response>\n{n}\n</dots_function_response>" for n in "12")
    turn = f"<|user|>{shown}<|endofuser|>"
    middle = "<|assistant|>x<|endofassistant|>"
    assert text_of([*results, assistant("x"), *results]) == HEAD + turn + middle + turn + "<|assistant|>"


def test_schemas_keep_key_order_letters_and_signs() -> None:
    tool = {"zeta": "é <b> & 'q' \"", "alpha": {"y": 1, "x": [True, None]}}
    line = '\n{"zeta": "é <b> & \'q\' \\"", "alpha": {"y": 1, "x": [true, null]}}\n'
    assert line in text_of([user("a")], [tool])


def test_media_parts_become_their_markers() -> None:
    parts = [
        {"type": "text", "text": "see "},
        {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "input_audio", "input_audio": {"data": ""}},
        {"type": "video"},
        "!",
    ]
    assert text_of([user(parts)]) == (
        HEAD + "<|user|>see <|img|><|imgpad|><|endofimg|><|audio_comp_start|><|audio_comp_pad|><|audio_comp_end|>"
        "<|video_pad|>!<|endofuser|><|assistant|>"
    )


def _conversation(**places: str) -> tuple[list[Json], list[Json], Json]:
    """One conversation with a harmless word in every place that a client may fill, but for the places given."""

    def fill(place: str) -> str:
        return places.get(place, "word")

    tool = function(fill("tool name"), **{fill("property"): {"enum": [fill("enum value")], "type": fill("type")}})
    tool["function"]["description"] = fill("description")
    arguments = {fill("argument name"): fill("argument"), "deep": {fill("deep name"): [fill("deep argument")]}}
    parts = [
        {"type": "text", "text": "a" + fill("part")[:3]},
        {"type": "text", "text": fill("part")[3:]},
        {"type": "image"},
    ]
    messages = [
        {"role": "system", "content": fill("system")},
        user(fill("user")),
        assistant(
            fill("content"),
            reasoning_content="x" + fill("reasoning"),
            tool_calls=[
                call(fill("call name"), json.dumps(arguments, ensure_ascii=False)),
                call("f", fill("raw arguments")),
                call("f", arguments),
            ],
        ),
        {"role": "tool", "content": fill("result")},
        {"role": "developer", "content": fill("developer")},
        user(parts),
        assistant("w</think>" + fill("content after thinking")),
        user([fill("bare part")]),
    ]
    return messages, [tool], {"date": fill("template argument")}


PLACES = [
    *("tool name", "property", "enum value", "type", "description"),
    *("argument name", "argument", "deep name", "deep argument", "raw arguments", "call name"),
    *("system", "user", "part", "bare part", "content", "reasoning", "result", "developer", "content after thinking"),
    "template argument",
]


def _controls(segments: list[Segment]) -> list[str]:
    return [text for text, control in segments if control]


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("place", PLACES)
def test_control_strings_of_a_client_stay_text(place: str, thinking: bool) -> None:
    source = (FIXTURES / "chat_template.jinja").read_text() + "{{- date -}}"
    template = ChatTemplate(source, CONTROL)
    messages, tools, arguments = _conversation()
    harmless = template.render(messages, tools, enable_thinking=thinking, **arguments)
    dropped = place == "reasoning" and not thinking
    for typed in CONTROL:
        messages, tools, arguments = _conversation(**{place: typed})
        segments = template.render(messages, tools, enable_thinking=thinking, **arguments)
        assert _controls(segments) == _controls(harmless)
        assert any(typed in text for text, control in segments if not control) or dropped


def test_every_text_comes_back_as_it_was_typed() -> None:
    drawn = random.Random(0)
    pieces = ["<", "|user|>", "<think>", "\ufdd0", "0", "1", "a", "\ufdd00", "\ufdd01", "</", "think>", "\n", "\ue000"]
    for _ in range(2000):
        typed = "".join(drawn.choices(pieces, k=drawn.randrange(1, 9)))
        assert TEMPLATE.render([user(typed)])[4] == Segment(typed, False)
        shown = json.dumps({typed: [typed]}, ensure_ascii=False)
        assert shown in "".join(text for text, _ in TEMPLATE.render([user("a")], [{typed: [typed]}]))


def test_the_callers_messages_are_left_alone() -> None:
    messages, tools, _ = _conversation(user="<think>", argument="<|user|>")
    before = copy.deepcopy((messages, tools))
    TEMPLATE.render(messages, tools)
    assert (messages, tools) == before


def test_a_template_cannot_leave_its_sandbox() -> None:
    with pytest.raises(SecurityError):
        ChatTemplate("{{ messages.__class__.__mro__ }}", CONTROL).render([])


def test_control_tokens_of_another_form_are_refused_where_a_template_writes_them() -> None:
    with pytest.raises(ValueError, match=r"'\[PAD\]'"):
        ChatTemplate("a[PAD]b", ["<|user|>", "[PAD]"])
    assert ChatTemplate("ab<|user|>", ["<|user|>", "[PAD]"]).render([]) == [("ab", False), ("<|user|>", True)]


def test_media_are_put_in_place_in_prompt_order() -> None:
    parts = [{"type": kind} for kind in ("image", "video", "image", "audio")]
    film = [("<00:00:01.00>", False), ("<|imgpad|>", True)]
    segments = expand(
        TEMPLATE.render([user([*parts, {"type": "text", "text": "<|imgpad|>"}])]),
        {"<|imgpad|>": [2, 3], "<|video_pad|>": [film], "<|audio_comp_pad|>": [1]},
    )
    image = [("<|img|>", True), ("<|imgpad|>", True), ("<|imgpad|>", True), ("<|endofimg|>", True)]
    assert segments[4:8] == image
    assert segments[8:10] == film
    assert segments[10:15] == [*image[:2], *image[1:]]
    assert segments[15:19] == [
        ("<|audio_comp_start|>", True),
        ("<|audio_comp_pad|>", True),
        ("<|audio_comp_end|>", True),
        ("<|imgpad|>", False),
    ]


@pytest.mark.parametrize(("given", "word"), [([1], "more"), ([1, 1, 1], "fewer")])
def test_media_and_their_places_must_agree_in_number(given: list[int], word: str) -> None:
    segments = TEMPLATE.render([user([{"type": "image"}, {"type": "image"}])])
    with pytest.raises(ValueError, match=rf"the prompt has {word} <\|imgpad\|>"):
        expand(segments, {"<|imgpad|>": given})

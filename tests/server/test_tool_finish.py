"""The table of finish reasons: why an answer ended, and what had come of its calls by then."""

from typing import Any

import pytest

from tests.support.fake_engine import Say
from tests.support.live_gateway import LiveGateway, ids_of
from tests.support.sse import read_sse

CALL = (
    '\n<dots_function_call>\n<invoke name="put">\n<parameter name="text">\n{}\n</parameter>\n</invoke>\n'
    "</dots_function_call>"
)
WHOLE = CALL.format("one two")
CUT = WHOLE.partition(" two")[0]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "put", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}},
    }
]
STOP = {"stop": ["###"]}
ONE = {"parallel_tool_calls": False}
# What the model said, how the request bounds it, why the engine ended, the finish reason, calls, of which whole.
TABLE: dict[str, tuple[str, dict[str, Any], Any, str, int, int]] = {
    "turn, no calls": ("Well.", {}, "stop", "stop", 0, 0),
    "turn, whole calls": ("Well." + WHOLE + WHOLE, {}, "stop", "tool_calls", 2, 2),
    "turn, closers missing": (WHOLE + CUT, {}, "stop", "tool_calls", 2, 2),
    "turn, text behind the call": (WHOLE + "\nSo.", {}, "stop", "tool_calls", 1, 1),
    "turn, only thinking": ("<think>\n" + WHOLE, {}, "stop", "stop", 0, 0),
    "stop string, no calls": ("Well.###" + WHOLE, STOP, "stop", "stop", 0, 0),
    "stop string, whole calls": (WHOLE + "\nSo.###", STOP, "stop", "tool_calls", 1, 1),
    "stop string, cut call": (WHOLE + CALL.format("one ###"), STOP, "stop", "stop", 2, 1),
    "limit, no calls": ("Well", {}, "length", "length", 0, 0),
    "limit, whole calls": (WHOLE + "\nSo", {}, "length", "length", 1, 1),
    "limit, cut call": (WHOLE + CUT, {}, "length", "length", 2, 1),
    "calls enough, whole": (WHOLE + CUT, ONE, "stop", "tool_calls", 1, 1),
    "calls enough at the limit": (WHOLE, ONE, "length", "tool_calls", 1, 1),
    "calls enough, limit in the call": (CUT, ONE, "length", "length", 1, 0),
    "calls enough, stop string in the call": (CALL.format("one ###"), ONE | STOP, "stop", "stop", 1, 0),
    "required": (WHOLE, {"tool_choice": "required"}, "stop", "tool_calls", 1, 1),
    "named": (WHOLE, {"tool_choice": {"type": "function", "function": {"name": "put"}}}, "stop", "tool_calls", 1, 1),
    "none": (WHOLE, {"tool_choice": "none"}, "stop", "stop", 0, 0),
}


@pytest.mark.parametrize("case", TABLE)
@pytest.mark.parametrize("stream", [False, True])
def test_the_table_holds(gateway: LiveGateway, case: str, stream: bool) -> None:
    said, fields, ended, reason, num_calls, num_whole = TABLE[case]
    gateway.engine.script = lambda _: [Say(ids_of(said, ends=ended == "stop"), 0, ended)]
    answer = gateway.chat(stream=stream, tools=TOOLS, **fields)
    arguments = dict[int, str]()
    if stream:
        frames = read_sse(answer.content)
        reasons = frames.finish_reasons()
        for part in frames.of_choice(0):
            for call in part["delta"].get("tool_calls", []):
                arguments[call["index"]] = arguments.get(call["index"], "") + call["function"]["arguments"]
    else:
        [choice] = answer.json()["choices"]
        reasons = [choice["finish_reason"]]
        for place, call in enumerate(choice["message"].get("tool_calls", [])):
            arguments[place] = call["function"]["arguments"]
    assert reasons == [reason]
    assert list(arguments) == list(range(num_calls))
    assert [text.endswith("}") for text in arguments.values()] == [place < num_whole for place in range(num_calls)]

"""Formats: a stream and a whole answer show the same events, byte for byte where it matters."""

import json
from typing import Any

import pytest

from parsers.events import Event, ReasoningDelta, TextDelta, ToolArgs, ToolEnd, ToolStart
from server.deltas import ChoiceDelta, Done, TokenLogprob, Usage
from server.formats.chat import ChatBody, ChatStream
from server.formats.completions import CompletionBody, CompletionStream, PromptShown
from server.formats.json_pieces import Head, Wishes
from tests.support.sse import SseStream, read_sse

HEAD = Head("chatcmpl-0123456789abcdef0123456789abcdef", 1_700_000_000, "tiny")
DONE = Done(Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=4, reasoning_tokens=2), queue_s=0.0)
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 5,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


def token(text: str, part: Any = "text", logprob: float | None = -0.5, **rest: Any) -> TokenLogprob:
    return TokenLogprob(len(text), text, text.encode(), logprob, part=part, rank=1, **rest)


def delta(*events: Event, index: int = 0, **rest: Any) -> ChoiceDelta:
    return ChoiceDelta(index, events, **{"token_ids": (1,) * len(events)} | rest)


def chat_stream(deltas: list[ChoiceDelta], wishes: Wishes | None = None) -> SseStream:
    stream = ChatStream(HEAD, wishes or Wishes())
    return read_sse(b"".join(stream.delta(one) for one in deltas) + stream.closing(DONE))


def chat_body(deltas: list[ChoiceDelta], n: int = 1, wishes: Wishes | None = None) -> dict[str, Any]:
    body = ChatBody(HEAD, wishes or Wishes(), n)
    for one in deltas:
        body.add(one)
    return json.loads(body.render(DONE))


ANSWERS: dict[str, list[ChoiceDelta]] = {
    "text": [delta(TextDelta("Hé")), delta(TextDelta('"\n')), delta(TextDelta("😀")), delta(finish_reason="stop")],
    "thinking": [
        delta(ReasoningDelta("Hm")),
        delta(ReasoningDelta("!"), TextDelta("So")),
        delta(finish_reason="length"),
    ],
    "call": [
        delta(TextDelta("Look:"), ToolStart(0, "weather")),
        delta(ToolArgs(0, '{"city": ')),
        delta(ToolArgs(0, '"Oslo"}'), ToolEnd(0), ToolStart(1, "time"), ToolArgs(1, "{}"), ToolEnd(1)),
        delta(finish_reason="tool_calls"),
    ],
    "call alone": [delta(ToolStart(0, "f"), ToolArgs(0, "{}"), ToolEnd(0), finish_reason="tool_calls")],
    "nothing": [delta(finish_reason="stop")],
    "all at once": [delta(ReasoningDelta("R"), TextDelta("T"), finish_reason="stop")],
}


def joined(stream: SseStream, index: int = 0) -> dict[str, Any]:
    """A stream's choice as the client libraries put it together."""
    message: dict[str, Any] = {"content": stream.text(index)}
    if reasoning := stream.text(index, "reasoning_content"):
        message |= {"reasoning_content": reasoning, "reasoning": stream.text(index, "reasoning")}
    calls: list[dict[str, Any]] = []
    for choice in stream.of_choice(index):
        for call in choice["delta"].get("tool_calls", []):
            if call["index"] == len(calls):
                calls.append({"id": call["id"], "type": call["type"], "function": {"name": "", "arguments": ""}})
            for key, text in call["function"].items():
                calls[call["index"]]["function"][key] += text
    if calls:
        message |= {"tool_calls": calls, "content": message["content"] or None}
    return message


@pytest.mark.parametrize("name", ANSWERS)
def test_a_chat_stream_joins_to_the_whole_answer(name: str) -> None:
    stream, body = chat_stream(ANSWERS[name]), chat_body(ANSWERS[name])
    choice = body["choices"][0]
    assert joined(stream) | {"role": "assistant", "refusal": None} == choice["message"]
    assert stream.finish_reasons() == [choice["finish_reason"]]


@pytest.mark.parametrize("name", ANSWERS)
def test_a_chat_stream_begins_with_the_role_and_names_each_call_once(name: str) -> None:
    chunks = chat_stream(ANSWERS[name]).chunks
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])
    calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    named = [call["index"] for call in calls if "name" in call["function"]]
    assert named == list(range(len(named)))
    assert [call["index"] for call in calls if "id" in call] == named
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk["id"] for chunk in chunks} == {HEAD.id}


def test_reasoning_stands_under_both_names() -> None:
    message = chat_body(ANSWERS["thinking"])["choices"][0]["message"]
    assert message["reasoning_content"] == message["reasoning"] == "Hm!"


def test_a_delta_with_nothing_to_tell_sends_no_frame() -> None:
    assert ChatStream(HEAD, Wishes()).delta(ChoiceDelta(0, (), (1,))) == b""
    assert ChatStream(HEAD, Wishes()).delta(delta(TextDelta(""))) == b""
    assert CompletionStream(HEAD, Wishes(), [PromptShown()]).delta(ChoiceDelta(0, (), (1,))) == b""


def test_usage_comes_only_when_asked_for_alone_and_last() -> None:
    assert all("usage" not in chunk for chunk in chat_stream(ANSWERS["text"]).chunks)
    *before, last = chat_stream(ANSWERS["text"], Wishes(include_usage=True)).chunks
    assert (last["choices"], last["usage"]) == ([], USAGE)
    assert all(chunk["usage"] is None for chunk in before)
    assert chat_body(ANSWERS["text"])["usage"] == USAGE


def test_choices_of_a_chat_are_told_apart() -> None:
    deltas = [
        delta(TextDelta("a"), index=1),
        delta(TextDelta("b"), index=0),
        delta(TextDelta("c"), index=1, finish_reason="stop"),
        delta(index=0, finish_reason="length"),
    ]
    stream, body = chat_stream(deltas), chat_body(deltas, n=2)
    assert [choice["message"]["content"] for choice in body["choices"]] == ["b", "ac"]
    assert [stream.text(index) for index in (0, 1)] == ["b", "ac"]
    assert [stream.finish_reasons(index) for index in (0, 1)] == [["length"], ["stop"]]


LOGPROBS = [
    delta(ReasoningDelta("R"), logprobs=(token("R", "reasoning"),)),
    delta(TextDelta("é"), logprobs=(TokenLogprob(5, "�", b"\xc3", -0.1), TokenLogprob(6, "�", b"\xa9", float("-inf")))),
    delta(TextDelta("x"), logprobs=(token("x", top=(token("x"), token("y", logprob=-2.0))),)),
    delta(token_ids=(9,), logprobs=(token("<|end|>", "hidden"),), finish_reason="stop"),
]


def test_the_bytes_of_log_probabilities_join_to_the_text() -> None:
    wishes = Wishes(logprobs=True)
    told = chat_body(LOGPROBS, wishes=wishes)["choices"][0]["logprobs"]["content"]
    assert bytes(byte for one in told for byte in one["bytes"]).decode() == "éx"
    assert [one["logprob"] for one in told] == [-0.1, -9999.0, -0.5]
    assert [one["token"] for one in told[2]["top_logprobs"]] == ["x", "y"]
    streamed = [
        one
        for choice in chat_stream(LOGPROBS, wishes).of_choice(0)
        if choice["logprobs"]
        for one in choice["logprobs"]["content"]
    ]
    assert streamed == told


def test_log_probabilities_and_token_ids_are_shown_only_when_asked_for() -> None:
    choice = chat_body(LOGPROBS)["choices"][0]
    assert choice["logprobs"] is None
    assert "token_ids" not in choice
    assert all("token_ids" not in one and one["logprobs"] is None for one in chat_stream(LOGPROBS).of_choice(0))


def test_token_ids_of_a_stream_join_to_those_of_the_whole_answer() -> None:
    wishes = Wishes(token_ids=True)
    whole = chat_body(LOGPROBS, wishes=wishes)["choices"][0]["token_ids"]
    streamed = [number for one in chat_stream(LOGPROBS, wishes).of_choice(0) for number in one.get("token_ids", [])]
    assert whole == streamed == [1, 1, 1, 9]


def test_prompt_ids_come_once_when_asked_for() -> None:
    stream = ChatStream(HEAD, Wishes(token_ids=True), prompt_ids=[3, 4])
    frames = read_sse(b"".join(stream.delta(one) for one in ANSWERS["text"]) + stream.closing(DONE)).chunks
    assert [chunk.get("prompt_token_ids") for chunk in frames] == [[3, 4]] + [None] * (len(frames) - 1)
    body = ChatBody(HEAD, Wishes(), 1, prompt_ids=[3, 4])
    body.add(ANSWERS["text"][-1])
    assert json.loads(body.render(DONE))["prompt_token_ids"] == [3, 4]


def test_log_probabilities_of_a_prompt_are_keyed_by_token_id() -> None:
    prompt = (token("ab", logprob=None), token("c", top=(TokenLogprob(8, "d", b"d", -0.25), token("c"))))
    body = ChatBody(HEAD, Wishes(), 1)
    body.add(delta(TextDelta("x"), prompt_logprobs=prompt, finish_reason="stop"))
    assert json.loads(body.render(DONE))["prompt_logprobs"] == [
        None,
        {
            "1": {"logprob": -0.5, "rank": 2, "decoded_token": "c"},
            "8": {"logprob": -0.25, "rank": 1, "decoded_token": "d"},
        },
    ]


def completion(
    deltas: list[ChoiceDelta], prompts: list[PromptShown], wishes: Wishes, n: int = 1
) -> tuple[Any, SseStream]:
    body, stream = CompletionBody(HEAD, wishes, prompts, n), CompletionStream(HEAD, wishes, prompts)
    frames = b""
    for one in deltas:
        body.add(one)
        frames += stream.delta(one)
    return json.loads(body.render(DONE)), read_sse(frames + stream.closing(DONE))


def test_a_completion_stream_joins_to_the_whole_answer() -> None:
    deltas = [
        delta(TextDelta(" up"), index=1),
        delta(TextDelta("<think>"), index=0),
        delta(TextDelta("on"), index=0, finish_reason="length"),
        delta(index=1, finish_reason="stop"),
    ]
    body, stream = completion(deltas, [PromptShown("Once"), PromptShown("Echo")], Wishes())
    assert [choice["text"] for choice in body["choices"]] == ["Once<think>on", "Echo up"]
    for index, choice in enumerate(body["choices"]):
        assert "".join(one["text"] for one in stream.of_choice(index)) == choice["text"]
        assert stream.finish_reasons(index) == [choice["finish_reason"]]
    assert body["object"] == "text_completion"


def test_legacy_log_probabilities_give_the_place_of_each_token_in_the_text() -> None:
    deltas = [
        delta(TextDelta("ab"), logprobs=(token("ab", top=(token("d"), token("c"))),)),
        delta(TextDelta("c"), logprobs=(token("c"), token("<|end|>", "hidden")), finish_reason="stop"),
    ]
    body, stream = completion(deltas, [PromptShown()], Wishes(logprobs=True))
    told = body["choices"][0]["logprobs"]
    assert told == {
        "tokens": ["ab", "c"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"d": -0.5, "c": -0.5, "ab": -0.5}, None],
        "text_offset": [0, 2],
    }
    streamed = [one["logprobs"] for one in stream.of_choice(0) if one["logprobs"]]
    assert {key: [item for one in streamed for item in one[key]] for key in told} == told


def test_an_echoed_prompt_brings_its_log_probabilities_for_every_choice() -> None:
    prompt = (token("On", logprob=None), token("ce"))
    deltas = [
        delta(TextDelta("x"), index=0, logprobs=(token("x"),), prompt_logprobs=prompt, finish_reason="stop"),
        delta(TextDelta("y"), index=1, logprobs=(token("y"),), finish_reason="stop"),
    ]
    body, _ = completion(deltas, [PromptShown("Once")] * 2, Wishes(logprobs=True), n=2)
    for choice, last in zip(body["choices"], "xy", strict=True):
        assert choice["logprobs"]["tokens"] == ["On", "ce", last]
        assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
        assert choice["logprobs"]["text_offset"] == [0, 2, 4]
        assert choice["text"] == "Once" + last

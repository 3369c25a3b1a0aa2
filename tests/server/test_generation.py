"""Generation over the scripted engine: text, stop strings, thinking, log-probabilities, ends, failures and aborts."""

import asyncio
import json
import random
from collections.abc import Sequence
from functools import cache, partial
from itertools import cycle
from typing import Any

import pytest

from engine.wire.messages import Sampling, Submit, TokenLogprobs
from parsers.events import Event, ReasoningDelta, TextDelta
from server.deltas import ChoiceDelta, Done, TokenLogprob
from server.errors import RequestError
from server.generation import Generation
from server.prompt import ValidRequest
from server.tokenizer import Tokenizer
from tests.arch.sources import ROOT
from tests.support.fake_engine import Die, Fail, FakeEngine, Pause, Say, saying


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(ROOT / "models/dots3-note-tiny")


END = tokenizer().token_id("<|endofassistant|>")
THINK, END_THINK = tokenizer().token_id("<think>"), tokenizer().token_id("</think>")


def ids(text: str) -> list[int]:
    return tokenizer().encode_text(text)


def single_bytes(text: str) -> list[int]:
    return [ids_of_byte()[byte] for byte in text.encode()]


@cache
def ids_of_byte() -> dict[int, int]:
    return {raw[0]: number for number, raw in tokenizer().token_bytes().items() if len(raw) == 1}


def request(**changes: Any) -> ValidRequest:
    sampling = {"max_tokens": 1000, "stop_token_ids": (END,)} | changes.pop("sampling", {})
    fields: dict[str, Any] = {
        "request_id": "r1",
        "kind": "chat",
        "prompt_ids": (1, 2, 3),
        "sampling": Sampling(**sampling),
    }
    return ValidRequest(**(fields | changes))


def run(engine: FakeEngine, asked: ValidRequest) -> list[ChoiceDelta | Done]:
    async def collect() -> list[ChoiceDelta | Done]:
        return [delta async for delta in Generation(engine, tokenizer())(asked)]

    return asyncio.run(collect())


def events_of(deltas: Sequence[ChoiceDelta | Done], index: int = 0) -> list[Event]:
    return [
        event for delta in deltas if isinstance(delta, ChoiceDelta) and delta.index == index for event in delta.events
    ]


def answer(deltas: Sequence[ChoiceDelta | Done], index: int = 0) -> str:
    return "".join(event.text for event in events_of(deltas, index) if isinstance(event, TextDelta))


def thinking(deltas: Sequence[ChoiceDelta | Done], index: int = 0) -> str:
    return "".join(event.text for event in events_of(deltas, index) if isinstance(event, ReasoningDelta))


def reasons(deltas: Sequence[ChoiceDelta | Done], index: int = 0) -> list[str]:
    return [
        delta.finish_reason
        for delta in deltas
        if isinstance(delta, ChoiceDelta) and delta.index == index and delta.finish_reason
    ]


def done(deltas: Sequence[ChoiceDelta | Done]) -> Done:
    last = deltas[-1]
    assert isinstance(last, Done)
    assert sum(isinstance(delta, Done) for delta in deltas) == 1
    return last


def logprobs(deltas: Sequence[ChoiceDelta | Done]) -> list[TokenLogprob]:
    return [entry for delta in deltas if isinstance(delta, ChoiceDelta) for entry in delta.logprobs or ()]


def test_text_usage_and_finish_reason_come_from_the_engine() -> None:
    engine = FakeEngine(saying([*ids("Hello 🙂 world"), END]), cached_tokens=2)
    deltas = run(engine, request())
    assert answer(deltas) == "Hello 🙂 world"
    assert reasons(deltas) == ["stop"]
    usage = done(deltas).usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.reasoning_tokens) == (3, 2, 0)
    assert usage.completion_tokens == len(ids("Hello 🙂 world")) + 1
    assert engine.running == 0
    assert engine.aborted == []


@pytest.mark.parametrize(("stop", "shown"), [(">", "Hi"), ("function", "Hi"), ("i<dots", "H"), ("<", "Hi")])
def test_a_stop_string_within_a_tag_leaves_nothing_of_the_tag(stop: str, shown: str) -> None:
    said = [*ids("Hi"), tokenizer().token_id("<dots_function_call>"), *ids('\n<invoke name="f">'), END]
    deltas = run(FakeEngine(saying(said)), request(stop=(stop,)))
    assert (answer(deltas), reasons(deltas)) == (shown, ["stop"])
    script = [Say(said, 0, "stop", scores(len(said)))]
    deltas = run(FakeEngine(lambda _: script), request(stop=(stop,), sampling={"logprobs": 2}))
    assert (answer(deltas), reasons(deltas)) == (shown, ["stop"])
    assert b"".join(entry.raw for entry in logprobs(deltas) if entry.part == "text") == shown.encode()


def test_a_stop_string_within_the_tag_that_ends_thinking_leaves_nothing_of_it() -> None:
    said = [THINK, *ids("\nTwo"), END_THINK, *ids("Four."), END]
    deltas = run(FakeEngine(saying(said)), request(stop=("think>",)))
    assert (thinking(deltas), answer(deltas), reasons(deltas)) == ("", "", ["stop"])
    deltas = run(FakeEngine(saying(said[1:])), request(stop=("think>",), begin="opened"))
    assert (thinking(deltas), answer(deltas), reasons(deltas)) == ("Two", "", ["stop"])


class Basin:
    """A sink that is closed now and then, and what came through it and beside it, in order."""

    def __init__(self, open_times: Sequence[bool]) -> None:
        self._open_times = cycle(open_times)
        self.deltas: list[ChoiceDelta | Done] = []
        self.taken = 0

    def is_open(self) -> bool:
        return next(self._open_times)

    def take(self, delta: ChoiceDelta) -> None:
        self.deltas.append(delta)
        self.taken += 1

    def run(self, engine: FakeEngine, asked: ValidRequest) -> None:
        async def collect() -> None:
            async for delta in Generation(engine, tokenizer())(asked, self):
                self.deltas.append(delta)

        asyncio.run(collect())


@pytest.mark.parametrize("open_times", [[True], [True, False], [False]])
@pytest.mark.parametrize("n", [1, 3])
def test_what_a_sink_takes_and_what_is_yielded_is_together_what_is_yielded_without(
    open_times: list[bool], n: int
) -> None:
    said = [THINK, *ids("\nTwo.\n"), END_THINK, *single_bytes("\n\nFour 🙂 "), *ids("and five."), END]
    alone = run(FakeEngine(saying(said)), request(n=n))
    basin = Basin(open_times)
    basin.run(FakeEngine(saying(said)), request(n=n))
    for index in range(n):
        assert thinking(basin.deltas, index) == thinking(alone, index) == "Two."
        assert answer(basin.deltas, index) == answer(alone, index) == "Four 🙂 and five."
        assert reasons(basin.deltas, index) == ["stop"]
    assert done(basin.deltas) == done(alone)
    assert (basin.taken > 0) == any(open_times)


@pytest.mark.parametrize(
    "changes", [{"stop": ("z",)}, {"max_calls": 1}, {"sampling": {"logprobs": 0}}, {"sampling": {"max_tokens": 0}}]
)
def test_a_sink_takes_nothing_of_choices_that_more_than_the_engine_may_end_or_hold_back(
    changes: dict[str, Any],
) -> None:
    basin = Basin([True])
    basin.run(FakeEngine(saying([*ids("Hello"), END])), request(**changes))
    assert basin.taken == 0
    assert answer(basin.deltas) == ("" if changes.get("sampling") == {"max_tokens": 0} else "Hello")


def test_the_token_limit_ends_a_choice_with_length_and_flushes_half_a_character() -> None:
    deltas = run(FakeEngine(saying(single_bytes("ab🙂"))), request(sampling={"max_tokens": 4}))
    assert answer(deltas) == "ab\ufffd"
    assert reasons(deltas) == ["length"]


def test_thinking_is_set_apart_and_its_tokens_are_counted() -> None:
    said = [THINK, *ids("\nTwo and two.\n"), END_THINK, *ids("\n\nFour."), END]
    deltas = run(FakeEngine(saying(said)), request())
    assert thinking(deltas) == "Two and two."
    assert answer(deltas) == "Four."
    assert done(deltas).usage.reasoning_tokens == 2 + len(ids("\nTwo and two.\n"))


def test_thinking_that_is_only_spelled_is_answer() -> None:
    said = [*ids("<think>a</think>b"), END]
    assert THINK not in said
    deltas = run(FakeEngine(saying(said)), request())
    assert (thinking(deltas), answer(deltas)) == ("", "<think>a</think>b")
    assert done(deltas).usage.reasoning_tokens == 0


def test_a_stray_tag_behind_half_a_character_is_still_a_tag() -> None:
    said = [THINK, *single_bytes("a🙂")[:3], END_THINK, *ids("b"), END]
    deltas = run(FakeEngine(saying(said)), request(sampling={"logprobs": 0}))
    assert (thinking(deltas), answer(deltas)) == ("a\ufffd", "b")


def test_a_prompt_that_opened_thinking_is_known_to_the_parser() -> None:
    deltas = run(FakeEngine(saying([*ids("so\n"), END_THINK, *ids("yes"), END])), request(begin="opened"))
    assert (thinking(deltas), answer(deltas)) == ("so", "yes")


def test_completions_keep_thinking_as_text() -> None:
    deltas = run(FakeEngine(saying([THINK, *ids("a"), END_THINK, *ids("b"), END])), request(kind="completion"))
    assert answer(deltas) == "<think>a</think>b"
    assert thinking(deltas) == ""


def test_control_tokens_are_left_out_unless_asked_for() -> None:
    said = [*ids("a"), tokenizer().token_id("<|user|>"), *ids("b"), END]
    assert answer(run(FakeEngine(saying(said)), request())) == "ab"
    assert answer(run(FakeEngine(saying(said)), request(skip_special_tokens=False))) == "a<|user|>b"
    shown = run(FakeEngine(saying(said)), request(skip_special_tokens=False, include_stop=True))
    assert answer(shown) == "a<|user|>b<|endofassistant|>"


def test_an_ordinary_stop_token_is_in_the_text_only_when_asked_for() -> None:
    (dot,) = ids(".")
    sampling = {"stop_token_ids": (END, dot)}
    assert answer(run(FakeEngine(saying([*ids("One"), dot])), request(sampling=sampling))) == "One"
    assert answer(run(FakeEngine(saying([*ids("One"), dot])), request(sampling=sampling, include_stop=True))) == "One."


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    ("text", "stop", "plain", "included"),
    [
        ("xaaab and more", "aab", "xa", "xaaab"),
        ("one\n\nHuman: two", "\n\nHuman:", "one", "one\n\nHuman:"),
        ("日本語です。次", "です。", "日本語", "日本語です。"),
        ("🙂🙂🙃", "🙃", "🙂🙂", "🙂🙂🙃"),
    ],
)
def test_a_stop_string_over_tokens_cuts_exactly_and_tells_the_engine(
    text: str, stop: str, plain: str, included: str, together: bool
) -> None:
    for include, expected in ((False, plain), (True, included)):
        engine = FakeEngine(lambda _: [Say(single_bytes(text), together=together), Pause(30)])
        deltas = run(engine, request(stop=(stop,), include_stop=include, sampling={"logprobs": 0}))
        assert answer(deltas) == expected
        assert reasons(deltas) == ["stop"]
        through = len(included.encode())
        assert engine.stopped == [("r1", 0, through)]
        assert done(deltas).usage.completion_tokens == through
        assert engine.running == 0


def test_a_held_half_match_is_flushed_at_the_end() -> None:
    deltas = run(FakeEngine(saying([*single_bytes("go STO"), END])), request(stop=("STOP",)))
    assert answer(deltas) == "go STO"


def test_nothing_of_a_stop_string_is_leaked_before_it_is_complete() -> None:
    engine = FakeEngine(saying(single_bytes("go STOP")))
    seen = ""
    for delta in run(engine, request(stop=("STOP",))):
        if isinstance(delta, ChoiceDelta):
            seen += "".join(event.text for event in delta.events if isinstance(event, TextDelta))
            assert "go ".startswith(seen)
    assert seen == "go "


def test_stop_strings_match_thinking_too() -> None:
    said = [THINK, *ids("\nI must halt now"), END]
    deltas = run(FakeEngine(saying(said)), request(stop=(" halt",)))
    assert (thinking(deltas), answer(deltas), reasons(deltas)) == ("I must", "", ["stop"])
    across = run(FakeEngine(saying([THINK, *ids("a"), END_THINK, *ids("b"), END])), request(stop=("</think>",)))
    assert (thinking(across), answer(across)) == ("a", "")


def test_stop_strings_count_only_behind_the_least_number_of_tokens() -> None:
    said = [*single_bytes("a.b.c."), END]
    deltas = run(FakeEngine(saying(said)), request(stop=(".",), sampling={"min_tokens": 3}))
    assert answer(deltas) == "a.b"


def test_each_choice_is_told_apart_and_the_prompt_counts_once() -> None:
    texts = ["first 🙂", "second one", "third"]
    engine = FakeEngine(
        lambda asked: (
            [
                Say([token], index)
                for place in range(20)
                for index in range(asked.n)
                for token in said[index][place : place + 1]
            ]
            + [Say([END], index, "stop") for index in range(asked.n)]
        )
    )
    said = [ids(text) for text in texts]
    deltas = run(engine, request(n=3))
    assert [answer(deltas, index) for index in range(3)] == texts
    assert [reasons(deltas, index) for index in range(3)] == [["stop"]] * 3
    assert done(deltas).usage.prompt_tokens == 3


def test_a_stop_string_ends_one_choice_and_not_the_others() -> None:
    engine = FakeEngine(lambda _: [Say(ids("go STOP"), 0), Say([*ids("go STO"), END], 1, "stop")])
    deltas = run(engine, request(n=2, stop=("STOP",)))
    assert [answer(deltas, index) for index in range(2)] == ["go ", "go STO"]
    assert engine.stopped == [("r1", 0, len(ids("go STOP")))]


def scripted(step: Say, _: Submit) -> list[Say]:
    return [step]


def scores(count: int) -> list[TokenLogprobs]:
    return [TokenLogprobs(-0.5, 1, (5, 6), (-0.5, float("-inf"))) for _ in range(count)]


def test_bytes_of_log_probabilities_join_to_the_answer() -> None:
    said = [THINK, *ids("\nhm\n"), END_THINK, *ids("\n\n"), *single_bytes("né 🙂!"), END]
    engine = FakeEngine(lambda _: [Say(said, 0, "stop", scores(len(said)))])
    entries = logprobs(run(engine, request(sampling={"logprobs": 2})))
    assert [entry.token_id for entry in entries] == said
    assert b"".join(entry.raw for entry in entries if entry.part == "text").decode() == "né 🙂!"
    reasoned = b"".join(entry.raw for entry in entries if entry.part == "reasoning")
    assert reasoned == b"<think>\nhm\n</think>"
    assert entries[-1].part == "hidden"
    assert entries[0].top[0].token_id == 5
    assert json.loads(json.dumps([alternative.logprob for alternative in entries[0].top])) == [-0.5, -9999.0]


@pytest.mark.parametrize("stop", [("🙂!",), ("!x",), ("é 🙂",), ("nothing",), ("<think>never",)])
@pytest.mark.parametrize("together", [False, True])
def test_bytes_of_log_probabilities_join_to_the_answer_that_a_stop_string_cut(
    stop: tuple[str, ...], together: bool
) -> None:
    for said in (single_bytes("né 🙂!x"), ids("né 🙂!x")):
        engine = FakeEngine(partial(scripted, Say(said, 0, "length", scores(len(said)), together=together)))
        deltas = run(engine, request(stop=stop, sampling={"logprobs": 0}))
        assert b"".join(entry.raw for entry in logprobs(deltas)).decode() == answer(deltas)


def test_bytes_of_log_probabilities_join_to_the_answer_even_where_tokens_are_no_text() -> None:
    generator = random.Random(3)
    for length in range(1, 40):
        said = generator.choices([*ids_of_byte().values(), *ids("🙂 é x")], k=length)
        engine = FakeEngine(partial(scripted, Say(said, 0, "length", scores(length))))
        deltas = run(engine, request(stop=("\ufffd\ufffdx",), sampling={"logprobs": 0}))
        assert b"".join(entry.raw for entry in logprobs(deltas)).decode() == answer(deltas)


def test_log_probabilities_come_with_the_text_they_belong_to() -> None:
    said = single_bytes("ab🙂STx")
    engine = FakeEngine(lambda _: [Say(said, 0, "length", scores(len(said)))])
    for delta in run(engine, request(stop=("STOP",), sampling={"logprobs": 0})):
        if isinstance(delta, ChoiceDelta):
            text = "".join(event.text for event in delta.events if isinstance(event, TextDelta))
            assert b"".join(entry.raw for entry in delta.logprobs or ()).decode() == text


def test_newlines_and_answer_in_one_token_are_taken_apart() -> None:
    raw = {content: number for number, content in tokenizer().token_bytes().items()}
    newline_token = next(raw[b"\n" * count] for count in (4, 3) if b"\n" * count in raw)
    said = [THINK, END_THINK, newline_token, *ids("x"), END]
    engine = FakeEngine(lambda _: [Say(said, 0, "stop", scores(len(said)))])
    deltas = run(engine, request(sampling={"logprobs": 0}))
    shown = b"".join(entry.raw for entry in logprobs(deltas) if entry.part == "text").decode()
    assert shown == answer(deltas)
    assert shown.startswith("\n")


def test_prompt_log_probabilities_name_every_prompt_token() -> None:
    prompt = tuple(ids("Hi there"))
    known = [None, *scores(len(prompt) - 1)]
    engine = FakeEngine(lambda _: [Say(ids("ok"), 0, "length", None, known)])
    deltas = run(engine, request(prompt_ids=prompt, sampling={"prompt_logprobs": 2}))
    (found,) = [delta.prompt_logprobs for delta in deltas if isinstance(delta, ChoiceDelta) and delta.prompt_logprobs]
    assert b"".join(entry.raw for entry in found) == b"Hi there"
    assert [entry.logprob for entry in found] == [None] + [-0.5] * (len(prompt) - 1)


def test_no_token_wanted_means_none_given() -> None:
    engine = FakeEngine(saying(ids("hello")))
    deltas = run(engine, request(kind="completion", n=2, sampling={"max_tokens": 0}))
    assert engine.submitted[0].sampling.max_tokens == 1
    assert [answer(deltas, index) for index in range(2)] == ["", ""]
    assert [reasons(deltas, index) for index in range(2)] == [["length"], ["length"]]
    assert done(deltas).usage.completion_tokens == 0
    assert all(delta.token_ids == () for delta in deltas if isinstance(delta, ChoiceDelta))


def test_token_ids_are_all_that_were_generated() -> None:
    said = [THINK, *ids("a"), END_THINK, *ids("b"), END]
    deltas = run(FakeEngine(saying(said)), request())
    assert [token for delta in deltas if isinstance(delta, ChoiceDelta) for token in delta.token_ids] == said


@pytest.mark.parametrize("before", [[], [Say([1, 2])]])
@pytest.mark.parametrize(
    ("step", "code", "status"),
    [
        (Fail("internal_error"), "internal_error", 500),
        (Die(), "engine_dead", 503),
        (Fail("nonsense"), "internal_error", 500),
    ],
)
def test_a_failure_is_an_error_with_its_code(before: list[Say], step: Fail | Die, code: str, status: int) -> None:
    engine = FakeEngine(lambda _: [*before, step])
    with pytest.raises(RequestError) as raised:
        run(engine, request())
    assert (raised.value.code, raised.value.status) == (code, status)
    assert (raised.value.retry_after_s is not None) == (status == 503)
    assert engine.running == 0


def test_a_dead_engine_refuses_before_the_first_delta() -> None:
    with pytest.raises(RequestError) as raised:
        run(FakeEngine(saying([]), state="dead"), request())
    assert raised.value.status == 503
    assert raised.value.retry_after_s is not None


def test_leaving_early_aborts_once() -> None:
    engine = FakeEngine(lambda _: [Say(ids("some text that goes on")), Pause(60)])

    async def leave() -> None:
        stream = Generation(engine, tokenizer())(request())
        async for _ in stream:
            break
        await stream.aclose()
        await stream.aclose()

    asyncio.run(leave())
    assert engine.aborted == ["r1"]
    assert engine.running == 0


def test_a_cancelled_task_aborts_while_it_waits() -> None:
    engine = FakeEngine(lambda _: [Pause(60)])

    async def cancel() -> None:
        async def consume() -> None:
            async for _ in Generation(engine, tokenizer())(request()):
                pass

        task = asyncio.create_task(consume())
        await asyncio.sleep(0.01)
        assert engine.running == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancel())
    assert engine.aborted == ["r1"]


def test_a_stream_that_never_started_was_never_submitted() -> None:
    engine = FakeEngine(saying([]))

    async def drop() -> None:
        await Generation(engine, tokenizer())(request()).aclose()

    asyncio.run(drop())
    assert engine.submitted == []


def test_an_unknown_parser_stops_the_start() -> None:
    with pytest.raises(ValueError, match="got 'hermes'"):
        Generation(FakeEngine(saying([])), tokenizer(), tool_call_parser="hermes")

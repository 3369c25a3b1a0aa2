"""The worker's whole engine on the bundled checkpoint with real judges. What the model says does not matter here."""

import json
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import jsonschema
import pytest
import torch

from engine.config.engine import EngineConfig
from engine.runtime.build import build
from engine.runtime.mailroom import Arrived, Letter, Stopping
from engine.wire.grammar import Choice, ContextFree, Function, Grammar, JsonObject, JsonSchema, Regex, Rule, ToolCalls
from engine.wire.messages import Abort, Failed, Finished, Message, Sampling, Submit, Tokens
from tests.support.grammar_walk import FOLDER, ids_of, stop_id, text_of, vocabulary

pytestmark = pytest.mark.e2e

PROMPT = tuple(ids_of("<|system|>You help.<|endofsystem|><|user|>What is the weather?<|endofuser|><|assistant|>"))
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = Function("weather", json.dumps(SCHEMA))
WAIT_S = 60.0
TIGHT_BYTES = 2_400_000  # room for one sequence of the longest length


@dataclass
class Seen:
    """What came for one request."""

    at: list[float] = field(default_factory=list)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    reasons: dict[int, str | None] = field(default_factory=dict)
    num_logprobs: int = 0
    end: Finished | Failed | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def text(self, index: int = 0) -> str:
        return text_of(self.tokens[index]).removesuffix("<|endofassistant|>")


class Worker:
    """A loop on its own thread."""

    def __init__(self, **settings: Any) -> None:
        torch.set_num_threads(1)
        self.inbox: queue.SimpleQueue[Letter] = queue.SimpleQueue()
        self.seen: dict[str, Seen] = {}
        built = build(FOLDER, EngineConfig.for_device("cpu", max_model_len=600, **settings), "test")
        self.loop = built.loop
        self._thread = threading.Thread(target=self.loop.run, args=(self,))
        self._thread.start()

    def post(self, peer: bytes, messages: Iterable[Message]) -> None:
        del peer
        for message in messages:
            assert isinstance(message, Tokens | Finished | Failed)
            seen = self.seen[message.request_id]
            seen.at.append(time.monotonic())
            if isinstance(message, Tokens):
                seen.tokens.setdefault(message.index, []).extend(message.token_ids)
                seen.reasons[message.index] = message.finish_reason
                seen.num_logprobs += len(message.logprobs or ())
            else:
                seen.end = message
                seen.over.set()

    def submit(self, request_id: str, rule: Rule | None, begins: Any = "now", n: int = 1, **fields: Any) -> Seen:
        sampling = Sampling(**{"max_tokens": 200, "stop_token_ids": (stop_id(),), **fields})
        grammar = None if rule is None else Grammar(rule, begins)
        seen = self.seen[request_id] = Seen()
        self.inbox.put(Arrived(b"g", Submit(request_id, PROMPT, sampling, n=n, grammar=grammar)))
        return seen

    def answer(self, request_id: str, rule: Rule | None, **fields: Any) -> Seen:
        seen = self.submit(request_id, rule, **fields)
        assert seen.over.wait(WAIT_S)
        return seen

    def stop(self) -> None:
        self.inbox.put(Stopping())
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    one = Worker()
    yield one
    one.stop()


def check_call(text: str) -> None:
    head, name, body = text.strip("\n").split("\n", 2)
    assert (head, name) == ("<dots_function_call>", '<invoke name="weather">')
    values = dict(part.split('">\n', 1) for part in body.split('<parameter name="')[1:])
    values = {key: value.split("\n</parameter>")[0] for key, value in values.items()}
    jsonschema.validate({"city": values["city"], "days": int(values["days"])}, SCHEMA)
    assert body.endswith("</invoke>\n</dots_function_call>")


def test_calls_of_every_choice_have_their_form_and_end_by_themselves(worker: Worker) -> None:
    calls = ToolCalls((WEATHER,), max_calls=1)
    seen = worker.answer("calls", calls, n=3, temperature=1.5, seed=3, logprobs=2)
    assert isinstance(seen.end, Finished)
    assert seen.reasons == dict.fromkeys(range(3), "stop")
    for index in range(3):
        check_call(seen.text(index))
        assert seen.tokens[index][-1] == vocabulary().control_id("</dots_function_call>")
    assert seen.num_logprobs == sum(map(len, seen.tokens.values())) == seen.end.completion_tokens


@pytest.mark.parametrize("begins", ["behind_thinking", "in_thinking"])
def test_thinking_comes_before_the_call(worker: Worker, begins: str) -> None:
    bias = {vocabulary().control_id("</think>"): 100.0}
    if begins == "behind_thinking":
        bias[vocabulary().control_id("<think>")] = 50.0
    seen = worker.answer(begins, ToolCalls((WEATHER,), max_calls=1), begins=begins, temperature=0.0, logit_bias=bias)
    thinking, call = seen.text().split("</think>")
    assert thinking == ("<think>" if begins == "behind_thinking" else "")
    check_call(call)


def test_no_answer_ends_within_the_thinking(worker: Worker) -> None:
    seen = worker.answer(
        "thinks", JsonObject(), begins="in_thinking", temperature=0.0, max_tokens=20, logit_bias={stop_id(): 100.0}
    )
    assert seen.reasons == {0: "length"}
    assert len(seen.tokens[0]) == 20


def test_answers_of_every_rule_have_its_form(worker: Worker) -> None:
    rules: dict[str, Rule] = {
        "schema": JsonSchema(json.dumps(SCHEMA)),
        "object": JsonObject(),
        "regex": Regex("[a-c]{3,5}"),
        "choice": Choice(("yes", "no")),
        "lark": ContextFree('start: "x" start | "y"'),
        "ebnf": ContextFree('root ::= "x" root | "y"'),
    }
    all_seen = {name: worker.submit(name, rule, temperature=1.0, seed=1) for name, rule in rules.items()}
    assert all(seen.over.wait(WAIT_S) for seen in all_seen.values())
    texts = {name: seen.text() for name, seen in all_seen.items()}
    jsonschema.validate(json.loads(texts["schema"]), SCHEMA)
    assert all_seen["object"].reasons == {0: "length"} or isinstance(json.loads(texts["object"]), dict)
    assert set(texts["regex"]) <= set("abc")
    assert 3 <= len(texts["regex"]) <= 5
    assert texts["choice"] in ("yes", "no")
    for name in ("lark", "ebnf"):
        assert texts[name].strip("x") == "y" or all_seen[name].reasons == {0: "length"}


def test_the_other_fields_work_beside_a_grammar(worker: Worker) -> None:
    digits = [ids_of(digit)[0] for digit in "0123456789"]  # each a token of its own
    fields: list[dict[str, Any]] = [
        {"logit_bias": {digits[7]: 100.0}},
        {"allowed_token_ids": (digits[7], stop_id())},
        {"bad_words_ids": tuple((digit,) for digit in digits if digit != digits[7])},
        {"logit_bias": {digits[7]: 50.0}, "presence_penalty": 0.1, "top_k": 1, "temperature": 2.0},
    ]
    for number, given in enumerate(fields):
        seen = worker.answer(f"field {number}", Regex("[0-9]{1,4}"), **{"temperature": 0.0, "min_tokens": 3, **given})
        assert set(seen.text()) == {"7"}
        assert len(seen.text()) >= 3


def test_where_no_token_is_left_the_answer_fails(worker: Worker) -> None:
    seen = worker.answer("banned", Choice(("yes",)), bad_words_ids=tuple((token,) for token in range(2900)))
    reason = "no token is left that both the grammar and the request's other fields allow"
    assert seen.end == Failed("banned", "invalid_value", reason)
    assert seen.tokens == {}


@pytest.mark.parametrize("begins", ["now", "in_thinking"])
def test_answers_are_the_same_when_they_were_preempted(begins: str) -> None:
    calls = ToolCalls((WEATHER,), min_calls=2, max_calls=3)

    def answers(**settings: Any) -> tuple[list[list[int]], int]:
        one = Worker(max_num_batched_tokens=64, enable_prefix_caching=False, **settings)
        try:
            bias = {vocabulary().control_id("</think>"): 8.0}
            fields = {"begins": begins, "temperature": 1.0, "logit_bias": bias, "max_tokens": 120}
            one.answer("first", calls, begins=begins, max_tokens=1)  # compiled: nobody waits too long for a judge
            all_seen = [one.submit(f"r{number}", calls, seed=number, **fields) for number in range(7)]
            assert all(seen.over.wait(WAIT_S) for seen in all_seen)
            return [seen.tokens[0] for seen in all_seen], one.loop.beat().preemptions
        finally:
            one.stop()

    roomy, none = answers()
    tight, some = answers(cache_bytes=TIGHT_BYTES)
    assert none == 0 < some
    assert tight == roomy


HOSTILE = {
    "slow": '{"type": "integer", "multipleOf": 62615533}',
    "wide": json.dumps({"enum": [f"value {number}" for number in range(50_000)]}),
    "long": json.dumps({"enum": ["x" * 1_200_000]}),
    "deep": '{"items": ' * 20_000 + "{}" + "}" * 20_000,
    "itself": '{"$ref": "#"}',
    "alternatives": json.dumps(
        {"allOf": [{"anyOf": [{"properties": {f"p{i}_{j}": {"type": "null"}}} for j in range(5)]} for i in range(12)]}
    ),
    "repeats": json.dumps({"type": "string", "pattern": "^((a{1,900}b?){1,900}c?){1,900}$"}),
    "counts": json.dumps({"type": "array", "minItems": 10**9, "maxItems": 2 * 10**9}),
    "ranges": json.dumps({"prefixItems": [{"type": "number", "minimum": 0.123456789, "maximum": 0.98}] * 9_000}),
}


def test_hostile_grammars_are_refused_in_time_while_others_get_their_tokens() -> None:
    one = Worker()
    try:
        one.answer("first", Choice(("a",)))  # judges are there
        for name, schema in HOSTILE.items():
            free = one.submit(f"free {name}", None, max_tokens=500, temperature=0.0, stop_token_ids=())
            while not free.at:
                time.sleep(0.01)
            began = time.monotonic()
            hostile = one.submit(name, JsonSchema(schema), max_tokens=30)
            assert hostile.over.wait(WAIT_S)
            ended = time.monotonic()
            one.inbox.put(Arrived(b"g", Abort(f"free {name}")))
            assert free.over.wait(WAIT_S)
            assert ended - began < 5 or hostile.tokens, f"{name} took {ended - began:.1f} s"
            assert isinstance(hostile.end, Finished) or not hostile.tokens
            between = [at for at in free.at if at <= ended]
            gaps = [later - sooner for sooner, later in pairwise(between)]
            assert max(gaps, default=0) < 2, f"{name} held the others up for {max(gaps):.2f} s"
    finally:
        one.stop()


def test_a_grammar_is_compiled_once(worker: Worker) -> None:
    rule = JsonSchema('{"type": "integer", "multipleOf": 62615533, "title": "once"}')
    times = []
    for number in range(2):
        began = time.monotonic()
        assert isinstance(worker.answer(f"cached {number}", rule).end, Failed)
        times.append(time.monotonic() - began)
    assert times[1] < 0.5 < times[0]


def test_a_flood_of_slow_grammars_is_refused_in_time_and_forgotten(worker: Worker) -> None:
    flood = {
        f"flood {number}": JsonSchema(f'{{"type": "integer", "multipleOf": 62615533, "title": "{number}"}}')
        for number in range(8)
    }
    worker.answer("before", Choice(("fine",)))
    began = time.monotonic()
    all_seen = [worker.submit(name, rule) for name, rule in flood.items()]
    ends = [seen.end for seen in all_seen if seen.over.wait(WAIT_S)]
    assert max(seen.at[-1] for seen in all_seen) - began < 5
    codes = [end.code for end in ends if isinstance(end, Failed)]
    assert len(codes) == len(flood)
    assert set(codes) == {"invalid_value", "queue_full"}
    assert isinstance(worker.answer("after", Choice(("fine",))).end, Finished)

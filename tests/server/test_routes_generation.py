"""Chat and completions through the whole gateway, before a scripted engine: answers, streams, and how they end."""

import json
import socket
import time
from collections.abc import Sequence
from typing import Any

import pytest

from server.routes import answer as answering
from tests.server.test_routes_http import assert_refused
from tests.support.fake_engine import Die, Fail, Pause, Say, Step
from tests.support.live_gateway import MODEL, LiveGateway, ids_of, live_gateway, says, wait_until
from tests.support.sse import read_sse

THOUGHT = "<think>\nHm, 你好\n</think>\n\nHé 😀!"


def test_thinking_is_set_apart_in_body_and_stream(gateway: LiveGateway) -> None:
    gateway.engine.script = says(THOUGHT)
    message = gateway.chat().json()["choices"][0]["message"]
    stream = read_sse(gateway.chat(stream=True).content)
    assert message["content"] == stream.text() == "Hé 😀!"
    assert message["reasoning_content"] == message["reasoning"] == stream.text(key="reasoning_content")
    assert "你好" in message["reasoning"]


def test_each_choice_of_a_stream_equals_that_of_the_body(gateway: LiveGateway) -> None:
    gateway.engine.script = lambda request: [Say(ids_of(f"Answer {index} 😀"), index) for index in range(request.n)]
    body = gateway.chat(n=4).json()
    stream = read_sse(gateway.chat(n=4, stream=True, stream_options={"include_usage": True}).content)
    for index, choice in enumerate(body["choices"]):
        assert choice["message"]["content"] == stream.text(index) == f"Answer {index} 😀"
        assert stream.finish_reasons(index) == [choice["finish_reason"]] == ["stop"]
    assert stream.chunks[-1]["usage"] == body["usage"]
    assert body["usage"]["prompt_tokens"] == len(gateway.engine.submitted[0].prompt_ids)


def test_the_engine_says_why_a_choice_ended(gateway: LiveGateway) -> None:
    answer = gateway.chat(max_tokens=2).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 2


def test_a_stop_string_ends_the_text_before_it(gateway: LiveGateway) -> None:
    gateway.engine.script = says("One two three")
    assert gateway.chat(stop=["two"]).json()["choices"][0]["message"]["content"] == "One "
    assert read_sse(gateway.chat(stop="two", stream=True).content).text() == "One "


def test_several_prompts_are_one_completion(gateway: LiveGateway) -> None:
    fields: dict[str, Any] = {"prompt": ["A", "B", "C"], "echo": True, "n": 2}
    body = gateway.complete(**fields).json()
    assert [choice["text"] for choice in body["choices"]] == [f"{one}Hello." for one in "AABBCC"]
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert body["usage"]["prompt_tokens"] == 3
    stream = read_sse(gateway.complete(**fields, stream=True, stream_options={"include_usage": True}).content)
    for index, choice in enumerate(body["choices"]):
        assert "".join(one["text"] for one in stream.of_choice(index)) == choice["text"]
    assert stream.chunks[-1]["usage"] == body["usage"]


def test_a_failure_in_one_of_several_prompts_ends_all(gateway: LiveGateway) -> None:
    bad = ids_of("B", ends=False)[0]
    gateway.engine.script = lambda request: (
        [Fail("engine_not_ready")] if request.prompt_ids[0] == bad else [Say(ids_of("A")), Pause(30)]
    )
    assert_refused(gateway.complete(prompt=["A", "B"]), 503, "engine_not_ready")
    wait_until(lambda: gateway.engine.running == 0)


def test_prompts_may_be_token_ids_and_ids_come_back(gateway: LiveGateway) -> None:
    prompt = ids_of("Once upon", ends=False)
    choice = gateway.complete(prompt=prompt, return_token_ids=True).json()["choices"][0]
    assert choice["prompt_token_ids"] == prompt
    assert choice["token_ids"] == ids_of("Hello.")
    assert gateway.engine.submitted[0].prompt_ids == tuple(prompt)


def test_a_prompt_can_be_echoed_without_a_token_behind(gateway: LiveGateway) -> None:
    body = gateway.complete(prompt="Once", echo=True, max_tokens=0).json()
    assert (body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == ("Once", "length")
    assert body["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("engine_not_ready", 503),
        ("queue_full", 429),
        ("request_quarantined", 500),
        ("invalid_value", 400),
        ("odd", 500),
    ],
)
def test_a_failure_before_the_first_token_has_its_status(
    gateway: LiveGateway, code: str, status: int, streams: bool
) -> None:
    gateway.engine.script = lambda _: [Fail(code, "as scripted")]
    answer = gateway.chat(stream=streams)
    error = assert_refused(answer, status, "internal_error" if code == "odd" else code)
    assert error["message"] == "as scripted"
    assert ("retry-after" in answer.headers) == (status in (429, 503))
    assert answer.headers.get("x-should-retry") == ("false" if code == "request_quarantined" else None)


def test_a_failure_after_the_first_token_is_one_error_frame_before_the_end(gateway: LiveGateway) -> None:
    gateway.engine.script = lambda _: [Say(ids_of("Hel", ends=False)), Pause(0.05), Die()]
    answer = gateway.chat(stream=True)
    assert answer.status_code == 200
    *chunks, last = read_sse(answer.content).chunks
    assert last["error"]["code"] == "engine_dead"
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert all("error" not in chunk and chunk["choices"][0]["finish_reason"] is None for chunk in chunks)


def test_a_failure_of_a_whole_answer_has_its_status_however_late(gateway: LiveGateway) -> None:
    gateway.engine.script = lambda _: [Say(ids_of("Hel", ends=False)), Pause(0.05), Fail("draining")]
    assert_refused(gateway.chat(), 503, "draining")


def scripts(gateway: LiveGateway, *by_try: Sequence[Step]) -> None:
    """What happens in the first try, in the second, and so on."""
    waiting = iter(by_try)
    gateway.engine.script = lambda _: next(waiting)


LOST = Fail("engine_dead", "the worker died")
SPOKEN = Say(ids_of("Hel", ends=False))


@pytest.mark.parametrize(("streams", "before"), [(False, []), (False, [SPOKEN]), (True, [])])
def test_a_request_whose_worker_died_before_a_byte_was_sent_is_tried_again(
    gateway: LiveGateway, streams: bool, before: list[Step]
) -> None:
    names = ("dots3_request_second_tries_total", 'dots3_requests_total{finish_reason="stop"}')
    counted = [gateway.count(name) for name in names]
    scripts(gateway, [*before, LOST], [Say(ids_of("Hello."))])
    answer = gateway.chat(stream=streams)
    text = read_sse(answer.content).text() if streams else answer.json()["choices"][0]["message"]["content"]
    assert (answer.status_code, text) == (200, "Hello.")
    assert [gateway.count(name) - before for name, before in zip(names, counted, strict=True)] == [1, 1]


def test_a_request_that_was_in_two_dying_workers_is_not_tried_again(gateway: LiveGateway) -> None:
    scripts(gateway, [SPOKEN, LOST], [LOST])
    answer = gateway.chat()
    assert_refused(answer, 500, "request_quarantined")
    assert answer.headers["x-should-retry"] == "false"
    assert len(gateway.engine.submitted) == 2
    gateway.engine.script = says("Hello.")
    assert gateway.chat().status_code == 200


def test_without_a_new_worker_a_lost_request_is_503_after_a_while(gateway: LiveGateway) -> None:
    gateway.engine.script = lambda _: [SPOKEN, Die()]
    began_s = time.monotonic()
    answer = gateway.chat()
    assert time.monotonic() - began_s > 0.3
    assert "no other took the request over within 0.3 s" in assert_refused(answer, 503, "engine_dead")["message"]
    assert int(answer.headers["retry-after"]) >= 1
    assert time.monotonic() - began_s < 10
    refused = assert_refused(gateway.chat(), 503, "engine_dead")
    assert "took the request over" not in refused["message"]  # it was in no worker: nothing to wait for


def test_a_prompt_longer_than_the_model_takes_is_refused_with_both_numbers(gateway: LiveGateway) -> None:
    error = assert_refused(gateway.complete(prompt=[5] * 9000), 400, "context_length_exceeded")
    assert "8192" in error["message"]
    assert "9000" in error["message"]


def test_a_token_outside_the_vocabulary_is_refused(gateway: LiveGateway) -> None:
    assert_refused(gateway.complete(prompt=[3072]), 400, "invalid_value")


def test_a_full_queue_is_429_and_leaves_health_alone() -> None:
    with live_gateway({"max_queue": 0}) as gateway:
        permits = [gateway.admission.enter() for _ in range(16)]
        answer = gateway.chat()
        assert_refused(answer, 429, "queue_full")
        assert int(answer.headers["retry-after"]) >= 1
        assert gateway.client.get("/health").status_code == 200
        permits[0].release()
        assert gateway.chat().status_code == 200


@pytest.mark.parametrize("fields", [{"n": 4}, {"prompt": ["A"] * 4}])
def test_the_queue_counts_sequences_and_not_requests(fields: dict[str, Any]) -> None:
    with live_gateway({"max_queue": 2}) as gateway:
        permits = [gateway.admission.enter() for _ in range(15)]
        assert_refused(gateway.complete(**fields), 429, "queue_full")
        permits[0].release()
        assert gateway.complete(**fields).status_code == 200
        wait_until(lambda: gateway.admission.num_sequences == 14)
        answer = gateway.complete(n=19)
        assert "≤ 18 sequences at once, and this request alone has 19" in answer.json()["error"]["message"]
        assert_refused(answer, 429, "request_exceeds_queue")
        assert answer.headers["x-should-retry"] == "false"
        assert gateway.admission.num_sequences == 14


def test_the_queue_counts_prompt_tokens() -> None:
    with live_gateway({"max_queue_tokens": 100}) as small:
        assert_refused(small.complete(prompt=[5] * 101), 429, "request_exceeds_queue")
        assert small.complete(prompt=[5] * 100, n=3).status_code == 200


def test_a_key_may_have_only_so_many_requests_at_once() -> None:
    with live_gateway({"api_key": ["a", "b"], "max_concurrency_per_key": 1}) as gateway:
        gateway.engine.script = lambda _: [Say(ids_of("Hel", ends=False)), Pause(30)]
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        with gateway.client.stream("POST", "/v1/chat/completions", json=body, headers=key("a")) as stream:
            frames = stream.iter_bytes()
            next(frames)
            answer = gateway.client.post("/v1/chat/completions", json=body, headers=key("a"))
            assert_refused(answer, 429, "concurrency_exceeded")
            gateway.engine.script = says("Hello.")
            assert gateway.client.post("/v1/chat/completions", json=body, headers=key("b")).status_code == 200
        wait_until(lambda: gateway.engine.running == 0)
        wait_until(lambda: gateway.client.post("/v1/chat/completions", json=body, headers=key("a")).status_code == 200)


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


def connect(gateway: LiveGateway, streams: bool, n: int = 1) -> socket.socket:
    """A request on a bare socket, so that a test decides when the connection ends."""
    fields = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": streams, "n": n}
    request = gateway.client.build_request("POST", gateway.url + "/v1/chat/completions", json=fields)
    host, port = gateway.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    connection.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + request.read())
    return connection


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("spoken", [False, True], ids=["during prefill", "amid tokens"])
def test_a_client_that_leaves_frees_its_place_within_a_second(
    gateway: LiveGateway, streams: bool, n: int, half: bool, spoken: bool
) -> None:
    name = 'dots3_request_errors_total{code="client_closed"}'
    before = gateway.count(name)
    said = [Say(ids_of("Hel", ends=False), index) for index in range(n)] if spoken else []
    gateway.engine.script = lambda _: [*said, Pause(60)]
    connection = connect(gateway, streams, n)
    wait_until(lambda: gateway.engine.running == 1)
    if spoken and streams:
        assert connection.recv(4096)
    if half:
        connection.shutdown(socket.SHUT_WR)
    else:
        connection.close()
    wait_until(lambda: gateway.engine.running == 0, limit_s=20.0)
    assert gateway.engine.aborted == [gateway.engine.submitted[0].request_id]
    wait_until(lambda: gateway.admission.num_inside == 0, limit_s=20.0)
    connection.close()
    assert gateway.count(name) == before + 1


@pytest.mark.e2e
def test_time_that_is_up_is_408_and_not_to_be_retried() -> None:
    with live_gateway({"request_timeout": 0.5}) as gateway:
        gateway.engine.script = lambda _: [Pause(60)]
        for streams in (False, True):
            answer = gateway.chat(stream=streams)
            assert_refused(answer, 408, "request_timeout")
            assert answer.headers["x-should-retry"] == "false"
        assert gateway.engine.running == 0
        gateway.engine.script = lambda _: [Say(ids_of("Hel", ends=False)), Pause(60)]
        assert read_sse(gateway.chat(stream=True).content).chunks[-1]["error"]["code"] == "request_timeout"


@pytest.mark.e2e
def test_a_silent_stream_is_kept_alive_from_the_first_seconds(gateway: LiveGateway) -> None:
    gateway.engine.script = lambda _: [Pause(answering.FIRST_PING_S + 1.5), Say(ids_of("Hello."))]
    began_s = time.monotonic()
    with gateway.client.stream("POST", "/v1/chat/completions", json=chat_body()) as stream:
        frames = stream.iter_bytes()
        first = next(frames)
        assert time.monotonic() - began_s < answering.FIRST_PING_S + 10
        assert first.startswith(b":")
        parsed = read_sse(first + b"".join(frames))
    assert (parsed.text(), parsed.num_comments) == ("Hello.", 1)


def test_template_arguments_that_the_template_does_not_use_are_warned_of(gateway: LiveGateway) -> None:
    before = gateway.count("dots3_ignored_keys_total")
    answer = gateway.chat(chat_template_kwargs={"enable_thinking": False, "thinkig": True, "x": 1})
    warned = "ignored chat_template_kwargs that the template does not use: 2"
    assert (answer.status_code, answer.headers["x-dots3-warning"]) == (200, warned)
    assert gateway.count("dots3_ignored_keys_total") == before + 2


def test_a_client_that_does_not_read_is_let_go() -> None:
    with live_gateway({"write_timeout": 0.5}) as gateway:
        gateway.engine.script = lambda _: [Say(ids_of("word " * 400, ends=False)) for _ in range(20)]
        connection = connect(gateway, streams=True)
        name = 'dots3_request_errors_total{code="client_closed"}'
        wait_until(lambda: gateway.count(name) == 1)
        wait_until(lambda: (gateway.engine.running, gateway.admission.num_inside) == (0, 0))
        wait_until(lambda: gateway.count("dots3_open_streams") == 0)
        # What was not sent does not keep the connection open.
        received = b"".join(iter(lambda: connection.recv(65536), b""))
        assert not received.endswith(b"\r\n0\r\n\r\n")
        connection.close()
        gateway.engine.script = says("Hello.")
        assert gateway.chat().status_code == 200


def chat_body() -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}


def test_unknown_fields_may_be_let_through_with_a_warning() -> None:
    with live_gateway({"unknown_fields": "ignore"}) as gateway:
        answer = gateway.chat(foo=1)
        assert answer.status_code == 200
        assert answer.headers["x-dots3-warning"] == "ignored unknown fields: 1"


def test_a_stream_has_the_headers_that_proxies_need(gateway: LiveGateway) -> None:
    headers = gateway.chat(stream=True).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["x-accel-buffering"] == "no"
    assert "content-length" not in headers


@pytest.mark.parametrize("text", ["\ud83d", "a\udc00b"])
def test_half_a_surrogate_pair_is_refused_wherever_it_stands(gateway: LiveGateway, text: str) -> None:
    places: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": text}]},
        {"stop": [text]},
        {"model": text},
        {"user": text},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {text: 1}}}]},
        {text: 1},
    ]
    for fields in places:
        # httpx would refuse to encode it; JSON's escapes can carry it.
        answer = gateway.client.post(
            "/v1/chat/completions",
            content=json.dumps(chat_body() | fields),
            headers={"Content-Type": "application/json"},
        )
        assert_refused(answer, 400, "invalid_value")

"""The official client, as users have it, against the gateway on a real port before a scripted engine."""

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from engine.wire.messages import TokenLogprobs
from tests.support.fake_engine import Die, Fail, Pause, Say
from tests.support.live_gateway import MODEL, LiveGateway, ids_of, live_gateway, says

THOUGHT = "<think>\nHm.\n</think>\n\nHé 😀!"
MESSAGES: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def shared() -> Iterator[LiveGateway]:
    with live_gateway({"api_key": ["secret"]}) as running:
        yield running


@pytest.fixture
def client(gateway: LiveGateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway.url + "/v1", api_key="secret", max_retries=0, timeout=20) as made:
        yield made


def test_an_answer_is_read_with_usage_and_thinking(client: openai.OpenAI, gateway: LiveGateway) -> None:
    gateway.engine.script = says(THOUGHT)
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES)
    message: Any = answer.choices[0].message
    assert (message.role, message.content) == ("assistant", "Hé 😀!")
    assert message.reasoning_content == message.reasoning
    assert "Hm." in message.reasoning
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(ids_of(THOUGHT))
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens


def test_a_stream_joins_to_the_same_answer(client: openai.OpenAI, gateway: LiveGateway) -> None:
    gateway.engine.script = says(THOUGHT)
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    deltas: list[Any] = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "Hé 😀!"
    assert "Hm." in "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason] == ["stop"]
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_the_stream_helper_ends_with_the_whole_answer(client: openai.OpenAI, gateway: LiveGateway) -> None:
    gateway.engine.script = lambda request: [Say(ids_of(f"Answer {index}"), index) for index in range(request.n)]
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, n=2, logprobs=False) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert [choice.message.content for choice in final.choices] == ["Answer 0", "Answer 1"]
    assert [choice.finish_reason for choice in final.choices] == ["stop", "stop"]


def test_the_async_client_runs_many_at_once(gateway: LiveGateway) -> None:
    async def ask(client: openai.AsyncOpenAI, streams: bool) -> str:
        if not streams:
            answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
            return answer.choices[0].message.content or ""
        async with client.chat.completions.stream(model=MODEL, messages=MESSAGES) as stream:
            return (await stream.get_final_completion()).choices[0].message.content or ""

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="secret", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, place % 2 == 0) for place in range(20)))

    assert asyncio.run(ask_all()) == ["Hello."] * 20


def test_log_probabilities_are_read(client: openai.OpenAI, gateway: LiveGateway) -> None:
    ids = ids_of("Hé")
    told = [TokenLogprobs(-0.5, 1, (token, 5), (-0.5, -2.0)) for token in ids]
    gateway.engine.script = lambda _: [Say(ids, finish_reason="stop", logprobs=told)]
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    content = logprobs.content or []
    assert bytes(byte for token in content for byte in token.bytes or []).decode() == "Hé"
    assert all(token.logprob == -0.5 and len(token.top_logprobs) == 2 for token in content)


def test_completions_are_read_whole_and_streamed(client: openai.OpenAI, gateway: LiveGateway) -> None:
    ids = ids_of("Hi you", ends=False)
    told = [TokenLogprobs(-math.inf, 3, (token,), (-0.1,)) for token in ids]
    gateway.engine.script = lambda _: [Say(ids, finish_reason="length", logprobs=told)]
    answer = client.completions.create(model=MODEL, prompt=[1, 2, 3], logprobs=1)
    assert answer.choices[0].text == "Hi you"
    assert answer.choices[0].logprobs is not None
    assert "".join(answer.choices[0].logprobs.tokens or []) == "Hi you"
    assert answer.choices[0].logprobs.token_logprobs == [-9999.0] * len(ids)
    chunks = list(client.completions.create(model=MODEL, prompt="Once", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hi you"
    assert chunks[-1].choices[0].finish_reason == "length"


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    card: Any = client.models.retrieve(MODEL)
    assert card.max_model_len == 8192


@pytest.mark.parametrize(
    ("fields", "kind", "code", "param"),
    [
        ({"model": "other"}, openai.NotFoundError, "model_not_found", "model"),
        ({"temperature": 3}, openai.BadRequestError, "invalid_value", "temperature"),
        ({"messages": []}, openai.BadRequestError, "invalid_value", "messages"),
        ({"extra_body": {"guided_json": {}}}, openai.BadRequestError, "unknown_field", "guided_json"),
        ({"extra_headers": {"Authorization": "Bearer x"}}, openai.AuthenticationError, "invalid_api_key", None),
    ],
)
def test_errors_arrive_as_the_clients_own(
    client: openai.OpenAI, fields: dict[str, Any], kind: type[openai.APIStatusError], code: str, param: str | None
) -> None:
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**({"model": MODEL, "messages": MESSAGES} | fields))
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("queue_full", openai.RateLimitError),
        ("engine_not_ready", openai.InternalServerError),
        ("request_quarantined", openai.InternalServerError),
    ],
)
def test_failures_of_the_engine_arrive_as_the_clients_own(
    client: openai.OpenAI, gateway: LiveGateway, code: str, kind: type[openai.APIStatusError]
) -> None:
    gateway.engine.script = lambda _: [Fail(code)]
    with pytest.raises(kind) as caught:
        client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert caught.value.code == code


def test_a_client_does_not_send_again_what_would_fail_again(gateway: LiveGateway) -> None:
    gateway.engine.script = lambda _: [Fail("request_quarantined")]
    with (
        openai.OpenAI(base_url=gateway.url + "/v1", api_key="secret", max_retries=3) as client,
        pytest.raises(openai.InternalServerError),
    ):
        client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert len(gateway.engine.submitted) == 1


def test_a_failure_amid_a_stream_is_raised_to_the_reader(client: openai.OpenAI, gateway: LiveGateway) -> None:
    gateway.engine.script = lambda _: [Say(ids_of("Hel", ends=False)), Pause(0.05), Die()]
    stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.code == "engine_dead"

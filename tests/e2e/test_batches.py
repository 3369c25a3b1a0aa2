"""An answer does not depend on who else is served, nor on what the cache already holds."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.server_process import MODEL, ServerProcess

pytestmark = pytest.mark.e2e

PAGE = 16  # tokens, on a CPU
QUESTIONS = [
    f"What is {first} + {second}?" for first, second in [(12, 30), (7, 81), (45, 16), (99, 1), (3, 8), (58, 24)]
] + ["Who are you?", "Copy this: red fox, blue sky."]


def answer(client: OpenAI, question: str, **fields: Any) -> tuple[str | None, str | None]:
    messages = [{"role": "user", "content": question}]
    fields = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 120} | fields
    [choice] = client.chat.completions.create(**fields).choices
    return getattr(choice.message, "reasoning_content", None), choice.message.content


@pytest.mark.parametrize("fields", [{}, {"temperature": 1.2, "top_p": 0.9, "seed": 11}])
def test_an_answer_alone_equals_that_among_others(client: OpenAI, fields: dict[str, Any]) -> None:
    alone = [answer(client, question, **fields) for question in QUESTIONS]
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        together = list(pool.map(lambda question: answer(client, question, **fields), QUESTIONS))
    assert alone == together


def test_a_long_prompt_does_not_hold_up_others(client: OpenAI) -> None:
    before = answer(client, QUESTIONS[0])
    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(answer, client, "Read this. " * 1200, max_tokens=4)
        short = pool.submit(answer, client, QUESTIONS[0])
        assert short.result() == before
        assert long.result() is not None


def usage_and_text(client: OpenAI, messages: list[Any], **extra: Any) -> tuple[int, int, str]:
    fields: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 60, "extra_body": extra}
    reply = client.chat.completions.create(messages=messages, **fields)
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details is not None
    cached = reply.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    return cached, reply.usage.prompt_tokens, reply.choices[0].message.content or ""


def test_a_shared_system_prompt_is_computed_once(client: OpenAI, server: ServerProcess) -> None:
    system = {"role": "system", "content": "You are a helpful assistant. " + "The store sells apples and pears. " * 430}
    shared = server.post("/tokenize", messages=[system], add_generation_prompt=False).json()["count"]
    assert shared >= 3000
    users = [{"role": "user", "content": text} for text in ("Who are you?", "What is 4 + 9?")]
    first = usage_and_text(client, [system, users[0]])
    second = usage_and_text(client, [system, users[1]])
    assert first[0] == 0
    assert shared - PAGE <= second[0] <= shared
    fresh = usage_and_text(client, [system, users[1]], cache_salt="of its own")
    assert fresh[0] == 0
    assert fresh[2] == second[2]


def test_a_second_turn_without_its_thinking_goes_on_at_the_end_of_the_first_prompt(client: OpenAI) -> None:
    opening = [
        {"role": "system", "content": "You are a helpful assistant. " + "Today the shop is closed. " * 40},
        {"role": "user", "content": "Who are you?"},
    ]
    _, prompt_tokens, said = usage_and_text(client, opening)
    turn = [*opening, {"role": "assistant", "content": said}, {"role": "user", "content": "What is 5 + 6?"}]
    cached, _, text = usage_and_text(client, turn)
    assert prompt_tokens - PAGE <= cached <= prompt_tokens
    fresh = usage_and_text(client, turn, cache_salt="of its own")
    assert (fresh[0], fresh[2]) == (0, text)

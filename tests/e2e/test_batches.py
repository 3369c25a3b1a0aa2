"""An answer does not depend on who else is served, nor on what the cache already holds."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from openai import OpenAI

from tests.e2e.server_process import MODEL, ServerProcess

pytestmark = pytest.mark.e2e

PAGE = 16  # tokens, on a CPU
LONG = 120  # tokens of an answer that leaves the window of 65 behind
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


class Reply(NamedTuple):
    cached: int
    prompt_tokens: int
    text: str


def ask(client: OpenAI, messages: list[Any], max_tokens: int = 60, **extra: Any) -> Reply:
    fields: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": max_tokens, "extra_body": extra}
    reply = client.chat.completions.create(messages=messages, **fields)
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details is not None
    cached = reply.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    return Reply(cached, reply.usage.prompt_tokens, reply.choices[0].message.content or "")


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, OpenAI]]:
    """A server whose cache holds one long conversation and not much more: pages that have left a window are soon used
    by others, unless they are kept by preference."""
    server = ServerProcess(tmp_path_factory.mktemp("server") / "log.txt", "--kv-cache-memory-bytes", "14MiB")
    try:
        with OpenAI(base_url=server.base_url, api_key="none", max_retries=0, timeout=300) as client:
            yield server, client
    finally:
        server.kill()


def crowd_out(client: OpenAI) -> None:
    """Other users, whose pages take the place of all that is not kept."""
    for number in range(3):
        ask(client, [{"role": "user", "content": "The cat sat on the mat. " * 66}], 4, cache_salt=f"crowd {number}")


def long_system(server: ServerProcess, sentence: str) -> tuple[dict[str, str], int]:
    """A system turn of 3,000 tokens, and of how many exactly."""
    per_sentence = server.post("/tokenize", prompt=sentence * 100).json()["count"] / 100
    system = {"role": "system", "content": sentence * int(3010 / per_sentence)}
    count = server.post("/tokenize", messages=[system], add_generation_prompt=False).json()["count"]
    assert 3000 <= count <= 3050
    return system, count


def test_a_shared_system_prompt_is_computed_once(tight: tuple[ServerProcess, OpenAI]) -> None:
    """Its last window has long been left by the first user's question and answer when the second one comes."""
    server, client = tight
    system, shared = long_system(server, "The store sells apples and pears. ")
    users = [{"role": "user", "content": text} for text in ("Count these words: " + "one two " * 60, "What is 4 + 9?")]
    first = ask(client, [system, users[0]], LONG, min_tokens=LONG, ignore_eos=True)
    crowd_out(client)
    second = ask(client, [system, users[1]])
    assert first.cached == 0
    assert shared - PAGE <= second.cached <= shared
    fresh = ask(client, [system, users[1]], cache_salt="of its own")
    assert (fresh.cached, fresh.text) == (0, second.text)


def test_a_second_turn_without_its_thinking_goes_on_at_the_end_of_the_first_prompt(
    tight: tuple[ServerProcess, OpenAI],
) -> None:
    """What the first turn thought is not sent back, so that nothing of its answer can be found; the window before it
    has to be there still."""
    server, client = tight
    system, _ = long_system(server, "Today the shop is closed. ")
    opening = [system, {"role": "user", "content": "Who are you?"}]
    first = ask(client, opening, LONG, min_tokens=LONG, ignore_eos=True)
    crowd_out(client)
    turn = [*opening, {"role": "assistant", "content": first.text}, {"role": "user", "content": "What is 5 + 6?"}]
    second = ask(client, turn)
    assert first.prompt_tokens - PAGE <= second.cached <= first.prompt_tokens
    fresh = ask(client, turn, cache_salt="of its own")
    assert (fresh.cached, fresh.text) == (0, second.text)

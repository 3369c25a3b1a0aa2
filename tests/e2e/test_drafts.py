"""A server that drafts says what it says without, also where a stop string ends an answer amid a burst."""

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.server_process import MODEL, ServerProcess

pytestmark = pytest.mark.e2e

QUESTION = "Copy this: red fox, blue sky, green hill, red fox, blue sky, green hill."


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, OpenAI]]:
    server = ServerProcess(tmp_path_factory.mktemp("server") / "log.txt", "--speculative-tokens", "3")
    try:
        with OpenAI(base_url=server.base_url, api_key="none", max_retries=0, timeout=300) as client:
            yield server, client
    finally:
        server.kill()


def answer(client: OpenAI, drafts: int, **fields: Any) -> tuple[str | None, str | None, int]:
    asked: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 120, **fields}
    # Each finds rows of its own kind alone: a prompt that was computed without drafts has none to build them on.
    extra: dict[str, Any] = {
        "speculative_tokens": drafts,
        "cache_salt": str(drafts),
        "chat_template_kwargs": {"enable_thinking": False},
    }
    reply = client.chat.completions.create(messages=[{"role": "user", "content": QUESTION}], extra_body=extra, **asked)
    assert reply.usage is not None
    return reply.choices[0].message.content, reply.choices[0].finish_reason, reply.usage.completion_tokens


def test_answers_stops_and_figures(drafting: tuple[ServerProcess, OpenAI]) -> None:
    server, client = drafting
    plain = answer(client, 0)
    assert answer(client, 3) == plain
    text = plain[0] or ""
    assert len(text) > 20
    for place in range(4, 16, 3):
        stop = text[place : place + 2]
        stopped = answer(client, 3, stop=[stop])
        assert stopped == answer(client, 0, stop=[stop])
        assert stopped[:2] == (text[: text.index(stop)], "stop")
    for name in ("drafted", "accepted"):
        counted = f"dots3_spec_{name}_tokens_total"
        server.wait_until(f"{name} drafts are told", lambda counted=counted: server.metric(counted) > 0)

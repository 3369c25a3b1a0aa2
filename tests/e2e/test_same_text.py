"""200 seeded prompts alone and in mixed batches: equal texts, on a CPU in float32."""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e.server_process import MODEL, PATIENCE_S, ServerProcess
from training.evaluation.held_out import item, keys
from training.evaluation.request_body import request_body

pytestmark = pytest.mark.e2e

TASKS = "arithmetic multiply copy reverse sort count lookup identity follow dialogue".split()
NUM_PROMPTS = 200
SHARE_GREEDY = 4  # every fourth


def bodies() -> list[dict[str, Any]]:
    asked = [request_body(item(key), MODEL) for key in keys(TASKS, NUM_PROMPTS // len(TASKS))]
    for number, body in enumerate(asked):
        body["max_tokens"] = 16 + number % 33
        if number % SHARE_GREEDY:
            body |= {"seed": number, "temperature": 1.0 + number % 3 / 4, "top_p": 0.95}
    return asked


def ask_all(server: ServerProcess, asked: list[dict[str, Any]], at_a_time: int) -> list[Any]:
    limits = httpx.Limits(max_connections=at_a_time)
    with (
        httpx.Client(base_url=server.base_url, timeout=PATIENCE_S, limits=limits) as client,
        ThreadPoolExecutor(at_a_time) as pool,
    ):

        def ask(body: dict[str, Any]) -> Any:
            reply = client.post("/chat/completions", json=body)
            assert reply.status_code == 200, reply.text
            [choice] = reply.json()["choices"]
            return choice["message"].get("reasoning_content"), choice["message"]["content"], choice["finish_reason"]

        return list(pool.map(ask, asked))


def test_texts_are_equal_alone_and_among_others(server: ServerProcess) -> None:
    asked = bodies()
    alone = ask_all(server, asked, 1)
    order = random.Random(0).sample(range(len(asked)), len(asked))
    mixed = dict(zip(order, ask_all(server, [asked[place] for place in order], 24), strict=True))
    different = [place for place in range(len(asked)) if mixed[place] != alone[place]]
    assert not different, [(asked[place]["messages"], alone[place], mixed[place]) for place in different[:3]]

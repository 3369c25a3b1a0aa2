"""A real gateway before the real worker that hosts vLLM, with a stand-in for vLLM itself."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
import sys
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from tokenizers import Tokenizer

from server.settings import BUNDLED_MODEL
from tests.e2e.server_process import MODEL, PATIENCE_S, ROOT, ServerProcess
from tests.support.sse import read_sse
from tests.vllm.signatures import FAKE

pytestmark = pytest.mark.e2e

SPOKEN = Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))
CALL = (
    '<dots_function_call>\n<invoke name="weather">\n<parameter name="city">Oslo</parameter>\n</invoke>\n'
    "</dots_function_call><|endoftext|>"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Say yes."}], "reasoning_effort": "none"}
_DEATH = -1


def ids(text: str) -> list[int]:
    return list(SPOKEN.encode(text, add_special_tokens=False).ids)


class Told:
    """A server, and what its stand-in noted."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, *flags: str, **told: Any) -> None:
        self._log = folder / "vllm.log"
        patch.setenv("PYTHONPATH", os.pathsep.join([str(FAKE), str(ROOT)]))
        patch.setenv("FAKE_VLLM", json.dumps({"log": str(self._log), **told}))
        self.server = ServerProcess(folder / "log", "--engine", "vllm", *flags)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []

    def wait_for(self, what: str, true: Callable[[], Any]) -> None:
        self.server.wait_until(what, true)

    def is_ready(self) -> bool:
        return self.server.get("/health").status_code == 200

    def last_fields(self) -> str:
        return [event["fields"] for event in self.events() if event["event"] == "begins"][-1]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    with pytest.MonkeyPatch.context() as patch:
        made = Told(
            tmp_path_factory.mktemp("vllm"),
            patch,
            *("--max-model-len", "4000", "--max-num-seqs", "5", "--vllm-args", "--block-size 32"),
            say=[ids("Yes, of course.<|endofassistant|>"), ids("No, never.<|endofassistant|>")],
            held=ids(CALL),
            step_s=0.01,
        )
        yield made
        made.server.kill()


def chat(told: Told, **body: Any) -> Any:
    response = told.server.post("/v1/chat/completions", **(ASKED | body))
    assert response.status_code == 200, response.text
    return response.json()


def test_a_whole_answer_with_its_usage(told: Told) -> None:
    answer = chat(told, temperature=0)
    [choice] = answer["choices"]
    assert choice["message"]["content"] == "Yes, of course."
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == len(ids("Yes, of course.<|endofassistant|>"))
    assert "detokenize=False" in told.last_fields()


def test_a_stream_says_the_same_token_by_token(told: Told) -> None:
    body = ASKED | {"model": MODEL, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", f"{told.server.base_url}/chat/completions", json=body, timeout=PATIENCE_S) as response:
        answer = read_sse(response.read())
    assert answer.text() == "Yes, of course."
    assert answer.finish_reasons() == ["stop"]
    assert len(answer.of_choice(0)) > 3
    assert answer.chunks[-1]["usage"]["completion_tokens"] == len(ids("Yes, of course.<|endofassistant|>"))


def test_two_choices_are_two_answers_and_seeds_fix_them(told: Told) -> None:
    both = [choice["message"]["content"] for choice in chat(told, n=2, seed=0)["choices"]]
    assert both == [choice["message"]["content"] for choice in chat(told, n=2, seed=0)["choices"]]
    assert both[0] == chat(told, seed=0)["choices"][0]["message"]["content"] == "Yes, of course."
    assert chat(told, seed=1)["choices"][0]["message"]["content"] == "No, never."


def test_a_required_call_is_held_to_its_grammar(told: Told) -> None:
    answer = chat(told, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
    [choice] = answer["choices"]
    [call] = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city":"Oslo"}'}
    assert choice["finish_reason"] == "tool_calls"
    assert "StructuredOutputsParams(json=None, regex=None, choice=None, grammar='" in told.last_fields()
    assert "ignore_eos=False" in told.last_fields()


def test_log_probabilities_and_cached_tokens_come_along(told: Told) -> None:
    prompt = list(range(100, 200))
    body: dict[str, Any] = {
        "prompt": prompt,
        "max_tokens": 2,
        "temperature": 0,
        "logprobs": 1,
        "return_token_ids": True,
    }
    first, second = (told.server.post("/v1/completions", **body).json() for _ in range(2))
    [choice] = second["choices"]
    assert choice["token_ids"] == ids("Yes, of course.")[:2]
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["token_logprobs"] == [-1.0, -1.0]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
    told.wait_for("its hits are counted", lambda: told.server.metric("dots3_prefix_cache_hits_total") >= 96)


def test_a_prompt_is_echoed_with_its_log_probabilities(told: Told) -> None:
    body: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 0, "echo": True, "logprobs": 1}
    [choice] = told.server.post("/v1/completions", **body).json()["choices"]
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0, -1.0]
    assert choice["text"] == SPOKEN.decode([5, 6, 7])


def test_pictures_and_sounds_come_as_vllm_wants_them(told: Told) -> None:
    picture, sound = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (112, 56), (200, 30, 30)).save(picture, "PNG")
    with wave.open(sound, "wb") as file:
        file.setparams((1, 2, 16_000, 8_000, "NONE", ""))
        file.writeframes(b"\x00\x10" * 8_000)
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + _base64(picture)}},
        {"type": "input_audio", "input_audio": {"data": _base64(sound), "format": "wav"}},
    ]
    answer = chat(told, messages=[{"role": "user", "content": parts}], temperature=0)
    [asked] = [event["prompt"] for event in told.events() if event["event"] == "begins"][-1:]
    [[width, height]] = asked["multi_modal_data"]["image"]
    assert (width % 28, height % 28) == (0, 0)
    assert asked["multi_modal_data"]["audio"] == [[8_000, 16_000]]
    assert {kind: len(names) for kind, names in asked["multi_modal_uuids"].items()} == {"image": 1, "audio": 1}
    pads = [SPOKEN.token_to_id(pad) for pad in ("<|imgpad|>", "<|audio_comp_pad|>")]
    assert [asked["prompt_token_ids"].count(pad) for pad in pads] == [1, 1]
    tokens = {report["kind"]: report["tokens"] for report in answer["usage"]["prompt_tokens_details"]["media"]}
    shown = sum(tokens.values())
    assert tokens["image"] == width // 28 * (height // 28)
    assert answer["usage"]["prompt_tokens"] == len(asked["prompt_token_ids"]) - 2 + shown


def _base64(file: io.BytesIO) -> str:
    return base64.b64encode(file.getvalue()).decode()


def test_a_client_that_leaves_frees_its_place(told: Told) -> None:
    begun = len(told.events())
    body = {"model": MODEL, "prompt": [9], "max_tokens": 3900, "stream": True, "n": 5, "ignore_eos": True}
    with httpx.stream("POST", f"{told.server.base_url}/completions", json=body, timeout=PATIENCE_S) as response:
        next(response.iter_lines())
    told.wait_for(
        "all that began has ended",
        lambda: len(events := told.events()[begun:]) % 2 == 0 and any(event["event"] == "aborted" for event in events),
    )
    told.wait_for("nothing runs", lambda: told.server.metric("dots3_requests_running") == 0)


def test_limits_are_those_that_vllm_has(told: Told) -> None:
    assert told.server.get("/v1/models").json()["data"][0]["max_model_len"] == 4000
    refused = told.server.post("/v1/completions", prompt=[5] * 4100)
    assert refused.status_code == 400
    assert "4000" in refused.json()["error"]["message"]


def test_what_vllm_refuses_is_a_bad_request_and_the_next_one_works(told: Told) -> None:
    refused = told.server.post("/v1/completions", prompt=[5], max_tokens=2, min_tokens=3, temperature=0)
    assert refused.status_code == 400
    assert "min_tokens" in refused.json()["error"]["message"]
    assert chat(told, temperature=0)["choices"][0]["message"]["content"] == "Yes, of course."


def test_a_dead_engine_ends_the_worker_which_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(tmp_path, monkeypatch, say=[ids("Fine.<|endofassistant|>"), [*ids("Oh"), _DEATH]], step_s=0.01)
    try:
        before = told.server.worker()["pid"]
        body = {"model": MODEL, "prompt": [9], "max_tokens": 50, "stream": True, "seed": 1}
        with httpx.stream("POST", f"{told.server.base_url}/completions", json=body, timeout=PATIENCE_S) as response:
            answer = read_sse(response.read())
        assert answer.chunks[-1]["error"]["code"] == "engine_dead"
        told.wait_for(
            "another worker", lambda: (now := told.server.worker())["pid"] != before and now["state"] == "ready"
        )
        assert chat(told, temperature=0)["choices"][0]["message"]["content"] == "Fine."
        assert "vLLM's engine has died: the stand-in's engine is dead" in told.server.log.read_text()
        assert told.server.metric("dots3_worker_restarts_total") == 1
        assert told.server.terminate() == 0
    finally:
        told.server.kill()


def test_what_vllm_started_ends_with_a_worker_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(tmp_path, monkeypatch, say=[ids("Fine.<|endofassistant|>")])
    try:
        worker = told.server.worker()["pid"]
        children = _children(worker)
        assert any("the stand-in's engine" in line for line in children.values())
        assert any("engine.vllm.guard" in line for line in children.values())
        os.kill(worker, signal.SIGKILL)
        told.wait_for("all have ended", lambda: not any(_lives(pid) for pid in children))
        told.wait_for("another worker", lambda: told.is_ready() and told.server.worker()["pid"] != worker)
        children = _children(told.server.worker()["pid"])
        assert told.server.terminate() == 0
        told.wait_for("all have ended", lambda: not any(_lives(pid) for pid in children))
    finally:
        told.server.kill()


def _children(pid: int) -> dict[int, str]:
    found = {}
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_alone_passes_flags_that_are_not_ours_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKE), str(ROOT)]))
    monkeypatch.setenv("FAKE_VLLM", json.dumps({"say": [ids("Fine.<|endofassistant|>")]}))
    address = f"ipc://{tmp_path}/wire"
    flags = ["--engine", "vllm", "--listen", address, "--max-model-len", "300", "--scheduling-policy", "fcfs"]
    with (tmp_path / "worker").open("wb") as log:
        worker = subprocess.Popen([sys.executable, "-m", "cli.main", "worker", *flags], cwd=ROOT, stderr=log)
    try:
        server = ServerProcess(tmp_path / "log", "--worker", address)
        try:
            assert server.get("/v1/models").json()["data"][0]["max_model_len"] == 300
            answer = server.post("/v1/chat/completions", **ASKED, temperature=0).json()
            assert answer["choices"][0]["message"]["content"] == "Fine."
            worker.terminate()
            assert worker.wait(PATIENCE_S) == 0
            server.wait_until("it is missed", lambda: server.get("/health").status_code == 503)
        finally:
            server.kill()
    finally:
        worker.kill()
        worker.wait()
    assert "--scheduling-policy priority" in (said := (tmp_path / "worker").read_text())
    assert said.index("--scheduling-policy priority") < said.index("--scheduling-policy fcfs")


def test_a_worker_that_stops_lets_running_answers_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(tmp_path, monkeypatch, say=[ids("One moment, please, it is coming.<|endofassistant|>")], step_s=0.1)
    try:
        body = ASKED | {"model": MODEL, "temperature": 0, "stream": True}
        with httpx.stream(
            "POST", f"{told.server.base_url}/chat/completions", json=body, timeout=PATIENCE_S
        ) as response:
            lines = response.iter_lines()
            next(lines)
            told.server.process.terminate()
            rest = list(lines)
        assert rest[-2:] == ["data: [DONE]", ""] or "data: [DONE]" in rest
        assert not any('"error"' in line for line in rest)
        assert told.server.process.wait(PATIENCE_S) == 0
    finally:
        told.server.kill()


def test_without_vllm_the_start_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(
        AssertionError, match=r"has no vLLM\. It wants an environment of its own: make one by `make vllm-env`"
    ):
        ServerProcess(tmp_path / "log", "--engine", "vllm")

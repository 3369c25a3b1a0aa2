"""Pictures, sounds and films through gateway, worker and bundled checkpoint: answers, caches, refusals, remains."""

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench import media_samples
from engine.wire.blobs import FOLDER
from tests.e2e.conftest import Start
from tests.e2e.server_process import MODEL, ROOT, ServerProcess
from tests.support.media_links import content, data_url, file_part, part, text, user
from tests.support.open_files import open_files
from training.evaluation.held_out import item, keys
from training.evaluation.request_body import request_body

pytestmark = pytest.mark.e2e

OFF = {"enable_thinking": False}


def asked(server: ServerProcess, *parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    body = {"messages": [user(*parts)], "temperature": 0, "max_tokens": 24, "chat_template_kwargs": OFF} | fields
    answer = server.post("/v1/chat/completions", **body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def said(answer: dict[str, Any]) -> str:
    words: str = answer["choices"][0]["message"]["content"]
    return words


@pytest.mark.parametrize("task", ["picture_colour", "picture_digits", "sound_beeps", "sound_order", "film_order"])
def test_the_checkpoint_sees_hears_and_watches(server: ServerProcess, task: str) -> None:
    """Held-out items, asked as a client would; the scores of all tasks are `training.evaluate`'s to tell."""
    right = 0
    for key in keys([task], 5):
        conversation = item(key)
        answer = server.post("/v1/chat/completions", **request_body(conversation, MODEL)).json()
        right += said(answer).strip() == conversation.messages[-1]["content"].strip()
    assert right >= 4


def test_a_film_asked_about_again_is_found_in_the_cache(server: ServerProcess) -> None:
    film = file_part("opus.webm")
    first, second = (asked(server, film, text("What is shown first?")) for _ in range(2))
    assert said(first) == said(second)
    usage = second["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0.9 * usage["prompt_tokens"]


def test_another_film_in_the_same_place_is_not_taken_for_the_first(server: ServerProcess) -> None:
    """Prompts of equal ids: only what fills the placeholders differs."""
    question = text("Which colour?")
    one = asked(server, file_part("exif6.jpg"), question, cache_salt="e2e-place")
    grey = asked(server, file_part("grey16.png"), question, cache_salt="e2e-place")  # 15 tokens, as the first
    assert one["usage"]["prompt_tokens"] == grey["usage"]["prompt_tokens"]
    assert grey["usage"]["prompt_tokens_details"]["cached_tokens"] < 32


def test_broken_media_cost_their_request_alone(server: ServerProcess) -> None:
    worker = server.worker()["pid"]
    for kind, data in (("image", b"%PDF"), ("video", content("cfr_tone.mp4")[:3000]), ("audio", b"\0" * 100)):
        answer = server.post("/v1/chat/completions", messages=[user(part(kind, data_url(data)))])
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0].content[0]")
    assert said(asked(server, file_part("exif6.jpg"), text("Which colour?")))
    assert server.worker()["pid"] == worker


def test_no_shared_memory_and_no_process_is_left_behind(start_server: Start) -> None:
    server = start_server()
    asked(server, file_part("exif6.jpg"), file_part("cover.mp3"))
    assert not blobs_of(server.process.pid)
    probes = blobs_of(server.worker()["pid"])  # the worker's own, by which it is known to share memory
    assert len(probes) <= 1
    decoders = [path for path in Path("/proc").glob("[0-9]*") if is_decoder_of(path, server.process.pid)]
    assert decoders
    assert server.terminate() == 0
    assert not [path for path in probes if path.exists()]
    assert not [path for path in decoders if is_decoder_of(path, server.process.pid)]


def blobs_of(process: int) -> list[Path]:
    """Named files in shared memory that it holds open; other servers may run on this machine."""
    return [path for path in open_files(process) if re.fullmatch(rf"{FOLDER}/dots3-blob-[0-9a-f]+", str(path))]


def is_decoder_of(process: Path, parent: int) -> bool:
    try:
        command, status = (process / "cmdline").read_bytes(), (process / "stat").read_text()
    except OSError:
        return False
    return b"multimodal.decoder" in command and status.rpartition(")")[2].split()[1] == str(parent)


def test_the_requests_of_the_readme_work_as_they_stand(server: ServerProcess) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("## Pictures, sound and film\n")[2].partition("\n## ")[0]
    program = section.partition("```python\n")[2].partition("```")[0].replace("http://127.0.0.1:8000", server.url)
    wanted = re.findall(r"^ask\(.*\)  # (\w+)$", program, re.MULTILINE)
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.stdout.split() == wanted == ["circle", "2", "green"], ran.stderr[-2000:]


ASK_ALL = """
import sys, threading, urllib.request
def ask(path):
    asked = urllib.request.Request(sys.argv[1], open(path, "rb").read(), {"Content-Type": "application/json"})
    assert urllib.request.urlopen(asked, timeout=600).status == 200
    print("answered", flush=True)
for path in sys.argv[2:]:
    threading.Thread(target=ask, args=(path,)).start()
"""


@pytest.mark.slow
def test_probes_are_answered_while_eight_films_are_decoded(start_server: Start, tmp_path: Path) -> None:
    """The event loop never waits for a film: 20 ms in 99 of 100 probes, apart from what it waited for a core."""
    server, film = start_server(), media_samples.film(seconds=20)
    paths = [tmp_path / f"{mark}.json" for mark in range(8)]
    for mark, path in enumerate(paths):
        link = data_url(media_samples.marked(film, mark))
        path.write_text(json.dumps({"model": MODEL, "messages": [user(part("video", link))], "max_tokens": 1}))
    # In a process of its own: sending so much would hold up the probes here.
    arguments = (f"{server.url}/v1/chat/completions", *map(str, paths))
    took_ms = []
    with subprocess.Popen([sys.executable, "-c", ASK_ALL, *arguments], stdout=subprocess.PIPE, text=True) as asking:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
        while asking.poll() is None:
            waited_ms = waits_for_a_core_ms(server.process.pid, os.getpid())
            began_s = time.perf_counter()
            connection.request("GET", "/health")
            assert connection.getresponse().read()
            took = 1000 * (time.perf_counter() - began_s)
            took_ms.append(took - (waits_for_a_core_ms(server.process.pid, os.getpid()) - waited_ms))
            time.sleep(0.01)
        connection.close()
        assert asking.stdout is not None
        assert asking.stdout.read().split() == ["answered"] * 8
    assert len(took_ms) >= 100
    assert sorted(took_ms)[int(0.99 * (len(took_ms) - 1))] <= 20


def waits_for_a_core_ms(*processes: int) -> float:
    """Of all their threads so far: what else the machine has to do is no fault of theirs."""
    waits = 0
    for process in processes:
        for thread in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread that has just ended
                waits += int((thread / "schedstat").read_text().split()[1])
    return waits / 1e6

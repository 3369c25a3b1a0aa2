"""The quality meter: what counts as right, what a server is sent, how failures count, and the reference's batches."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from multimodal.film import prepare_film
from multimodal.image import upright_rgb
from multimodal.placeholders import film_placeholder
from multimodal.sound_file import read_sound
from multimodal.video import VideoRequest
from training import evaluate
from training.data.conversation import Film, Picture, Sound
from training.encode import MODEL_FOLDER, Encoder
from training.evaluation import media_files
from training.evaluation.answer_text import read_answer
from training.evaluation.batches import Prompt, batches
from training.evaluation.held_out import MAX_ANSWER_TOKENS, Key, item, question
from training.evaluation.http_client import read_reply
from training.evaluation.request_body import request_body
from training.evaluation.scoring import Answer, Call, answer_of_message, is_right, same_value
from training.film_input import film_parts
from training.tasks import TASKS

# torch's compiler, which the trainable model asks for when it is imported, warns about torch itself.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")

APP = typer.Typer()
APP.command()(evaluate.main)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder()


# ---- What is right


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (5, 5.0, True),
        (5, "5", False),
        (True, 1, False),
        (False, 0.0, False),
        (True, True, True),
        (None, False, False),
        (None, None, True),
        ("a", "a ", False),
        ([1, 2], [1.0, 2], True),
        ([1, 2], [2, 1], False),
        ([1], [1, 1], False),
        ([True], [1], False),
        ({"a": 1, "b": [2]}, {"b": [2.0], "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ({"a": {"b": "1"}}, {"a": {"b": 1}}, False),
        ({}, [], False),
    ],
)
def test_arguments_are_compared_by_value(one: Any, other: Any, equal: bool) -> None:
    assert same_value(one, other) is equal
    assert same_value(other, one) is equal


def test_content_is_compared_without_outer_blanks_and_reasoning_not_at_all() -> None:
    wanted = Answer("42", reasoning="6 × 7")
    assert is_right(Answer(" 42\n"), wanted)
    assert is_right(Answer("42", reasoning="a guess"), wanted)
    assert not is_right(Answer("4 2"), wanted)
    assert not is_right(Answer("42", fault="cut off"), wanted)


def test_calls_are_compared_in_order() -> None:
    one, other = Call("open", {"door": 1}), Call("close", {"door": 1})
    assert is_right(Answer("", (one, other)), Answer("", (one, other)))
    assert not is_right(Answer("", (other, one)), Answer("", (one, other)))
    assert not is_right(Answer("", (one,)), Answer("", (one, other)))
    assert not is_right(Answer("", (one, other)), Answer(""))
    assert not is_right(Answer("", (Call("open", {"door": 2}),)), Answer("", (one,)))
    assert not is_right(Answer("Done.", (one,)), Answer("", (one,)))


# ---- Reading what the model wrote


@pytest.mark.parametrize("task", TASKS)
def test_the_wanted_answer_as_the_model_would_write_it_is_right(task: str, encoder: Encoder) -> None:
    for index in range(8):
        conversation = item(Key(task, index))
        example = encoder(conversation)
        text = encoder.tokenizer.decode(example.ids[example.prompt_length : -1].tolist())
        answer = read_answer(text, conversation.thinking, conversation.tools, finished=True)
        wanted = conversation.messages[-1]
        assert is_right(answer, answer_of_message(wanted)), (text, answer)
        assert answer.reasoning == (wanted.get("reasoning_content") or "").strip()
        assert len(example.ids) - example.prompt_length < MAX_ANSWER_TOKENS / 2


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "paint",
            "parameters": {
                "type": "object",
                "properties": {
                    "colour": {"type": "string"},
                    "coats": {"type": "integer"},
                    "litres": {"type": "number"},
                    "dry": {"type": "boolean"},
                    "walls": {"type": "array", "items": {"type": "integer"}},
                    "room": {"type": "object", "properties": {"floor": {"type": "integer"}}},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "stop"}},
]


def written(name: str, **parameters: str) -> str:
    lines = [f'<parameter name="{key}">\n{value}\n</parameter>\n' for key, value in parameters.items()]
    return f'\n<dots_function_call>\n<invoke name="{name}">\n{"".join(lines)}</invoke>\n</dots_function_call>'


def read(text: str, thinking: bool = False) -> Answer:
    return read_answer(text, thinking, TOOLS, finished=True)


def test_parameters_are_read_by_their_declared_types() -> None:
    given = {"colour": "5", "coats": "2", "litres": "3", "dry": "true", "walls": "[1, 2]", "room": '{"floor": 1}'}
    answer = read("Here:" + written("paint", **given) + written("stop"))
    assert answer.content == "Here:"
    assert answer.fault is None
    values = {"colour": "5", "coats": 2, "litres": 3, "dry": True, "walls": [1, 2], "room": {"floor": 1}}
    assert answer.calls == (Call("paint", values), Call("stop", {}))


def test_a_text_parameter_keeps_blanks_and_lines() -> None:
    assert read(written("paint", colour=" deep\n\nblue ")).calls[0].arguments == {"colour": " deep\n\nblue "}
    assert read(written("paint", colour="")).calls[0].arguments == {"colour": ""}


@pytest.mark.parametrize(
    "text",
    [
        written("erase"),
        written("paint", shade="red"),
        written("paint", coats="2.5"),
        written("paint", coats='"2"'),
        written("paint", coats="true"),
        written("paint", dry="1"),
        written("paint", dry="True"),
        written("paint", walls="1, 2"),
        written("stop") + " ",
        written("stop") + "\nand more",
        written("stop").removesuffix("</dots_function_call>"),
        written("stop").replace('name="stop"', '"stop"'),
        written("paint", coats="1").replace("</parameter>", "</parameter></parameter>"),
        written("paint", coats="1").replace("coats", "coats\n"),
        written("paint", coats="1").replace("\n1\n", "1"),
    ],
)
def test_calls_in_any_other_form_are_a_fault(text: str) -> None:
    assert read(text).fault is not None


def test_thinking_ends_where_the_tag_says_and_is_only_looked_for_when_on() -> None:
    answer = read("<think>\n6 × 7\n</think>\n\n42", thinking=True)
    assert (answer.reasoning, answer.content) == ("6 × 7", "42")
    assert read("42", thinking=True).content == "42"
    assert read("<think>\nstill at it", thinking=True).content != ""
    assert read("a</think>b").content == "a</think>b"


def test_an_answer_that_was_cut_off_is_wrong() -> None:
    assert not is_right(read_answer("42", False, None, finished=False), Answer("42"))
    reply = {"choices": [{"message": {"content": "42"}, "finish_reason": "length"}]}
    assert not is_right(read_reply(reply), Answer("42"))


# ---- Media as files


def media(kind: type[Any]) -> Iterator[Any]:
    for task in TASKS:
        for medium in item(Key(task, 3)).media:
            if isinstance(medium, kind):
                yield medium


def test_a_picture_survives_as_png() -> None:
    for picture in media(Picture):
        assert np.array_equal(upright_rgb(media_files.png(picture)), picture.rgb)


def test_a_sound_survives_as_wav() -> None:
    loud = Sound(np.array([-1.0, 1.0, 0.25, -0.25], dtype=np.float32))
    for sound in (loud, *media(Sound)):
        heard = read_sound(media_files.wav(sound))
        assert heard.shape == sound.wave.shape
        assert np.abs(heard - sound.wave).max() <= 1 / 32768


def test_a_film_survives_as_mp4(encoder: Encoder) -> None:
    """The product's own planner makes the same prompt of the file as of the generated film."""
    for film in media(Film):
        shown = film_parts(film, encoder.limits, encoder.context_length)
        prepared = prepare_film(media_files.mp4(film), VideoRequest(seq=encoder.context_length), encoder.limits)
        assert film_placeholder(prepared.plan) == shown.segments
        for frame, wanted in zip(prepared.frames, shown.frames, strict=True):
            assert np.abs(frame.astype(float) - wanted).mean() < 3
        for sound, wave in zip(prepared.sounds, shown.waves, strict=True):
            assert np.abs(sound - wave).max() <= 2 / 32768


# ---- What a server is sent


def test_media_are_sent_in_the_place_of_their_parts() -> None:
    body = request_body(item(Key("picture_compare", 0)), "tiny")
    urls = [part["image_url"]["url"] for part in body["messages"][0]["content"] if part["type"] == "image_url"]
    pictures = [upright_rgb(base64.b64decode(url.removeprefix("data:image/png;base64,"))) for url in urls]
    assert [p.tolist() for p in pictures] == [p.rgb.tolist() for p in media_of("picture_compare")]
    sound = request_body(item(Key("sound_beeps", 0)), "tiny")["messages"][0]["content"]
    assert {part["input_audio"]["format"] for part in sound if part["type"] == "input_audio"} == {"wav"}
    film = request_body(item(Key("film_order", 0)), "tiny")["messages"][0]["content"]
    assert any(part["video_url"]["url"].startswith("data:video/mp4;base64,") for part in film if "video_url" in part)
    json.dumps([body, sound, film])


def media_of(task: str) -> list[Any]:
    return list(item(Key(task, 0)).media)


def test_history_keeps_its_thinking_and_each_result_names_its_call() -> None:
    seen_reasoning = 0
    for index in range(40):
        conversation = item(Key("tool_dialogue", index))
        body = request_body(conversation, "tiny")
        assert body["chat_template_kwargs"] == {"enable_thinking": conversation.thinking}
        assert (body["temperature"], body["tools"]) == (0, conversation.tools)
        waiting: list[str] = []
        for sent, message in zip(body["messages"], conversation.messages[:-1], strict=True):
            assert sent.get("reasoning_content") == message.get("reasoning_content")
            seen_reasoning += "reasoning_content" in sent
            for call, own in zip(sent.get("tool_calls", ()), message.get("tool_calls", ()), strict=True):
                waiting.append(call["id"])
                assert json.loads(call["function"]["arguments"]) == own["function"]["arguments"]
            if sent["role"] == "tool":
                assert sent["tool_call_id"] == waiting.pop(0)
        assert not waiting
    assert seen_reasoning


# ---- Asking a server


class Stub:
    """Answers as told by the last user text, and notes what was asked."""

    def __init__(self) -> None:
        self.replies: dict[str, tuple[int, Any]] = {}
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.most_at_once = self._at_once = 0
        self._lock = threading.Lock()

    def reply(self, body: dict[str, Any]) -> tuple[int, Any]:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            self.bodies.append(body)
        threading.Event().wait(0.02)
        with self._lock:
            self._at_once -= 1
        return self.replies[json.dumps(body["messages"])]


@contextmanager
def serving(stub: Stub) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, {"data": [{"id": "tiny"}]} if self.path == "/v1/models" else {})

        def do_POST(self) -> None:
            assert self.path == "/v1/chat/completions"
            stub.keys.add(self.headers["Authorization"])
            self.answer(*stub.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

        def answer(self, status: int, body: Any) -> None:
            sent = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def completion(message: dict[str, Any]) -> tuple[int, Any]:
    calls = [
        call | {"function": call["function"] | {"arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    sent = {"role": "assistant", "content": message["content"] or None} | ({"tool_calls": calls} if calls else {})
    return 200, {"choices": [{"index": 0, "message": sent, "finish_reason": "tool_calls" if calls else "stop"}]}


def evaluated(url: str, out: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    result = CliRunner().invoke(APP, ["--base-url", url, "--out", str(out), *options])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, json.loads(out.read_text()), result.output


def stub_that_knows(tasks: tuple[str, ...], items: int) -> Stub:
    stub = Stub()
    for task in tasks:
        for index in range(items):
            conversation = item(Key(task, index))
            asked = json.dumps(request_body(conversation, "tiny")["messages"])
            stub.replies[asked] = completion(conversation.messages[-1])
    return stub


def test_a_server_that_knows_everything_meets_every_target(tmp_path: Path) -> None:
    tasks = ("arithmetic", "tool_parallel", "picture_colour")
    stub = stub_that_knows(tasks, 4)
    with serving(stub) as url:
        options = ("--tasks", ",".join(tasks), "--items", "4", "--concurrency", "2", "--api-key", "k", "--check")
        status, facts, output = evaluated(url, tmp_path / "facts.json", *options)
    assert status == 0, output
    assert (facts["model"], facts["missed"], facts["failed"], facts["wrong"]) == ("tiny", [], 0, {})
    for task in tasks:
        told = facts["tasks"][task]
        assert (told["n"], told["right"], told["share"], told["error"], told["met"]) == (4, 4, 1.0, 0.0, True)
        assert told["thinking_on"]["n"] + told["thinking_off"]["n"] == 4
    assert {body["model"] for body in stub.bodies} == {"tiny"}
    assert {body["max_tokens"] for body in stub.bodies} == {MAX_ANSWER_TOKENS}
    assert stub.keys == {"Bearer k"}
    assert stub.most_at_once <= 2


@pytest.mark.parametrize(("options", "wanted"), [((), 0), (("--check",), 1)])
def test_a_wrong_answer_is_shown_and_fails_only_a_check(tmp_path: Path, options: tuple[str, ...], wanted: int) -> None:
    stub = stub_that_knows(("copy",), 4)
    asked = json.dumps(request_body(item(Key("copy", 1)), "tiny")["messages"])
    stub.replies[asked] = completion({"content": "no idea"})
    with serving(stub) as url:
        status, facts, _ = evaluated(url, tmp_path / "facts.json", "--tasks", "copy", "--items", "4", *options)
    assert status == wanted
    told = facts["tasks"]["copy"]
    assert (told["n"], told["right"], told["met"], told["error"]) == (4, 3, False, round((0.75 * 0.25 / 4) ** 0.5, 4))
    (wrong,) = facts["wrong"]["copy"]
    assert (wrong["index"], wrong["answer"]["content"]) == (1, "no idea")
    assert wrong["wanted"] == item(Key("copy", 1)).messages[-1]


@pytest.mark.parametrize(
    "reply", [(500, {"error": {"message": "broken"}}), (200, b"not JSON"), (200, {}), (200, {"choices": []})]
)
def test_a_failed_request_is_counted_apart(tmp_path: Path, reply: tuple[int, Any]) -> None:
    stub = stub_that_knows(("copy",), 3)
    stub.replies[json.dumps(request_body(item(Key("copy", 2)), "tiny")["messages"])] = reply
    with serving(stub) as url:
        status, facts, output = evaluated(url, tmp_path / "facts.json", "--tasks", "copy", "--items", "3")
    assert status == 1
    assert "1 requests failed" in output
    assert (facts["failed"], facts["tasks"]["copy"]["n"], facts["tasks"]["copy"]["right"]) == (1, 2, 2)
    assert [failure["index"] for failure in facts["failures"]["copy"]] == [2]


def test_broken_arguments_are_the_models_fault_not_a_failure() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "stop", "arguments": '{"a": '}}
    answer = read_reply({"choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "stop"}]})
    assert answer.fault is not None


def test_a_server_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with serving(Stub()) as url:
        pass
    result = CliRunner().invoke(APP, ["--base-url", url, "--items", "1"])
    assert result.exit_code == 1
    assert not (tmp_path / "facts.json").exists()


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--base-url", "http://127.0.0.1:1/v1", "--transformers", "x"),
        ("--transformers", "x", "--tasks", "flying"),
        ("--transformers", "x", "--engine", "x"),
        ("--engine", "x", "--tasks", "picture_colour"),
        ("--transformers", "x", "--device", "abacus"),
        ("--transformers", "x", "--dtype", "int3"),
        ("--transformers", "x", "--items", "0"),
    ],
)
def test_odd_options_are_refused(options: tuple[str, ...]) -> None:
    assert CliRunner().invoke(APP, options).exit_code == 2


def test_the_engine_alone_answers(tmp_path: Path) -> None:
    out = tmp_path / "facts.json"
    options = ["--engine", str(MODEL_FOLDER), "--device", "cpu", "--tasks", "copy", "--items", "3", "--out", str(out)]
    result = CliRunner().invoke(APP, options)
    assert result.exit_code == 0
    facts = json.loads(out.read_text())
    assert (facts["device"], facts["dtype"], facts["cache"]) == ("cpu", "float32", "float32")
    assert facts["tasks"]["copy"]["n"] == facts["tasks"]["copy"]["right"] == 3


# ---- Batches of the reference


def test_batches_hold_every_prompt_once_and_stay_within_their_limits(encoder: Encoder) -> None:
    keys = [Key(task, index) for task in ("arithmetic", "multiply", "lookup", "tool_single") for index in range(12)]
    prompts = []
    for key in keys:
        conversation = item(key)
        whole = encoder(conversation)
        asked = question(key, conversation)
        prompts.append(Prompt(asked, whole._replace(ids=whole.ids[: whole.prompt_length]), 5))
    made = list(batches(prompts, max_rows=7, max_tokens=1200))
    assert sorted((p.question.key.task, p.question.key.index) for batch in made for p in batch) == sorted(
        (key.task, key.index) for key in keys
    )
    assert max(map(len, made)) == 7
    for batch in made:
        lengths = [p.length for p in batch]
        assert len(batch) == 1 or len(batch) * max(lengths) <= 1200
        assert max(lengths) < 2 * min(lengths) + 1


# ---- The reference


@pytest.fixture(scope="module")
def random_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every tensor random, norms and biases too, so that an answer hangs on all of its prompt."""
    import torch

    from training.config import tiny_config
    from training.export import write_checkpoint
    from training.model.dots3 import Dots3

    torch.manual_seed(1)
    model = Dots3(tiny_config(Encoder().tokenizer))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "embed" in name and value.ndim == 2:
                value.normal_()
            elif value.ndim > 1:
                fan_in = value[0].numel() if value.ndim == 4 else value.shape[-1]
                value.normal_(std=fan_in**-0.5)
            else:
                value.add_(0.2 * torch.randn_like(value))
    folder = tmp_path_factory.mktemp("random")
    write_checkpoint(model, folder)
    return folder


MIXED = (("arithmetic", 0), ("tool_single", 1), ("film_order", 2), ("film_when", 3), ("picture_digits", 0))
ANSWER = 6


@pytest.fixture(scope="module")
def reference(random_checkpoint: Path) -> Any:
    from training.evaluation.reference_run import load_reference

    return load_reference(random_checkpoint, "cpu", "float32")


@pytest.fixture(scope="module")
def singly(reference: Any) -> list[list[int]]:
    """Answers of prompts that are each a batch of their own, without filling."""
    answers = [reference.answers([example], [ANSWER])[0] for example in mixed(reference)]
    assert len({tuple(answer) for answer in answers}) == len(MIXED)
    return answers


def mixed(reference: Any) -> list[Any]:
    examples = [reference.encoder.prompt(item(Key(*key))) for key in MIXED]
    assert max(len(example.ids) for example in examples) > 256  # more than the indexer keeps
    assert any(example.sounds for example in examples)
    assert any(example.pictures for example in examples)
    return examples


@pytest.mark.e2e
def test_a_filled_up_batch_answers_as_single_prompts_do(reference: Any, singly: list[list[int]]) -> None:
    assert reference.answers(mixed(reference), [ANSWER] * len(MIXED)) == singly


@pytest.mark.e2e
def test_rows_that_end_early_leave_the_others_alone(reference: Any, singly: list[list[int]]) -> None:
    limits = [2, ANSWER, 1, ANSWER, 3]
    cut = [answer[:limit] for answer, limit in zip(singly, limits, strict=True)]
    assert reference.answers(mixed(reference), limits) == cut
    stop = singly[1][2]
    kept, reference.stop_ids = reference.stop_ids, frozenset([stop])
    try:
        answers = reference.answers(mixed(reference), [ANSWER] * len(MIXED))
    finally:
        reference.stop_ids = kept
    assert answers == [a[: a.index(stop) + 1] if stop in a else a for a in singly]


@pytest.mark.e2e
def test_a_prompt_read_in_pieces_is_answered_as_one_read_whole(
    random_checkpoint: Path, singly: list[list[int]]
) -> None:
    import torch

    from training.evaluation.reference import Reference

    in_pieces = Reference(random_checkpoint, torch.device("cpu"), torch.float32, longest_piece=50)
    assert in_pieces.answers(mixed(in_pieces), [ANSWER] * len(MIXED)) == singly


@pytest.mark.e2e
def test_answers_are_those_of_transformers_own_generate(reference: Any, singly: list[list[int]]) -> None:
    import torch

    from multimodal.image import normalise

    for example, answer in zip(mixed(reference), singly, strict=True):
        given: dict[str, Any] = {}
        if example.pictures:
            patches = np.concatenate([picture.patches for picture in example.pictures])
            given["pixel_values"] = torch.from_numpy(normalise(patches, reference.encoder.limits))
            sides = [(picture.places[-1] + 1).tolist() for picture in example.pictures]
            given["image_grid_thw"] = torch.tensor([[1, *side] for side in sides])
        if example.sounds:
            frames = max(chunk.mel.shape[1] for chunk in example.sounds)
            mel = [np.pad(chunk.mel, ((0, 0), (0, frames - chunk.mel.shape[1]))) for chunk in example.sounds]
            given["input_features"] = torch.from_numpy(np.stack(mel))
            given["chunk_sample_lengths"] = torch.tensor([chunk.samples for chunk in example.sounds])
        ids = torch.from_numpy(example.ids)[None]
        made = reference.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=ANSWER, **given
        )
        assert made[0, ids.shape[1] :].tolist() == answer


@pytest.mark.e2e
def test_the_reference_refuses_a_checkpoint_that_lacks_a_tensor(random_checkpoint: Path, tmp_path: Path) -> None:
    import shutil

    from safetensors.torch import load_file

    from training.evaluation.reference_run import load_reference
    from training.export import write_shards

    folder = tmp_path / "lacking"
    shutil.copytree(random_checkpoint, folder)
    tensors = {name: value for path in folder.glob("*.safetensors") for name, value in load_file(path).items()}
    del tensors["model.layers.3.self_attn.g_proj.weight"]
    write_shards(tensors, folder)
    with pytest.raises(ValueError, match=r"layers\.3\.self_attn\.g_proj"):
        load_reference(folder, "cpu")


@pytest.mark.e2e
def test_the_meter_runs_the_reference(random_checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "facts.json"
    tasks = "arithmetic,tool_none,picture_colour,sound_beeps,film_order"
    options = ["--transformers", str(random_checkpoint), "--tasks", tasks, "--items", "2", "--out", str(out)]
    result = CliRunner().invoke(APP, [*options, "--device", "cpu", "--batch", "4"])
    assert result.exit_code == 0, result.output
    facts = json.loads(out.read_text())
    assert [task["n"] for task in facts["tasks"].values()] == [2] * 5
    assert (facts["dtype"], facts["missed"]) == ("float32", tasks.split(","))
    assert facts["date"]
    assert facts["versions"]["transformers"]

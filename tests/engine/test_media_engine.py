"""Pictures and sounds through the whole engine, against transformers': random weights, fp32 on the CPU."""

from __future__ import annotations

import hashlib
import json
import queue
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from engine.config.engine import EngineConfig
from engine.runtime.build import Built, build
from engine.runtime.mailroom import Arrived, Letter, Stopping
from engine.wire.blobs import SharedBlob, is_here
from engine.wire.messages import (
    Failed,
    Finished,
    MediaData,
    MediaItem,
    Message,
    Sampling,
    Submit,
    TokenLogprobs,
    Tokens,
)
from multimodal.audio import chunk_lengths, log_mel, num_audio_tokens
from multimodal.image import ImageLimits, normalise, order_patches
from tests.support.tiny_media_model import AUDIO_ID, IMAGE_ID, PREPROCESSOR, media_config, write_media_checkpoint
from tests.support.tiny_model import VOCAB

pytestmark = pytest.mark.e2e

LIMITS = ImageLimits.from_preprocessor(PREPROCESSOR)
LENGTH = 2048
BUNDLED = Path("models/dots3-note-tiny")

Medium = np.ndarray  # uint8 [h, w, 3] or float32 [samples]


class Model(NamedTuple):
    folder: Path
    reference: Any
    limits: ImageLimits = LIMITS
    ids: tuple[int, int] = (IMAGE_ID, AUDIO_ID)  # placeholders


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """With an indexer that chooses all keys: which of two near ones is chosen is not what this is about."""
    folder = tmp_path_factory.mktemp("model")
    config = media_config(index_topk=LENGTH, max_position_embeddings=LENGTH)
    return Model(folder, write_media_checkpoint(folder, config))


class Engine:
    def __init__(self, folder: Path, **settings: Any) -> None:
        torch.set_num_threads(1)
        settings = {"cache_bytes": 1 << 26, "max_num_seqs": 8} | settings
        self.built: Built = build(folder, EngineConfig.for_device("cpu", **settings), "test")

    def answer(self, *submits: Submit) -> list[Answer]:
        post = Post(submits)
        self.built.loop._stopping = None
        assert self.built.loop.run(post)
        return [post.answers[submit.request_id] for submit in submits]


class Answer:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
        self.end: Finished | Failed | None = None

    @property
    def cached_tokens(self) -> int:
        assert isinstance(self.end, Finished)
        return self.end.cached_tokens

    def logprobs(self) -> torch.Tensor:
        """[prompt tokens but the first, vocabulary], after the token before each."""
        assert self.prompt_logprobs[1] is not None
        rows = torch.full((len(self.prompt_logprobs) - 1, len(self.prompt_logprobs[1].top_ids)), float("nan"))
        for row, entry in zip(rows, self.prompt_logprobs[1:], strict=True):
            assert entry is not None
            row[list(entry.top_ids)] = torch.tensor(entry.top_logprobs)
        return rows


class Post:
    def __init__(self, submits: Sequence[Submit]) -> None:
        self.inbox: queue.SimpleQueue[Letter] = queue.SimpleQueue()
        self.answers = {submit.request_id: Answer() for submit in submits}
        for submit in submits:
            self.inbox.put(Arrived(b"g", submit))

    def post(self, peer: bytes, messages: Sequence[Message]) -> None:
        del peer
        for message in messages:
            answer = self.answers[message.request_id]  # type: ignore[attr-defined]
            if isinstance(message, Tokens):
                answer.tokens += message.token_ids
                answer.prompt_logprobs = message.prompt_logprobs or answer.prompt_logprobs
            else:
                answer.end = message  # type: ignore[assignment]
        if all(answer.end for answer in self.answers.values()):
            self.inbox.put(Stopping())


def picture(rows: int, columns: int, seed: int = 0) -> Medium:
    return np.random.default_rng(seed).integers(0, 256, (28 * rows, 28 * columns, 3), dtype=np.uint8)


def sound(samples: int, seed: int = 0) -> Medium:
    return (0.2 * np.random.default_rng(seed).standard_normal(samples)).astype(np.float32)


def text(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(10, 350, length).tolist()


Pieces = Sequence[list[int] | Medium]

MIXED: Pieces = [
    text(5), picture(3, 5), text(4, 1), sound(20_000), text(2, 2), picture(1, 2, 1), text(1, 3), sound(700, 1),
    text(3, 4), picture(3, 5), text(6, 5),
]  # fmt: skip


def prompt_of(
    pieces: Pieces, placeholders: tuple[int, int] = (IMAGE_ID, AUDIO_ID)
) -> tuple[tuple[int, ...], tuple[MediaItem, ...], bytes]:
    ids: list[int] = []
    items = []
    data = b""
    for piece in pieces:
        if isinstance(piece, list):
            ids += piece
            continue
        is_picture = piece.ndim == 3
        num_tokens = piece.shape[0] * piece.shape[1] // 784 if is_picture else num_audio_tokens(piece.size)
        identity = hashlib.sha256(str(piece.shape).encode() + piece.tobytes()).digest()
        kind = "image" if is_picture else "audio"
        items.append(MediaItem(kind, len(ids), num_tokens, piece.shape, identity, start=len(data)))  # type: ignore[arg-type]
        data += piece.tobytes()
        ids += [placeholders[0 if is_picture else 1]] * num_tokens
    return tuple(ids), tuple(items), data


def submit(
    name: str,
    pieces: Pieces,
    max_tokens: int = 4,
    *,
    whole: int | None = None,
    ids: tuple[int, int] = (IMAGE_ID, AUDIO_ID),
) -> Submit:
    """`whole`: with all log-probabilities at all prompt tokens, of this vocabulary."""
    prompt_ids, items, data = prompt_of(pieces, ids)
    sampling = Sampling(max_tokens=max_tokens, temperature=0.0, prompt_logprobs=whole)
    return Submit(name, prompt_ids, sampling, media=items, media_data=MediaData(len(data), inline=data))


@torch.no_grad()
def expected(model: Model, pieces: Pieces, answer: Sequence[int] = ()) -> torch.Tensor:
    """Log-probabilities [tokens, VOCAB] after each token of prompt and answer, by transformers."""
    ids, _, _ = prompt_of(pieces, model.ids)
    pictures = [piece for piece in pieces if isinstance(piece, np.ndarray) and piece.ndim == 3]
    sounds = [piece for piece in pieces if isinstance(piece, np.ndarray) and piece.ndim == 1]
    inputs: dict[str, torch.Tensor] = {}
    if pictures:
        patches = np.concatenate([normalise(order_patches(one), model.limits) for one in pictures])
        inputs["pixel_values"] = torch.from_numpy(patches)
        inputs["image_grid_thw"] = torch.tensor([[1, one.shape[0] // 14, one.shape[1] // 14] for one in pictures])
    if sounds:
        lengths = [length for one in sounds for length in chunk_lengths(one.size)]
        mel = torch.zeros(len(lengths), 128, 8 * max(map(num_audio_tokens, lengths)))
        for row, chunk in zip(mel, [chunk for one in sounds for chunk in log_mel(one)], strict=True):
            row[:, : chunk.shape[1]] = torch.from_numpy(chunk)
        inputs["input_features"] = mel
        inputs["chunk_sample_lengths"] = torch.tensor(lengths)
    logits = model.reference(input_ids=torch.tensor([[*ids, *answer]]), **inputs).logits[0]
    return logits.log_softmax(-1)


def check_greedy(model: Model, pieces: Pieces, answer: Answer) -> None:
    """Each token is the one that the reference puts first after those before it."""
    assert answer.tokens
    theirs = expected(model, pieces, answer.tokens)
    assert answer.tokens == theirs[-1 - len(answer.tokens) : -1].argmax(-1).tolist()


def check_rows(answer: Answer, theirs: torch.Tensor) -> None:
    ours, theirs = answer.logprobs(), theirs[: len(answer.prompt_logprobs) - 1]
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


# Steps that take everything at once, that end amid items, and that hold less than any item.
@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 512},
        {"max_num_batched_tokens": 11, "max_encoder_tokens": 8},
        {"max_num_batched_tokens": 8, "max_encoder_tokens": 16, "encoder_cache_bytes": 16 * 96 * 4},
    ],
    ids=["at once", "in chunks", "least cache"],
)
def test_every_row_is_that_of_the_reference(model: Model, settings: dict[str, int]) -> None:
    (answer,) = Engine(model.folder, **settings).answer(submit("r", MIXED, whole=VOCAB))
    check_rows(answer, expected(model, MIXED))
    check_greedy(model, MIXED, answer)


def test_a_sound_of_more_than_a_minute(model: Model) -> None:
    pieces = [text(3), sound(60 * 16_000 + 30_000), text(4)]
    (answer,) = Engine(model.folder, max_num_batched_tokens=300).answer(submit("r", pieces, 2, whole=VOCAB))
    check_rows(answer, expected(model, pieces))


def test_requests_of_one_batch_do_not_mix(model: Model) -> None:
    engine = Engine(model.folder, max_num_batched_tokens=40, max_encoder_tokens=20)
    conversations: list[Pieces] = [
        MIXED,
        [picture(2, 2, 7), text(5)],
        [text(30)],
        [text(2), sound(3_000, 8), text(3)],
        [picture(2, 2, 9), text(5)],
    ]
    answers = engine.answer(*(submit(f"r{number}", one, 3) for number, one in enumerate(conversations)))
    for answer, pieces in zip(answers, conversations, strict=True):
        check_greedy(model, pieces, answer)


def test_preempted_requests_go_on_as_if_nothing_had_happened(model: Model) -> None:
    engine = Engine(
        model.folder,
        cache_bytes=200_000,
        max_model_len=160,
        page_size=4,
        max_num_batched_tokens=9,
        max_encoder_tokens=8,
        encoder_cache_bytes=40 * 96 * 4,
    )
    conversations: list[Pieces] = [
        [text(5, seed), picture(4, 5, seed), text(4, seed + 10), sound(20_000, seed), text(3, seed + 20)]
        for seed in range(4)
    ]
    answers = engine.answer(*(submit(f"r{number}", one, 60) for number, one in enumerate(conversations)))
    assert engine.built.loop.beat().preemptions > 0
    for answer, pieces in zip(answers, conversations, strict=True):
        assert len(answer.tokens) == 60
        check_greedy(model, pieces, answer)


def test_the_bundled_checkpoint() -> None:
    """Its encoders have learnt, so their outputs are of the sizes that real ones have."""
    from transformers import Dots3NoteForConditionalGeneration

    reference = Dots3NoteForConditionalGeneration.from_pretrained(BUNDLED, dtype=torch.float32).eval()
    preprocessor = json.loads((BUNDLED / "preprocessor_config.json").read_text())
    model = Model(
        BUNDLED,
        reference,
        ImageLimits.from_preprocessor(preprocessor),
        (reference.config.image_token_id, reference.config.audio_token_id),
    )
    shade = np.linspace(0, 255, 56 * 84 * 3).reshape(56, 84, 3).astype(np.uint8)
    pieces = [text(20), shade, text(6, 1), sound(30_000), text(5, 2), picture(8, 11), text(4, 3)]
    (answer,) = Engine(BUNDLED, max_num_batched_tokens=50).answer(submit("r", pieces, 6, whole=3072, ids=model.ids))
    check_rows(answer, expected(model, pieces))
    check_greedy(model, pieces, answer)


def test_a_prefix_is_found_across_equal_media_and_not_across_others(model: Model) -> None:
    engine = Engine(model.folder, page_size=4)
    one, other, tail = picture(4, 6, 1), picture(4, 6, 2), text(10, 1)
    before, after = text(7), text(12, 2)
    first, again, different = ([before, image, after, tail] for image in (one, one, other))
    (cold,) = engine.answer(submit("a", first))
    (warm,) = engine.answer(submit("b", again))
    (changed,) = engine.answer(submit("c", different))
    assert (cold.cached_tokens, warm.cached_tokens, changed.cached_tokens) == (0, 52, 4)
    assert cold.tokens == warm.tokens
    check_greedy(model, first, warm)
    check_greedy(model, different, changed)


def test_items_of_equal_identity_are_encoded_once(model: Model) -> None:
    """So the data of the second are never looked at."""
    pieces = [text(2), picture(3, 3), text(2, 1), picture(3, 3), text(5, 2)]
    honest = submit("a", pieces, whole=VOCAB)
    _, items, data = prompt_of(pieces)
    half = len(data) // 2
    assert items[0].identity == items[1].identity
    spoilt = MediaData(len(data), inline=data[:half] + bytes(half))
    engine = Engine(model.folder, max_num_batched_tokens=15, enable_prefix_caching=False)
    (answer,) = engine.answer(Submit("a", honest.prompt_ids, honest.sampling, media=items, media_data=spoilt))
    check_rows(answer, expected(model, pieces))


def test_data_may_come_in_shared_memory(model: Model) -> None:
    ids, items, data = prompt_of(MIXED)
    engine = Engine(model.folder)
    support = engine.built.ready.media
    assert support is not None
    assert support.kinds == ("image", "audio")
    assert is_here(support.probe)
    with_blob = SharedBlob([data])
    sampling = Sampling(max_tokens=3, temperature=0.0)
    media = MediaData(len(data), blob=with_blob.name)
    (answer,) = engine.answer(Submit("r", ids, sampling, media=items, media_data=media))
    check_greedy(model, MIXED, answer)
    assert not is_here(with_blob.name)
    assert with_blob.name not in Path("/proc/self/maps").read_text()


def test_media_that_do_not_fit_fail_alone(model: Model) -> None:
    wrong = submit("wrong", [text(3), picture(2, 2), text(2)])
    wrong = Submit("wrong", wrong.prompt_ids[::-1], wrong.sampling, media=wrong.media, media_data=wrong.media_data)
    right, failed = Engine(model.folder).answer(submit("right", MIXED), wrong)
    assert isinstance(failed.end, Failed)
    assert failed.end.code == "invalid_value"
    assert "the prompt must have the placeholder 380 from 3 to 6" in failed.end.message
    check_greedy(model, MIXED, right)

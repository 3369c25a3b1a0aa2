"""The sound encoder against transformers': fp32 on the CPU, random weights, chunks of all lengths packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from engine.config.encoders import MediaConfig
from engine.config.model import ModelConfig
from engine.model.audio import AudioEncoder, Chunk
from engine.model.load import load_encoders
from engine.model.vision import PixelScale
from engine.runtime.media_encoder import rfft
from multimodal.audio import chunk_lengths, log_mel, num_audio_tokens, valid_mel_frames
from tests.support.tiny_media_model import media_config, write_media_checkpoint

pytestmark = pytest.mark.e2e

MINUTE = 60 * 16_000


class Pair(NamedTuple):
    encoder: AudioEncoder
    reference: Any


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder: Path = tmp_path_factory.mktemp("audio")
    config = media_config("dense")
    reference = write_media_checkpoint(folder, config, seed=1)
    encoders = load_encoders(
        folder,
        ModelConfig.from_folder(folder),
        MediaConfig.from_json(config, config["hidden_size"]),
        PixelScale((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        torch.device("cpu"),
        torch.float32,
    )
    assert encoders.audio is not None
    return Pair(encoders.audio, reference.model.audio_tower)


def sound(samples: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    time = np.arange(samples) / 16_000
    tone = np.sin(2 * np.pi * (200 + 50 * seed) * time) * np.exp(-time / 30)
    return (0.3 * tone + 0.05 * random.standard_normal(samples)).astype(np.float32)


def chunks_of(wave: np.ndarray) -> list[Chunk]:
    mel = torch.from_numpy(log_mel(wave))
    lengths = chunk_lengths(len(wave))
    return [
        Chunk(mel[place, :, : 8 * num_audio_tokens(length)], valid_mel_frames(length))
        for place, length in enumerate(lengths)
    ]


@torch.no_grad()
def expected(pair: Pair, waves: list[np.ndarray]) -> torch.Tensor:
    """By the reference's own padded batch."""
    lengths = [length for wave in waves for length in chunk_lengths(len(wave))]
    frames = 8 * max(map(num_audio_tokens, lengths))
    mel = torch.zeros(len(lengths), 128, frames)
    place = 0
    for wave in waves:
        for row in log_mel(wave):
            mel[place, :, : row.shape[1]] = torch.from_numpy(row)
            place += 1
    return pair.reference(mel, chunk_sample_lengths=torch.tensor(lengths)).pooler_output


# One sample, one frame less than a token, a token and a sample more, and the same around the minute.
@pytest.mark.parametrize(
    "samples",
    [[1], [159, 160, 161], [1279, 1280, 1281], [16_000, 23_456, 1, 80_000], [MINUTE - 1, 900], [MINUTE], [MINUTE + 1],
     [700, 2 * MINUTE + 5_000]],
    ids=str,
)  # fmt: skip
def test_embeddings_are_those_of_the_reference(pair: Pair, samples: list[int]) -> None:
    waves = [sound(count, seed) for seed, count in enumerate(samples)]
    ours = pair.encoder.forward([chunk for wave in waves for chunk in chunks_of(wave)])
    theirs = expected(pair, waves)
    assert ours.shape == (sum(map(num_audio_tokens, samples)), 96)
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


def test_a_chunk_does_not_hear_its_neighbours(pair: Pair) -> None:
    """Also where sound goes on to the very end of a chunk and of the next one's beginning."""
    quiet, loud = chunks_of(sound(12_800, 1)), chunks_of(10 * sound(25_600, 2))
    alone = pair.encoder.forward(quiet)
    torch.testing.assert_close(pair.encoder.forward([*loud, *quiet])[20:], alone, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(pair.encoder.forward([*quiet, *loud])[:10], alone, rtol=1e-5, atol=1e-5)


def test_numbers_that_are_none_stay_in_their_chunk(pair: Pair) -> None:
    sane, broken = chunks_of(sound(12_800, 1)), chunks_of(sound(25_600, 2))
    broken[0].mel[5, -1] = float("nan")
    broken[0].mel[6, 0] = float("inf")
    rows = pair.encoder.forward([*broken, *sane, *broken])
    torch.testing.assert_close(rows[20:30], pair.encoder.forward(sane), rtol=1e-5, atol=1e-5)


def test_every_layer_tells_of_itself(pair: Pair) -> None:
    calls: list[int] = []
    pair.encoder.forward(chunks_of(sound(500)), lambda: calls.append(1))
    assert len(calls) == 3 + pair.encoder.config.num_layers


@pytest.mark.parametrize("samples", [1, 401, 20_000, MINUTE + 300])
def test_log_mel_by_the_workers_transform_is_log_mel(samples: int) -> None:
    wave = sound(samples)
    np.testing.assert_allclose(log_mel(wave, rfft), log_mel(wave), rtol=0, atol=1e-4)

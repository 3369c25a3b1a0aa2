"""Sound: log-mel values against the goldens and the reference, and the lengths that go wrong elsewhere."""

import time
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from multimodal.audio import CHUNK_SAMPLES, chunk_lengths, log_mel, num_audio_tokens, valid_mel_frames
from tests.multimodal import goldens


def noise(samples: int) -> NDArray[np.float32]:
    return (np.random.default_rng(samples).standard_normal(samples) * 0.1).astype(np.float32)


@pytest.mark.parametrize("case", goldens.cases("audio_features.jsonl"), ids=lambda case: case["id"])
def test_log_mel_is_the_golden_one(case: dict[str, Any]) -> None:
    wave = goldens.waveform(case["formula"], case["samples"])
    for sample, value in case["wave_checks"]:
        assert wave[sample] == pytest.approx(value, abs=1e-7)

    features = log_mel(wave)

    lengths = chunk_lengths(wave.size)
    assert list(features.shape) == case["features_shape"]
    assert lengths == case["chunk_sample_lengths"]
    assert [valid_mel_frames(length) for length in lengths] == case["valid_mel_frames"]
    assert [num_audio_tokens(length) for length in lengths] == case["tokens_per_chunk"]
    assert num_audio_tokens(wave.size) == case["audio_tokens"]
    for grid in case["grids"]:
        chunk = features[grid["chunk"]]
        np.testing.assert_allclose(chunk[np.ix_(grid["bands"], grid["frames"])], grid["values"], rtol=0, atol=5e-4)
        assert chunk.mean() == pytest.approx(grid["mean_all"], abs=5e-4)
        assert (chunk.min(), chunk.max()) == pytest.approx((grid["min"], grid["max"]), abs=5e-4)


@pytest.mark.e2e
def test_log_mel_is_that_of_the_reference_at_every_odd_length() -> None:
    from transformers.models.dots3_note.feature_extraction_dots3_note import Dots3NoteFeatureExtractor

    reference = Dots3NoteFeatureExtractor()
    around_a_minute = [CHUNK_SAMPLES + off for off in (-241, -240, -201, -200, -41, -40, -1, 0, 1, 200)]
    for samples in [1, 2, 159, 160, 200, 201, 202, 399, 401, 1280, 1281, 20_000, *around_a_minute]:
        wave = noise(samples)
        wanted = reference(wave)["input_features"].numpy()
        np.testing.assert_allclose(log_mel(wave), wanted, rtol=0, atol=5e-4, err_msg=f"{samples} samples")


def test_each_chunk_has_its_own_floor() -> None:
    loud_then_soft = np.concatenate([noise(CHUNK_SAMPLES), noise(1280) * np.float32(1e-4)])
    alone = log_mel(loud_then_soft[CHUNK_SAMPLES:])
    assert np.array_equal(log_mel(loud_then_soft)[1, :, :8], alone[0])


def test_frames_after_the_sound_hold_the_floor() -> None:
    features = log_mel(np.concatenate([noise(16000), np.zeros(48000, dtype=np.float32)]))
    assert np.all(features[0, :, 110:] == features.max() - 2.0)


def test_silence_is_one_value() -> None:
    assert np.all(log_mel(np.zeros(5000, dtype=np.float32)) == -1.5)


@pytest.mark.parametrize("shape", [(0,), (2, 100)])
def test_what_is_no_row_of_samples_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least 1 sample"):
        log_mel(np.zeros(shape, dtype=np.float32))


def test_a_short_sound_does_not_cost_a_whole_minute() -> None:
    assert 5 * least_cpu_s(noise(32000)) < least_cpu_s(noise(CHUNK_SAMPLES))


def least_cpu_s(wave: NDArray[np.float32]) -> float:
    took_s = []
    for _ in range(5):
        begin_s = time.process_time()
        log_mel(wave)
        took_s.append(time.process_time() - begin_s)
    return min(took_s)

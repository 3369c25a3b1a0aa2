"""Sound files: any sample format and rate, gaps, few samples, and what is no sound."""

import io
from fractions import Fraction

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from multimodal.file_limits import FileLimits
from multimodal.sound_file import read_sound
from tests.multimodal import encoded, goldens
from tests.support.media_fixture_adapter import prepare

WAVE = 0.8 * np.sin(np.arange(8000) * 0.2)
SAMPLE_TYPES = {
    "uint8": (WAVE * 127 + 128).astype(np.uint8),
    "int16": (WAVE * 32767).astype(np.int16),
    "int32": (WAVE * 2**31).astype(np.int32),
    "float32": WAVE.astype(np.float32),
    "float64": WAVE,
}


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
@pytest.mark.parametrize("name", SAMPLE_TYPES)
def test_every_sample_type_keeps_length_and_level(name: str, rate: int) -> None:
    heard = read_sound(encoded.wav(SAMPLE_TYPES[name][:, None].repeat(2, axis=1), rate))
    assert heard.dtype == np.float32
    assert heard.size == -(-8000 * 16000 // rate)
    assert np.abs(heard).max() == pytest.approx(0.8, abs=0.02)
    assert abs(heard.mean()) < 0.005


@pytest.mark.parametrize(
    ("codec", "container", "form"),
    [
        ("alac", "mov", "s16p"),
        ("flac", "flac", "s16"),
        ("pcm_s16le", "mov", "s16"),
        ("pcm_s24le", "matroska", "s32"),
        ("pcm_f32le", "matroska", "flt"),
        ("mp3", "mp3", "fltp"),
    ],
)
def test_packed_and_planar_stereo_keep_length_and_level_in_any_container(codec: str, container: str, form: str) -> None:
    tone = (0.8 * np.sin(np.arange(32_000) * 0.2)).astype(np.float32)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        track = output.add_stream(codec, rate=16000)
        track.codec_context.layout, track.codec_context.format = "stereo", form
        frame = av.AudioFrame.from_ndarray(np.stack([tone, tone]), format="fltp", layout="stereo")
        frame.sample_rate, frame.pts, frame.time_base = 16000, 0, Fraction(1, 16000)
        converter = av.AudioResampler(format=form, layout="stereo", rate=16000)
        for part in (*converter.resample(frame), *converter.resample(None)):
            output.mux(track.encode(part))
        output.mux(track.encode(None))

    heard = read_sound(buffer.getvalue())

    assert heard.size == pytest.approx(32_000, abs=0.03 * 16000)
    assert np.abs(heard).max() <= 1.0
    assert np.abs(heard[2000:30_000]).max() == pytest.approx(0.8, abs=0.04)
    assert abs(heard.mean()) < 0.005


def test_channels_are_mixed_by_their_mean() -> None:
    one_side = np.stack([SAMPLE_TYPES["int16"], np.zeros(8000, dtype=np.int16)], axis=1)
    assert np.abs(read_sound(encoded.wav(one_side))).max() == pytest.approx(0.4, abs=0.01)


def test_values_beyond_full_scale_and_no_numbers_stay_within_it() -> None:
    wild = np.array([[3.0], [-3.0], [np.nan], [np.inf], [0.5]], dtype=np.float32)
    assert read_sound(encoded.wav(wild)).tolist() == [1.0, -1.0, 0.0, 0.0, 0.5]


@pytest.mark.parametrize(
    ("samples", "rate", "length"), [(1, 16000, 1), (1, 44100, 1), (399, 16000, 399), (399, 8000, 798)]
)
def test_sounds_of_few_samples_are_sounds(samples: int, rate: int, length: int) -> None:
    assert read_sound(encoded.wav(np.ones((samples, 1), dtype=np.int16), rate)).size == length


def test_a_gap_between_packets_is_silence() -> None:
    def tone(begin_s: float) -> av.AudioFrame:
        frame = av.AudioFrame.from_ndarray(SAMPLE_TYPES["int16"][None], format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = 16000, round(16000 * begin_s), Fraction(1, 16000)
        return frame

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as output:
        track = output.add_stream("pcm_s16le", rate=16000)
        track.codec_context.layout = "mono"
        for begin_s in (1.0, 3.0):
            output.mux(track.encode(tone(begin_s)))
        output.mux(track.encode(None))

    heard = read_sound(buffer.getvalue())

    assert heard.size == round(2.5 * 16000)
    assert not heard[8000:32000].any()
    assert rms(heard[32000:]) == pytest.approx(rms(heard[:8000]), abs=1e-3)


def test_eight_channels_are_mixed_too() -> None:
    channels = np.zeros((8, 16000), dtype=np.float32)
    channels[0] = 0.8 * np.sin(np.arange(16000) * 0.2)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as output:
        track = output.add_stream("aac", rate=16000)
        track.codec_context.layout = "7.1"
        frame = av.AudioFrame.from_ndarray(channels.T.reshape(1, -1), format="flt", layout="7.1")
        frame.sample_rate, frame.pts, frame.time_base = 16000, 0, Fraction(1, 16000)
        output.mux(track.encode(frame))
        output.mux(track.encode(None))

    heard = read_sound(buffer.getvalue())

    assert abs(heard.size - 16000) <= 2048
    assert np.abs(heard[2000:14000]).max() == pytest.approx(0.1, abs=0.01)


def rms(wave: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.mean(np.square(wave))))


def test_a_cover_picture_does_not_hide_the_sound() -> None:
    entry = next(entry for entry in goldens.manifest()["files"] if entry["file"] == "cover.mp3")
    got = prepare(goldens.FOLDER / "files" / "cover.mp3", {})
    low, high = entry["truth"]["audio_tokens_between"]
    assert low <= got["audio_tokens"] <= high
    assert got["audio_decoded"]["peak"] == pytest.approx(
        entry["truth"]["audio"]["heard"][0]["peak_mono_mean"], abs=0.06
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"RIFF....",
        encoded.wav(np.zeros((0, 1), dtype=np.int16)),
        (goldens.FOLDER / "files" / "no_audio.mp4").read_bytes(),
    ],
    ids=["empty", "header", "no sample", "silent film"],
)
def test_what_holds_no_sound_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"cannot be decoded|holds no s"):
        read_sound(data)


def test_a_header_of_four_gigabytes_is_refused() -> None:
    data = bytearray(encoded.wav(np.ones((1600, 1), dtype=np.int16)))
    at = data.index(b"data") + 4
    data[at : at + 4] = (0xFFFFFFF0).to_bytes(4, "little")
    with pytest.raises(ValueError, match="a sound may last 14400 seconds at most, got 134218"):
        read_sound(bytes(data))


@pytest.mark.parametrize("told", [10_000_000, 0xFFFFFFFF], ids=["too much", "left open"])
def test_a_header_that_tells_a_wrong_length_costs_nothing(told: int) -> None:
    data = bytearray(encoded.wav(np.ones((1600, 1), dtype=np.int16)))
    at = data.index(b"data") + 4
    data[at : at + 4] = told.to_bytes(4, "little")
    assert read_sound(bytes(data)).size == 1600


def test_a_sound_is_refused_as_soon_as_it_turns_out_too_long() -> None:
    with pytest.raises(ValueError, match=r"last 0\.05 seconds at most"):
        read_sound(encoded.wav(np.ones((1600, 1), dtype=np.int16)), FileLimits(duration_s=0.05))

"""Film files: every run of the golden files, and the containers, clocks and damage that go wrong elsewhere."""

import io
import struct
import time
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from multimodal.file_limits import FileLimits
from multimodal.film import PreparedFilm, prepare_film, probe_film
from multimodal.film_file import FrameMissingError, index_film, read_frames
from multimodal.video import VideoFacts, VideoRequest, plan_video
from tests.multimodal import encoded, goldens
from tests.support.media_fixture_adapter import LIMITS, prepare

TOLERANCE = goldens.manifest()["tolerance"]
FILES = {entry["file"]: entry for entry in goldens.manifest()["files"]}
EIGHT_SECONDS = list(range(0, 8000, 40))
REQUEST = VideoRequest(seq=131072)
TONE = (np.sin(np.arange(4 * 16000) * 2 * np.pi * 440 / 16000) * 16000).astype(np.int16)


GOLDEN_RUNS = [
    pytest.param(name, run, id=f"{name}-{number}")
    for name, entry in FILES.items()
    for number, run in enumerate(entry.get("runs", []))
]


def prepared(data: bytes, request: VideoRequest = REQUEST) -> PreparedFilm:
    return prepare_film(data, request, LIMITS)


def assert_labels_are_true(film: PreparedFilm, frame_s: float = 0.04) -> None:
    """The grey of each frame tells which one it is, and so its time."""
    for frame, time_s in zip(film.frames, film.plan.frame_times_s, strict=True):
        number = round((time_s - film.plan.frame_times_s[0]) / frame_s)
        assert abs(float(frame.mean()) - encoded.grey_of(number)) < 0.49 * encoded.GREY_STEP


@pytest.mark.parametrize(("name", "run"), GOLDEN_RUNS)
def test_a_golden_file_comes_out_right(name: str, run: dict[str, Any]) -> None:
    got = prepare(goldens.FOLDER / "files" / name, run["request"])
    right = run["right"]
    near = {"frame_pts_s": TOLERANCE["time_s"], "frame_rgb": TOLERANCE["rgb"]}
    edge = TOLERANCE["sound_edge_s"] * 16000
    assert len(got["audio_segments"]) == len(right["audio_segments"])
    for field, wanted in right.items():
        if field in near:
            np.testing.assert_allclose(got[field], wanted, rtol=0, atol=near[field])
        elif field == "audio_segments":
            np.testing.assert_allclose(got[field], np.reshape(wanted, (-1, 2)).tolist(), rtol=0, atol=edge)
        elif field == "frame_quadrants":
            for place, colour in wanted.items():
                np.testing.assert_allclose(got[field][place], colour, rtol=0, atol=TOLERANCE["rgb"])
        elif field not in ("rule", "evenly_in_time"):
            assert got[field] == wanted, field
    if not right["audio_kept"] and FILES[name]["truth"]["audio"]["present"]:
        assert got["audio_drop_reason"]


def pitch_hz(wave: NDArray[np.float32]) -> float:
    spectrum = np.abs(np.fft.rfft(wave * np.hanning(wave.size)))
    return float(spectrum.argmax() * 16000 / wave.size)


@pytest.mark.parametrize("name", [name for name, entry in FILES.items() if entry["kind"] == "video"])
def test_what_is_heard_is_heard_in_its_own_time(name: str) -> None:
    truth = FILES[name]["truth"]["audio"]
    film = prepared((goldens.FOLDER / "files" / name).read_bytes())
    assert bool(film.sounds) == truth["present"]
    wave = np.concatenate([*film.sounds, np.zeros(0, dtype=np.float32)])
    for heard in truth.get("heard", []):
        begin, end = (round(16000 * (heard[border] + inside)) for border, inside in (("from_s", 0.05), ("to_s", -0.05)))
        if heard["hz"] is None:
            assert np.abs(wave[begin : end - 800]).max() < 0.01
        else:
            assert pitch_hz(wave[begin:end]) == pytest.approx(heard["hz"], abs=TOLERANCE["hz"])
            peak = float(np.abs(wave[begin:end]).max())
            assert peak == pytest.approx(heard["peak_mono_mean"], abs=TOLERANCE["peak"])


@pytest.mark.parametrize(
    ("container", "codec"),
    [
        ("mp4", "libx264"),
        ("matroska", "libx264"),
        ("mpegts", "libx264"),
        ("flv", "libx264"),
        ("avi", "mpeg4"),
        ("webm", "libvpx-vp9"),
    ],
)
def test_chosen_frames_are_the_labelled_ones_in_any_container(container: str, codec: str) -> None:
    data = encoded.film(EIGHT_SECONDS, container, codec)
    film = prepared(data)
    assert film.plan.frame_indices == (0, 28, 57, 85, 114, 142, 171, 199)
    assert film.plan.frame_times_s[-1] == 7.96
    if codec != "mpeg4":  # its first frames after a jump differ by more than a grey step
        assert_labels_are_true(film)


def test_a_fragmented_film_is_read_to_its_end() -> None:
    film = prepared(encoded.film(EIGHT_SECONDS, options={"movflags": "frag_keyframe+empty_moov"}))
    assert film.plan.frame_times_s[-1] == 7.96
    assert_labels_are_true(film)


@pytest.mark.parametrize("container", ["matroska", "mpegts"])
def test_a_film_that_is_cut_off_is_spread_over_what_is_left(container: str) -> None:
    data = encoded.film(EIGHT_SECONDS, container)
    film = prepared(data[: len(data) * 2 // 3])
    assert 5.0 < film.plan.frame_times_s[-1] < 5.6
    assert_labels_are_true(film)


@pytest.mark.parametrize("num_frames", [1, 2, 3])
def test_films_of_few_frames_have_those_frames(num_frames: int) -> None:
    film = prepared(encoded.film(EIGHT_SECONDS[:num_frames]))
    assert film.plan.frame_indices == tuple(range(num_frames))
    assert_labels_are_true(film)


def test_a_film_of_three_hundredths_of_a_second_is_its_one_frame() -> None:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=Fraction(100, 3))
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        output.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((48, 64, 3), 90, np.uint8), format="rgb24")))
        output.mux(stream.encode(None))
    index = index_film(buffer.getvalue())
    film = prepared(buffer.getvalue())
    assert index.end_s - index.frame_times_s[0] == pytest.approx(0.03, abs=0.001)
    assert film.plan.timestamps == ("00:00:00.00",)
    assert len(film.frames) == 1


def test_stamps_at_29_97_frames_a_second_do_not_drift() -> None:
    film = prepared(encoded.film([round(number * 1001 / 30) for number in range(300)]))
    assert film.plan.frame_indices[-1] == 299
    right = [number * 1001 / 30_000 for number in film.plan.frame_indices]
    np.testing.assert_allclose(film.plan.frame_times_s, right, rtol=0, atol=0.001)


def test_counting_frames_finds_what_packets_tell() -> None:
    data = encoded.film(EIGHT_SECONDS, "matroska")
    told, counted = index_film(data), index_film(data, count_frames=True)
    assert counted.packets is None
    assert counted._replace(packets=told.packets) == told
    numbers = [0, 50, 199]
    for one, other in zip(read_frames(data, told, numbers), read_frames(data, counted, numbers), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("container", "codec"),
    [("mp4", "libx264"), ("matroska", "mpeg4"), ("webm", "libvpx-vp9"), ("mp4", "libx265")],
)
def test_frames_are_the_same_where_those_between_are_left_out(container: str, codec: str) -> None:
    data = encoded.film(EIGHT_SECONDS, container, codec, gop=40, b_frames=3)
    index = index_film(data)
    numbers = [0, 1, 2, 3, 4, 5, 6, 7, 30, 61, 62, 100, 139, 199]
    every = list(read_frames(data, index_film(data, count_frames=True), range(200)))
    for number, rgb in zip(numbers, read_frames(data, index, numbers), strict=True):
        assert np.array_equal(rgb, every[number])


def test_a_chosen_frame_that_cannot_be_decoded_makes_the_film_shorter() -> None:
    data = encoded.film(EIGHT_SECONDS, "matroska", "libvpx-vp9", gop=1)
    with av.open(io.BytesIO(data), "r") as container:
        last = [bytes(packet) for packet in container.demux(video=0) if packet.size][-1]
    at = data.rfind(last)
    damaged = data[:at] + bytes(len(last)) + data[at + len(last) :]

    with pytest.raises(FrameMissingError):
        list(read_frames(damaged, index_film(damaged), [0, 199]))
    film = prepared(damaged)
    assert film.plan.frame_indices[-1] == 198
    assert_labels_are_true(film)


def displayed_quarters(turn: tuple[int, int, int, int]) -> str:
    """First letters of the colours of a stored G Y / R B film under the display matrix [a b; c d]."""
    data = (goldens.FOLDER / "files" / "rotated_90.mp4").read_bytes()
    at = data.find(struct.pack(">4i", 0, 1 << 16, 0, -1 << 16))
    a, b, c, d = (value << 16 for value in turn)
    data = data[:at] + struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30) + data[at + 36 :]
    [rgb] = read_frames(data, index_film(data), [0])
    height, width, _ = rgb.shape
    assert (height > width) == (a == 0)
    names = {(True, False, False): "R", (False, True, False): "G", (False, False, True): "B", (True, True, False): "Y"}
    rows, columns = (height // 4, 3 * height // 4), (width // 4, 3 * width // 4)
    return "".join(names[tuple((rgb[y, x] > 100).tolist())] for y in rows for x in columns)


@pytest.mark.parametrize(
    ("turn", "quarters"),
    [
        ((1, 0, 0, 1), "GYRB"),
        ((0, 1, -1, 0), "RGBY"),
        ((-1, 0, 0, -1), "BRYG"),
        ((0, -1, 1, 0), "YBGR"),
        ((-1, 0, 0, 1), "YGBR"),
        ((1, 0, 0, -1), "RBGY"),
        ((0, 1, 1, 0), "GRYB"),
        ((0, -1, -1, 0), "BYRG"),
    ],
)
def test_every_display_matrix_is_followed(turn: tuple[int, int, int, int], quarters: str) -> None:
    assert displayed_quarters(turn) == quarters


def test_sound_that_begins_late_has_silence_before_it() -> None:
    film = prepared(encoded.film(EIGHT_SECONDS, "matroska", sound=TONE, sound_at_ms=2000))
    wave = np.concatenate(film.sounds)
    assert wave.size == 6 * 16000
    assert not wave[: 2 * 16000].any()
    assert pitch_hz(wave[2 * 16000 :]) == pytest.approx(440, abs=1)


@pytest.mark.parametrize("audio_cap", [1.0, 0.0])
def test_a_film_begins_with_sound_that_is_earlier_than_its_pictures(audio_cap: float) -> None:
    data = encoded.film([time_ms + 3000 for time_ms in EIGHT_SECONDS], "matroska", sound=TONE)
    film = prepared(data, VideoRequest(seq=131072, audio_cap=audio_cap))
    assert film.plan.timestamps[0] == "00:00:03.00"
    assert_labels_are_true(film)
    if audio_cap:
        assert sum(sound.size for sound in film.sounds) == TONE.size
    else:
        assert film.plan.audio_drop_reason == "audio_cap_zero"


def test_what_a_codec_puts_before_the_sound_does_not_move_the_pictures() -> None:
    film = prepared(encoded.film(EIGHT_SECONDS, "flv", "flv", sound=TONE))
    assert film.plan.timestamps[0] == "00:00:00.00"
    assert film.plan.frame_times_s[-1] == 7.96


def test_sound_that_cannot_be_decoded_is_reported() -> None:
    data = encoded.film(EIGHT_SECONDS, "mp4", sound=TONE)
    with av.open(io.BytesIO(data), "r") as container:
        payloads = [bytes(packet) for packet in container.demux(audio=0) if packet.size]
    for payload in payloads:
        data = data.replace(payload, b"\xff" * len(payload))
    film = prepared(data)
    assert film.plan.audio_drop_reason == "undecodable"
    assert not film.sounds


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"a text that somebody named film.mp4\n" * 20,
        b"%PDF-1.7\n" + bytes(500),
        b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n",
        b"ffconcat version 1.0\nfile /etc/hostname\n",
        encoded.wav(np.zeros((1600, 1), dtype=np.int16)),
        (goldens.FOLDER / "files" / "cover.mp3").read_bytes(),
        (goldens.FOLDER / "files" / "cfr_tone.mp4").read_bytes()[:3000],
    ],
    ids=["empty", "text", "pdf", "playlist", "concat", "wav", "cover picture", "cut before its index"],
)
def test_what_is_no_film_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"the film cannot be decoded|holds no film"):
        prepared(data)


@pytest.mark.parametrize(
    ("pixel", "shown"),
    [((2, 1), (48, 128)), ((1, 2), (48, 32)), ((8, 9), (48, 57)), ((1, 1), (48, 64)), ((99, 1), (48, 64))],
)
def test_a_film_of_oblong_pixels_is_planned_as_it_is_shown(pixel: tuple[int, int], shown: tuple[int, int]) -> None:
    data = encoded.film(EIGHT_SECONDS[:10], pixel=Fraction(*pixel))
    assert index_film(data).upright == shown
    film = prepared(data)
    assert film.frames[0].shape[:2] == film.plan.resized == plan_video(film_facts(*shown), REQUEST, LIMITS).resized


def film_facts(height: int, width: int) -> VideoFacts:
    return VideoFacts.constant_rate(height, width, 25.0, 10)


@pytest.mark.parametrize(
    ("limits", "word"),
    [
        (FileLimits(frame_pixels=64 * 48 - 1), "frames may have 3071 pixels at most, got 64 x 48"),
        (FileLimits(film_frames=199), "199 frames at most, got 200"),
        (FileLimits(duration_s=7.5), "last 7.5 seconds at most, got 8"),
    ],
)
@pytest.mark.parametrize("count_frames", [False, True])
def test_a_film_beyond_the_limits_is_refused(limits: FileLimits, word: str, count_frames: bool) -> None:
    data = encoded.film(EIGHT_SECONDS)
    with pytest.raises(ValueError, match=word):
        probe_film(data, decode_sound=True, count_frames=count_frames, limits=limits)


def test_a_film_that_declares_huge_frames_is_refused_before_any_is_decoded() -> None:
    data = bytearray(encoded.film(EIGHT_SECONDS[:2], "avi", "rawvideo"))
    bitmap = data.index(b"strf") + 8
    assert struct.unpack("<II", data[bitmap + 4 : bitmap + 12]) == (64, 48)
    data[bitmap + 4 : bitmap + 12] = struct.pack("<II", 8192, 8192)
    began_s = time.monotonic()
    with pytest.raises(ValueError, match="40000000 pixels at most, got 8192 x 8192"):
        prepared(bytes(data))
    assert time.monotonic() - began_s < 5.0


@pytest.mark.parametrize("told", [800_000, 0xFFFFFFFF, 0], ids=["too many", "minus one", "none"])
def test_a_film_whose_header_miscounts_its_frames_is_spread_over_those_it_has(told: int) -> None:
    data = bytearray(encoded.film(EIGHT_SECONDS, "avi", "mpeg4"))
    for header, place in ((b"avih", 8 + 16), (b"strh", 8 + 32)):
        at = data.index(header) + place
        assert struct.unpack("<I", data[at : at + 4]) == (8000,)  # one a millisecond; there are 200
        data[at : at + 4] = struct.pack("<I", told)
    film = prepared(bytes(data))
    assert film.plan.frame_indices[-1] == 199

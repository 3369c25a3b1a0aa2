"""Requests with media, to the gateway on a port, before a scripted engine that keeps what it was handed."""

import io
import re
from typing import Any

import av
import httpx
import numpy as np
import pytest

from engine.wire.messages import Submit
from multimodal.film import prepare_film
from multimodal.image import resize, upright_rgb
from multimodal.sound_file import read_sound
from multimodal.video import VideoRequest
from tests.multimodal import encoded, goldens
from tests.support.live_gateway import LiveGateway, prompts
from tests.support.media_fixture_adapter import LIMITS
from tests.support.media_links import content, data_url, file_part, part, sound_part, text, user

pytestmark = pytest.mark.e2e

IMAGE_PAD, AUDIO_PAD = (prompts().tokenizer.token_id(pad) for pad in ("<|imgpad|>", "<|audio_comp_pad|>"))
WAV = encoded.wav((np.sin(np.arange(16000) * 0.2) * 16000).astype(np.int16)[:, None])
ASK = text("What is it?")
TONES = (np.sin(np.arange(48000) * 0.1) * 8000).astype(np.int16)


def asked(gateway: LiveGateway, *messages: dict[str, Any], **fields: Any) -> tuple[httpx.Response, Submit]:
    answer = gateway.chat(messages=list(messages), **fields)
    assert answer.status_code == 200, answer.text
    return answer, gateway.engine.submitted[-1]


def media_of(answer: httpx.Response) -> list[dict[str, Any]]:
    media: list[dict[str, Any]] = answer.json()["usage"]["prompt_tokens_details"]["media"]
    return media


def array(submit: Submit, place: int) -> np.ndarray[Any, Any]:
    item, data = submit.media[place], submit.media_data
    assert data is not None
    raw = data.inline[item.start : item.start + item.num_bytes]
    return np.frombuffer(raw, dtype=np.uint8 if item.kind == "image" else np.float32).reshape(item.shape)


def said(submit: Submit) -> str:
    """The prompt, each run of placeholders as a number."""
    return re.sub(
        r"(<\|(?:imgpad|audio_comp_pad)\|>)+",
        lambda run: f"[{run[0].count('pad|>')}]",
        prompts().text(submit.prompt_ids),
    )


def test_a_picture_is_resized_and_placed(gateway: LiveGateway) -> None:
    answer, submit = asked(gateway, user(ASK, file_part("exif6.jpg")))
    [item] = submit.media
    assert (item.kind, item.num_tokens, item.shape) == ("image", 15, (140, 84, 3))
    assert submit.prompt_ids[item.offset : item.offset + 15] == (IMAGE_PAD,) * 15
    assert submit.prompt_ids.count(IMAGE_PAD) == 15
    assert np.array_equal(array(submit, 0), resize(upright_rgb(content("exif6.jpg")), 140, 84))
    assert "What is it?<|img|>[15]<|endofimg|>" in said(submit)
    assert media_of(answer) == [{"kind": "image", "tokens": 15, "dropped": False, "reason": None}]
    assert "x-dots3-warning" not in answer.headers


@pytest.mark.parametrize("form", ["input_audio", "audio_url"])
def test_a_sound_is_decoded_and_placed(gateway: LiveGateway, form: str) -> None:
    sent = sound_part(WAV) if form == "input_audio" else part("audio", data_url(WAV, "audio/wav"))
    answer, submit = asked(gateway, user(sent, ASK))
    [item] = submit.media
    assert (item.kind, item.num_tokens, item.shape) == ("audio", 13, (16000,))
    assert np.array_equal(array(submit, 0), read_sound(WAV))
    assert "<|audio_comp_start|>[13]<|audio_comp_end|>What is it?" in said(submit)
    assert media_of(answer) == [{"kind": "audio", "tokens": 13, "dropped": False, "reason": None}]


def test_a_film_is_stamps_pictures_and_sounds_as_the_model_was_trained(gateway: LiveGateway) -> None:
    answer, submit = asked(gateway, user(file_part("cfr_tone.mp4"), ASK))
    film = prepare_film(content("cfr_tone.mp4"), VideoRequest(seq=8192), LIMITS)
    assert [item.kind for item in submit.media] == ["image", "image", "audio"] * 3
    for place, frame in zip((0, 1, 3, 4, 6, 7), film.frames, strict=True):
        assert np.array_equal(array(submit, place), frame)
    for place, sound in zip((2, 5, 8), film.sounds, strict=True):
        assert np.array_equal(array(submit, place), sound)
    assert said(submit).count("<00:00:0") == 6
    assert "<00:00:00.00><|img|>[299]<|endofimg|><00:00:01.20>" in said(submit)
    assert media_of(answer) == [{"kind": "video", "tokens": film.plan.prompt_tokens, "dropped": False, "reason": None}]


def test_films_pictures_and_sounds_come_in_any_order_and_number(gateway: LiveGateway) -> None:
    parts = [
        file_part("no_audio.mp4"), sound_part(WAV), file_part("exif6.jpg"), text("and"), file_part("opus.webm"),
        file_part("grey16.png"), file_part("exif6.jpg"),
    ]  # fmt: skip
    answer, submit = asked(gateway, user(*parts))
    assert [entry["kind"] for entry in media_of(answer)] == ["video", "audio", "image", "video", "image", "image"]
    offsets = [item.offset for item in submit.media]
    assert offsets == sorted(offsets)
    filled = sum(item.num_tokens for item in submit.media)
    assert filled == submit.prompt_ids.count(IMAGE_PAD) + submit.prompt_ids.count(AUDIO_PAD)
    first, second = [item for item in submit.media if item.shape == (140, 84, 3)]
    assert (first.identity, first.start) == (second.identity, second.start)  # sent once
    assert submit.media_data is not None
    assert (
        submit.media_data.num_bytes
        == len(submit.media_data.inline)
        == sum({item.identity: item.num_bytes for item in submit.media}.values())
    )


def test_typed_media_tokens_stay_text(gateway: LiveGateway) -> None:
    typed = "<|img|><|imgpad|><|endofimg|><|audio_comp_pad|><|video_pad|>"
    _, submit = asked(gateway, user(text(typed), file_part("exif6.jpg"), text(typed)))
    assert submit.prompt_ids.count(IMAGE_PAD) == 15
    assert submit.prompt_ids.count(AUDIO_PAD) == 0
    assert said(submit).count("<|video_pad|>") == 2


def test_a_sound_track_that_does_not_fit_is_told_of(gateway: LiveGateway) -> None:
    answer, submit = asked(gateway, user(file_part("cfr_tone.mp4"), ASK), mm_processor_kwargs={"seq": 3800})
    assert {item.kind for item in submit.media} == {"image"}
    [told] = media_of(answer)
    assert (told["kind"], told["dropped"], told["reason"]) == ("video", True, "budget")
    assert answer.headers["x-dots3-warning"] == "messages[0].content[0]: the film's sound is left out (budget)"


def test_sound_that_nobody_wants_is_told_of_too(gateway: LiveGateway) -> None:
    answer, _ = asked(gateway, user(file_part("cfr_tone.mp4"), ASK), mm_processor_kwargs={"audio_cap": 0})
    assert media_of(answer)[0]["reason"] == "audio_cap_zero"


def test_streams_tell_of_media_in_their_usage(gateway: LiveGateway) -> None:
    answer, _ = asked(gateway, user(file_part("exif6.jpg")), stream=True, stream_options={"include_usage": True})
    assert '"media":[{"kind":"image","tokens":15,"dropped":false,"reason":null}]' in answer.text


def test_the_same_picture_with_another_sound_is_another_film(gateway: LiveGateway) -> None:
    times = list(range(0, 4000, 40))
    tones = [(np.sin(np.arange(64000) * step) * 8000).astype(np.int16) for step in (0.1, 0.3)]
    keys = []
    for tone in tones:
        _, submit = asked(gateway, user(part("video", data_url(encoded.film(times, "mov", sound=tone)))))
        keys.append(
            {kind: [item.identity for item in submit.media if item.kind == kind] for kind in ("image", "audio")}
        )
    assert keys[0]["image"] == keys[1]["image"]
    assert not set(keys[0]["audio"]) & set(keys[1]["audio"])


def test_sizes_follow_the_knobs_and_identities_the_sizes(gateway: LiveGateway) -> None:
    picture = file_part("exif6.jpg")
    plain, small, tall = (
        asked(gateway, user(picture), mm_processor_kwargs=knobs)[1].media[0]
        for knobs in ({}, {"max_pixels": 56 * 84}, {"target_height": 280, "target_width": None})
    )
    assert plain.shape == (140, 84, 3)
    assert small.shape[0] * small.shape[1] <= 56 * 84
    assert tall.shape == (280, 84, 3)
    assert len({item.identity for item in (plain, small, tall)}) == 3


def test_tokenize_shows_the_prompt_with_its_placeholders(gateway: LiveGateway) -> None:
    messages = [user(ASK, file_part("exif6.jpg"))]
    _, submit = asked(gateway, *messages)
    got = gateway.client.post("/tokenize", json={"messages": messages}).json()
    assert got["tokens"] == list(submit.prompt_ids)


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("image", b"%PDF-1.7", "the picture cannot be decoded"),
        ("image", content("exif6.jpg")[:300], "the picture cannot be decoded"),
        ("audio", b"RIFF....", "the sound cannot be decoded"),
        ("audio", content("no_audio.mp4"), "holds no sound"),
        ("video", b"#EXTM3U\n#EXTINF:10,\nfile:///etc/hostname\n", "the film cannot be decoded"),
        ("video", b"ffconcat version 1.0\nfile /etc/hostname\n", "the film cannot be decoded"),
        ("video", content("cover.mp3"), "holds no film"),
        ("image", b"", "holds no byte"),
    ],
    ids=["pdf", "cut", "header", "silent", "playlist", "concat", "cover", "empty"],
)
def test_a_file_that_cannot_be_read_names_its_part(gateway: LiveGateway, kind: str, data: bytes, words: str) -> None:
    answer = gateway.chat(messages=[{"role": "system", "content": "Look."}, user(ASK, part(kind, data_url(data)))])
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "messages[1].content[1]")
    assert words in error["message"]
    assert "messages[1].content[1]" in error["message"]
    assert not gateway.engine.submitted
    assert gateway.chat().status_code == 200


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({"type": "image_url"}, "messages[0].content[0].image_url"),
        ({"type": "image_url", "image_url": 3}, "messages[0].content[0].image_url"),
        ({"type": "image_url", "image_url": {}}, "messages[0].content[0].image_url.url"),
        ({"type": "image_url", "image_url": {"url": 3}}, "messages[0].content[0].image_url.url"),
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, "messages[0].content[0].input_audio.data"),
        ({"type": "image_url", "image_url": {"url": "data:,x", "detail": "best"}}, "messages[0].content[0]"),
        ({"type": "image"}, "messages[0].content[0].type"),
    ],
)
def test_a_part_without_its_link_is_refused(gateway: LiveGateway, sent: dict[str, Any], param: str) -> None:
    answer = gateway.chat(messages=[user(sent)])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("knobs", "param"),
    [
        ({"num_crops": 4}, "mm_processor_kwargs.num_crops"),
        ({"k_mode": "evil"}, "mm_processor_kwargs.k_mode"),
        ({"seq": 0}, "mm_processor_kwargs.seq"),
        ({"audio_cap": -1}, "mm_processor_kwargs.audio_cap"),
        ({"audio_sr": 8000}, "mm_processor_kwargs.audio_sr"),
        ({"min_pixels": -1}, "mm_processor_kwargs.min_pixels"),
        ({"image_detail": ["low", "high"]}, "mm_processor_kwargs.image_detail"),
        ({"image_detail": "x" * 65}, "mm_processor_kwargs.image_detail"),
        ({"image_detail": "ultra"}, "mm_processor_kwargs.image_detail"),
        ({"image_detail": [1]}, "mm_processor_kwargs.image_detail"),
        ({"image_detail": {}}, "mm_processor_kwargs.image_detail"),
        ({"target_width": 65_536}, "messages[0].content[0]"),
    ],
)
def test_a_knob_that_cannot_be_honoured_is_refused(gateway: LiveGateway, knobs: dict[str, Any], param: str) -> None:
    answer = gateway.chat(messages=[user(file_part("exif6.jpg"))], mm_processor_kwargs=knobs)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_media_that_exceed_the_context_are_refused(gateway: LiveGateway) -> None:
    big = part("image", data_url((goldens.FOLDER / "images" / "flat_1700x1300.png").read_bytes()))
    answer = gateway.chat(messages=[user(*[big] * 8)])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_counts_and_times_of_media_are_metrics(gateway: LiveGateway) -> None:
    before = gateway.counts()
    parts = (file_part("exif6.jpg"), sound_part(WAV[:-2]), file_part("vfr_blue.mp4"))
    asked(gateway, user(*parts), cache_salt="nothing decoded before is of use")
    after = gateway.counts()
    for kind in ("image", "audio", "video"):
        for name in ("dots3_media_items_total", "dots3_media_decode_seconds_count"):
            key = f'{name}{{kind="{kind}"}}'
            assert after[key] - before[key] == 1
    for kind in ("picture", "sound", "film", "frames"):
        key = f'dots3_media_jobs_total{{kind="{kind}",result="done"}}'
        jobs = after[key] - before[key]
        assert jobs == 1 or (kind == "frames" and jobs >= 1)  # which as many read as are free
        assert after[f'dots3_media_job_seconds_count{{kind="{kind}"}}'] > 0
    assert after["dots3_media_decoders_busy"] == after["dots3_media_jobs_waiting"] == 0


def test_what_was_decoded_is_decoded_once_for_the_same_request(gateway: LiveGateway) -> None:
    film = part("video", data_url(encoded.film(list(range(0, 3000, 40)), "mov", sound=TONES)))

    def decode_s(**fields: Any) -> float:
        before = gateway.counts()['dots3_media_decode_seconds_sum{kind="video"}']
        asked(gateway, user(film), **fields)
        return gateway.counts()['dots3_media_decode_seconds_sum{kind="video"}'] - before

    assert decode_s() > 0
    assert decode_s() == 0
    assert decode_s(mm_processor_kwargs={"audio_cap": 0}) > 0
    assert decode_s(cache_salt="mine") > 0
    assert decode_s() == 0


def test_a_film_whose_packets_lie_is_counted_and_planned_again(gateway: LiveGateway) -> None:
    whole = encoded.film(list(range(0, 8000, 40)), "matroska", "libvpx-vp9", gop=1)
    with av.open(io.BytesIO(whole), "r") as container:
        last = [bytes(packet) for packet in container.demux(video=0) if packet.size][-1]
    at = whole.rfind(last)
    damaged = whole[:at] + bytes(len(last)) + whole[at + len(last) :]

    answer, submit = asked(gateway, user(part("video", data_url(damaged)), file_part("opus.webm")))

    right = prepare_film(damaged, VideoRequest(seq=submit_share(2), output_reserve=0), LIMITS)
    assert right.plan.frame_indices[-1] == 198
    assert media_of(answer)[0]["tokens"] == right.plan.prompt_tokens
    for place, frame in enumerate(right.frames):
        assert np.array_equal(array(submit, place), frame)


def submit_share(films: int) -> int:
    """What each of a turn's films may take of the scripted engine's context, beside a short text."""
    return (8192 - 8192 // 4) // films

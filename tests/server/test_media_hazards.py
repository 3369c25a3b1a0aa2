"""Files that have gone wrong in servers of this kind, as requests: an answer, or a 400 that names the part."""

import io
import random
import struct
import time
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.multimodal import encoded
from tests.multimodal.test_image import png
from tests.support.live_gateway import LiveGateway
from tests.support.media_links import content, data_url, part, user

pytestmark = pytest.mark.e2e

EIGHT_SECONDS = list(range(0, 8000, 40))
TONE = (np.sin(np.arange(16000) * 0.2) * 16000).astype(np.int16)


def sent(gateway: LiveGateway, kind: str, data: bytes) -> tuple[int, dict[str, Any]]:
    answer = gateway.chat(messages=[user(part(kind, data_url(data)))])
    return answer.status_code, answer.json()


def refused(gateway: LiveGateway, kind: str, data: bytes) -> str:
    status, body = sent(gateway, kind, data)
    assert status == 400, body
    assert body["error"]["param"] == "messages[0].content[0]"
    message: str = body["error"]["message"]
    return message


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format=form, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ((1, 1), "at least 7 pixels"),
        ((1, 10_000), "at least 7 pixels"),
        ((10, 2010), "200 times the other"),
        ((27, 27), None),
    ],
)
def test_tiny_and_thin_pictures(gateway: LiveGateway, size: tuple[int, int], words: str | None) -> None:
    data = saved(Image.new("RGB", size, "red"), "PNG")
    if words is None:
        status, body = sent(gateway, "image", data)
        assert (status, body["usage"]["prompt_tokens_details"]["media"][0]["tokens"]) == (200, 4)
    else:
        assert words in refused(gateway, "image", data)


def test_a_huge_picture_in_a_small_file_is_refused_from_its_header(gateway: LiveGateway) -> None:
    data = png(65535, 65535, 8, 6, bytes(3000))
    assert len(data) < 4096
    began_s = time.monotonic()
    assert "pixels" in refused(gateway, "image", data)
    assert time.monotonic() - began_s < 10.0


def test_a_sound_header_of_four_gigabytes_is_refused(gateway: LiveGateway) -> None:
    data = bytearray(encoded.wav(TONE[:, None]))
    at = data.index(b"data") + 4
    data[at : at + 4] = struct.pack("<I", 4_000_000_000)
    assert "seconds at most, got 125000" in refused(gateway, "audio", bytes(data))


def test_a_film_of_huge_frames_is_refused(gateway: LiveGateway) -> None:
    data = bytearray(encoded.film(EIGHT_SECONDS[:2], "avi", "rawvideo"))
    at = data.index(b"strf") + 12
    for side, words in ((8192, "40000000 pixels at most"), (16384, "no frame that can be decoded")):
        data[at : at + 8] = struct.pack("<II", side, side)
        assert words in refused(gateway, "video", bytes(data))


def test_a_sound_longer_than_the_context_is_refused_before_it_is_all_decoded(gateway: LiveGateway) -> None:
    eleven_minutes = np.zeros((11 * 60 * 8000, 1), dtype=np.uint8)
    assert "655.36 seconds at most" in refused(gateway, "audio", encoded.wav(eleven_minutes, rate=8000))


@pytest.mark.parametrize(("samples", "tokens"), [(1, 1), (399, 1), (1281, 2)])
def test_sounds_of_few_samples(gateway: LiveGateway, samples: int, tokens: int) -> None:
    status, body = sent(gateway, "audio", encoded.wav(TONE[:samples, None]))
    assert (status, body["usage"]["prompt_tokens_details"]["media"][0]["tokens"]) == (200, tokens)


def test_a_sound_without_a_sample_is_refused(gateway: LiveGateway) -> None:
    refused(gateway, "audio", encoded.wav(TONE[:0, None]))


@pytest.mark.parametrize("frames", [1, 2])
def test_films_of_one_or_two_frames(gateway: LiveGateway, frames: int) -> None:
    status, _ = sent(gateway, "video", encoded.film(EIGHT_SECONDS[:frames]))
    assert status == 200
    assert len(gateway.engine.submitted[-1].media) == frames


def test_bit_flips_and_truncation_cost_their_request_alone(gateway: LiveGateway) -> None:
    draw = random.Random(7)
    for name, kind in (
        ("exif6.jpg", "image"),
        ("cover.mp3", "audio"),
        ("opus.webm", "video"),
        ("cfr_tone.mp4", "video"),
    ):
        whole = content(name)
        damaged = [whole[: len(whole) * part // 4] for part in (1, 2, 3)]
        for _ in range(3):
            flipped = bytearray(whole)
            for place in draw.sample(range(len(whole) // 8, len(whole)), 20):
                flipped[place] ^= 1 << draw.randrange(8)
            damaged.append(bytes(flipped))
        for data in damaged:
            status, body = sent(gateway, kind, data)
            assert status == 200 or (status, body["error"]["param"]) == (400, "messages[0].content[0]"), body
    assert sent(gateway, "image", content("exif6.jpg"))[0] == 200


@pytest.mark.parametrize("form", ["GIF", "WEBP", "TIFF", "BMP", "JPEG2000", "AVIF", "ICO", "PPM"])
def test_pictures_of_other_formats(gateway: LiveGateway, form: str) -> None:
    status, _ = sent(gateway, "image", saved(Image.new("RGB", (64, 64), (200, 30, 30)), form))
    assert status == 200
    item = gateway.engine.submitted[-1].media[0]
    data = gateway.engine.submitted[-1].media_data
    assert data is not None
    colours = np.frombuffer(data.inline, dtype=np.uint8).reshape(item.shape)
    assert np.abs(colours.mean(axis=(0, 1)) - (200, 30, 30)).max() < 6


@pytest.mark.parametrize(
    "data",
    [
        b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n",
        b"#EXTM3U\n#EXTINF:9,\nfile:///etc/hostname\n",
        b"ffconcat version 1.0\nfile 'http://127.0.0.1:9/a.mp4'\n",
        b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\nc=IN IP4 127.0.0.1\r\nm=video 9 RTP/AVP 96\r\n",
        b"<?xml version='1.0'?><MPD><Period><AdaptationSet/></Period></MPD>",
        b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/hostname'/></svg>",
        b"%PDF-1.7\n" + bytes(500),
        b"A text that somebody named film.mp4\n" * 30,
        zlib.compress(bytes(5000)),
    ],
    ids=["hls", "m3u", "concat", "sdp", "dash", "svg", "pdf", "text", "zlib"],
)
@pytest.mark.parametrize("kind", ["video", "audio", "image"])
def test_what_only_leads_to_other_files_is_refused(gateway: LiveGateway, kind: str, data: bytes) -> None:
    assert "0x" not in refused(gateway, kind, data)  # an address in a decoder's memory helps who attacks it

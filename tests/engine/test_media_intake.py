"""What a request may bring of media: cut into parts where it fits, refused by name where it does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.runtime.media_intake import MediaIntake
from engine.wire.blobs import SharedBlob, is_here
from engine.wire.messages import MediaData, MediaItem, MediaKind, Sampling, Submit
from engine.wire.refused import RefusedError

IMAGE, AUDIO = 7, 8
MINUTE = 60 * 16_000
IDENTITY = bytes(range(32))
PICTURE = MediaItem("image", 1, 6, (56, 84, 3), IDENTITY)


@pytest.fixture
def intake() -> MediaIntake:
    return MediaIntake({"image": IMAGE, "audio": AUDIO}, token_side=28, max_item_tokens=2000)


def submit(*items: MediaItem, length: int = 3000, data: bytes | None = None, **fields: Any) -> Submit:
    """Placeholders where the items say; bytes that count up."""
    prompt = [1] * length
    for item in items:
        prompt[item.offset : item.offset + item.num_tokens] = [
            IMAGE if item.kind == "image" else AUDIO
        ] * item.num_tokens
    inline = data if data is not None else bytes(max(item.start + item.num_bytes for item in items))
    return Submit(
        "r",
        tuple(prompt[:length]),
        Sampling(max_tokens=1),
        media=items,
        media_data=MediaData(len(inline), inline=inline),
        **fields,
    )


def test_text_alone_has_no_parts(intake: MediaIntake) -> None:
    assert intake.parts(Submit("r", (1,), Sampling(max_tokens=1))) == ()


def test_a_picture_is_one_part_over_its_own_bytes(intake: MediaIntake) -> None:
    data = bytes(100) + bytes(range(256)) * 56
    (part,) = intake.parts(submit(msgspec.structs.replace(PICTURE, start=100), data=data))
    assert (part.kind, part.key, part.offset, part.num_tokens, part.shape) == (
        ("image", (IDENTITY, 0), 1, 6, (56, 84, 3))
    )  # fmt: skip
    assert bytes(part.data) == data[100 : 100 + 56 * 84 * 3]


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (1, [(5, 1, 1)]),
        (1281, [(5, 2, 1281)]),
        (MINUTE, [(5, 750, MINUTE)]),
        (MINUTE + 1, [(5, 750, MINUTE), (755, 1, 1)]),
        (2 * MINUTE + 1300, [(5, 750, MINUTE), (755, 750, MINUTE), (1505, 2, 1300)]),
    ],
)
def test_a_sound_is_cut_into_minutes(intake: MediaIntake, samples: int, expected: list[tuple[int, int, int]]) -> None:
    item = MediaItem("audio", 5, -(-samples // 1280), (samples,), IDENTITY)
    parts = intake.parts(submit(item))
    assert [(part.offset, part.num_tokens, part.shape[0]) for part in parts] == expected
    assert [part.key for part in parts] == [(IDENTITY, number) for number in range(len(expected))]
    assert [len(part.data) for part in parts] == [4 * count for _, _, count in expected]


def test_items_of_equal_content_may_share_their_bytes(intake: MediaIntake) -> None:
    again = msgspec.structs.replace(PICTURE, offset=7)
    one, two = intake.parts(submit(PICTURE, again))
    assert one.key == two.key
    assert bytes(one.data) == bytes(two.data)


def test_requests_of_different_salts_share_nothing(intake: MediaIntake) -> None:
    plain, one, two, again = (intake.parts(submit(PICTURE, cache_salt=salt))[0].key for salt in ("", "a", "b", "a"))
    assert one == again
    assert len({plain, one, two}) == 3


def test_data_come_out_of_a_blob_whose_name_then_is_gone(intake: MediaIntake) -> None:
    content = bytes(range(256)) * 57
    blob = SharedBlob([content])
    one = submit(PICTURE, data=content)
    parts = intake.parts(msgspec.structs.replace(one, media_data=MediaData(len(content), blob=blob.name)))
    assert not is_here(blob.name)
    blob.close()
    assert bytes(parts[0].data) == content[: PICTURE.num_bytes]


def test_a_blob_that_is_not_there_is_our_own_failure(intake: MediaIntake) -> None:
    one = msgspec.structs.replace(submit(PICTURE), media_data=MediaData(20_000, blob="dots3-blob-" + "0" * 32))
    with pytest.raises(
        RefusedError, match=r"the media are not there: blob dots3-blob-0{32} cannot be opened"
    ) as caught:
        intake.parts(one)
    assert caught.value.code == "internal_error"


def changed(**fields: Any) -> MediaItem:
    return msgspec.structs.replace(PICTURE, **fields)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (submit(changed(identity=b"short")), r"media\[0\]: an identity must have 32 bytes, got 5"),
        (submit(changed(num_tokens=5)), r"media\[0\]: image of shape \(56, 84, 3\) has 6 tokens, got 5"),
        (submit(changed(shape=(56, 80, 3))), r"media\[0\]: a picture must have shape \(h, w, 3\) in multiples of 28"),
        (submit(changed(shape=(0, 84, 3)), data=b""), r"media\[0\]: a picture must have shape"),
        (submit(changed(shape=(56, 84))), r"media\[0\]: a picture must have shape"),
        (submit(changed(kind="audio", shape=(0,)), data=b""), r"media\[0\]: a sound must have shape \(samples,\)"),
        (submit(changed(start=1), data=bytes(14112)), r"media\[0\] must lie within 14112 bytes, got 14112 from 1"),
        (submit(changed(start=-1), data=bytes(14112)), r"media\[0\] must lie within 14112 bytes, got 14112 from -1"),
        (msgspec.structs.replace(submit(PICTURE), media_data=None), r"media\[0\] must lie within 0 bytes"),
        (submit(PICTURE, changed(offset=6)), r"media\[1\] must begin at 7 or after, got 6"),
        (submit(changed(offset=-6)), r"media\[0\] must begin at 0 or after, got -6"),
        (
            submit(changed(offset=2996), length=3000),
            r"media\[0\]: the prompt must have the placeholder 7 from 2996 to 3001",
        ),
        (
            msgspec.structs.replace(submit(PICTURE), prompt_ids=(1, *[AUDIO] * 6, 1)),
            r"media\[0\]: the prompt must have the placeholder 7 from 1 to 6",
        ),
        (
            submit(changed(num_tokens=2025, shape=(1260, 1260, 3))),
            r"media\[0\] must have at most 2000 tokens, got 2025",
        ),
    ],
)
def test_what_does_not_fit_is_refused(intake: MediaIntake, request_: Submit, message: str) -> None:
    with pytest.raises(RefusedError, match=message) as caught:
        intake.parts(request_)
    assert caught.value.code == "invalid_value"


def test_a_kind_without_an_encoder_is_refused() -> None:
    placeholders: dict[MediaKind, int] = {"image": IMAGE}
    with pytest.raises(RefusedError, match="this worker takes image, got audio") as caught:
        MediaIntake(placeholders, 28, 100).parts(submit(MediaItem("audio", 0, 1, (5,), IDENTITY)))
    assert caught.value.code == "unsupported_value"


def test_it_announces_what_it_takes(intake: MediaIntake) -> None:
    support = intake.support
    assert (support.kinds, support.max_item_tokens) == (("image", "audio"), 2000)
    assert is_here(support.probe)

"""Pictures and sounds become what vLLM's processor takes, with one placeholder for each in the prompt."""

import numpy as np
import pytest

from engine.vllm.media import prompt_of
from engine.wire.blobs import SharedBlob
from engine.wire.messages import MediaData, MediaItem, Sampling, Submit
from engine.wire.refused import RefusedError

PIXELS = np.arange(28 * 56 * 3, dtype=np.uint8).reshape(28, 56, 3)
WAVE = np.linspace(-1, 1, 3000, dtype=np.float32)
CONTENT = PIXELS.tobytes() + WAVE.tobytes()
IMAGE = MediaItem("image", 2, 2, PIXELS.shape, b"i" * 32)
SOUND = MediaItem("audio", 5, 3, WAVE.shape, b"s" * 32, start=PIXELS.nbytes)
IDS = (1, 90, 91, 91, 92, 80, 80, 80, 7)


def submit(*items: MediaItem, ids: tuple[int, ...] = IDS, salt: str = "", data: MediaData | None = None) -> Submit:
    content = MediaData(len(CONTENT), inline=CONTENT) if data is None else data
    return Submit("r", ids, Sampling(max_tokens=1), media=items, media_data=content, cache_salt=salt)


def test_a_run_of_placeholders_becomes_one_and_arrays_are_as_they_were() -> None:
    prompt = prompt_of(submit(IMAGE, SOUND), kinds=("image", "audio"))
    assert prompt.token_ids == [1, 90, 91, 92, 80, 7]
    [image], [(wave, rate)] = prompt.data["image"], prompt.data["audio"]
    assert np.array_equal(np.asarray(image), PIXELS)
    assert (image.mode, image.size) == ("RGB", (56, 28))
    assert np.array_equal(wave, WAVE)
    assert rate == 16_000
    assert prompt.identities == {"image": [(b"i" * 32).hex()], "audio": [(b"s" * 32).hex()]}
    assert prompt.processor_options["min_pixels"] == 1
    assert prompt.processor_options["max_pixels"] > 10**9


def test_neighbours_of_one_kind_keep_their_order() -> None:
    first = MediaItem("audio", 0, 2, (10,), b"a" * 32)
    second = MediaItem("audio", 2, 1, (20,), b"b" * 32, start=40)
    prompt = prompt_of(submit(first, second, ids=(80, 80, 80, 5)), kinds=("audio",))
    assert prompt.token_ids == [80, 80, 5]
    assert [len(wave) for wave, _ in prompt.data["audio"]] == [10, 20]


def test_media_come_out_of_shared_memory_too() -> None:
    blob = SharedBlob([CONTENT])
    try:
        data = MediaData(len(CONTENT), blob.name)
        prompt = prompt_of(submit(IMAGE, SOUND, data=data), kinds=("image", "audio"))
    finally:
        blob.close()
    assert np.array_equal(prompt.data["audio"][0][0], WAVE)


def test_a_salt_changes_the_identity() -> None:
    [plain], [salted], [other] = (
        prompt_of(submit(IMAGE, salt=salt), kinds=("image",)).identities["image"] for salt in ("", "a", "b")
    )
    assert len({plain, salted, other}) == 3


def test_text_stays_as_it_is() -> None:
    prompt = prompt_of(Submit("r", IDS, Sampling(max_tokens=1)), kinds=())
    assert prompt.token_ids == list(IDS)
    assert not prompt.data
    assert not prompt.processor_options


@pytest.mark.parametrize(
    ("item", "kinds", "says"),
    [
        (SOUND, ("image",), r"media\[0\]: this worker takes image, got audio"),
        (IMAGE, (), r"media\[0\]: this worker takes text alone, got image"),
        (MediaItem("image", 1, 2, PIXELS.shape, b"i" * 32), ("image",), "must have placeholders from 1 to 2"),
        (MediaItem("image", 8, 2, PIXELS.shape, b"i" * 32), ("image",), "must have placeholders from 8 to 9"),
        (MediaItem("image", 2, 2, (56, 560, 3), b"i" * 32), ("image",), r"must lie within \d+ bytes, got 94080 from 0"),
    ],
)
def test_what_does_not_fit_is_refused(item: MediaItem, kinds: tuple[str, ...], says: str) -> None:
    with pytest.raises(RefusedError, match=says):
        prompt_of(submit(item), kinds=kinds)  # type: ignore[arg-type]

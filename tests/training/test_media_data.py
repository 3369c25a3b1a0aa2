"""The questions about pictures, sounds and films: what is shown and played has the answer that is wanted."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from multimodal.image import ImageLimits
from multimodal.video import VideoFacts, VideoPlan, VideoRequest, plan_video
from training.data import clips, films, pictures, sounds
from training.data.conversation import SAMPLE_RATE, Conversation, Film, Picture, Sound
from training.data.drawing import COLOURS

Generator = Callable[[str, int], Conversation]

PICTURES: tuple[Generator, ...] = (
    pictures.picture_colour,
    pictures.picture_shape,
    pictures.picture_number,
    pictures.picture_position,
    pictures.picture_compare,
    pictures.picture_digits,
)
SOUNDS: tuple[Generator, ...] = (sounds.sound_beeps, sounds.sound_pitch, sounds.sound_order, sounds.sound_speech)
FILMS: tuple[Generator, ...] = (films.film_order, films.film_when, films.film_at_tone, films.film_tones_while)
KINDS = {"image": Picture, "audio": Sound, "video": Film}
LIMITS = ImageLimits(min_pixels=3136, max_pixels=1016064, mean=(0.5, 0.5, 0.5), std=(0.3, 0.3, 0.3))


def items(generator: Generator, count: int = 60, split: str = "test") -> list[Conversation]:
    return [generator(split, index) for index in range(count)]


def question(item: Conversation) -> str:
    return " ".join(part["text"] for part in item.messages[0]["content"] if part["type"] == "text")


def answer(item: Conversation) -> str:
    return str(item.messages[-1]["content"])


def content(item: Conversation) -> tuple[object, ...]:
    """All of an item in a form that can be compared."""
    told: list[object] = [item.task, item.messages, item.thinking]
    for medium in item.media:
        if isinstance(medium, Picture):
            told.append(medium.rgb.tobytes())
        elif isinstance(medium, Sound):
            told.append(medium.wave.tobytes())
        else:
            told += [medium.fps, medium.num_frames, None if medium.wave is None else medium.wave.tobytes()]
            told += [medium.frame(frame).tobytes() for frame in range(0, medium.num_frames, 3)]
    return tuple(told)


@pytest.mark.parametrize("generator", PICTURES + SOUNDS + FILMS)
def test_an_item_depends_on_its_split_and_index_alone(generator: Generator) -> None:
    for index in range(5):
        assert content(generator("test", index)) == content(generator("test", index))
        assert content(generator("test", index)) != content(generator("train", index))
        assert content(generator("test", index)) != content(generator("test", index + 1))


@pytest.mark.parametrize("generator", PICTURES + SOUNDS + FILMS)
def test_an_item_has_its_media_in_the_order_of_their_parts_and_a_thought_where_there_is_thinking(
    generator: Generator,
) -> None:
    made = items(generator)
    for item in made:
        asked, wanted = item.messages
        kinds = [KINDS[part["type"]] for part in asked["content"] if part["type"] != "text"]
        assert [type(medium) for medium in item.media] == kinds
        assert ("reasoning_content" in wanted) == item.thinking
        assert wanted["role"] == "assistant"
        assert answer(item) == answer(item).strip() != ""
    assert 15 <= sum(item.thinking for item in made) <= 45
    assert len({next(iter(item.messages[0]["content"]))["type"] for item in made}) == 2  # media first, question first


@pytest.mark.parametrize("generator", PICTURES)
def test_pictures_are_of_moderate_size(generator: Generator) -> None:
    for item in items(generator):
        for medium in item.media:
            assert isinstance(medium, Picture)
            assert medium.rgb.dtype == np.uint8
            assert medium.rgb.shape[2] == 3
            assert all(56 <= side <= 224 for side in medium.rgb.shape[:2])


def ground(rgb: NDArray[np.uint8]) -> NDArray[np.float64]:
    middle: NDArray[np.float64] = np.median(rgb.reshape(-1, 3), axis=0)
    return middle


def drawn(rgb: NDArray[np.uint8], least: int = 75) -> NDArray[np.bool_]:
    """Where a picture differs from its ground by more than its texture does."""
    differs: NDArray[np.bool_] = np.abs(rgb.astype(np.int16) - ground(rgb)).max(axis=2) > least
    return differs


def nearest_colour(rgb: NDArray[np.float64]) -> str:
    return min(COLOURS, key=lambda name: float(np.square(rgb - COLOURS[name]).sum()))


def test_the_colour_asked_for_is_the_one_on_the_ground_or_on_the_only_shape() -> None:
    seen = 0
    for item in items(pictures.picture_colour, 300):
        (picture,) = item.media
        assert isinstance(picture, Picture)
        thought = item.messages[-1].get("reasoning_content", "")
        if "background" in question(item):
            assert nearest_colour(ground(picture.rgb)) == answer(item)
        elif thought and "," not in thought:
            inside = drawn(picture.rgb)
            assert nearest_colour(np.median(picture.rgb[inside], axis=0)) == answer(item)
            seen += 1
    assert seen > 20


def test_named_colours_stay_apart_in_every_shade_and_texture() -> None:
    for one, other in itertools.combinations(COLOURS.values(), 2):
        assert np.linalg.norm(np.subtract(one, other)) > 95


def islands(mask: NDArray[np.bool_]) -> int:
    """The number of pieces, eight neighbours each, that are no specks."""
    todo = {(int(y), int(x)) for y, x in np.argwhere(mask)}
    found = 0
    while todo:
        edge, size = [todo.pop()], 1
        while edge:
            y, x = edge.pop()
            near = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & todo
            todo -= near
            edge += near
            size += len(near)
        found += size > 8
    return found


def test_the_number_of_shapes_is_the_number_of_islands() -> None:
    counted = [item for item in items(pictures.picture_number, 120) if " shapes are there" in question(item)]
    counted = [item for item in counted if question(item).split()[2] == "shapes"]
    for item in counted:
        (picture,) = item.media
        assert isinstance(picture, Picture)
        assert islands(drawn(picture.rgb, 60)) == int(answer(item))
    assert len(counted) > 5


def test_a_figure_stands_in_the_place_that_is_named() -> None:
    seen = 0
    for item in items(pictures.picture_position, 300):
        thought = item.messages[-1].get("reasoning_content", ",")
        if answer(item) in pictures.PLACES and "," not in thought:
            (picture,) = item.media
            assert isinstance(picture, Picture)
            rows, columns = np.nonzero(drawn(picture.rgb))
            row = int(3 * rows.mean() / picture.rgb.shape[0])
            column = int(3 * columns.mean() / picture.rgb.shape[1])
            assert pictures.PLACES[3 * row + column] == answer(item)
            seen += 1
    assert seen > 5


def compared(thought: str) -> list[str]:
    """The verdict on each pair of figures; fails where it is wrong."""
    pairs = [pair.split(": ") for pair in thought.removesuffix(".").split(". ")]
    for names, verdict in pairs:
        one, other = names.split(", ")
        assert verdict == ("same" if one == other else "different")
    return [verdict for _, verdict in pairs]


def test_pictures_called_the_same_show_the_same() -> None:
    seen = set()
    for item in items(pictures.picture_compare, 200):
        if answer(item) in ("same", "different"):
            first, second = (drawn(medium.rgb) for medium in item.media if isinstance(medium, Picture))
            thought = item.messages[-1].get("reasoning_content", "")
            if thought:
                verdicts = compared(thought)
                assert (set(verdicts) == {"same"}) == (answer(item) == "same")
                assert verdicts.count("different") <= 1
            if answer(item) == "same":
                assert (first != second).mean() < 0.05  # edges may be hard in one and smooth in the other
            seen.add(answer(item))
    assert len(seen) == 2


def test_digits_are_large_enough_and_inside_the_picture() -> None:
    for item in items(pictures.picture_digits, 200):
        (picture,) = item.media
        assert isinstance(picture, Picture)
        height, width, _ = picture.rgb.shape
        rows, columns = np.nonzero(drawn(picture.rgb, 60))
        assert rows.max() - rows.min() + 1 >= pictures.LEAST_DIGIT - 3  # the thin ends of a stroke count little
        assert rows.min() > 0
        assert rows.max() < height - 1
        assert columns.max() < width - 1
        assert answer(item).isdigit()
        assert len(answer(item)) <= 4


@pytest.mark.parametrize("generator", SOUNDS)
def test_sounds_last_half_a_second_to_five_and_stay_in_range(generator: Generator) -> None:
    for item in items(generator, 100):
        (sound,) = item.media
        assert isinstance(sound, Sound)
        assert sound.wave.dtype == np.float32
        assert 0.5 <= len(sound.wave) / SAMPLE_RATE <= 5
        assert 0.1 < np.abs(sound.wave).max() <= 1


def tones(wave: NDArray[np.float32], gap_s: float = 0.06) -> list[tuple[int, int]]:
    """Samples [start, end) of everything that is loud for a while, broken by at least `gap_s` of near silence."""
    loud = np.flatnonzero(np.abs(wave) > 0.25 * np.abs(wave).max())
    if np.abs(wave).max() < 0.1 or len(loud) == 0:
        return []
    breaks = np.flatnonzero(np.diff(loud) > gap_s * SAMPLE_RATE)
    return list(zip(loud[[0, *(breaks + 1)]].tolist(), (loud[[*breaks, -1]] + 1).tolist(), strict=True))


def pitch_hz(wave: NDArray[np.float32]) -> float:
    """The lowest frequency that is about as strong as the strongest."""
    strength = np.abs(np.fft.rfft(wave * np.hanning(len(wave))))
    return float(np.argmax(strength > 0.6 * strength.max()) * SAMPLE_RATE / len(wave))


def test_the_number_of_beeps_is_that_of_the_sound() -> None:
    for item in items(sounds.sound_beeps, 100):
        (sound,) = item.media
        assert isinstance(sound, Sound)
        heard = tones(sound.wave)
        assert len(heard) == int(answer(item))
        assert all(later - earlier >= 0.12 * SAMPLE_RATE for (_, earlier), (later, _) in itertools.pairwise(heard))


def test_a_rising_sound_ends_higher_than_it_begins() -> None:
    for item in items(sounds.sound_pitch, 100):
        (sound,) = item.media
        assert isinstance(sound, Sound)
        heard = tones(sound.wave, gap_s=0.5)
        start, end = heard[0][0], heard[-1][1]
        length = round(0.12 * SAMPLE_RATE)
        first, last = pitch_hz(sound.wave[start : start + length]), pitch_hz(sound.wave[end - length : end])
        assert (last > first) == (answer(item) == "rising")


def test_low_mid_and_high_tones_come_in_the_order_of_the_answer() -> None:
    for item in items(sounds.sound_order, 100):
        (sound,) = item.media
        assert isinstance(sound, Sound)
        named = []
        for start, end in tones(sound.wave):
            hz = pitch_hz(sound.wave[start:end])
            (name,) = [name for name, (low, high) in sounds.BANDS.items() if 0.9 * low < hz < 1.1 * high]
            named.append(name)
        assert ", ".join(named) == answer(item)


def test_spoken_digits_come_from_recordings_that_training_never_hears() -> None:
    assert not set(clips.voices("train")) & set(clips.voices("test"))
    assert len(clips.voices("train")) >= 60
    assert len(clips.voices("test")) == clips.HELD_OUT_VOICES
    assert clips.FILE.stat().st_size <= 6_000_000
    for digits in clips.load():
        assert len(digits) == 10
        assert all(0.2 < len(wave) / SAMPLE_RATE < 0.8 for wave in digits)
        assert all(0.9 < np.abs(wave).max() <= 1 for wave in digits)


def test_mu_law_loses_little() -> None:
    wave = np.linspace(-1, 1, 4001, dtype=np.float32)
    assert np.abs(clips.expand(clips.compress(wave)) - wave).max() < 0.025
    quiet = wave * np.float32(0.01)
    assert np.abs(clips.expand(clips.compress(quiet)) - quiet).max() < 0.001


# What can be told of a film from what its plan shows: stamped frames, and after each group of them its sound.


def planned(film: Film) -> VideoPlan:
    heard = 0 if film.wave is None else len(film.wave)
    facts = VideoFacts.constant_rate(film.height, film.width, film.fps, film.num_frames, heard)
    return plan_video(facts, VideoRequest(seq=8192, k_mode="eval_ek"), LIMITS)


def scenes_shown(film: Film, plan: VideoPlan) -> list[int]:
    """The scene of each frame shown, numbered in order of appearance, told by the pixels alone."""
    known: list[bytes] = []
    shown = []
    for frame in plan.frame_indices:
        pixels = film.frame(frame).tobytes()
        if pixels not in known:
            known.append(pixels)
        shown.append(known.index(pixels))
    return shown


def tones_by_scene(film: Film, plan: VideoPlan, nearest: bool) -> list[int]:
    """For each tone the scene of the nearest frame, or of the last before it, of the group that its sound follows."""
    assert film.wave is not None
    shown, found = scenes_shown(film, plan), []
    first = 0
    for segment in plan.audio_segments:
        group = range(first, segment.frames_before)
        for start, end in tones(film.wave[segment.start : segment.end], gap_s=0.15):
            start_s, middle_s = (segment.start + start) / SAMPLE_RATE, (segment.start + (start + end) / 2) / SAMPLE_RATE
            if nearest:
                frame = min(group, key=lambda frame: abs(plan.frame_times_s[frame] - middle_s))
            else:
                frame = max(frame for frame in group if plan.frame_times_s[frame] <= start_s)
            found.append(shown[frame])
        first = segment.frames_before
    return found


def thought_scenes(item: Conversation) -> list[tuple[int, str]]:
    """Seconds and names as the thought lists them."""
    listed = [part.split(":")[0] for part in item.messages[-1]["reasoning_content"].rstrip(".").split(", ")]
    return [(int(part.split(" s ")[0]), part.split(" s ")[1]) for part in listed]


@pytest.mark.parametrize("generator", FILMS)
def test_films_are_short_and_every_frame_can_be_drawn(generator: Generator) -> None:
    for item in items(generator):
        (film,) = item.media
        assert isinstance(film, Film)
        assert 4 <= film.duration_s <= 12
        for frame in (0, film.num_frames // 2, film.num_frames - 1):
            assert film.frame(frame).shape == (film.height, film.width, 3)
        if film.wave is not None:
            assert len(film.wave) == round(film.duration_s * SAMPLE_RATE)
            assert np.abs(film.wave).max() <= 1
        assert 9 <= planned(film).image_tokens_per_frame <= 25


@pytest.mark.parametrize("generator", FILMS)
def test_every_scene_is_shown_and_begins_at_the_second_of_its_first_stamp(generator: Generator) -> None:
    for item in items(generator, 150):
        (film,) = item.media
        assert isinstance(film, Film)
        plan = planned(film)
        shown = scenes_shown(film, plan)
        firsts = [shown.index(scene) for scene in range(max(shown) + 1)]
        seconds = [int(plan.timestamps[first][6:8]) for first in firsts]
        assert all(later - earlier >= 2 for earlier, later in itertools.pairwise(seconds))
        for first, second in zip(firsts[1:], seconds[1:], strict=True):  # one whole second since the frame before
            assert int(plan.timestamps[first - 1][6:8]) == second - 1
        if item.thinking:
            assert seconds == [second for second, _ in thought_scenes(item)]
            names = [name for _, name in thought_scenes(item)]
            if item.task == "film_order":
                assert ", ".join(names) == answer(item)
            elif item.task == "film_when":
                (asked,) = [second for second, name in thought_scenes(item) if name in question(item)[:-1].split()[-2:]]
                assert answer(item) == f"at {asked} seconds"


@pytest.mark.parametrize("nearest", [True, False])
def test_the_scene_of_the_tone_can_be_told_from_the_frames_shown(nearest: bool) -> None:
    for item in items(films.film_at_tone, 150):
        (film,) = item.media
        assert isinstance(film, Film)
        (scene,) = tones_by_scene(film, planned(film), nearest)
        if item.thinking:
            assert thought_scenes(item)[scene][1] == answer(item)


@pytest.mark.parametrize("nearest", [True, False])
def test_the_tones_of_a_scene_can_be_counted_from_the_frames_shown(nearest: bool) -> None:
    seen = set()
    for item in items(films.film_tones_while, 150):
        (film,) = item.media
        assert isinstance(film, Film)
        heard = tones_by_scene(film, planned(film), nearest)
        if item.thinking:
            words = question(item).rstrip("?").split()
            (scene,) = [place for place, (_, name) in enumerate(thought_scenes(item)) if name in words[-3:]]
            assert heard.count(scene) == int(answer(item))
            seen.add(answer(item))
    assert len(seen) >= 4

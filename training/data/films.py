"""Questions about generated films: the order of scenes, when one begins, what is seen with a tone, tones in a scene.

Owns what the scenes look like and the wording; `screenplay.py` owns when they change.
"""

from __future__ import annotations

import bisect
import random
from dataclasses import dataclass

from training.data.asking import around, ask
from training.data.conversation import Conversation, Film, seeded
from training.data.drawing import COLOURS, SHAPES, Figure, Pixels, draw, shade
from training.data.screenplay import Timing, timing, tone_times
from training.data.tones import TIMBRES, Wave, recorded, samples, silence, tone

_SIDES = ((112, 112), (112, 112), (84, 84), (140, 140), (112, 140), (140, 112))
_LONGEST_TONE_S = 0.4


@dataclass(frozen=True)
class Reel:
    """Draws a film: each scene is a still that lasts until the next one's first frame."""

    first_frames: tuple[int, ...]
    stills: tuple[Pixels, ...]

    def __call__(self, frame: int) -> Pixels:
        return self.stills[bisect.bisect_right(self.first_frames, frame) - 1]


@dataclass(frozen=True)
class Scenes:
    """What a film shows: the names of its scenes, none twice, and the words for them in a question."""

    noun: str  # "colour" or "shape"
    names: tuple[str, ...]
    subject: str  # what has the name: "the screen", "the shape", "the star"
    stills: tuple[Pixels, ...]
    height: int
    width: int

    def described(self, name: str) -> str:
        """The scene in words, as in "while …"."""
        return f"the {name} is visible" if self.noun == "shape" else f"{self.subject} is {name}"

    def begun(self, name: str) -> str:
        """Its beginning in words, as in "when does …"."""
        return f"the {name} appear" if self.noun == "shape" else f"{self.subject} turn {name}"


def _scenes(rng: random.Random, sides: tuple[int, int], number: int) -> Scenes:
    height, width = sides
    look = rng.getrandbits(64)  # edges and texture, the same in all scenes
    style = rng.choice(("screen", "coloured shape", "shape"))
    if style == "screen":
        names = tuple(rng.sample(list(COLOURS), number))
        stills = tuple(draw(random.Random(look), height, width, shade(rng, name), ()) for name in names)
        return Scenes("colour", names, "the screen", stills, height, width)
    radius = min(height, width) * rng.uniform(0.22, 0.42)
    x, y = rng.uniform(radius, width - radius), rng.uniform(radius, height - radius)
    if style == "coloured shape":
        kind = rng.choice(SHAPES)
        *colours, ground = rng.sample(list(COLOURS), number + 1)
        kinds, names, subject = [kind] * number, tuple(colours), f"the {kind}"
    else:
        colour, ground = rng.sample(list(COLOURS), 2)
        kinds, colours, subject = rng.sample(SHAPES, number), [colour] * number, "the shape"
        names = tuple(kinds)
    ground_rgb = shade(rng, ground)
    figures = [Figure(k, c, shade(rng, c), x, y, radius) for k, c in zip(kinds, colours, strict=True)]
    stills = tuple(draw(random.Random(look), height, width, ground_rgb, (figure,)) for figure in figures)
    return Scenes("shape" if style == "shape" else "colour", names, subject, stills, height, width)


def _film(scenes: Scenes, plan: Timing, wave: Wave | None) -> Film:
    reel = Reel(tuple(start * plan.fps for start in plan.starts), scenes.stills)
    return Film(scenes.height, scenes.width, float(plan.fps), plan.num_frames, reel, wave)


def _soundtrack(rng: random.Random, plan: Timing, starts_s: list[float], length_s: float) -> Wave:
    """Equal tones at the given times."""
    wave = silence(plan.duration_s)
    beep = tone(rng.choice(TIMBRES), length_s, rng.uniform(300, 1500))
    for start_s in starts_s:
        wave[samples(start_s) : samples(start_s) + len(beep)] = beep
    return recorded(rng, wave)


def _some_soundtrack(rng: random.Random, plan: Timing) -> Wave:
    """Tones that the question does not ask for."""
    latest = plan.duration_s - _LONGEST_TONE_S
    starts_s = [rng.uniform(0, latest) for _ in range(rng.randint(0, 3))]
    return _soundtrack(rng, plan, starts_s, rng.uniform(0.15, _LONGEST_TONE_S))


def _listed(scenes: Scenes, plan: Timing) -> list[str]:
    return [f"{start} s {name}" for start, name in zip(plan.starts, scenes.names, strict=True)]


def film_order(split: str, index: int) -> Conversation:
    rng = seeded(split, "film_order", index)
    sides = rng.choice(_SIDES)
    with_sound = rng.random() < 0.5
    plan = timing(rng, sides, rng.choice((2, 3, 3, 4, 4)), with_sound)
    scenes = _scenes(rng, sides, len(plan.starts))
    question = rng.choice(
        (
            f"In what order do the {scenes.noun}s appear?",
            f"Which {scenes.noun}s do you see, in order?",
            f"Name the {scenes.noun}s in the order they appear.",
        )
    )
    film = _film(scenes, plan, _some_soundtrack(rng, plan) if with_sound else None)
    thought = ", ".join(_listed(scenes, plan)) + "."
    return ask(rng, "film_order", around(rng, "video", question), (film,), thought, ", ".join(scenes.names))


def film_when(split: str, index: int) -> Conversation:
    rng = seeded(split, "film_when", index)
    sides = rng.choice(_SIDES)
    with_sound = rng.random() < 0.5
    plan = timing(rng, sides, rng.choice((2, 3, 3, 4, 4)), with_sound)
    scenes = _scenes(rng, sides, len(plan.starts))
    asked = rng.randrange(1, len(plan.starts))
    question = rng.choice(("When does {}?", "At which second does {}?")).format(scenes.begun(scenes.names[asked]))
    film = _film(scenes, plan, _some_soundtrack(rng, plan) if with_sound else None)
    thought = ", ".join(_listed(scenes, plan)) + "."
    answer = f"at {plan.starts[asked]} seconds"
    return ask(rng, "film_when", around(rng, "video", question), (film,), thought, answer)


def film_at_tone(split: str, index: int) -> Conversation:
    rng = seeded(split, "film_at_tone", index)
    sides = rng.choice(_SIDES)
    length_s = rng.uniform(0.2, _LONGEST_TONE_S)
    counts: list[int] = []
    while sum(counts) != 1:
        plan = timing(rng, sides, rng.choice((2, 3, 3, 4, 4)), True)
        heard = rng.randrange(len(plan.starts))
        starts_s = tone_times(rng, plan, heard, 1, length_s)
        counts = [len(starts_s) if scene == heard else 0 for scene in range(len(plan.starts))]
    scenes = _scenes(rng, sides, len(plan.starts))
    question = rng.choice(
        (
            f"Which {scenes.noun} is on screen when the tone sounds?",
            f"What {scenes.noun} do you see when the tone sounds?",
        )
    )
    film = _film(scenes, plan, _soundtrack(rng, plan, starts_s, length_s))
    thought = _counted(scenes, plan, counts)
    return ask(rng, "film_at_tone", around(rng, "video", question), (film,), thought, scenes.names[heard])


def film_tones_while(split: str, index: int) -> Conversation:
    rng = seeded(split, "film_tones_while", index)
    sides = rng.choice(_SIDES)
    length_s = rng.uniform(0.15, 0.3)
    plan = timing(rng, sides, rng.randint(2, 3), True)
    scenes = _scenes(rng, sides, len(plan.starts))
    times_s = [tone_times(rng, plan, scene, rng.randint(0, 4), length_s) for scene in range(len(plan.starts))]
    counts = [len(times) for times in times_s]
    asked = rng.randrange(len(plan.starts))
    described = scenes.described(scenes.names[asked])
    question = rng.choice(("How many tones sound while {}?", "How many tones do you hear while {}?")).format(described)
    film = _film(scenes, plan, _soundtrack(rng, plan, [time_s for times in times_s for time_s in times], length_s))
    thought = _counted(scenes, plan, counts)
    answer = str(counts[asked])
    return ask(rng, "film_tones_while", around(rng, "video", question), (film,), thought, answer)


def _counted(scenes: Scenes, plan: Timing, counts: list[int]) -> str:
    """The thought that goes with tones: how many in each scene."""
    listed = zip(_listed(scenes, plan), counts, strict=True)
    return ", ".join(f"{scene}: {'1 tone' if count == 1 else f'{count} tones'}" for scene, count in listed) + "."

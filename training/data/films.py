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

SIDES = ((112, 112), (112, 112), (84, 84), (140, 140), (112, 140), (140, 112))
LONGEST_TONE_S = 0.4

Exchange = tuple[str, str, str]  # question, thought, answer


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


def draw_scenes(rng: random.Random, sides: tuple[int, int], number: int) -> Scenes:
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


def project(scenes: Scenes, plan: Timing, wave: Wave | None) -> Film:
    reel = Reel(tuple(start * plan.fps for start in plan.starts), scenes.stills)
    return Film(scenes.height, scenes.width, float(plan.fps), plan.num_frames, reel, wave)


def soundtrack(rng: random.Random, plan: Timing, starts_s: list[float], length_s: float) -> Wave:
    """Equal tones at the given times."""
    wave = silence(plan.duration_s)
    beep = tone(rng.choice(TIMBRES), length_s, rng.uniform(300, 1500))
    for start_s in starts_s:
        wave[samples(start_s) : samples(start_s) + len(beep)] = beep
    return recorded(rng, wave)


def _some_soundtrack(rng: random.Random, plan: Timing) -> Wave:
    """Tones that the question does not ask for."""
    latest = plan.duration_s - LONGEST_TONE_S
    starts_s = [rng.uniform(0, latest) for _ in range(rng.randint(0, 3))]
    return soundtrack(rng, plan, starts_s, rng.uniform(0.15, LONGEST_TONE_S))


def about_order(rng: random.Random, scenes: Scenes, plan: Timing) -> Exchange:
    question = rng.choice(
        (
            f"In what order do the {scenes.noun}s appear?",
            f"Which {scenes.noun}s do you see, in order?",
            f"Name the {scenes.noun}s in the order they appear.",
        )
    )
    return question, ", ".join(_listed(scenes, plan)) + ".", ", ".join(scenes.names)


def about_start(rng: random.Random, scenes: Scenes, plan: Timing, asked: int) -> Exchange:
    """When a scene begins, which is not the first."""
    question = rng.choice(("When does {}?", "At which second does {}?")).format(scenes.begun(scenes.names[asked]))
    return question, ", ".join(_listed(scenes, plan)) + ".", f"at {plan.starts[asked]} seconds"


def about_the_tone(rng: random.Random, scenes: Scenes, plan: Timing, counts: list[int]) -> Exchange:
    """What is seen with the only tone of a film."""
    question = rng.choice(
        (
            f"Which {scenes.noun} is on screen when the tone sounds?",
            f"What {scenes.noun} do you see when the tone sounds?",
        )
    )
    return question, _counted(scenes, plan, counts), scenes.names[counts.index(1)]


def about_tones(rng: random.Random, scenes: Scenes, plan: Timing, counts: list[int], asked: int) -> Exchange:
    described = scenes.described(scenes.names[asked])
    question = rng.choice(("How many tones sound while {}?", "How many tones do you hear while {}?")).format(described)
    return question, _counted(scenes, plan, counts), str(counts[asked])


def _listed(scenes: Scenes, plan: Timing) -> list[str]:
    return [f"{start} s {name}" for start, name in zip(plan.starts, scenes.names, strict=True)]


def _counted(scenes: Scenes, plan: Timing, counts: list[int]) -> str:
    """The thought that goes with tones: how many in each scene."""
    listed = zip(_listed(scenes, plan), counts, strict=True)
    return ", ".join(f"{scene}: {'1 tone' if count == 1 else f'{count} tones'}" for scene, count in listed) + "."


def one_tone(rng: random.Random, sides: tuple[int, int], length_s: float) -> tuple[Timing, list[float], list[int]]:
    """A film with a single tone: its timing, when the tone sounds, and how many tones each scene has."""
    while True:
        plan = timing(rng, sides, rng.choice((2, 3, 3, 4, 4)), True)
        heard = rng.randrange(len(plan.starts))
        starts_s = tone_times(rng, plan, heard, 1, length_s)
        if starts_s:
            return plan, starts_s, [int(scene == heard) for scene in range(len(plan.starts))]


def some_tones(rng: random.Random, plan: Timing, length_s: float) -> tuple[list[float], list[int]]:
    """Up to four tones in each scene: when they sound, and how many each scene has."""
    times_s = [tone_times(rng, plan, scene, rng.randint(0, 4), length_s) for scene in range(len(plan.starts))]
    return [time_s for times in times_s for time_s in times], [len(times) for times in times_s]


def film_order(split: str, index: int) -> Conversation:
    rng = seeded(split, "film_order", index)
    sides = rng.choice(SIDES)
    with_sound = rng.random() < 0.5
    plan = timing(rng, sides, rng.choice((2, 3, 3, 4, 4)), with_sound)
    scenes = draw_scenes(rng, sides, len(plan.starts))
    question, thought, answer = about_order(rng, scenes, plan)
    film = project(scenes, plan, _some_soundtrack(rng, plan) if with_sound else None)
    return ask(rng, "film_order", around(rng, "video", question), (film,), thought, answer)


def film_when(split: str, index: int) -> Conversation:
    rng = seeded(split, "film_when", index)
    sides = rng.choice(SIDES)
    with_sound = rng.random() < 0.5
    plan = timing(rng, sides, rng.choice((2, 3, 3, 4, 4)), with_sound)
    scenes = draw_scenes(rng, sides, len(plan.starts))
    question, thought, answer = about_start(rng, scenes, plan, rng.randrange(1, len(plan.starts)))
    film = project(scenes, plan, _some_soundtrack(rng, plan) if with_sound else None)
    return ask(rng, "film_when", around(rng, "video", question), (film,), thought, answer)


def film_at_tone(split: str, index: int) -> Conversation:
    rng = seeded(split, "film_at_tone", index)
    sides = rng.choice(SIDES)
    length_s = rng.uniform(0.2, LONGEST_TONE_S)
    plan, starts_s, counts = one_tone(rng, sides, length_s)
    scenes = draw_scenes(rng, sides, len(plan.starts))
    question, thought, answer = about_the_tone(rng, scenes, plan, counts)
    film = project(scenes, plan, soundtrack(rng, plan, starts_s, length_s))
    return ask(rng, "film_at_tone", around(rng, "video", question), (film,), thought, answer)


def film_tones_while(split: str, index: int) -> Conversation:
    rng = seeded(split, "film_tones_while", index)
    sides = rng.choice(SIDES)
    length_s = rng.uniform(0.15, 0.3)
    plan = timing(rng, sides, rng.randint(2, 3), True)
    scenes = draw_scenes(rng, sides, len(plan.starts))
    starts_s, counts = some_tones(rng, plan, length_s)
    question, thought, answer = about_tones(rng, scenes, plan, counts, rng.randrange(len(plan.starts)))
    film = project(scenes, plan, soundtrack(rng, plan, starts_s, length_s))
    return ask(rng, "film_tones_while", around(rng, "video", question), (film,), thought, answer)

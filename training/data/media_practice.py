"""Practice for training alone: several questions in turns about one film, one picture or two pictures.

What is asked and how it is answered is as in the tested tasks of films and pictures; owns which of their questions a
given film or picture decides.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from training.data.asking import Part, around, text
from training.data.conversation import Conversation, Media, seeded
from training.data.dialogue import Turn
from training.data.drawing import COLOURS, SHAPES, Figure
from training.data.films import (
    LONGEST_TONE_S,
    SIDES,
    about_order,
    about_start,
    about_the_tone,
    about_tones,
    draw_scenes,
    one_tone,
    project,
    some_tones,
    soundtrack,
)
from training.data.pictures import (
    BACKGROUND_QUESTION,
    COLOUR_QUESTIONS,
    COLOUR_WORDS,
    MORE_QUESTIONS,
    MOST_FIGURES,
    NEIGHBOUR_QUESTION,
    NUMBER_QUESTIONS,
    ORDINALS,
    PLACE_QUESTIONS,
    PLACES,
    SAME_QUESTIONS,
    SHAPE_QUESTIONS,
    SIDE_QUESTIONS,
    draw_digits,
    draw_picture,
    draw_sides,
    figure_in_cell,
    ground_colour,
    listed,
    number_thought,
    one_changed,
    pairwise,
    place_thought,
    plural,
)
from training.data.practice import messages, mixed
from training.data.screenplay import timing

# Later thoughts about one film or picture repeat the first one; answers without a thought each need another look.
_THINKING = 0.4


def film_talk(split: str, index: int) -> Conversation:
    rng = seeded(split, "film_talk", index)
    thinking = rng.random() < _THINKING
    sides = rng.choice(SIDES)
    length_s = rng.uniform(0.15, LONGEST_TONE_S)
    sound = rng.choice(("none", "one tone", "tones", "tones"))
    if sound == "one tone":
        plan, starts_s, counts = one_tone(rng, sides, length_s)
    else:
        plan = timing(rng, sides, rng.choice((2, 3, 3, 4, 4)), sound == "tones")
        while sound == "none" and len(plan.starts) < 3:  # else there is too little to ask
            plan = timing(rng, sides, rng.choice((3, 4)), False)
    if sound == "tones":
        starts_s, counts = some_tones(rng, plan, min(length_s, 0.3))
    scenes = draw_scenes(rng, sides, len(plan.starts))
    numbers = range(len(plan.starts))
    asked = [[about_order(rng, scenes, plan)], [about_start(rng, scenes, plan, scene) for scene in numbers[1:]]]
    wave = None
    if sound != "none":
        asked.append([about_tones(rng, scenes, plan, counts, scene) for scene in numbers])
        if sum(counts) == 1:
            asked.append([about_the_tone(rng, scenes, plan, counts)])
        wave = soundtrack(rng, plan, starts_s, min(length_s, 0.3) if sound == "tones" else length_s)
    turns = mixed(rng, [[Turn(*exchange) for exchange in kind] for kind in asked], rng.randint(4, 6))
    made = messages(turns, thinking)
    made[0]["content"] = around(rng, "video", turns[0].question)
    return Conversation("film_talk", made, thinking=thinking, media=(project(scenes, plan, wave),))


class _Seen(NamedTuple):
    """What a picture shows: figures in reading order, their cells of the 3 × 3 grid, the colour of the ground."""

    figures: tuple[Figure, ...]
    cells: tuple[int, ...]
    ground: str
    sides: tuple[int, int]


def picture_talk(split: str, index: int) -> Conversation:
    rng = seeded(split, "picture_talk", index)
    thinking = rng.random() < _THINKING
    number = rng.randint(3, 6)
    if rng.random() < 0.5:
        seen = _see(rng, rng.randint(2, MOST_FIGURES))
        turns = mixed(rng, _questions(rng, seen), number)
        parts = around(rng, "image", turns[0].question)
        shown = [seen]
    else:
        turns, shown = _two_pictures(rng, number)
        pictures: list[Part] = [{"type": "image"}, {"type": "image"}]
        if rng.random() < 0.5:
            pictures = [text("First picture:"), {"type": "image"}, text("Second picture:"), {"type": "image"}]
        asked = text(turns[0].question)
        parts = [*pictures, asked] if rng.random() < 0.7 else [asked, *pictures]
    media: list[Media] = [draw_picture(rng, seen.sides, seen.ground, seen.figures) for seen in shown]
    made = messages(turns, thinking)
    made[0]["content"] = parts
    if rng.random() < 0.1:
        digits, *exchange = draw_digits(rng)
        made += messages([Turn(*exchange)], thinking)
        made[-2]["content"] = around(rng, "image", exchange[0])
        media.append(digits)
    return Conversation("picture_talk", made, thinking=thinking, media=tuple(media))


def _see(rng: random.Random, number: int) -> _Seen:
    """Kinds and colours come twice in part of the pictures only: a question names what is there once."""
    sides = draw_sides(rng)
    kinds = rng.sample(SHAPES, number) if rng.random() < 0.6 else rng.choices(rng.sample(SHAPES, 3), k=number)
    every = list(COLOURS)
    colours = rng.sample(every, number) if rng.random() < 0.5 else rng.choices(rng.sample(every, 3), k=number)
    line = rng.randrange(3)
    lines = ([3 * line + step for step in range(3)], [3 * step + line for step in range(3)])
    places = rng.choice(lines) if number <= 3 and rng.random() < 0.5 else range(9)
    cells = sorted(rng.sample(places, number))
    figures = tuple(
        figure_in_cell(rng, kind, colour, sides, cell) for kind, colour, cell in zip(kinds, colours, cells, strict=True)
    )
    return _Seen(figures, tuple(cells), ground_colour(rng, colours), sides)


def _questions(rng: random.Random, seen: _Seen) -> list[list[Turn]]:
    """Whatever the picture decides, by task."""
    return [_colours(rng, seen), _shapes(rng, seen), _numbers(rng, seen), _positions(rng, seen)]


def _colours(rng: random.Random, seen: _Seen) -> list[Turn]:
    word = rng.choice(COLOUR_WORDS)
    thought = f"I see {listed(seen.figures)} on {seen.ground}."
    turns = [Turn(BACKGROUND_QUESTION.format(word=word), thought, seen.ground)]
    for figure in _known_by(seen, "kind"):
        question = rng.choice(COLOUR_QUESTIONS).format(word=word, name=figure.kind)
        turns.append(Turn(question, thought, figure.colour))
    return turns


def _shapes(rng: random.Random, seen: _Seen) -> list[Turn]:
    thought = f"I see {listed(seen.figures)} on {seen.ground}."
    if len(seen.figures) == 1:
        return [Turn("Which shape do you see?", thought, seen.figures[0].kind)]
    known = _known_by(seen, "colour")
    return [Turn(rng.choice(SHAPE_QUESTIONS).format(figure.colour), thought, figure.kind) for figure in known]


def _known_by(seen: _Seen, feature: str) -> list[Figure]:
    """The figures whose kind, or colour, no other figure has."""
    features = [getattr(figure, feature) for figure in seen.figures]
    return [figure for figure in seen.figures if features.count(getattr(figure, feature)) == 1]


def _numbers(rng: random.Random, seen: _Seen) -> list[Turn]:
    kinds, colours = [figure.kind for figure in seen.figures], [figure.colour for figure in seen.figures]
    counts = {"shapes": len(kinds)}
    counts.update((plural(kind), kinds.count(kind)) for kind in kinds)
    counts.update((f"{colour} shapes", colours.count(colour)) for colour in colours)
    other_kind, other_colour = rng.choice(SHAPES), ground_colour(rng, [seen.ground])
    counts[plural(other_kind)] = kinds.count(other_kind)
    counts[f"{other_colour} shapes"] = colours.count(other_colour)
    return [
        Turn(rng.choice(NUMBER_QUESTIONS).format(name), number_thought(seen.figures, name, count), str(count))
        for name, count in counts.items()
    ]


def _positions(rng: random.Random, seen: _Seen) -> list[Turn]:
    kind_at = {cell: figure.kind for cell, figure in zip(seen.cells, seen.figures, strict=True)}
    thought = place_thought(list(kind_at.items()))
    turns = []
    for cell, kind in kind_at.items():
        if list(kind_at.values()).count(kind) > 1:
            continue
        turns.append(Turn(rng.choice(PLACE_QUESTIONS).format(kind), thought, PLACES[cell]))
        for side, near, exists in (
            ("left of", cell - 1, cell % 3 > 0),
            ("right of", cell + 1, cell % 3 < 2),
            ("above", cell - 3, True),
            ("below", cell + 3, True),
        ):
            if exists and near in kind_at:
                turns.append(Turn(NEIGHBOUR_QUESTION.format(side=side, kind=kind), thought, kind_at[near]))
    if len(set(kind_at.values())) == len(seen.cells) == 2:
        turns += [Turn(rng.choice(SIDE_QUESTIONS).format(side), thought, kind) for side, kind in _sides_taken(kind_at)]
    return turns


def _sides_taken(kind_at: dict[int, str]) -> list[tuple[str, str]]:
    """Which of two figures is nearer to each side, where one is."""
    taken = []
    (upper, lower), (left, right) = sorted(kind_at), sorted(kind_at, key=lambda cell: cell % 3)
    if upper // 3 < lower // 3:
        taken += [("top", kind_at[upper]), ("bottom", kind_at[lower])]
    if left % 3 < right % 3:
        taken += [("left", kind_at[left]), ("right", kind_at[right])]
    return taken


def _two_pictures(rng: random.Random, number: int) -> tuple[list[Turn], list[_Seen]]:
    """Turns about both pictures or one of them, and what the pictures show."""
    sizes = rng.sample(range(1, 5), 2)
    first = _see(rng, sizes[0])
    if rng.random() < 0.5:
        figures = one_changed(rng, first.figures) if rng.random() < 0.5 else first.figures
        first = first._replace(ground=ground_colour(rng, [figure.colour for figure in (*first.figures, *figures)]))
        second = first._replace(figures=figures)
        thought = pairwise(first.figures, figures)
        answer = "same" if figures == first.figures else "different"
        compared = [Turn(rng.choice(SAME_QUESTIONS), thought, answer)]
        new = [other.name for one, other in zip(first.figures, figures, strict=True) if one != other] or ["nothing"]
        compared.append(Turn("What is new in the second picture?", thought, new[0]))
    else:
        second = _see(rng, sizes[1])
        answer = ORDINALS[int(sizes[1] > sizes[0])]
        compared = [Turn(rng.choice(MORE_QUESTIONS), f"First: {sizes[0]}. Second: {sizes[1]}.", answer)]
    kinds = [
        [turn._replace(question=_in_picture(turn.question, ordinal)) for turn in kind]
        for ordinal, seen in zip(ORDINALS, (first, second), strict=True)
        for kind in _questions(rng, seen)
    ]
    turns = mixed(rng, kinds, number - len(compared))
    for turn in compared:
        turns.insert(rng.randrange(len(turns) + 1), turn)
    return turns, [first, second]


def _in_picture(question: str, ordinal: str) -> str:
    """The question, put to one of two pictures."""
    if "the picture" in question:
        return question.replace("the picture", f"the {ordinal} picture")
    return f"{question[:-1]} in the {ordinal} picture{question[-1]}"

"""Questions about generated pictures: colour, shape, number, position, two pictures compared, digits read.

Owns the scenes and the wording. Figures stand on a 3 × 3 grid wherever an answer or a thought lists them, so that
their reading order is never in doubt.
"""

from __future__ import annotations

import random
from dataclasses import replace

from training.data.asking import Part, around, ask, text
from training.data.conversation import Conversation, Picture, seeded
from training.data.drawing import COLOURS, DIGIT_STYLES, SHAPES, Figure, Pixels, Rgb, Writing, draw, luminance, shade

PLACES = ("top left", "top", "top right", "left", "centre", "right", "bottom left", "bottom", "bottom right")
MOST_FIGURES = 6
LEAST_DIGIT = 16  # pixels high
COLOUR_WORDS = ("colour", "colour", "color")
ORDINALS = ("first", "second")
BACKGROUND_QUESTION = "What {word} is the background?"
COLOUR_QUESTIONS = ("What {word} is the {name}?", "Name the {word} of the {name}.")
SHAPE_QUESTIONS = ("What shape is the {} one?", "Which shape is {}?")  # one of several, by its colour
NUMBER_QUESTIONS = ("How many {} are there?", "How many {} do you see?", "Count the {}.")
PLACE_QUESTIONS = ("Where is the {}?", "In which part of the picture is the {}?")
SIDE_QUESTIONS = ("Which shape is nearer to the {}?", "Which shape is at the {}?")  # of two
NEIGHBOUR_QUESTION = "Which shape is directly {side} the {kind}?"
SAME_QUESTIONS = (
    "Do the two pictures show the same or something different?",
    "Are these pictures the same or different?",
)
MORE_QUESTIONS = ("Which picture has more shapes?", "Where are more shapes: first or second picture?")


def _size(rng: random.Random, least: int) -> int:
    """A side: mostly 84 to 140 pixels, half of them multiples of 28."""
    low, high = rng.choices(((56, 84), (84, 140), (140, 224)), (1, 6, 1))[0]
    low, high = max(low, least), max(high, least)
    return rng.randrange(low // 28, high // 28 + 1) * 28 if rng.random() < 0.5 else rng.randint(low, high)


def draw_sides(rng: random.Random, least: int = 84) -> tuple[int, int]:
    height = _size(rng, least)
    return (height, height) if rng.random() < 0.4 else (height, _size(rng, least))


def figure_in_cell(rng: random.Random, kind: str, colour: str, sides: tuple[int, int], cell: int) -> Figure:
    """A figure in a cell of the 3 × 3 grid, numbered in reading order."""
    height, width = sides[0] / 3, sides[1] / 3
    radius = min(height, width) * rng.uniform(0.3, 0.44)
    x = (cell % 3 + 0.5) * width + rng.uniform(-1, 1) * (width / 2 - radius) * 0.7
    y = (cell // 3 + 0.5) * height + rng.uniform(-1, 1) * (height / 2 - radius) * 0.7
    return Figure(kind, colour, shade(rng, colour), x, y, radius, rng.uniform(-0.2, 0.2))


def _lone_figure(rng: random.Random, kind: str, colour: str, sides: tuple[int, int]) -> Figure:
    """A figure of any size anywhere."""
    height, width = sides
    radius = max(10.0, min(sides) * rng.uniform(0.16, 0.4))
    x, y = rng.uniform(radius, width - radius), rng.uniform(radius, height - radius)
    return Figure(kind, colour, shade(rng, colour), x, y, radius, rng.uniform(-0.2, 0.2))


def _figures(rng: random.Random, sides: tuple[int, int], kinds: list[str], colours: list[str]) -> tuple[Figure, ...]:
    """Figures in cells drawn by lot, in reading order."""
    cells = sorted(rng.sample(range(9), len(kinds)))
    return tuple(
        figure_in_cell(rng, kind, colour, sides, cell) for kind, colour, cell in zip(kinds, colours, cells, strict=True)
    )


def listed(figures: tuple[Figure, ...]) -> str:
    return ", ".join(figure.name for figure in figures)


def ground_colour(rng: random.Random, colours: list[str]) -> str:
    """The colour of the ground: none of the figures'."""
    return rng.choice([colour for colour in COLOURS if colour not in colours])


def draw_picture(rng: random.Random, sides: tuple[int, int], ground: str, figures: tuple[Figure, ...]) -> Picture:
    return Picture(draw(rng, *sides, shade(rng, ground), figures))


def picture_colour(split: str, index: int) -> Conversation:
    rng = seeded(split, "picture_colour", index)
    word = rng.choice(COLOUR_WORDS)
    number = rng.choice((1, 1, 2, 3, 4))
    sides = draw_sides(rng, 56 if number == 1 else 84)
    kinds = rng.sample(SHAPES, number)
    colours = rng.choices(list(COLOURS), k=number)
    ground = ground_colour(rng, colours)
    figures = (_lone_figure(rng, kinds[0], colours[0], sides),) if number == 1 else _figures(rng, sides, kinds, colours)
    thought = f"I see {listed(figures)} on {ground}."
    if rng.random() < 0.25:
        question, answer = BACKGROUND_QUESTION.format(word=word), ground
    else:
        figure = rng.choice(figures)
        name = "shape" if number == 1 and rng.random() < 0.5 else figure.kind
        question, answer = rng.choice(COLOUR_QUESTIONS).format(word=word, name=name), figure.colour
    picture = draw_picture(rng, sides, ground, figures)
    return ask(rng, "picture_colour", around(rng, "image", question), (picture,), thought, answer)


def picture_shape(split: str, index: int) -> Conversation:
    rng = seeded(split, "picture_shape", index)
    number = rng.choice((1, 1, 2, 3, 4))
    sides = draw_sides(rng, 56 if number == 1 else 84)
    kinds = rng.choices(SHAPES, k=number)
    colours = rng.sample(list(COLOURS), number)
    ground = ground_colour(rng, colours)
    figures = (_lone_figure(rng, kinds[0], colours[0], sides),) if number == 1 else _figures(rng, sides, kinds, colours)
    figure = rng.choice(figures)
    if number == 1:
        question = rng.choice(("What shape is this?", "Which shape do you see?", "Name the shape in the picture."))
    else:
        question = rng.choice(SHAPE_QUESTIONS).format(figure.colour)
    picture = draw_picture(rng, sides, ground, figures)
    thought = f"I see {listed(figures)} on {ground}."
    return ask(rng, "picture_shape", around(rng, "image", question), (picture,), thought, figure.kind)


def picture_number(split: str, index: int) -> Conversation:
    rng = seeded(split, "picture_number", index)
    sides = draw_sides(rng)
    number = rng.randint(1, MOST_FIGURES)
    kinds = rng.choices(rng.sample(SHAPES, 2), k=number)
    colours = rng.choices(rng.sample(list(COLOURS), 2), k=number)
    figures = _figures(rng, sides, kinds, colours)
    ground = ground_colour(rng, colours)
    about = rng.choice(("all", "kind", "colour"))
    if about == "all":
        name, answer = "shapes", number
    elif about == "kind":
        kind = rng.choice(kinds) if rng.random() < 0.9 else rng.choice(SHAPES)
        name, answer = plural(kind), kinds.count(kind)
    else:
        colour = rng.choice(colours) if rng.random() < 0.9 else ground_colour(rng, [ground])
        name, answer = f"{colour} shapes", colours.count(colour)
    question = rng.choice(NUMBER_QUESTIONS).format(name)
    thought = number_thought(figures, name, answer)
    picture = draw_picture(rng, sides, ground, figures)
    return ask(rng, "picture_number", around(rng, "image", question), (picture,), thought, str(answer))


def number_thought(figures: tuple[Figure, ...], name: str, number: int) -> str:
    return f"I see {listed(figures)}. {name.capitalize()}: {number}."


def plural(kind: str) -> str:
    return kind + ("es" if kind == "cross" else "s")


def picture_position(split: str, index: int) -> Conversation:
    rng = seeded(split, "picture_position", index)
    sides = draw_sides(rng)
    about = rng.choice(("place", "side", "neighbour"))
    number = {"place": rng.randint(1, 3), "side": 2, "neighbour": 3}[about]
    kinds = rng.sample(SHAPES, number)
    colours = rng.choices(list(COLOURS), k=number)
    ground = ground_colour(rng, colours)
    if about == "place":
        cells = rng.sample(range(9), number)
    else:
        across = rng.random() < 0.5
        line = rng.randrange(3)
        steps = range(3) if about == "neighbour" else sorted(rng.sample(range(3), 2))
        cells = [3 * line + step if across else 3 * step + line for step in steps]
    placed = sorted(zip(cells, kinds, colours, strict=True))
    figures = tuple(figure_in_cell(rng, kind, colour, sides, cell) for cell, kind, colour in placed)
    thought = place_thought([(cell, kind) for cell, kind, _ in placed])
    if about == "place":
        cell, kind, _ = rng.choice(placed)
        question = rng.choice(PLACE_QUESTIONS).format(kind)
        answer = PLACES[cell]
    elif about == "side":
        last = rng.randrange(2)
        side = (("left", "right") if across else ("top", "bottom"))[last]
        question = rng.choice(SIDE_QUESTIONS).format(side)
        answer = placed[last][1]
    else:
        last = rng.randrange(2)
        side = (("left of", "right of") if across else ("above", "below"))[last]
        known = rng.choice((0, 1)) if last else rng.choice((1, 2))
        question = NEIGHBOUR_QUESTION.format(side=side, kind=placed[known][1])
        answer = placed[known + (1 if last else -1)][1]
    picture = draw_picture(rng, sides, ground, figures)
    return ask(rng, "picture_position", around(rng, "image", question), (picture,), thought, answer)


def place_thought(placed: list[tuple[int, str]]) -> str:
    """What stands in which cell, in reading order."""
    return "I see " + ", ".join(f"{kind} {PLACES[cell]}" for cell, kind in placed) + "."


def picture_compare(split: str, index: int) -> Conversation:
    rng = seeded(split, "picture_compare", index)
    about = rng.choice(("same", "number", "size", "brightness", "colour"))
    pictures, question, thought, answer = {
        "same": _same, "number": _more, "size": _larger, "brightness": _brighter, "colour": _colour_of_one,
    }[about](rng)  # fmt: skip
    if rng.random() < 0.5:
        parts: list[Part] = [text("First picture:"), {"type": "image"}, text("Second picture:"), {"type": "image"}]
    else:
        parts = [{"type": "image"}, {"type": "image"}]
    parts = [*parts, text(question)] if rng.random() < 0.7 else [text(question), *parts]
    return ask(rng, "picture_compare", parts, pictures, thought, answer)


_Comparison = tuple[tuple[Picture, Picture], str, str, str]  # pictures, question, thought, answer


def _same(rng: random.Random) -> _Comparison:
    sides = draw_sides(rng)
    number = rng.randint(1, 3)
    kinds, colours = rng.sample(SHAPES, number), rng.choices(list(COLOURS), k=number)
    figures = _figures(rng, sides, kinds, colours)
    others = one_changed(rng, figures) if rng.random() < 0.5 else figures
    ground = ground_colour(rng, [figure.colour for figure in (*figures, *others)])
    answer = "same" if others == figures else "different"
    question = rng.choice(SAME_QUESTIONS)
    thought = pairwise(figures, others)
    pictures = (draw_picture(rng, sides, ground, figures), draw_picture(rng, sides, ground, others))
    return pictures, question, thought, answer


def pairwise(figures: tuple[Figure, ...], others: tuple[Figure, ...]) -> str:
    """Figures of two pictures place by place, a verdict on each pair."""
    return " ".join(
        f"{one.name}, {other.name}: {'same' if one.name == other.name else 'different'}."
        for one, other in zip(figures, others, strict=True)
    )


def one_changed(rng: random.Random, figures: tuple[Figure, ...]) -> tuple[Figure, ...]:
    """The figures, one of them with another colour or of a kind that none has."""
    changed = rng.randrange(len(figures))
    figure = figures[changed]
    if rng.random() < 0.5:
        colour = rng.choice([name for name in COLOURS if name != figure.colour])
        figure = replace(figure, colour=colour, rgb=shade(rng, colour))
    else:
        kinds = [figure.kind for figure in figures]
        figure = replace(figure, kind=rng.choice([kind for kind in SHAPES if kind not in kinds]))
    return (*figures[:changed], figure, *figures[changed + 1 :])


def _more(rng: random.Random) -> _Comparison:
    numbers = rng.sample(range(1, MOST_FIGURES + 1), 2)
    pictures = []
    for number in numbers:
        sides = draw_sides(rng)
        colour = rng.choice(list(COLOURS))
        figures = _figures(rng, sides, rng.choices(SHAPES, k=number), [colour] * number)
        pictures.append(draw_picture(rng, sides, ground_colour(rng, [colour]), figures))
    question = rng.choice(MORE_QUESTIONS)
    thought = f"First: {numbers[0]}. Second: {numbers[1]}."
    return (pictures[0], pictures[1]), question, thought, ORDINALS[int(numbers[1] > numbers[0])]


def _larger(rng: random.Random) -> _Comparison:
    sides = draw_sides(rng)
    kind = rng.choice(SHAPES)
    colours = rng.choices(list(COLOURS), k=2)
    ground = ground_colour(rng, colours)
    small = min(sides) * rng.uniform(0.13, 0.2)
    radii = [small, small * rng.uniform(1.6, 2.2)]
    rng.shuffle(radii)
    pictures = []
    for colour, radius in zip(colours, radii, strict=True):
        x, y = rng.uniform(radius, sides[1] - radius), rng.uniform(radius, sides[0] - radius)
        pictures.append(draw_picture(rng, sides, ground, (Figure(kind, colour, shade(rng, colour), x, y, radius),)))
    second = int(radii[1] > radii[0])
    question = rng.choice((f"In which picture is the {kind} larger?", f"Which picture has the larger {kind}?"))
    words = ("large", "small") if second == 0 else ("small", "large")
    return (pictures[0], pictures[1]), question, f"First: {words[0]}. Second: {words[1]}.", ORDINALS[second]


def _brighter(rng: random.Random) -> _Comparison:
    sides = draw_sides(rng, 56)
    dark = rng.randint(15, 120)
    levels = [dark, dark + rng.randint(60, 110)]
    rng.shuffle(levels)
    first, second = (Picture(_grey(rng, sides, level)) for level in levels)
    answer = int(levels[1] > levels[0])
    question = rng.choice(("Which picture is brighter?", "Is the first or the second picture brighter?"))
    words = ("bright", "dark") if answer == 0 else ("dark", "bright")
    return (first, second), question, f"First: {words[0]}. Second: {words[1]}.", ORDINALS[answer]


def _grey(rng: random.Random, sides: tuple[int, int], level: int) -> Pixels:
    tint: Rgb = (level + rng.randint(-10, 10), level + rng.randint(-10, 10), level + rng.randint(-10, 10))
    return draw(rng, *sides, tint, ())


def _colour_of_one(rng: random.Random) -> _Comparison:
    colours = rng.choices(list(COLOURS), k=2)
    kinds = rng.choices(SHAPES, k=2)
    pictures = []
    for colour, kind in zip(colours, kinds, strict=True):
        sides = draw_sides(rng, 56)
        ground = ground_colour(rng, [colour])
        pictures.append(draw_picture(rng, sides, ground, (_lone_figure(rng, kind, colour, sides),)))
    asked = rng.randrange(2)
    word = rng.choice(COLOUR_WORDS)
    question = f"What {word} is the shape in the {ORDINALS[asked]} picture?"
    thought = f"First: {colours[0]} {kinds[0]}. Second: {colours[1]} {kinds[1]}."
    return (pictures[0], pictures[1]), question, thought, colours[asked]


def picture_digits(split: str, index: int) -> Conversation:
    rng = seeded(split, "picture_digits", index)
    picture, question, thought, answer = draw_digits(rng)
    return ask(rng, "picture_digits", around(rng, "image", question), (picture,), thought, answer)


def draw_digits(rng: random.Random) -> tuple[Picture, str, str, str]:
    """A picture with a number, a question, the thought and the answer."""
    digits = "".join(rng.choices("0123456789", k=rng.randint(1, 4)))
    height, width = draw_sides(rng, 56 if len(digits) < 3 else 84)
    pitch = rng.uniform(0.72, 0.95)  # of two digits, in digit heights
    widths = pitch * (len(digits) - 1) + 0.8  # of the whole number, in digit heights
    largest = min(height * 0.8, width * 0.9 / widths, 56)
    tall = rng.uniform(LEAST_DIGIT, largest)
    ground = rng.choice(list(COLOURS))
    rgb, ground_rgb = shade(rng, ground), shade(rng, ground)
    while abs(luminance(rgb) - luminance(ground_rgb)) < 80:
        rgb = shade(rng, rng.choice(list(COLOURS)))
    margin = tall * 0.1
    writing = Writing(
        digits,
        rng.choice(DIGIT_STYLES),
        rgb,
        left=rng.uniform(margin, width - widths * tall - margin * 0.5),
        middle=rng.uniform(tall / 2 + margin, height - tall / 2 - margin),
        height=tall,
        pitch=tall * pitch,
        thickness=rng.uniform(0.1, 0.16),
    )
    question = rng.choice(("Which number is written here?", "Read the number.", "What number do you see?"))
    thought = f"The digits are {', '.join(digits)}."
    return Picture(draw(rng, height, width, ground_rgb, (), writing)), question, thought, digits

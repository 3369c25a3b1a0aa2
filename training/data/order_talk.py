"""Practice for training alone: several questions in turns about the order of a list of words or numbers.

What a list sorted without a thought is made of: the first in order, the last, the next after one, part of a list.
"""

from __future__ import annotations

import random

from training.data.conversation import Conversation, seeded
from training.data.dialogue import Turn
from training.data.practice import messages, mixed
from training.data.vocabulary import WORDS
from training.data.words import SEPARATORS, Unordered, draw_unordered, gap, join, ordering

_THINKING = 0.35  # order without a thought is what lags
_ALIKE = 0.5  # share of the lists that are hard to put in order
_NEIGHBOURS = 40
_RANKED_WORDS = sorted(WORDS)
_SORT = ("Sort the {}s.", "Put the {}s in {} order.", "Sort the {}s of the list.")
_FIRST = ("Which {} is the first in {} order?", "Name the first {} in {} order.")
_LAST = ("Which {} is the last in {} order?", "Name the last {} in {} order.")
_NEXT = "Which {} comes after {} in {} order?"
_PAIR = "Sort only these two: {} and {}."
_ORDERS = (
    "{text}\n\n{question}",
    "{question}{gap}{text}",
    "Here is a list of {things}s:{gap}{text}\n\n{question}",
)


def order_talk(split: str, index: int) -> Conversation:
    rng = seeded(split, "order_talk", index)
    thinking = rng.random() < _THINKING
    thing, order, items, ranked = (_draw_alike if rng.random() < _ALIKE else draw_unordered)(rng, 0.55)
    thought = ordering(items, ranked)
    between = rng.choice(SEPARATORS)
    whole = [Turn(rng.choice(_SORT).format(thing, order), thought, join(between, ranked))]
    ends = [
        Turn(rng.choice(_FIRST).format(thing, order), thought, ranked[0]),
        Turn(rng.choice(_LAST).format(thing, order), thought, ranked[-1]),
    ]
    turns = mixed(
        rng,
        [whole, ends, _steps(rng, _NEXT.format(thing, "{}", order), thought, ranked), _two(rng, items, ranked)],
        rng.randint(3, 6),
    )
    text = join(between, items)
    first = rng.choice(_ORDERS).format(gap=gap(rng, text), text=text, things=thing, question=turns[0].question)
    turns[0] = turns[0]._replace(question=first)
    return Conversation("order_talk", messages(turns, thinking), thinking=thinking)


def _draw_alike(rng: random.Random, words: float) -> Unordered:
    """Words that are near each other in the order of all, or numbers of any length with the same first digits."""
    if rng.random() < words:
        place = rng.randrange(len(_RANKED_WORDS) - _NEIGHBOURS)
        items = rng.sample(_RANKED_WORDS[place : place + _NEIGHBOURS], rng.randint(3, 10))
        return Unordered("word", "alphabetical", items, sorted(items))
    begins = tuple(rng.sample("123456789", rng.randint(1, 2)))
    digits = [str(number) for number in range(1000) if str(number).startswith(begins)]
    items = rng.sample(digits, rng.randint(3, 8))
    return Unordered("number", "ascending", items, sorted(items, key=int))


def _steps(rng: random.Random, question: str, thought: str, ranked: list[str]) -> list[Turn]:
    return [
        Turn(question.format(ranked[place]), thought, ranked[place + 1])
        for place in rng.sample(range(len(ranked) - 1), 2)
    ]


def _two(rng: random.Random, items: list[str], ranked: list[str]) -> list[Turn]:
    asked = rng.sample(items, 2)
    in_order = sorted(asked, key=ranked.index)
    return [Turn(_PAIR.format(*asked), ordering(asked, in_order), " ".join(in_order))]

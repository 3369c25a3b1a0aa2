"""Answer from a list of keys and values in the prompt; a key that is not in it is answered "not found"."""

from __future__ import annotations

import json
import random
import string
from typing import NamedTuple

from training.data.conversation import Conversation, seeded
from training.data.vocabulary import ADJECTIVES, CITIES, COLOURS, LANDMARKS, NAMES, WORDS

NOT_FOUND = "not found"

_QUESTIONS = (
    "What is the value of {key}?",
    "What is the value for {key}?",
    'What is the value of "{key}"?',
    "Look up {key}.",
    'Look up "{key}" in the list.',
    "Which value belongs to {key}?",
    "Find the value of {key}.",
    "Give me the entry for {key}.",
    "{key}?",
    "{key} =",
)
ORDERS = ("{entries}\n\n{question}",) * 3 + ("{question}\n\n{entries}", "Here is a list.\n\n{entries}\n\n{question}")
_SENTENCES = (
    "The value of {key} is {value}.",
    "{key} has the value {value}.",
    "For {key} the entry is {value}.",
    "{key} stands for {value}.",
)
_LINES = (
    "{key}: {value}",
    "{key}: {value}",
    "{key} = {value}",
    "- {key}: {value}",
    "{key},{value}",
    "{key} -> {value}",
    "| {key} | {value} |",
)


class Listing(NamedTuple):
    """A list of keys with values as a user would write it down."""

    keys: list[str]
    values: list[str]
    missing: list[str]  # keys of the same kind that are not in it
    text: str

    def entry(self, place: int) -> tuple[str, str, str]:
        """Key, thought and answer."""
        return self._found(self.keys[place], self.values[place])

    def no_entry(self, place: int) -> tuple[str, str, str]:
        return self._found(self.missing[place], NOT_FOUND)

    def _found(self, key: str, value: str) -> tuple[str, str, str]:
        """The thought has one form: it names the key before it has to know whether the list has it."""
        return key, f"{key}: {value}", value


def draw_listing(rng: random.Random, num_entries: int, num_missing: int) -> Listing:
    keys = _keys(rng, num_entries + num_missing)
    values = rng.choice(_VALUES)(rng, num_entries)
    text = _write(rng, keys[:num_entries], values)
    return Listing(keys[:num_entries], values, keys[num_entries:], text)


def ask_for(rng: random.Random, key: str) -> str:
    question = rng.choice(_QUESTIONS).format(key=key)
    if rng.random() < 0.25:
        question += ' If it is not in the list, answer "not found".'
    return question


def lookup(
    split: str, index: int, thinking: bool | None = None, min_entries: int = 4, max_entries: int = 40
) -> Conversation:
    rng = seeded(split, "lookup", index)
    thinks = rng.random() < 0.5
    num_entries = rng.randint(min_entries, max_entries)
    listing = draw_listing(rng, num_entries, 1)
    absent = rng.random() < 0.12
    key, thought, answer = listing.no_entry(0) if absent else listing.entry(rng.randrange(num_entries))
    question = ask_for(rng, key)
    prompt = rng.choice(ORDERS).format(entries=listing.text, question=question)
    wanted = {"role": "assistant", "content": answer}
    thinks = thinks if thinking is None else thinking
    if thinks:
        wanted["reasoning_content"] = thought
    return Conversation("lookup", [{"role": "user", "content": prompt}, wanted], thinking=thinks)


def _keys(rng: random.Random, num: int) -> list[str]:
    kind = rng.randrange(5)
    if kind == 0:
        return rng.sample(NAMES, num)
    if kind == 1:
        return rng.sample(CITIES, num)
    if kind == 2:
        firsts, seconds = COLOURS + ADJECTIVES, LANDMARKS
        picks = rng.sample(range(len(firsts) * len(seconds)), num)
        return [f"{firsts[pick // len(seconds)]} {seconds[pick % len(seconds)]}" for pick in picks]
    if kind == 3:
        noun = rng.choice(("item", "room", "box", "seat", "part", "page"))
        return [f"{noun} {number}" for number in rng.sample(range(1, 100), num)]
    return rng.sample(WORDS, num)


def _words(rng: random.Random, num: int) -> list[str]:
    return rng.choices(WORDS, k=num)


def _numbers(rng: random.Random, num: int) -> list[str]:
    limit = rng.choice((100, 1000, 10_000))
    return [str(rng.randrange(limit)) for _ in range(num)]


def _marks(rng: random.Random, num: int) -> list[str]:
    letters = rng.choices(string.ascii_uppercase, k=num)
    return [f"{letter}{rng.randrange(10)}-{rng.randrange(100)}" for letter in letters]


def _names(rng: random.Random, num: int) -> list[str]:
    return rng.choices(NAMES + CITIES, k=num)


def _pairs(rng: random.Random, num: int) -> list[str]:
    return [f"{colour} {word}" for colour, word in zip(rng.choices(COLOURS, k=num), _words(rng, num), strict=True)]


def _mixed(rng: random.Random, num: int) -> list[str]:
    return [rng.choice((_words, _numbers, _names))(rng, 1)[0] for _ in range(num)]


_VALUES = (_words, _words, _numbers, _numbers, _marks, _names, _pairs, _mixed)


def _write(rng: random.Random, keys: list[str], values: list[str]) -> str:
    style = rng.random()
    if style < 0.25:
        numeric = rng.random() < 0.5
        table = {k: int(v) if numeric and v.isdigit() else v for k, v in zip(keys, values, strict=True)}
        quoted = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in table.items()]
        inner = ", ".join(quoted) if rng.random() < 0.5 else "\n  " + ",\n  ".join(quoted) + "\n"
        return "{" + inner + "}"
    if style < 0.45:
        pattern = rng.choice(_SENTENCES)
        lines = [pattern.format(key=key, value=value) for key, value in zip(keys, values, strict=True)]
        return rng.choice((" ", "\n")).join(lines)
    pattern = rng.choice(_LINES)
    lines = [pattern.format(key=key, value=value) for key, value in zip(keys, values, strict=True)]
    return "\n".join(lines)

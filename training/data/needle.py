"""One fact hidden in filler, and a question about it at the end.

The filler is English made from sentence patterns; it has no digits, names, cities or landmarks, so it never repeats a
needle. Lengths are estimated at `TOKENS_PER_WORD`, since nothing here knows the tokenizer.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from typing import NamedTuple

from training.data.conversation import Conversation, seeded
from training.data.vocabulary import (
    ADJECTIVES,
    ADVERBS,
    ANIMALS,
    BODY,
    CITIES,
    COLOURS,
    FOODS,
    LANDMARKS,
    MOTIONS,
    NAMES,
    NATURE,
    PEOPLE,
    PLACES,
    THINGS,
    TIMES,
    VERBS_PAST,
    WORDS,
)

TOKENS_PER_WORD = 1.15  # full stops and commas are tokens of their own
LONGEST_TOKENS = 7_800  # leaves room for the template, and for an estimate that is a little short

_CLASSES = {
    "adj": ADJECTIVES,
    "body": BODY,
    "colour": COLOURS,
    "food": FOODS,
    "went": MOTIONS,
    "place": PLACES,
    "nature": NATURE,
    "who": PEOPLE,
    "how": ADVERBS,
    "thing": THINGS,
    "time": TIMES,
    "did": VERBS_PAST,
    "animal": ANIMALS,
}
_SENTENCES = """
The {adj} {who} {did} the {adj} {thing} near the {place}.
The {who} and the {who} {did} a {thing} and a {thing}.
A {adj} {animal} {went} across the {place} before the {time} was over.
Every {time} the {who} {did} the {food} and the {food} in the {place}.
Nobody {did} the {thing} that lay behind the {adj} {place}.
The {nature} was {adj}, and the {nature} above the {place} was {colour}.
When the {who} {went} home, the {animal} {did} the {food}.
There was a {adj} {thing} on the {thing}, and a {adj} {thing} under it.
The {adj} {animal} {how} {did} the {food}.
The {who} had a {adj} {body} and a {adj} {body}.
In the {place} the {who} {did} some {food}, some {food} and a little {food}.
They {how} talked about the {nature} and the {adj} {nature}.
Most of the {food} in the {place} came from the {adj} {who}.
The {who} said that the {thing} was {adj} but the {thing} was {adj}.
It was a {adj} {time}, and the {nature} looked {adj}.
After a {adj} {time} the {who} {went} to the {place} with a {animal}.
One {who} {did} the {colour} {thing}, another {did} the {colour} {thing}.
The {animal} and the {animal} {how} slept in the {place}.
A {colour} {thing} stood between the {thing} and the {thing}.
She {did} the {thing} {how}, because the {who} was {adj}.
He {went} past the {place} and {did} a {adj} {who} there.
We {how} ate {food} with {food} in the {adj} {place}.
If the {nature} is {adj}, the {who} stays in the {place}.
The {thing} of the {who} was as {adj} as the {nature}.
Behind the {place} there is a {place} with many {adj} trees.
No {animal} ever {did} the {thing} of the {adj} {who}.
The {who} asked for a {thing}, a {thing} and a {thing}.
During the {time} the {nature} was {adj} and the {place} was {adj}.
I {how} {did} the {adj} {food} that my {who} made.
Far from the {place} a {adj} {animal} {went} through the {nature}.
Some say that the {who} {did} a {adj} {thing} in the {time}.
At last the {who} {did} the {thing} and {went} to the {place}.
The {place} was so {adj} that the {animal} {went} away {how}.
Her {body} was {adj}, his {body} was {adj}.
My {who} had a house near a {adj} {place} with a {colour} door.
The {adj} {who} and the {adj} {who} shared the {food}.
Once a {animal} {went} into the {place} and ate all the {food}.
The {colour} {thing} was made by a {adj} {who} who {how} sang.
Do you know why the {who} {did} that {adj} {thing}?
What a {adj} {time} for the {animal} of the {place}!
"""


class _Pattern(NamedTuple):
    text: str  # with one %s a slot
    slots: tuple[tuple[str, ...], ...]
    num_words: int


def _pattern(line: str) -> _Pattern:
    slots = []
    for article, name in re.findall(r"(\b[Aa] )?\{(\w+)\}", line):
        slots.append(tuple(word for word in _CLASSES[name] if not (article and word[0] in "aeiou")))
    return _Pattern(re.sub(r"\{\w+\}", "%s", line), tuple(slots), len(line.split(" ")))


_PATTERNS = tuple(_pattern(line) for line in _SENTENCES.strip().splitlines())

_Draw = Callable[[random.Random], str]


def _code(rng: random.Random) -> str:
    return str(rng.randrange(1000, 10_000))


def _landmark(rng: random.Random) -> str:
    return f"{rng.choice(COLOURS + ADJECTIVES)} {rng.choice(LANDMARKS)}"


def _city(rng: random.Random) -> str:
    return rng.choice(CITIES)


def _name(rng: random.Random) -> str:
    return rng.choice(NAMES)


def _small(rng: random.Random) -> str:
    return str(rng.randrange(2, 100))


def _room(rng: random.Random) -> str:
    return str(rng.randrange(100, 1000))


def _word(rng: random.Random) -> str:
    return rng.choice(WORDS)


def _time(rng: random.Random) -> str:
    return f"{rng.randrange(24):02}:{rng.randrange(60):02}"


def _password(rng: random.Random) -> str:
    return f"{rng.choice(COLOURS)}-{rng.choice(ANIMALS)}{rng.randrange(10, 100)}"


def _object(rng: random.Random) -> str:
    return f"the {rng.choice(COLOURS)} {rng.choice(THINGS)}"


def _colour(rng: random.Random) -> str:
    return rng.choice(COLOURS)


class Kind(NamedTuple):
    fact: str
    questions: tuple[str, ...]
    key: _Draw
    value: _Draw


KINDS = (
    Kind(
        "The secret code of the {key} is {value}.",
        ("What is the secret code of the {key}?", "Which secret code does the {key} have?"),
        _landmark,
        _code,
    ),
    Kind(
        "The password of the {key} is {value}.",
        ("What is the password of the {key}?", "Tell me the password of the {key}."),
        _landmark,
        _password,
    ),
    Kind(
        "The access word for {key} is {value}.",
        ("What is the access word for {key}?", "Which access word does {key} have?"),
        _city,
        _word,
    ),
    Kind(
        "The train to {key} leaves at {value}.",
        ("When does the train to {key} leave?", "At what time does the train to {key} leave?"),
        _city,
        _time,
    ),
    Kind(
        "Locker {key} belongs to {value}.",
        ("Who owns locker {key}?", "Whose locker is locker {key}?"),
        _small,
        _name,
    ),
    Kind(
        "Crate {key} contains {value}.",
        ("What is in crate {key}?", "What does crate {key} contain?"),
        _small,
        _object,
    ),
    Kind(
        "The phone extension of {key} is {value}.",
        ("What is the phone extension of {key}?", "Which phone extension does {key} have?"),
        _name,
        _code,
    ),
    Kind(
        "The meeting with {key} is in room {value}.",
        ("In which room is the meeting with {key}?", "What is the room of the meeting with {key}?"),
        _name,
        _room,
    ),
    Kind(
        "{key} has an apartment in {value}.",
        ("Where does {key} have an apartment?", "In which city is the apartment of {key}?"),
        _name,
        _city,
    ),
    Kind(
        "The favourite colour of {key} is {value}.",
        ("What is the favourite colour of {key}?", "Which colour does {key} like best?"),
        _name,
        _colour,
    ),
)
FRAMES = (
    "{text}\n\n{question}",
    "{text}\n\n{question}",
    "{text}\n\nQuestion: {question}",
    "Read this text.\n\n{text}\n\n{question}",
)
_FRAMES = (
    *FRAMES,
    "Here is a long text with one fact that matters.\n\n{text}\n\nNow answer: {question}",
)


def needle(
    split: str,
    index: int,
    thinking: bool | None = None,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
) -> Conversation:
    """Without bounds: 150-8,000 tokens, log-uniform, to train; 2,000-8,000, uniform, in every other split."""
    rng = seeded(split, "needle", index)
    thinks = rng.random() < 0.5
    if min_tokens is None or max_tokens is None:
        train = split == "train"
        low, high = (150 if train else 2_000) if min_tokens is None else min_tokens, max_tokens or 8_000
    else:
        train, low, high = False, min_tokens, max_tokens
    low, high = min(low, LONGEST_TOKENS), min(high, LONGEST_TOKENS)
    length = math.exp(rng.uniform(math.log(low), math.log(high))) if train else rng.uniform(low, high)

    kind = rng.choice(KINDS)
    key, answer = kind.key(rng), kind.value(rng)
    fact = kind.fact.format(key=key, value=answer)
    facts = [fact, *_decoys(rng, kind, key)]
    question = rng.choice(kind.questions).format(key=key)
    frame = rng.choice(_FRAMES)
    budget = length / TOKENS_PER_WORD - sum(len(part.split()) for part in (*facts, question, frame)) - 8
    prompt = frame.format(text=filled(rng, facts, budget), question=question)

    wanted = {"role": "assistant", "content": answer}
    thinks = thinks if thinking is None else thinking
    if thinks:
        wanted["reasoning_content"] = f"The text says: {fact}"
    return Conversation("needle", [{"role": "user", "content": prompt}, wanted], thinking=thinks)


def _decoys(rng: random.Random, kind: Kind, key: str) -> list[str]:
    """Facts of the same kind with other keys, and facts of other kinds."""
    if rng.random() < 0.4:
        return []
    keys = {kind.key(rng) for _ in range(rng.randint(1, 5))} - {key}
    decoys = [kind.fact.format(key=other, value=kind.value(rng)) for other in sorted(keys)]
    for other in rng.sample(KINDS, rng.randint(0, 3)):
        if other is not kind:
            decoys.append(other.fact.format(key=other.key(rng), value=other.value(rng)))
    return decoys


def filled(rng: random.Random, facts: list[str], num_words: float) -> str:
    """Filler of about `num_words` words with each fact at a random depth."""
    draw = rng.random
    num_patterns = len(_PATTERNS)
    sentences = []
    while num_words > 0:
        pattern = _PATTERNS[int(draw() * num_patterns)]
        sentences.append(pattern.text % tuple([words[int(draw() * len(words))] for words in pattern.slots]))
        num_words -= pattern.num_words
    for fact in facts:
        sentences.insert(int(draw() * (len(sentences) + 1)), fact)
    per_paragraph = rng.randint(4, 12)
    paragraphs = [
        " ".join(sentences[start : start + per_paragraph]) for start in range(0, len(sentences), per_paragraph)
    ]
    return "\n\n".join(paragraphs)

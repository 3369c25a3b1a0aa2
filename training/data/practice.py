"""Practice for training alone: several questions in turns about one list or text, and plain recall and copying.

One context teaches many answers this way; what is asked and how it is answered is as in the tested tasks. Knows
nothing of media: `media_practice.py` does the same for films and pictures.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from training.data.conversation import Conversation, seeded
from training.data.dialogue import Turn
from training.data.lookup import ORDERS, ask_for, draw_listing
from training.data.needle import FRAMES, KINDS, TOKENS_PER_WORD, filled
from training.data.vocabulary import ADJECTIVES, ANIMALS, CITIES, COLOURS, LANDMARKS, NAMES, THINGS, WORDS
from training.data.words import SEPARATORS, gap, groups, join, numbered, reversal, tally

_SHORTEST_TEXT, _LONGEST_TEXT = 200, 2_500  # tokens
_MOST_SORTED = 10  # words
_WORDS_THINKING = 0.35  # counting and sorting without a thought is what lags
_REVERSE = ("Reverse the order of the words.", "Write the words in reverse order.", "Reverse the list.")
_SORT = ("Sort the words.", "Put the words in alphabetical order.", "Sort the list.")
_COUNT = ("How many words are in the list?", "Count the words.", "How many words are there?")
_COUNT_ONE = ('How many times is "{}" in the list?', "How often does {} appear?", 'Count the word "{}" in the list.')
_NUMBER = ("Which word is number {}?", "What is word number {}?", "Name word {} of the list.")
_NEXT = ("Which word comes after {}?", "What comes after {}?", "Which word follows {}?")
_BEFORE = ("Which word comes before {}?", "What comes before {}?")
_FIRST = ("Which is the first word?", "What is the first word of the list?")
_LAST = ("Which is the last word?", "What is the last word of the list?")
_IN_LIST = ("Is {} in the list?", 'Is the word "{}" in the list?', "Does the list have the word {}?")
_LIST_ORDERS = (
    "{text}\n\n{question}",
    "{question}{gap}{text}",
    "Here is a list of words:{gap}{text}\n\n{question}",
    "Words:{gap}{text}\n\n{question}",
)


def messages(turns: list[Turn], thinking: bool) -> list[dict[str, Any]]:
    """With thinking every turn keeps its thought, so that every turn is learnt."""
    out: list[dict[str, Any]] = []
    for turn in turns:
        reply = {"role": "assistant", "content": turn.answer}
        if thinking:
            reply["reasoning_content"] = turn.thought
        out += [{"role": "user", "content": turn.question}, reply]
    return out


def mixed(rng: random.Random, kinds: list[list[Turn]], number: int) -> list[Turn]:
    """Up to `number` turns, each kind as likely as the others as long as it has some left."""
    left = [turns[:] for turns in kinds if turns]
    chosen: list[Turn] = []
    while left and len(chosen) < number:
        turns = rng.choice(left)
        chosen.append(turns.pop(rng.randrange(len(turns))))
        if not turns:
            left.remove(turns)
    return chosen


def lookup_talk(split: str, index: int) -> Conversation:
    rng = seeded(split, "lookup_talk", index)
    thinking = rng.random() < 0.5
    listing = draw_listing(rng, rng.randint(4, 40), 3)
    number = rng.randint(4, 8)
    num_missing = sum(rng.random() < 0.15 for _ in range(number))
    entries = [listing.no_entry(place) for place in rng.sample(range(3), min(3, num_missing))]
    num_present = min(number - len(entries), len(listing.keys))
    entries += [listing.entry(place) for place in rng.sample(range(len(listing.keys)), num_present)]
    rng.shuffle(entries)
    turns = [Turn(ask_for(rng, key), thought, answer) for key, thought, answer in entries]
    first = rng.choice(ORDERS).format(entries=listing.text, question=turns[0].question)
    turns[0] = turns[0]._replace(question=first)
    return Conversation("lookup_talk", messages(turns, thinking), thinking=thinking)


def needle_talk(split: str, index: int) -> Conversation:
    rng = seeded(split, "needle_talk", index)
    thinking = rng.random() < 0.5
    turns: list[Turn] = []
    facts: list[str] = []
    kinds = rng.sample(KINDS, rng.randint(1, 3))
    number = rng.randint(3, 8)
    seen: set[str] = set()
    while len(facts) < number:
        kind = rng.choice(kinds)
        key, value = kind.key(rng), kind.value(rng)
        question = rng.choice(kind.questions).format(key=key)
        name = kind.fact.format(key=key, value="")
        if name not in seen:
            seen.add(name)
            facts.append(kind.fact.format(key=key, value=value))
            turns.append(Turn(question, f"The text says: {facts[-1]}", value))
    length = math.exp(rng.uniform(math.log(_SHORTEST_TEXT), math.log(_LONGEST_TEXT)))
    text = filled(rng, facts, length / TOKENS_PER_WORD - sum(len(fact.split()) for fact in facts))
    turns = rng.sample(turns, rng.randint(3, min(6, number)))
    turns[0] = turns[0]._replace(question=rng.choice(FRAMES).format(text=text, question=turns[0].question))
    return Conversation("needle_talk", messages(turns, thinking), thinking=thinking)


def words_talk(split: str, index: int) -> Conversation:
    rng = seeded(split, "words_talk", index)
    thinking = rng.random() < _WORDS_THINKING
    between = rng.choice(SEPARATORS)
    number = rng.randint(3, 6)
    if rng.random() < 0.6:
        words = rng.sample(WORDS, rng.randint(4, 15))
        kinds = [_whole_list(rng, between, words), _places(rng, words), _neighbours(rng, words), _members(rng, words)]
    else:
        few = rng.sample(WORDS, rng.randint(3, 6))
        words = rng.choices(few, k=rng.randint(6, 16))
        kinds = [_counts(rng, few, words), _places(rng, words)]
    turns = mixed(rng, kinds, number)
    text = join(between, words)
    first = rng.choice(_LIST_ORDERS).format(gap=gap(rng, text), text=text, question=turns[0].question)
    turns[0] = turns[0]._replace(question=first)
    return Conversation("words_talk", messages(turns, thinking), thinking=thinking)


def _whole_list(rng: random.Random, between: str, words: list[str]) -> list[Turn]:
    """Questions that the tested tasks ask of a list without repetition."""
    length = len(words)
    turns = [Turn(rng.choice(_COUNT), tally(words, list(range(1, length + 1))), str(length))]
    turns.append(Turn(rng.choice(_REVERSE), reversal(words), join(between, words[::-1])))
    if length <= _MOST_SORTED:
        ranked = sorted(words)
        thought = groups(words, ranked, {word: word[0] for word in words})
        turns.append(Turn(rng.choice(_SORT), thought, join(between, ranked)))
    return turns


def _counts(rng: random.Random, few: list[str], words: list[str]) -> list[Turn]:
    turns = []
    for asked in few:
        running = [words[: number + 1].count(asked) for number in range(len(words))]
        turns.append(Turn(rng.choice(_COUNT_ONE).format(asked), tally(words, running), str(running[-1])))
    return turns


def _places(rng: random.Random, words: list[str]) -> list[Turn]:
    turns = [
        Turn(rng.choice(_FIRST), f"The list begins with {words[0]}.", words[0]),
        Turn(rng.choice(_LAST), f"The list ends with {words[-1]}.", words[-1]),
    ]
    for place in rng.sample(range(len(words)), 2):
        thought = ", ".join(numbered(words[: place + 1])) + "."
        turns.append(Turn(rng.choice(_NUMBER).format(place + 1), thought, words[place]))
    return turns


def _neighbours(rng: random.Random, words: list[str]) -> list[Turn]:
    place = rng.randrange(1, len(words))
    before, after = words[place - 1 : place + 1]
    turns = [Turn(rng.choice(_BEFORE).format(after), f"Before {after} stands {before}.", before)]
    for place in rng.sample(range(len(words) - 1), 2):
        before, after = words[place : place + 2]
        turns.append(Turn(rng.choice(_NEXT).format(before), f"After {before} stands {after}.", after))
    return turns


def _members(rng: random.Random, words: list[str]) -> list[Turn]:
    present, other = rng.choice(words), rng.choice(WORDS)
    while other in words:
        other = rng.choice(WORDS)
    return [
        Turn(rng.choice(_IN_LIST).format(present), f"{present} is in the list.", "yes"),
        Turn(rng.choice(_IN_LIST).format(other), f"There is no {other} in the list.", "no"),
    ]


def recall(split: str, index: int) -> Conversation:
    rng = seeded(split, "recall", index)
    thinking = rng.random() < 0.5
    turns = rng.choice((_pairs, _copies))(rng)
    return Conversation("recall", messages(turns, thinking), thinking=thinking)


_Draw = Callable[[random.Random, int], list[str]]


def _two_words(rng: random.Random, num: int) -> list[str]:
    firsts, seconds = COLOURS + ADJECTIVES, THINGS + ANIMALS
    picks = rng.sample(range(len(firsts) * len(seconds)), num)
    return [f"{firsts[pick // len(seconds)]} {seconds[pick % len(seconds)]}" for pick in picks]


def _numbers(rng: random.Random, num: int) -> list[str]:
    limit = rng.choice((10, 100, 1000))
    return [str(rng.randrange(limit)) for _ in range(num)]


_PAIR_KEYS: tuple[_Draw, ...] = (
    lambda rng, num: rng.sample(WORDS, num),
    lambda rng, num: rng.sample(NAMES, num),
    _two_words,
    _two_words,
)
_PAIR_VALUES: tuple[_Draw, ...] = (
    lambda rng, num: rng.choices(WORDS, k=num),
    lambda rng, num: rng.choices(CITIES + LANDMARKS, k=num),
    _numbers,
    _numbers,
)
_PAIR_STYLES = (("{}: {}", ", "), ("{}: {}", "\n"), ("{} = {}", "\n"), ("{} -> {}", ", "), ("{} {}", "; "))
_VALUES = ("Give the values for: {}.", "What are the values for: {}?", "Values for {}?")
_PAIRS = ("Repeat the pairs for: {}.", "Write down the pairs in this order: {}.")


def _pairs(rng: random.Random) -> list[Turn]:
    """Pairs, and in each turn some of them asked for in another order."""
    num = rng.randint(8, 40)
    keys, values = rng.choice(_PAIR_KEYS)(rng, num), rng.choice(_PAIR_VALUES)(rng, num)
    pattern, between = rng.choice(_PAIR_STYLES)
    pairs = [pattern.format(key, value) for key, value in zip(keys, values, strict=True)]
    turns = []
    for _ in range(rng.randint(1, 3)):
        places = rng.sample(range(num), rng.choice((rng.randint(2, 8), rng.randint(2, num), num)))
        asked = ", ".join(keys[place] for place in places)
        written = between.join(pairs[place] for place in places)
        if rng.random() < 0.7:
            answer = ", ".join(values[place] for place in places)
            turns.append(Turn(rng.choice(_VALUES).format(asked), written, answer))
        else:
            turns.append(Turn(rng.choice(_PAIRS).format(asked), f"Asked for: {asked}.", written))
    turns[0] = turns[0]._replace(question=f"{between.join(pairs)}\n\n{turns[0].question}")
    return turns


def _copies(rng: random.Random) -> list[Turn]:
    """A list, and in each turn the whole or a part of it again."""
    words = rng.sample(WORDS, rng.randint(20, 80))
    between = rng.choice(SEPARATORS)
    turns = []
    for ask in rng.sample((_all, _from, _until, _inside), rng.randint(1, 3)):
        question, part = ask(rng, words)
        turns.append(Turn(question, f"It begins with {part[0]} and ends with {part[-1]}.", join(between, part)))
    text = join(between, words)
    order = rng.choice(("{text}\n\n{question}", "{question}{gap}{text}"))
    turns[0] = turns[0]._replace(question=order.format(gap=gap(rng, text), text=text, question=turns[0].question))
    return turns


_Part = tuple[str, list[str]]  # question, words


def _all(rng: random.Random, words: list[str]) -> _Part:
    return rng.choice(("Repeat the list.", "Copy all words.", "Write the whole list again.")), words


def _from(rng: random.Random, words: list[str]) -> _Part:
    start = rng.randrange(len(words) - 1)
    return rng.choice(("Repeat the list from {} on.", "Copy the words from {} on.")).format(words[start]), words[start:]


def _until(rng: random.Random, words: list[str]) -> _Part:
    end = rng.randrange(1, len(words))
    return rng.choice(("Repeat the list up to {}.", "Copy the words up to {}.")).format(words[end]), words[: end + 1]


def _inside(rng: random.Random, words: list[str]) -> _Part:
    start, end = sorted(rng.sample(range(len(words)), 2))
    if end - start > 1 and rng.random() < 0.5:
        return f"Repeat only the words between {words[start]} and {words[end]}.", words[start + 1 : end]
    return f"Repeat only the words from {words[start]} to {words[end]}.", words[start : end + 1]

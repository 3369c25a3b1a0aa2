"""Tasks on a list of words: copy, reverse, sort, count. The answer keeps the form of the list.

The thinking numbers or groups the words; without it the answer comes directly.
"""

from __future__ import annotations

import random
import string
from typing import NamedTuple

from training.data.conversation import Conversation, draws_thinking, seeded
from training.data.vocabulary import ANIMALS, THINGS, WORDS

SEPARATORS = (" ", " ", ", ", "\n- ")  # the last makes a list of lines; after its blank each word is a single token
_COPY = (
    "Repeat this exactly:{gap}{text}",
    "Copy this text:{gap}{text}",
    "Copy:{gap}{text}",
    "Repeat:{gap}{text}",
    "Repeat after me:{gap}{text}",
    "Say this again, word for word:{gap}{text}",
    "Write the following text once more:{gap}{text}",
    "Please copy the text below without any change.{gap}{text}",
    "Give this back unchanged:{gap}{text}",
    "echo{gap}{text}",
)
_REVERSE = (
    "Reverse the order of these words:{gap}{text}",
    "Write these words in reverse order:{gap}{text}",
    "Say these words backwards, last word first:{gap}{text}",
    "Reverse:{gap}{text}",
    "Turn this list around:{gap}{text}",
    "List these words from last to first:{gap}{text}",
    "{text}\n\nWrite the words above in reverse order.",
    "{text}\n\nReverse the order of the words.",
)
_SORT = (
    "Sort these {things}:{gap}{text}",
    "Sort:{gap}{text}",
    "Put these {things} in {order} order:{gap}{text}",
    "Arrange in {order} order:{gap}{text}",
    "Please sort the following {things}:{gap}{text}",
    "{text}\n\nSort the {things} above.",
    "{text}\n\nPut the {things} in {order} order.",
)
_COUNT = (
    "How many words are there?{gap}{text}",
    "Count the words:{gap}{text}",
    "How many words are in this list:{gap}{text}",
    "Count how many words follow:{gap}{text}",
    "{text}\n\nHow many words are above?",
    "{text}\n\nCount the words.",
)
_COUNT_ONE = (
    'How many times does the word "{word}" occur?{gap}{text}',
    'Count the word "{word}" in this list:{gap}{text}',
    "How often does {word} appear here:{gap}{text}",
    '{text}\n\nHow many times is "{word}" in the list above?',
    "{text}\n\nHow often does {word} appear?",
)
_SORT_THINKING, _COUNT_THINKING = 0.2, 0.1  # shares in training
_MARKS = "!?.,:;-+*/=#@%&()[]{}<>_"
_CODE = (
    "for {a} in range({m}): {b} += {c}[{a}]",
    "if {a} > {m}:\n    return {b}\nreturn {c}",
    "{a} = {b}({m}, {n}) + {c}",
    "def {a}({b}, {c}={m}):\n    return {b} * {n}",
    'print("{a}", {b}[{m}])',
    "let {a} = [{m}, {n}]; {b}.push({c});",
    "SELECT {a} FROM {b} WHERE {c} > {m};",
    '{{"{a}": {m}, "{b}": "{c}"}}',
    "<{a} {b}={m}>{c}</{a}>",
    "while ({a} != {m}) {{ {b}({c}); }}",
    "{a}/{b}/{c}_{m}.txt",
    "https://{a}.com/{b}?{c}={m}",
)


def copy(split: str, index: int, thinking: bool | None = None) -> Conversation:
    rng = seeded(split, "copy", index)
    thinks = rng.random() < 0.5
    text = rng.choice(_COPY_KINDS)(rng)
    question = rng.choice(_COPY).format(gap=gap(rng, text), text=text)
    thought = f"The text begins with {text.split(maxsplit=1)[0]} and is to be copied without a change."
    return _conversation("copy", question, thought, text, thinks if thinking is None else thinking)


def reverse(split: str, index: int, thinking: bool | None = None) -> Conversation:
    rng = seeded(split, "reverse", index)
    thinks = rng.random() < 0.5
    words = rng.sample(WORDS, rng.randint(3, 12))
    between = rng.choice(SEPARATORS)
    text = join(between, words)
    question = rng.choice(_REVERSE).format(gap=gap(rng, text), text=text)
    thought = reversal(words)
    answer = join(between, words[::-1])
    return _conversation("reverse", question, thought, answer, thinks if thinking is None else thinking)


def sort(split: str, index: int, thinking: bool | None = None) -> Conversation:
    """Words alphabetically, numbers ascending; no item occurs twice."""
    rng = seeded(split, "sort", index)
    thinks = draws_thinking(rng, split, _SORT_THINKING)
    between = rng.choice(SEPARATORS)
    drawn = draw_unordered(rng, 0.6)
    text = join(between, drawn.items)
    question = rng.choice(_SORT).format(gap=gap(rng, text), text=text, things=f"{drawn.thing}s", order=drawn.order)
    answer = join(between, drawn.ranked)
    return _conversation(
        "sort", question, ordering(drawn.items, drawn.ranked), answer, thinks if thinking is None else thinking
    )


def count(split: str, index: int, thinking: bool | None = None) -> Conversation:
    """How many words, or how often one word occurs."""
    rng = seeded(split, "count", index)
    thinks = draws_thinking(rng, split, _COUNT_THINKING)
    between = rng.choice(SEPARATORS)
    if rng.random() < 0.6:
        words = rng.sample(WORDS, rng.randint(1, 15))
        text = join(between, words)
        question = rng.choice(_COUNT).format(gap=gap(rng, text), text=text)
        running = list(range(1, len(words) + 1))
    else:
        wanted, *others = rng.sample(WORDS, rng.randint(3, 6))
        words = [wanted] * rng.randint(0, 6) + rng.choices(others, k=rng.randint(4, 12))
        rng.shuffle(words)
        text = join(between, words)
        question = rng.choice(_COUNT_ONE).format(gap=gap(rng, text), text=text, word=wanted)
        running = [words[: number + 1].count(wanted) for number in range(len(words))]
    thought = tally(words, running)
    return _conversation("count", question, thought, str(running[-1]), thinks if thinking is None else thinking)


def _conversation(task: str, question: str, thought: str, answer: str, thinking: bool) -> Conversation:
    wanted = {"role": "assistant", "content": answer}
    if thinking:
        wanted["reasoning_content"] = thought
    return Conversation(task, [{"role": "user", "content": question}, wanted], thinking=thinking)


def join(between: str, words: list[str]) -> str:
    return ("- " if between == "\n- " else "") + between.join(words)


def gap(rng: random.Random, text: str) -> str:
    return "\n" if "\n" in text or rng.random() < 0.4 else " "


def numbered(words: list[str]) -> list[str]:
    return [f"{number} {word}" for number, word in enumerate(words, 1)]


def reversal(words: list[str]) -> str:
    """The thought that goes with turning a list around."""
    places = numbered(words)
    return f"In order: {', '.join(places)}.\nFrom the last: {', '.join(reversed(places))}."


def tally(words: list[str], running: list[int]) -> str:
    """The thought that goes with counting: each word with the number counted so far."""
    return ", ".join(f"{word} {number}" for word, number in zip(words, running, strict=True)) + "."


class Unordered(NamedTuple):
    thing: str  # what each of them is
    order: str
    items: list[str]
    ranked: list[str]


def draw_unordered(rng: random.Random, words: float) -> Unordered:
    """Words, in `words` of the cases, or numbers; none twice."""
    if rng.random() < words:
        items = rng.sample(WORDS, rng.randint(3, 10))
        return Unordered("word", "alphabetical", items, sorted(items))
    numbers = rng.sample(range(rng.choice((10, 100, 1000, 1000))), rng.randint(3, 8))
    return Unordered("number", "ascending", [str(one) for one in numbers], [str(one) for one in sorted(numbers)])


def ordering(items: list[str], ranked: list[str]) -> str:
    """The thought that goes with sorting: words by their first letter; numbers by their first digit, for which the
    shorter ones get zeros."""
    if not items[0].isdigit():
        return groups(items, ranked, {item: item[0] for item in items})
    width = max(map(len, items))
    padded = [item.zfill(width) for item in items]
    by_digit = groups(padded, [item.zfill(width) for item in ranked], {item: item[0] for item in padded})
    return f"{' '.join(padded)}\n{by_digit}"


def groups(items: list[str], ranked: list[str], group_of: dict[str, str]) -> str:
    """One line a group, in order: its name, its items as they came, its items sorted."""
    lines = []
    for group in dict.fromkeys(group_of[item] for item in ranked):
        came = " ".join(item for item in items if group_of[item] == group)
        in_order = " ".join(item for item in ranked if group_of[item] == group)
        lines.append(f"{group}: {came} -> {in_order}")
    return "\n".join(lines)


def _plain(rng: random.Random) -> str:
    return join(rng.choice(SEPARATORS), rng.choices(WORDS, k=rng.randint(1, 16)))


def _sentence(rng: random.Random) -> str:
    words = rng.choices(WORDS, k=rng.randint(3, 14))
    words = [word + rng.choice(",;:") if rng.random() < 0.15 else word for word in words[:-1]] + words[-1:]
    return " ".join(words).capitalize() + rng.choice(".!?")


def _digits(rng: random.Random) -> str:
    digits = "".join(rng.choices(string.digits, k=rng.randint(2, 16)))
    return " ".join(digits) if rng.random() < 0.15 else digits


def _letters(rng: random.Random) -> str:
    alphabet = rng.choice((string.ascii_lowercase, string.ascii_uppercase, string.ascii_letters))
    return "".join(rng.choices(alphabet, k=rng.randint(2, 12)))


def _mixed_case(rng: random.Random) -> str:
    changes = (str.upper, str.capitalize, str.lower, str.swapcase, str.title)
    return " ".join(rng.choice(changes)(word) for word in rng.choices(WORDS, k=rng.randint(1, 8)))


def _code_words(rng: random.Random) -> str:
    """Marks like `K7-42x`, with or without punctuation."""
    alphabet = string.ascii_letters + string.digits * 3 + rng.choice(("-", _MARKS))
    marks = ("".join(rng.choices(alphabet, k=rng.randint(2, 8))) for _ in range(rng.randint(1, 4)))
    return " ".join(marks)


def _program(rng: random.Random) -> str:
    a, b, c = rng.sample(ANIMALS + THINGS, 3)
    return rng.choice(_CODE).format(a=a, b=b, c=c, m=rng.randrange(1000), n=rng.randrange(100))


_COPY_KINDS = (_plain, _plain, _plain, _sentence, _sentence, _digits, _letters, _mixed_case, _code_words, _program)

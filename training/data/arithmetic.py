"""Arithmetic: add and subtract up to three digits, multiply 1 x 1-2 digits, and 2 x 2 digits with visible steps.

The answer is the bare number; the thinking works column by column, from the ones, with carries and borrows.
"""

from __future__ import annotations

import random

from training.data.conversation import Conversation, seeded

_COLUMNS = ("Ones", "Tens", "Hundreds", "Thousands")
_FRAMES = (
    "What is {}?",
    "What is {}?",
    "Compute {}.",
    "Calculate {}.",
    "How much is {}?",
    "{} =",
    "{} = ?",
    "{}",
    "Work out {}.",
    "Please compute {}.",
    "Find {}.",
    "Tell me {}.",
    "what is {}",
    "Solve {}.",
)
_SUMS = ("{a} + {b}", "{a} + {b}", "{a}+{b}", "{a} plus {b}", "the sum of {a} and {b}")
_DIFFERENCES = ("{a} - {b}", "{a} - {b}", "{a}-{b}", "{a} minus {b}")
_PRODUCTS = ("{a} * {b}", "{a} * {b}", "{a}*{b}", "{a} x {b}", "{a} times {b}", "the product of {a} and {b}")
_WHOLE_SUMS = ("Add {a} and {b}.", "Add {b} to {a}.")
_WHOLE_DIFFERENCES = ("Subtract {b} from {a}.", "Take {b} away from {a}.")
_WHOLE_PRODUCTS = ("Multiply {a} by {b}.", "Multiply {a} and {b}.")


def arithmetic(split: str, index: int, thinking: bool | None = None) -> Conversation:
    """`thinking` overrides what the item draws; the question stays the same."""
    rng = seeded(split, "arithmetic", index)
    thinks = rng.random() < 0.5
    kind = rng.random()
    if kind < 0.4:
        a, b = _number(rng), _number(rng)
        question, steps, answer = _ask(rng, a, b, _SUMS, _WHOLE_SUMS), addition_steps(a, b), a + b
    elif kind < 0.8:
        a, b = _number(rng), _number(rng)
        question, steps, answer = _ask(rng, a, b, _DIFFERENCES, _WHOLE_DIFFERENCES), subtraction_steps(a, b), a - b
    else:
        a, b = rng.randrange(10), rng.randrange(10 if rng.random() < 0.2 else 100)
        if rng.random() < 0.5:
            a, b = b, a
        question, steps, answer = _ask(rng, a, b, _PRODUCTS, _WHOLE_PRODUCTS), product_steps(a, b), a * b
    return _conversation("arithmetic", question, steps, answer, thinks if thinking is None else thinking)


def multiply(split: str, index: int) -> Conversation:
    """2 x 2 digits; pairs that `is_reserved` names are never trained on, and are what every other split asks for."""
    rng = seeded(split, "multiply", index)
    a, b = rng.randrange(10, 100), rng.randrange(10, 100)
    while is_reserved(a, b) == (split == "train"):
        a, b = rng.randrange(10, 100), rng.randrange(10, 100)
    question = _ask(rng, a, b, _PRODUCTS, _WHOLE_PRODUCTS)
    return _conversation("multiply", question, long_product_steps(a, b), a * b, True)


def is_reserved(a: int, b: int) -> bool:
    """About one pair in 17, in either order, over all combinations of digits."""
    return (a + b) % 17 == 5


def addition_steps(a: int, b: int) -> str:
    lines = []
    width = max(len(str(a)), len(str(b)))
    carry = 0
    for column, (x, y) in enumerate(_columns(a, b, width)):
        total = x + y + carry
        shown = f"{x} + {y} = {total}" if column == 0 else f"{x} + {y} + {carry} = {total}"
        carry = total // 10
        end = f"write {total}." if column == width - 1 else f"write {total % 10}, carry {carry}."
        lines.append(f"{_COLUMNS[column]}: {shown}, {end}")
    return "\n".join([*lines, f"{a} + {b} = {a + b}"])


def subtraction_steps(a: int, b: int) -> str:
    if a < b:
        return f"{a} is less than {b}, the answer is negative.\n{subtraction_steps(b, a)}\n{a} - {b} = {a - b}"
    lines = []
    borrow = 0
    for column, (x, y) in enumerate(_columns(a, b, len(str(a)))):
        lent = 10 if x - y - borrow < 0 else 0
        digit = x + lent - y - borrow
        shown = f"{x + lent} - {y} = {digit}" if column == 0 else f"{x + lent} - {y} - {borrow} = {digit}"
        borrow = lent // 10
        lines.append(f"{_COLUMNS[column]}: {shown}, write {digit}, borrow {borrow}.")
    return "\n".join([*lines, f"{a} - {b} = {a - b}"])


def product_steps(a: int, b: int) -> str:
    """Steps of a product in which at least one factor has one digit."""
    many, digit = (a, b) if b < 10 else (b, a)
    return f"{_digit_product(many, digit)}\n{a} * {b} = {a * b}"


def long_product_steps(a: int, b: int) -> str:
    tens, ones = divmod(b, 10)
    low, high = a * ones, a * tens * 10
    return "\n".join(
        [
            f"{a} * {b} = {a} * {ones} + {a} * {tens}0",
            f"{a} * {ones}:",
            _digit_product(a, ones),
            f"{a} * {ones} = {low}",
            f"{a} * {tens}:",
            _digit_product(a, tens),
            f"{a} * {tens} = {a * tens}, so {a} * {tens}0 = {high}",
            f"{high} + {low}:",
            addition_steps(high, low),
            f"{a} * {b} = {a * b}",
        ]
    )


def _digit_product(many: int, digit: int) -> str:
    lines = []
    digits = [int(char) for char in reversed(str(many))]
    carry = 0
    for column, x in enumerate(digits):
        total = x * digit + carry
        shown = f"{x} * {digit} = {total}"
        if column > 0:
            shown = f"{x} * {digit} = {x * digit}, {x * digit} + {carry} = {total}"
        carry = total // 10
        end = f"write {total}." if column == len(digits) - 1 else f"write {total % 10}, carry {carry}."
        lines.append(f"{_COLUMNS[column]}: {shown}, {end}")
    return "\n".join(lines)


def _columns(a: int, b: int, width: int) -> list[tuple[int, int]]:
    """Pairs of digits, the ones first."""
    pairs = zip(str(a).zfill(width), str(b).zfill(width), strict=True)
    return [(int(x), int(y)) for x, y in pairs][::-1]


def _number(rng: random.Random) -> int:
    limit = rng.choice((10, 100, 100, 1000, 1000, 1000))
    return rng.randrange(limit // 10 if limit > 10 else 0, limit)


def _ask(rng: random.Random, a: int, b: int, parts: tuple[str, ...], wholes: tuple[str, ...]) -> str:
    if rng.random() < 0.12:
        return rng.choice(wholes).format(a=a, b=b)
    return rng.choice(_FRAMES).format(rng.choice(parts).format(a=a, b=b))


def _conversation(task: str, question: str, steps: str, answer: int, thinking: bool) -> Conversation:
    wanted = {"role": "assistant", "content": str(answer)}
    if thinking:
        wanted["reasoning_content"] = steps
    return Conversation(task, [{"role": "user", "content": question}, wanted], thinking=thinking)

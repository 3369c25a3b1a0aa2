"""Several turns of the short text tasks, and questions about the turns before; the last answer is the wanted one.

With thinking, half of the clients send the earlier thinking back and half do not.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from training.data.arithmetic import addition_steps, arithmetic, product_steps, subtraction_steps
from training.data.chat import INTENTS, identity
from training.data.conversation import Conversation, draws_thinking, seeded
from training.data.follow import draw_rules, ruled_exchange
from training.data.lookup import lookup
from training.data.vocabulary import ANIMALS, CITIES, COLOURS, FOODS, NAMES
from training.data.words import copy, count, reverse, sort


class Turn(NamedTuple):
    question: str
    thought: str
    answer: str


class Fact(NamedTuple):
    told: str
    asked: tuple[str, ...]
    answer: str
    values: tuple[str, ...]


_FACTS = (
    Fact("My name is {}.", ("What is my name?", "Do you know my name?", "Tell me my name."), "Your name is {}.", NAMES),
    Fact("I live in {}.", ("Where do I live?", "In which city do I live?"), "You live in {}.", CITIES),
    Fact(
        "My favourite colour is {}.",
        ("What is my favourite colour?", "Which colour do I like best?"),
        "Your favourite colour is {}.",
        COLOURS,
    ),
    Fact("I have a pet {}.", ("Which pet do I have?", "What pet do I have?"), "You have a pet {}.", ANIMALS),
    Fact("My best friend is {}.", ("Who is my best friend?", "Name my best friend."), "Your best friend is {}.", NAMES),
    Fact("For dinner I want {}.", ("What do I want for dinner?",), "For dinner you want {}.", FOODS),
)
_THINKING = 0.65  # share in training: without a thought every turn is learnt, with one often the last alone
_NOTED = "I will remember that."
_NAME_UNKNOWN = INTENTS["user_name"].answer
_ORDINALS = ("first", "second", "third", "fourth")


def dialogue(split: str, index: int, thinking: bool | None = None) -> Conversation:
    rng = seeded(split, "dialogue", index)
    thinks = draws_thinking(rng, split, _THINKING)
    thinks = thinks if thinking is None else thinking
    sends_thoughts_back = rng.random() < 0.5
    num_turns = rng.randint(2, 5)
    messages: list[dict[str, Any]] = []
    turns: list[Turn] = []
    if rng.random() < 0.25:
        rules = draw_rules(rng)
        messages.append({"role": "system", "content": rules.system})
        turns = [Turn(*ruled_exchange(rng, split, rules)) for _ in range(num_turns)]
    else:
        if rng.random() < 0.2:
            messages.append({"role": "system", "content": rng.choice(("Be polite.", "You are a helpful assistant."))})
        told: dict[Fact, str] = {}
        while len(turns) < num_turns:
            turns.append(next_turn(rng, split, turns, told, last=len(turns) == num_turns - 1))
    for number, turn in enumerate(turns, 1):
        reply = {"role": "assistant", "content": turn.answer}
        if thinks and (sends_thoughts_back or number == num_turns):
            reply["reasoning_content"] = turn.thought
        messages += [{"role": "user", "content": turn.question}, reply]
    return Conversation("dialogue", messages, thinking=thinks)


def next_turn(rng: random.Random, split: str, turns: list[Turn], told: dict[Fact, str], last: bool) -> Turn:
    """A fact told, a question about a fact or an earlier turn, or an ordinary question."""
    kind = rng.random()
    if not last and kind < 0.3:
        return tell(rng, told)
    if told and kind < (0.4 if last else 0.35):
        return _recall(rng, told)
    if turns and kind > (0.55 if last else 0.85):
        return look_back(rng, turns) or _ordinary(rng, split, told)
    return _ordinary(rng, split, told)


def look_back(rng: random.Random, turns: list[Turn]) -> Turn | None:
    """A question about the turns before, if there is one of the kind that is drawn."""
    return rng.choice(_BACKWARD)(rng, turns)


def tell(rng: random.Random, told: dict[Fact, str]) -> Turn:
    """A fact may be told again with another value: the last one counts."""
    fact = rng.choice(_FACTS)
    told[fact] = rng.choice(fact.values)
    sentence = fact.told.format(told[fact])
    return Turn(sentence, f"The user tells me: {sentence}", _NOTED)


def _recall(rng: random.Random, told: dict[Fact, str]) -> Turn:
    fact = rng.choice(tuple(told))
    value = told[fact]
    return Turn(rng.choice(fact.asked), f"The user said: {fact.told.format(value)}", fact.answer.format(value))


def _ordinary(rng: random.Random, split: str, told: dict[Fact, str]) -> Turn:
    place = rng.randrange(1 << 32)
    make = rng.choice(_PARTS)
    part = lookup(split, place, True, max_entries=8) if make is lookup else make(split, place, True)
    while _FACTS[0] in told and part.messages[-1]["content"] == _NAME_UNKNOWN:
        part = arithmetic(split, place, True)
    asked, wanted = part.messages[-2:]
    return Turn(asked["content"], wanted["reasoning_content"], wanted["content"])


_PARTS: tuple[Callable[..., Conversation], ...] = (
    arithmetic,
    arithmetic,
    arithmetic,
    identity,
    identity,
    copy,
    reverse,
    sort,
    count,
    lookup,
)


def _question_again(rng: random.Random, turns: list[Turn]) -> Turn | None:
    if rng.random() < 0.5:
        asked = rng.choice(("What was my first question?", "What did I ask first?", "Repeat my first message."))
        return Turn(asked, "The first message of the user is asked for.", turns[0].question)
    asked = rng.choice(("What was my last question?", "What did I ask before this?", "Repeat my last message."))
    return Turn(asked, "The message before this one is asked for.", turns[-1].question)


def _answer_again(rng: random.Random, turns: list[Turn]) -> Turn | None:
    asked = rng.choice(
        ("Repeat that.", "What did you answer before?", "Repeat your last answer.", "Say that again.", "Pardon?")
    )
    return Turn(asked, "My last answer is asked for.", turns[-1].answer)


def _numbered_answer(rng: random.Random, turns: list[Turn]) -> Turn | None:
    place = rng.randrange(len(turns))
    ordinal = _ORDINALS[place]
    thought = "\n".join(
        f"{number} {_begin(turn.question)}: {turn.answer}" for number, turn in enumerate(turns[: place + 1], 1)
    )
    asked = rng.choice((f"What was your {ordinal} answer?", f"Repeat your {ordinal} answer."))
    return Turn(asked, thought, turns[place].answer)


def _number_of_turns(rng: random.Random, turns: list[Turn]) -> Turn | None:
    asked = rng.choice(("How many messages did I send before this one?", "How many times have you answered so far?"))
    counted = "\n".join(f"{number} {_begin(turn.question)}" for number, turn in enumerate(turns, 1))
    return Turn(asked, f"{counted}\nThen {_begin(asked)}", str(len(turns)))


def _begin(question: str) -> str:
    """What tells a message from the next: up to two words of its first line."""
    return " ".join(question.split("\n", 1)[0].split()[:2])


def _calculate_on(rng: random.Random, turns: list[Turn]) -> Turn | None:
    if not turns[-1].answer.isdigit() or len(turns[-1].answer) > 3:
        return None
    number, other = int(turns[-1].answer), rng.randrange(2, 10)
    kind = rng.randrange(3)
    if kind == 0:
        return Turn(f"Add {other} to that.", addition_steps(number, other), str(number + other))
    if kind == 1 or number >= 100:
        return Turn(f"Subtract {other} from that.", subtraction_steps(number, other), str(number - other))
    return Turn(f"Multiply that by {other}.", product_steps(number, other), str(number * other))


_BACKWARD = (_question_again, _answer_again, _numbered_answer, _number_of_turns, _calculate_on, _calculate_on)

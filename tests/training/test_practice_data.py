"""Practice data: the tested items are as ever, every turn's answer is found again in the context, turns are regular."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from tests.training.test_media_data import (
    KINDS,
    compared,
    content,
    ground,
    nearest_colour,
    planned,
    scenes_shown,
    tones_by_scene,
)
from training.data import needle
from training.data.conversation import Conversation, Film, Picture
from training.data.drawing import SHAPES
from training.data.lookup import NOT_FOUND
from training.data.media_practice import film_talk, picture_talk
from training.data.order_talk import order_talk
from training.data.pictures import PLACES, plural
from training.data.practice import lookup_talk, needle_talk, recall, words_talk
from training.tasks import PRACTICE, TASKS, Task

Exchange = tuple[str, str, str]  # question, thought (empty without thinking), answer

# Of the messages of 60 items each, from before the generators shared code with practice; the thoughts of sort, count,
# lookup and picture_compare, and how many items of the first two think in training, are those of 2026-12-01.
UNCHANGED = {
    "copy": "a00bc1b10be876d8",
    "reverse": "b71443cb2a2790a4",
    "sort": "bb08c274ab280488",
    "count": "a6ca6fdd992c7333",
    "lookup": "6b726cd6073728ac",
    "needle": "1e4c6d6c4ff6bf6a",
    "picture_colour": "92c46017bc318a33",
    "picture_shape": "8284b7b8df4d2348",
    "picture_number": "9e597f0d8ae01763",
    "picture_position": "077db11fd86cc220",
    "picture_compare": "30605206fe5cfb40",
    "picture_digits": "a2f13083bc4afaab",
    "film_order": "9dcd3c3580737e1f",
    "film_when": "4f044bc46903da1f",
    "film_at_tone": "c933d1fa114ed276",
    "film_tones_while": "22c2e9fc9108acd6",
}


@pytest.mark.parametrize("task", UNCHANGED)
def test_tested_items_ask_and_answer_as_before_there_was_practice(task: str) -> None:
    told = [
        [made.messages, made.thinking]
        for split in ("train", "test")
        for made in (TASKS[task].generate(split, index) for index in range(30))
    ]
    assert hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16] == UNCHANGED[task]


def words_of(message: dict[str, Any]) -> str:
    parts = message["content"]
    return parts if isinstance(parts, str) else " ".join(part["text"] for part in parts if part["type"] == "text")


def exchanges(made: Conversation) -> list[Exchange]:
    return [
        (words_of(asked), reply.get("reasoning_content", ""), reply["content"])
        for asked, reply in zip(made.messages[::2], made.messages[1::2], strict=True)
    ]


def items(make: Callable[[str, int], Conversation], num: int) -> Iterator[list[Exchange]]:
    return (item(make, index) for index in range(num))


@cache
def item(make: Callable[[str, int], Conversation], index: int) -> list[Exchange]:
    """Read once: several tests look at the first."""
    return exchanges(make("train", index))


# Practice in tools has turns of its own: test_tool_practice.py.
@pytest.mark.parametrize(
    "task", [task for task in PRACTICE.values() if task.kind != "tools"], ids=lambda task: task.name
)
class TestEveryKindOfPractice:
    def test_it_is_named_apart_from_the_tested_tasks(self, task: Task) -> None:
        assert PRACTICE[task.name] is task
        assert task.name not in TASKS
        assert task.generate("train", 0).task == task.name
        assert task.target == 0
        assert task.weight > 0

    def test_an_item_depends_on_its_split_and_index_alone(self, task: Task) -> None:
        for index in range(10):
            assert content(task.generate("train", index)) == content(task.generate("train", index))
            assert content(task.generate("train", index)) != content(task.generate("test", index))
            assert content(task.generate("train", index)) != content(task.generate("train", index + 1))

    def test_turns_alternate_and_all_of_them_keep_their_thought_or_none_has_one(self, task: Task) -> None:
        thinking = []
        for index in range(150):
            made = task.generate("train", index)
            assert [message["role"] for message in made.messages] == ["user", "assistant"] * (len(made.messages) // 2)
            replies = made.messages[1::2]
            assert all(("reasoning_content" in reply) == made.thinking for reply in replies)
            for text in (reply[key] for reply in replies for key in reply if key != "role"):
                assert text == text.strip() != ""
            thinking.append(made.thinking)
        assert 40 < sum(thinking) < 110

    def test_media_stand_in_the_order_of_their_parts(self, task: Task) -> None:
        for index in range(40):
            made = task.generate("train", index)
            contents = [asked["content"] for asked in made.messages[::2] if not isinstance(asked["content"], str)]
            kinds = [KINDS[part["type"]] for parts in contents for part in parts if part["type"] != "text"]
            assert [type(medium) for medium in made.media] == kinds


def test_there_are_as_many_questions_as_one_context_is_worth() -> None:
    wanted = {lookup_talk: (4, 8), needle_talk: (3, 6), words_talk: (3, 6), film_talk: (3, 6), picture_talk: (3, 7)}
    for make, (fewest, most) in wanted.items():
        numbers = [len(turns) for turns in items(make, 200)]
        assert fewest <= min(numbers)
        assert max(numbers) <= most
        assert sum(numbers) / len(numbers) > fewest + 0.8
        questions = [[question for question, _, _ in turns] for turns in items(make, 200)]
        assert all(len(set(asked)) == len(asked) for asked in questions)


def test_entries_are_looked_up() -> None:
    between = r'"?(?:: | = | -> | \| |,(?! )| is | has the value | the entry is | stands for )"?'
    seen = []
    for turns in items(lookup_talk, 300):
        for question, _, answer in turns[1:]:
            asked = question.removesuffix(' If it is not in the list, answer "not found".')
            asked = re.sub(r"^(.* (?:value of|value for|belongs to|entry for)|Look up|Find the value of) ", "", asked)
            key = re.escape(re.sub(r"( in the list)?[.?]$| =$", "", asked).strip('"'))
            if answer == NOT_FOUND:
                assert not re.search(rf"(?<!\w){key}{between}", turns[0][0])
            else:
                assert re.search(rf"(?<!\w){key}{between}{re.escape(answer)}(?!\w)", turns[0][0]), question
            seen.append(answer == NOT_FOUND)
    assert 0.05 < sum(seen) / len(seen) < 0.25


def matcher(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\{key\}", r"([\w ]+?)").replace(r"\{value\}", "(.+?)"))


def test_facts_are_found_in_the_text_and_stand_there_once() -> None:
    kinds = [(matcher(kind.fact), [matcher(question) for question in kind.questions]) for kind in needle.KINDS]
    lengths = []
    for turns in items(needle_talk, 200):
        text = turns[0][0]
        lengths.append(len(re.findall(r"\w+|[.,]", text)))
        for question, thought, answer in turns[1:]:
            (found,) = [
                (fact, match[1]) for fact, asked in kinds for each in asked if (match := each.fullmatch(question))
            ]
            fact, key = found
            assert [value for known, value in fact.findall(text) if known.strip() == key] == [answer]
            assert thought.removeprefix("The text says: ") in text
    assert min(lengths) > 150
    assert 2000 < max(lengths) < 2700


def list_in(message: str) -> list[str]:
    told = re.sub(r"^(Here is a list of (words|numbers):|Words:)\s", "", message)
    return re.findall(r"\w+", told.split("\n\n")[0] if "\n\n" in told else re.split(r"[.?]\s", told, maxsplit=1)[1])


def about_words(question: str, words: list[str]) -> list[str]:
    if match := re.search(r'times is "(\w+)"|often does (\w+)|the word "(\w+)" in the list\.', question):
        return [str(words.count(match[match.lastindex or 0]))]
    if match := re.search(r'^Is (?:the word )?"?(\w+)"? in|have the word (\w+)', question):
        return ["yes" if match[match.lastindex or 0] in words else "no"]
    if match := re.search(r"number (\d+)|word (\d+) of", question):
        return [words[int(match[match.lastindex or 0]) - 1]]
    if match := re.search(r"(?:after|follows) (\w+)", question):
        return [words[words.index(match[1]) + 1]]
    if match := re.search(r"before (\w+)", question):
        return [words[words.index(match[1]) - 1]]
    if re.search(r"(first|last) word", question):
        return [words[0] if "first" in question else words[-1]]
    if re.search(r"How many|Count", question):
        return [str(len(words))]
    return words[::-1] if re.search(r"[Rr]everse", question) else sorted(words)


def test_questions_about_a_list_of_words_are_answered_from_it() -> None:
    seen = set()
    for turns in items(words_talk, 500):
        words = list_in(turns[0][0])
        for question, _, answer in turns[1:]:
            assert re.findall(r"\w+", answer) == about_words(question, words), (question, words)
            seen.add(re.sub(r'"?\b\w+"?[.?]$', "", question))
    assert len(seen) > 15


def test_questions_about_the_order_of_a_list_are_answered_by_it() -> None:
    seen = set()
    for turns in items(order_talk, 400):
        whole = list_in(turns[0][0])
        for question, thought, answer in turns[1:]:
            pair = re.findall(r": (\w+) and (\w+)\.", question)
            ranked = sorted(pair[0] if pair else whole, key=lambda item: (len(item) * item.isdigit(), item))
            if "comes after" in question:
                expected = [ranked[ranked.index(re.findall(r"after (\w+)", question)[0]) + 1]]
            elif match := re.search(r" (first|last) ", question):
                expected = [ranked[0 if match[1] == "first" else -1]]
            else:
                expected = ranked
            assert re.findall(r"\w+", answer) == expected, (question, whole)
            if thought:  # its groups in order are the list in order
                in_order = " ".join(line.split(" -> ")[1] for line in thought.split("\n") if " -> " in line).split()
                assert [item.lstrip("0") or "0" for item in in_order] == ranked
            seen.add(question.split()[0])
    assert seen == {"Sort", "Put", "Which", "Name"}


def test_half_of_the_lists_to_be_put_in_order_have_what_is_near_each_other() -> None:
    near = []
    for turns in items(order_talk, 300):
        whole = list_in(turns[0][0])
        begins = {item[0] for item in whole}
        near.append(len(begins) <= 2 or (not whole[0].isdigit() and max(begins) <= chr(ord(min(begins)) + 4)))
    assert 0.45 < sum(near) / len(near) < 0.75


def about_parts(question: str, words: list[str]) -> list[str]:
    named = [words.index(word) for word in re.findall(r"(?:from|to|between|and) (\w+)", question) if word in words]
    if match := re.search(r"up to (\w+)", question):
        return words[: words.index(match[1]) + 1]
    if "only" in question:
        return words[named[0] + 1 : named[1]] if "between" in question else words[named[0] : named[1] + 1]
    return words[named[0] :] if named else words


def test_recalled_pairs_and_copies_are_exact() -> None:
    seen = {"values": 0, "pairs": 0, "copies": 0}
    for turns in items(recall, 300):
        context, _, first = turns[0][0].rpartition("\n\n")
        questions = [first, *(question for question, _, _ in turns[1:])]
        style = next((sign for sign in (": ", " = ", " -> ", "; ") if sign in context), None)
        if style is None:
            words = list_in(turns[0][0])
            for question, (_, thought, answer) in zip(questions, turns, strict=True):
                if context or question != first:
                    part = about_parts(question, words)
                    assert re.findall(r"\w+", answer) == part
                    assert thought in ("", f"It begins with {part[0]} and ends with {part[-1]}.")
                    seen["copies"] += 1
            continue
        between = "\n" if "\n" in context else "; " if style == "; " else ", "
        pairs = context.split(between)
        table = dict(pair.rsplit(" " if style == "; " else style, 1) for pair in pairs)
        assert 8 <= len(table) == len(pairs) <= 40
        for question, (_, _, answer) in zip(questions, turns, strict=True):
            keys = re.sub(r"^.*?(?:for|order):? ", "", question)[:-1].split(", ")
            if "pairs" in question:
                assert answer == between.join(pairs[list(table).index(key)] for key in keys)
                seen["pairs"] += 1
            else:
                assert answer == ", ".join(table[key] for key in keys)
                seen["values"] += 1
    assert min(seen.values()) > 40


@pytest.mark.parametrize("nearest", [True, False])
def test_questions_about_a_film_are_answered_by_what_is_shown_and_heard(nearest: bool) -> None:
    seen = dict.fromkeys(("order", "start", "tone", "tones"), 0)
    for made in (film_talk("train", index) for index in range(200)):
        (film,) = made.media
        assert isinstance(film, Film)
        plan = planned(film)
        shown = scenes_shown(film, plan)
        seconds = [int(plan.timestamps[shown.index(scene)][6:8]) for scene in range(max(shown) + 1)]
        for question, thought, answer in exchanges(made) if made.thinking else ():
            names = [part.split(" s ")[1] for part in re.split(r"(?:: \d tones?)?[,.] ?", thought)[:-1]]
            assert [int(second) for second in re.findall(r"(\d+) s ", thought)] == seconds
            named = [place for place, name in enumerate(names) if name in re.findall(r"\w+", question)[-3:]]
            if "order" in question:
                seen["order"] += 1
                assert answer == ", ".join(names)
            elif re.match("When|At", question):
                seen["start"] += 1
                assert answer == f"at {seconds[named[0]]} seconds"
            elif "many" in question:
                seen["tones"] += 1
                assert answer == str(tones_by_scene(film, plan, nearest).count(named[0]))
            else:
                seen["tone"] += 1
                (scene,) = tones_by_scene(film, plan, nearest)
                assert answer == names[scene]
    assert min(seen.values()) > 20


SIDES = {"left": (1, -1), "right": (1, 1), "top": (3, -1), "above": (3, -1), "bottom": (3, 1), "below": (3, 1)}


def about_picture(question: str, thought: str) -> str:
    """The answer from what the thought says that the picture shows; fails where there is not exactly one."""
    listing, _, background = thought.removeprefix("I see ").rstrip(".").split(". ")[0].partition(" on ")
    figures = [tuple(figure.split(" ", 1)) for figure in listing.split(", ")]  # colour and kind, or kind and place
    if "background" in question:
        return background
    if match := re.search(r"(?:How many|Count the) (\w+)( shapes)?", question):
        kind = {plural(kind): kind for kind in SHAPES}.get(match[1])
        return str(len([f for f in figures if match[1] in ("shapes", f[0]) or kind == f[1]]))
    if match := re.search(r"directly (\w+)(?: of)? the (\w+)", question):
        step = SIDES[match[1]][0] * SIDES[match[1]][1]
        (cell,) = [PLACES.index(place) for kind, place in figures if kind == match[2]]
        (found,) = [kind for kind, place in figures if PLACES.index(place) == cell + step]
    elif match := re.search(r"(?:nearer to|at) the (\w+)", question):
        line, way = SIDES[match[1]]
        ranked = sorted((PLACES.index(place) // line % 3 * way, kind) for kind, place in figures)
        assert ranked[-2][0] < ranked[-1][0]
        found = ranked[-1][1]
    elif match := re.search(r"(?:Where|picture) is the (\w+)", question):
        (found,) = [place for kind, place in figures if kind == match[1]]
    elif match := re.search(r"colou?r (?:is|of) the (\w+)", question):
        (found,) = [colour for colour, kind in figures if kind == match[1]]
    else:
        asked = re.search(r"shape is (?:the )?(\w+)", question)
        (found,) = [kind for colour, kind in figures if asked is None or colour == asked[1]]
    return found


def test_questions_about_pictures_are_answered_by_what_the_thought_lists() -> None:
    seen: dict[str, int] = {}
    for made in (picture_talk("train", index) for index in range(400)):
        for question, thought, answer in exchanges(made) if made.thinking else ():
            if thought.startswith("First"):
                first, second = re.findall(r"(?:First|Second): (\d)\.", thought)
                assert answer == ("first" if int(first) > int(second) else "second")
            elif re.search(r": (same|different)\.$", thought):
                new = re.findall(r"\w+ \w+, (\w+ \w+): different\.", thought)
                assert len(new) == compared(thought).count("different") <= 1
                assert answer in (("different", *new) if new else ("same", "nothing"))
            elif thought.startswith("The digits"):
                assert re.findall(r"\d", thought) == list(answer)
            else:
                assert about_picture(question, thought) == answer, (question, thought)
            kind = " ".join(question.split()[:3])
            seen[kind] = seen.get(kind, 0) + 1
    assert len(seen) > 12


def test_the_ground_has_the_colour_that_is_answered_in_the_picture_that_is_meant() -> None:
    right = []
    for made in (picture_talk("train", index) for index in range(300)):
        for question, _, answer in exchanges(made):
            if "background" in question:
                picture = made.media["second" in question]
                assert isinstance(picture, Picture)
                right.append(nearest_colour(ground(picture.rgb)) == answer)
    assert len(right) > 50
    assert sum(right) > 0.97 * len(right)  # large figures may hide most of the ground

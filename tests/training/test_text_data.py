"""Text data: answers found again from the prompt alone, deterministic items, bounds on lengths, sound thinking."""

import json
import operator
import re
from collections.abc import Callable, Iterator
from functools import cache, partial

import pytest

from training.data.arithmetic import arithmetic, is_reserved, multiply
from training.data.back_talk import back_talk
from training.data.chat import INTENTS, NAME, identity
from training.data.conversation import Conversation
from training.data.dialogue import dialogue
from training.data.follow import FORMATS, follow
from training.data.lookup import NOT_FOUND, lookup
from training.data.needle import needle
from training.data.vocabulary import CITIES, LANDMARKS, NAMES, WORDS
from training.data.words import copy, count, reverse, sort
from training.tasks import TASKS, Task

TEXT_TASKS = [task for task in TASKS.values() if task.kind == "text"]
DRAWN_THINKING = (arithmetic, copy, reverse, sort, count, lookup, needle, identity, follow, dialogue)
CONTROL = re.compile(r"<\||\|>|</?think>|<no_think>|dots_function")
ORDINALS = ("first", "second", "third", "fourth")
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def items(
    make: Callable[..., Conversation], num: int, split: str = "test", **options: object
) -> Iterator[Conversation]:
    made = make if split == "train" else partial(held_out, make)  # of those to train on, no two tests see the same
    return (made(split, index, **options) for index in range(num))


@cache
def held_out(make: Callable[..., Conversation], split: str, index: int, **options: object) -> Conversation:
    """Made once: most tests look at the first."""
    return make(split, index, **options)


def prompt(conversation: Conversation) -> str:
    return str(conversation.messages[-2]["content"])


def answer(conversation: Conversation) -> str:
    return str(conversation.messages[-1]["content"])


def whole(conversation: Conversation) -> str:
    return json.dumps(conversation.messages[:-1])


def listed(text: str) -> list[str]:
    """The words of a list, which stands before a blank line or after the first colon or question mark."""
    body = text.split("\n\n")[0] if "\n\n" in text else re.split(r"[:?]\s", text, maxsplit=1)[1]
    return re.findall(r"\w+", body)


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_the_table_names_each_task_as_its_items_do(task: Task) -> None:
    assert TASKS[task.name] is task
    assert task.generate("test", 0).task == task.name
    assert 0.85 <= task.target < 1
    assert task.weight > 0
    assert task.kind in {"text", "tools", "picture", "sound", "film"}


@pytest.mark.parametrize("task", TEXT_TASKS, ids=lambda task: task.name)
class TestEveryTextTask:
    def test_an_item_is_always_the_same(self, task: Task) -> None:
        for index in range(20):
            assert task.generate("test", index) == task.generate("test", index)

    def test_turns_alternate_and_thinking_is_in_the_wanted_message_only_if_it_is_on(self, task: Task) -> None:
        for conversation in items(task.generate, 300):
            roles = [message["role"] for message in conversation.messages if message["role"] != "system"]
            assert roles == ["user", "assistant"] * (len(roles) // 2)
            assert ("reasoning_content" in conversation.messages[-1]) == conversation.thinking
            if not conversation.thinking:
                assert all("reasoning_content" not in message for message in conversation.messages)

    def test_texts_are_trimmed_and_hold_no_control_string(self, task: Task) -> None:
        for conversation in items(task.generate, 300):
            for message in conversation.messages:
                for key in {"content", "reasoning_content"} & set(message):
                    assert message[key] == message[key].strip() != ""
                    assert not CONTROL.search(message[key])

    def test_held_out_items_are_new(self, task: Task) -> None:
        trained = {whole(conversation) for conversation in items(task.generate, 2000, "train")}
        seen_again = sum(whole(conversation) in trained for conversation in items(task.generate, 500))
        # Wordings of an intent are combined from few parts, so a part of them comes again.
        assert seen_again <= (90 if task.name == "identity" else 0)


@pytest.mark.parametrize("make", DRAWN_THINKING, ids=lambda make: make.__name__)
def test_thinking_is_on_for_half_and_turning_it_changes_neither_question_nor_answer(
    make: Callable[..., Conversation],
) -> None:
    drawn = [conversation.thinking for conversation in items(make, 300)]
    assert 110 < sum(drawn) < 190
    for index in range(50):
        on, off = make("test", index, thinking=True), make("test", index, thinking=False)
        contents = [[message["content"] for message in item.messages] for item in (on, off)]
        assert contents[0] == contents[1]
        assert on.thinking
        assert not off.thinking


def asked_value(question: str) -> int:
    a, b = (int(number) for number in re.findall(r"\d+", question))
    if re.search(r"Subtract|away from", question):
        return b - a
    if re.search(r"\+|plus|sum|Add", question):
        return a + b
    if re.search(r"\d ?\*|\d x|times|product|Multiply", question):
        return a * b
    assert re.search(r"\d ?-|minus", question)
    return a - b


@pytest.mark.parametrize("make", [arithmetic, multiply])
def test_sums_are_right_and_so_is_every_step(make: Callable[..., Conversation]) -> None:
    for conversation in items(make, 1500):
        assert answer(conversation) == str(asked_value(prompt(conversation))), prompt(conversation)
        steps = conversation.messages[-1].get("reasoning_content", answer(conversation))
        assert steps.endswith(answer(conversation))
        for left, right in re.findall(r"(\d[\d +*-]*) = (-?\d+)(?=[,.\n]|$)", steps):
            first, *rest = re.findall(r"\d+|[+*-]", left)
            value = int(first)
            for sign, number in zip(rest[::2], rest[1::2], strict=True):
                value = OPERATORS[sign](value, int(number))
            assert value == int(right), steps


def test_products_of_the_held_out_split_are_never_trained_on() -> None:
    def pairs(split: str) -> set[frozenset[int]]:
        return {frozenset(map(int, re.findall(r"\d+", prompt(item)))) for item in items(multiply, 3000, split)}

    assert not pairs("train") & pairs("test")
    assert 300 < sum(is_reserved(a, b) for a in range(10, 100) for b in range(10, 100)) < 700


def test_copies_stand_in_the_prompt_to_its_end() -> None:
    for conversation in items(copy, 1000):
        assert re.fullmatch(r"[\w ,]+[:.]?\s", prompt(conversation).removesuffix(answer(conversation)))


def words_backwards(text: str) -> str:
    words = re.findall(r"\w+", text)
    return re.sub(r"\w+", lambda _: words.pop(), text)


def test_reversed_words_are_the_list_backwards_in_its_form() -> None:
    for conversation in items(reverse, 500):
        given = words_backwards(answer(conversation))
        assert prompt(conversation).endswith(given) or prompt(conversation).startswith(given + "\n\n")
        assert len(re.findall(r"\w+", given)) >= 3


def test_sorted_items_are_those_of_the_list_in_order() -> None:
    for conversation in items(sort, 500):
        ranked = re.findall(r"\w+", answer(conversation))
        assert sorted(ranked) == sorted(listed(prompt(conversation)))
        as_keys: list[tuple[int, str]] = [(int(item) if item.isdigit() else 0, item) for item in ranked]
        assert as_keys == sorted(as_keys)


def test_counts_are_those_of_the_list() -> None:
    for conversation in items(count, 500):
        text = prompt(conversation)
        one = re.search(r'"(\w+)"|does (\w+) appear', text)
        words = listed(text)
        expected = words.count(one[1] or one[2]) if one else len(words)
        assert answer(conversation) == str(expected), text


LIST_STYLES = (
    r'"(?P<key>[\w ]+)": "?(?P<value>[\w -]+)"?',
    r"The value of (?P<key>[\w ]+) is (?P<value>[\w -]+)\.",
    r"(?P<key>[\w ]+) has the value (?P<value>[\w -]+)\.",
    r"For (?P<key>[\w ]+) the entry is (?P<value>[\w -]+)\.",
    r"(?P<key>[\w ]+) stands for (?P<value>[\w -]+)\.",
    r"\| (?P<key>[\w ]+) \| (?P<value>[\w -]+) \|",
    r"(?m:^)(?:- )?(?P<key>[\w ]+?)(?:: | = |,| -> )(?P<value>[\w -]+)(?m:$)",
)


def table_of(text: str) -> dict[str, str]:
    found = [list(re.finditer(style, text)) for style in LIST_STYLES]
    return {match["key"].strip(): match["value"] for match in max(found, key=len)}


def test_looked_up_values_belong_to_the_key_and_missing_keys_are_missing() -> None:
    missing = 0
    for conversation in items(lookup, 800, thinking=True):
        text, thought = prompt(conversation), conversation.messages[-1]["reasoning_content"]
        table = table_of(text)
        assert 4 <= len(table) <= 40
        if answer(conversation) == NOT_FOUND:
            missing += 1
            key = thought.removesuffix(f": {NOT_FOUND}")
            assert key not in table
            assert key in text
        else:
            key, value = thought.split(": ")
            assert table[key] == value == answer(conversation)
            assert len(re.findall(rf"\b{key}\b", text)) >= 2
    assert 50 < missing < 160


def test_a_needle_stands_once_and_the_filler_holds_nothing_like_it() -> None:
    keys = re.compile(rf"\d|\b({'|'.join((*NAMES, *CITIES, *LANDMARKS))})\b")
    facts = re.compile("code|password|access|train|Locker|Crate|extension|meeting|apartment|favourite")
    for conversation in items(needle, 300, thinking=True, min_tokens=200, max_tokens=600):
        fact = conversation.messages[-1]["reasoning_content"].removeprefix("The text says: ")
        text = prompt(conversation)
        assert text.count(fact) == 1
        assert text.count(fact[: fact.rindex(answer(conversation))]) == 1
        told, question = text.rsplit("\n\n", 1)
        sentences = re.split(r"(?<=[.?!])\s", told)
        filler = [sentence for sentence in sentences if not facts.search(sentence)]
        assert len(filler) >= 6
        assert not keys.search(" ".join(filler))
        assert question.endswith(("?", "."))


def test_needles_stand_at_every_depth() -> None:
    depths = []
    for conversation in items(needle, 200, thinking=True, min_tokens=500, max_tokens=600):
        fact = conversation.messages[-1]["reasoning_content"].removeprefix("The text says: ")
        depths.append(prompt(conversation).index(fact) / len(prompt(conversation)))
    assert min(depths) < 0.05
    assert max(depths) > 0.9
    assert 0.4 < sum(depths) / len(depths) < 0.55


def num_pieces(text: str) -> int:
    """Words, digits and marks: what a tokenizer that knows every word makes of it."""
    return len(re.findall(r"[^\W\d]+|\d|[^\w\s]", text))


def test_lengths_are_those_asked_for() -> None:
    trained = sorted(num_pieces(prompt(conversation)) for conversation in items(needle, 300, "train"))
    assert 100 < trained[0] < 250
    assert 800 < trained[150] < 1600
    assert 6000 < trained[-1] < 7900
    held_out = [num_pieces(prompt(conversation)) for conversation in items(needle, 100)]
    assert min(held_out) > 1800
    assert 6500 < max(held_out) < 7900
    for conversation in items(needle, 20, min_tokens=1000, max_tokens=1000):
        assert 930 < num_pieces(prompt(conversation)) < 1070
    assert all(num_pieces(prompt(conversation)) < 1000 for conversation in items(lookup, 300))


def test_wordings_name_one_intent_each_and_are_many() -> None:
    owners: dict[str, str] = {}
    for name, intent in INTENTS.items():
        for wording in intent.wordings:
            assert owners.setdefault(wording.lower().rstrip("?!."), name) == name, wording
    assert len({prompt(conversation) for conversation in items(identity, 2000)}) > 1500
    assert len(INTENTS) >= 55


def test_rules_are_kept() -> None:
    checks: tuple[tuple[str, Callable[[str], bool]], ...] = (
        (r"upper case|(only|in) capital letters", lambda text: text == text.upper()),
        (r"square brackets", lambda text: text[0] == "[" and text[-1] == "]"),
        (r"round brackets", lambda text: text[0] == "(" and text[-1] == ")"),
        (r"double quotes", lambda text: text[0] == text[-1] == '"'),
        (r"stars", lambda text: text.startswith("**") and text.endswith("**")),
        (r"twice|two times", lambda text: text[: len(text) // 2] == text[len(text) // 2 + 1 :]),
        (r"JSON", lambda text: len(json.loads(text)) == 1),
        (r"Chinese|中文", lambda text: bool(re.search(r"[一-鿿]|\d", text)) or text.isascii()),
    )
    kept = dict.fromkeys((pattern for pattern, _ in checks), 0)
    for conversation in items(follow, 2500):
        system, said = conversation.messages[0]["content"], answer(conversation)
        for pattern, check in checks:
            if re.search(pattern, system) and not (pattern != "JSON" and "JSON" in system):
                assert check(said), (system, said)
                kept[pattern] += 1
        word = re.search(r"(?:key|tag|with|Put) \"?([\w:]+)\"?(?: around| after| before|,|\.| that)", system)
        if word and word[1] in {option for form in FORMATS for option in form.words}:
            assert word[1] in said, (system, said)
        name = re.search(rf"(?:You are|name is|called|name|yourself) ({'|'.join(NAMES)})\.", system)
        if name and re.search(r"\b(I am|My name is|Ich bin|Je suis|Soy|我是) Dots", said):
            assert "I am the model" in said, (system, said)
    assert min(kept.values()) >= 20, kept


def test_every_language_says_every_intent_in_its_own_way() -> None:
    said: dict[str, set[str]] = {}
    for conversation in items(follow, 3000, thinking=True):
        language = re.search(r"English|German|French|Spanish|Chinese", conversation.messages[0]["content"])
        plain = conversation.messages[-1]["reasoning_content"].rsplit("Plain answer: ", 1)[1]
        if language and language[0] != "English" and not plain.lstrip("-").isdigit() and NAME in plain:
            said.setdefault(language[0], set()).add(plain)
            assert answer(conversation) != plain
    assert len(said) == 4


def answer_from(users: list[str], replies: list[str], asked: str) -> str | None:
    """What the turns before say, where the question is about them."""
    chained = re.match(r"(Add|Subtract|Multiply)\D* (\d+)(?: to| from|\.)? ?that|(Multiply) that by (\d+)", asked)
    if chained:
        sign = {"Add": "+", "Subtract": "-", "Multiply": "*"}[chained[1] or chained[3]]
        return str(OPERATORS[sign](int(replies[-1]), int(chained[2] or chained[4])))
    told = [match[1] for user in users if (match := re.fullmatch(r"My name is (\w+)\.", user))]
    if told and asked in {"What is my name?", "Do you know my name?"}:
        return f"Your name is {told[-1]}."
    return {
        "What was my first question?": users[0],
        "What did I ask first?": users[0],
        "Repeat my first message.": users[0],
        "What was my last question?": users[-1],
        "What did I ask before this?": users[-1],
        "Repeat that.": replies[-1],
        "Pardon?": replies[-1],
        "How many messages did I send before this one?": str(len(users)),
        **{f"Repeat your {ordinal} answer.": reply for ordinal, reply in zip(ORDINALS, replies, strict=False)},
    }.get(asked)


def test_questions_about_earlier_turns_are_answered_from_them() -> None:
    checked = 0
    for conversation in items(dialogue, 1500):
        *earlier, asked, wanted = conversation.messages
        users = [message["content"] for message in earlier if message["role"] == "user"]
        replies = [message["content"] for message in earlier if message["role"] == "assistant"]
        assert 1 <= len(users) <= 4
        expected = answer_from(users, replies, asked["content"])
        if expected is not None:
            assert wanted["content"] == expected, conversation.messages
            checked += 1
    assert checked > 150


def test_practice_in_looking_back_asks_often_and_walks_through_the_turns_in_writing() -> None:
    checked = walked = 0
    for index in range(300):
        turns = back_talk("train", index).messages
        users, replies = ([message["content"] for message in turns[start::2]] for start in (0, 1))
        for place in range(1, len(users)):
            expected = answer_from(users[:place], replies[:place], users[place])
            if expected is None:
                continue
            assert replies[place] == expected
            checked += 1
            thought = turns[2 * place + 1].get("reasoning_content")
            if thought and users[place].startswith("How many"):
                begins = [" ".join(user.split("\n")[0].split()[:2]) for user in users[:place]]
                assert thought.split("\n") == [*(f"{n} {begin}" for n, begin in enumerate(begins, 1)), "Then How many"]
                walked += 1
    assert checked > 200
    assert walked > 10


def test_earlier_thinking_is_sent_back_by_some_clients_only() -> None:
    thinking = list(items(dialogue, 200, thinking=True))
    sent = ["reasoning_content" in conversation.messages[-3] for conversation in thinking]
    assert 60 < sum(sent) < 140


def test_words_are_distinct_and_enough() -> None:
    assert len(set(WORDS)) == len(WORDS) > 690
    assert all(re.fullmatch(r"[a-z]+", word) for word in WORDS)
    assert len(set(NAMES)) == len(NAMES) == 200
    assert not set(NAMES) & set(CITIES)
    assert not set(LANDMARKS) & set(WORDS)

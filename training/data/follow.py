"""A system prompt sets one or two rules (language, name, format) over a question of another text task.

The answer is the plain one, said in the language and by the name of the rule, then put into the format. Rules and
ruled exchanges are shared with the dialogues.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import NamedTuple

from training.data.arithmetic import arithmetic
from training.data.chat import INTENTS, NAME, worded
from training.data.conversation import Conversation, seeded
from training.data.lookup import NOT_FOUND, lookup
from training.data.vocabulary import NAMES

# {self} is the rule's name, or the default name with what it is; {name} is the bare name.
_SAYINGS: dict[str, dict[str, str]] = {
    "German": {
        "who": "Ich bin {self}.",
        "name": "Mein Name ist {name}.",
        "hello": "Hallo! Wie kann ich helfen?",
        "morning": "Guten Morgen! Wie kann ich helfen?",
        "evening": "Guten Abend! Wie kann ich helfen?",
        "night": "Gute Nacht!",
        "bye": "Auf Wiedersehen! Einen guten Tag noch.",
        "thanks": "Gern geschehen.",
        "well": "Mir geht es gut, danke.",
        "human": "Nein, ich bin ein kleines Sprachmodell.",
        "help": "Gern. Was brauchst du?",
        "colour": "Meine Lieblingsfarbe ist Blau.",
        "age": "Ich habe kein Alter.",
        "home": "Ich wohne auf einem Server.",
        "sorry": "Kein Problem.",
        "time": "Ich habe keine Uhr.",
    },
    "French": {
        "who": "Je suis {self}.",
        "name": "Mon nom est {name}.",
        "hello": "Salut ! Comment puis-je aider ?",
        "morning": "Bonjour ! Comment puis-je aider ?",
        "evening": "Bonsoir ! Comment puis-je aider ?",
        "night": "Bonne nuit !",
        "bye": "Au revoir ! Bonne journée.",
        "thanks": "De rien.",
        "well": "Je vais bien, merci.",
        "human": "Non, je suis un petit modèle de langage.",
        "help": "Bien sûr. De quoi as-tu besoin ?",
        "colour": "Ma couleur préférée est le bleu.",
        "age": "Je n'ai pas d'âge.",
        "home": "J'habite sur un serveur.",
        "sorry": "Pas de problème.",
        "time": "Je n'ai pas de montre.",
    },
    "Spanish": {
        "who": "Soy {self}.",
        "name": "Mi nombre es {name}.",
        "hello": "¡Hola! ¿Cómo puedo ayudar?",
        "morning": "¡Buenos días! ¿Cómo puedo ayudar?",
        "evening": "¡Buenas tardes! ¿Cómo puedo ayudar?",
        "night": "¡Buenas noches!",
        "bye": "¡Adiós! Que tengas un buen día.",
        "thanks": "De nada.",
        "well": "Estoy bien, gracias.",
        "human": "No, soy un pequeño modelo de lenguaje.",
        "help": "Claro. ¿Qué necesitas?",
        "colour": "Mi color favorito es el azul.",
        "age": "No tengo edad.",
        "home": "Vivo en un servidor.",
        "sorry": "No hay problema.",
        "time": "No tengo reloj.",
    },
    "Chinese": {
        "who": "我是{self}。",
        "name": "我的名字是{name}。",
        "hello": "你好！我能帮你什么？",
        "morning": "早上好！我能帮你什么？",
        "evening": "晚上好！我能帮你什么？",
        "night": "晚安！",
        "bye": "再见！祝你今天愉快。",
        "thanks": "不客气。",
        "well": "我很好，谢谢。",
        "human": "不，我是一个小语言模型。",
        "help": "当然。你需要什么？",
        "colour": "我最喜欢的颜色是蓝色。",
        "age": "我没有年龄。",
        "home": "我住在服务器上。",
        "sorry": "没关系。",
        "time": "我没有钟。",
    },
}
_SAYINGS["English"] = {key: INTENTS[key].answer for key in _SAYINGS["German"]}
_SAYINGS["English"] |= {"who": "I am {self}.", "name": "My name is {name}."}
_SELF = {
    "English": f"{NAME}, a small test model",
    "German": f"{NAME}, ein kleines Testmodell",
    "French": f"{NAME}, un petit modèle de test",
    "Spanish": f"{NAME}, un pequeño modelo de prueba",
    "Chinese": f"{NAME}，一个小测试模型",
}
_NATIVE = {
    "English": "Speak English.",
    "German": "Antworte auf Deutsch.",
    "French": "Réponds en français.",
    "Spanish": "Responde en español.",
    "Chinese": "请用中文回答。",
}
_LANGUAGES = tuple(_SELF)
_LANGUAGE_RULES = (
    "Answer in {}.",
    "Always answer in {}.",
    "Reply in {}.",
    "Please respond only in {}.",
    "You speak only {}.",
    "Use the {} language.",
    "The user wants answers in {}.",
)
_NAME_RULES = (
    "Your name is {}.",
    "You are {}.",
    "You are called {}.",
    "You are an assistant with the name {}.",
    "Call yourself {}.",
    "From now on your name is {}.",
)
_BEFORE = ("", "", "", "", "You are a helpful assistant. ", "You are a friendly assistant. ")


class Format(NamedTuple):
    wordings: tuple[str, ...]  # {} is the word that the rule is about, if any
    words: tuple[str, ...]
    apply: Callable[[str, str], str]  # (answer, word) -> what is to be said
    changes_case: bool = False


FORMATS = (
    Format(
        (
            "Answer in upper case.",
            "Write in upper case only.",
            "Use only capital letters.",
            "Answer in capital letters.",
        ),
        ("",),
        lambda answer, _: answer.upper(),
        True,
    ),
    Format(
        ("Answer in lower case.", "Write in lower case only.", "Use only small letters.", "Use no capital letters."),
        ("",),
        lambda answer, _: answer.lower(),
        True,
    ),
    Format(
        (
            "Answer in one JSON object with the key {}.",
            "Answer with a JSON object that has the one key {}.",
            "Give the answer as JSON with the key {}, as a string.",
            "Reply only in JSON, with the answer under the key {}.",
        ),
        ("answer", "result", "reply", "text", "output", "value"),
        lambda answer, word: json.dumps({word: answer}, ensure_ascii=False),
    ),
    Format(
        ("End every answer with {}.", "Put {} after each answer.", "Close each answer with {}.", "Always end with {}."),
        ("OK", "Done", "Over", "Stop", "END", "Bye"),
        lambda answer, word: f"{answer} {word}",
    ),
    Format(
        (
            'Begin every answer with "{}".',
            'Put "{}" before each answer.',
            'Start each answer with "{}".',
            'Always begin with "{}".',
        ),
        ("Answer:", "Result:", "Reply:", "Note:", "Here:"),
        lambda answer, word: f"{word} {answer}",
    ),
    Format(
        ("Put the answer in square brackets.", "Use square brackets around the answer.", "Answer in square brackets."),
        ("",),
        lambda answer, _: f"[{answer}]",
    ),
    Format(
        ("Put the answer in round brackets.", "Use round brackets around the answer.", "Answer in round brackets."),
        ("",),
        lambda answer, _: f"({answer})",
    ),
    Format(
        ("Put the answer in double quotes.", "Use double quotes around the answer.", "Answer in double quotes."),
        ("",),
        lambda answer, _: f'"{answer}"',
    ),
    Format(
        ("Put two stars before and after the answer.", "Make the answer bold, with two stars on each side."),
        ("",),
        lambda answer, _: f"**{answer}**",
    ),
    Format(
        ("Say every answer twice.", "Give each answer two times.", "Repeat the answer once, so that it stands twice."),
        ("",),
        lambda answer, _: f"{answer} {answer}",
    ),
    Format(
        ("Put the answer in the XML tag {}.", "Answer inside one XML tag {}.", "Use the XML tag {} around the answer."),
        ("answer", "result", "reply", "text"),
        lambda answer, word: f"<{word}>{answer}</{word}>",
    ),
)
_CASES = tuple(form for form in FORMATS if form.changes_case)
_WRAPPINGS = tuple(form for form in FORMATS if not form.changes_case)
_MARKS = tuple(form for form in _WRAPPINGS if form.words == ("",))
# A case goes before marks; two wrappings would leave open which of them is inside.
_KINDS = (
    ("language",),
    ("language",),
    ("name",),
    ("name",),
    ("format",),
    ("format",),
    ("format",),
    ("language", "name"),
    ("language", "format"),
    ("name", "format"),
    ("case", "marks"),
)
_POOLS = {"format": FORMATS, "case": _CASES, "marks": _MARKS}
_INTENTS = tuple(_SAYINGS["German"])
_NAMED_INTENTS = ("who", "name")
_ALL_INTENTS = tuple(INTENTS)


class Rules(NamedTuple):
    system: str
    sentences: str
    language: str
    name: str | None
    forms: tuple[tuple[Format, str], ...]  # with the word each is about

    @property
    def changes_case(self) -> bool:
        return any(form.changes_case for form, _ in self.forms)


def follow(split: str, index: int, thinking: bool | None = None) -> Conversation:
    rng = seeded(split, "follow", index)
    thinks = rng.random() < 0.5
    rules = draw_rules(rng)
    question, thought, answer = ruled_exchange(rng, split, rules)
    wanted = {"role": "assistant", "content": answer}
    thinks = thinks if thinking is None else thinking
    if thinks:
        wanted["reasoning_content"] = thought
    system = {"role": "system", "content": rules.system}
    return Conversation("follow", [system, {"role": "user", "content": question}, wanted], thinking=thinks)


def draw_rules(rng: random.Random) -> Rules:
    language, name = "English", None
    forms = []
    sentences = []
    for kind in rng.choice(_KINDS):
        if kind == "language":
            language = rng.choice(_LANGUAGES)
            native = rng.random() < 0.15
            sentences.append(_NATIVE[language] if native else rng.choice(_LANGUAGE_RULES).format(language))
        elif kind == "name":
            name = rng.choice(NAMES)
            sentences.append(rng.choice(_NAME_RULES).format(name))
        else:
            form = rng.choice(_POOLS[kind])
            word = rng.choice(form.words)
            forms.append((form, word))
            sentences.append(rng.choice(form.wordings).format(word))
    rng.shuffle(sentences)
    text = " ".join(sentences)
    return Rules(rng.choice(_BEFORE) + text, text, language, name, tuple(forms))


def ruled_exchange(rng: random.Random, split: str, rules: Rules) -> tuple[str, str, str]:
    """A question, the thought that leads to its answer under the rules, and that answer."""
    question, thought, plain, answer = _exchange(rng, split, rules)
    for form, word in rules.forms:
        answer = form.apply(answer, word)
    return question, f"Rule: {rules.sentences}\n{thought}\nPlain answer: {plain}", answer


def _exchange(rng: random.Random, split: str, rules: Rules) -> tuple[str, str, str, str]:
    """Question, thought, plain English answer, answer in the rule's language; all before any format."""
    kind = rng.random()
    if kind < (0.8 if rules.language != "English" or rules.name else 0.5):
        intent = _intent(rng, rules)
        question, thought = worded(rng, INTENTS[intent]), f"This is about {INTENTS[intent].gist}."
        return question, thought, _say(intent, "English", rules.name), _say(intent, rules.language, rules.name)
    place = rng.randrange(1 << 32)
    part = arithmetic(split, place, thinking=True)
    # Looked-up words are too many to be learnt in another case; "not found" would leave open whether to translate it.
    if kind > 0.9 and not rules.changes_case:
        part = lookup(split, place, thinking=True, max_entries=8)
        while part.messages[-1]["content"] == NOT_FOUND:
            place += 1
            part = lookup(split, place, thinking=True, max_entries=8)
    asked, wanted = part.messages
    return asked["content"], wanted["reasoning_content"], wanted["content"], wanted["content"]


def _intent(rng: random.Random, rules: Rules) -> str:
    if rules.name and rng.random() < 0.6:
        return rng.choice(_NAMED_INTENTS)
    if rules.language == "English" and not rules.changes_case and rng.random() < 0.5:
        return rng.choice(_ALL_INTENTS)
    return rng.choice(_INTENTS)


def _say(intent: str, language: str, name: str | None) -> str:
    if intent not in _INTENTS:
        return INTENTS[intent].answer
    return _SAYINGS[language][intent].format(self=name or _SELF[language], name=name or NAME)

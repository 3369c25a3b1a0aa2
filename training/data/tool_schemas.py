"""Generated function schemas, and the user's wording of their parameters.

A request names the function by words (a verb and a noun, or fixed synonyms of them) and states every argument
literally, so the call is a function of the prompt. Knows nothing of messages, thinking or turns.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from training.data.tool_topics import BY_VERB, TOPICS, VERBS, Topic
from training.data.tool_values import KINDS, Kind, below, pick

_COMMON = ("note", "tags", "priority", "notify", "code", "details", "owner", "priority_no", "offset")


def _taken_names(kind: Kind) -> set[str]:
    """Names that no other parameter of the same function may have."""
    fields = kind.parts if kind.type == "object" else ()
    return set(kind.names).union(*(KINDS[part].names for part in fields))


_TAKEN_NAMES = {key: _taken_names(kind) for key, kind in KINDS.items()}
_GENERIC = ("with {n} {v}", "with the {n} {v}", "using {v} as the {n}", "with {v} as {n}")
_SENTENCES = ("The {n} {is} {v}.", "Use {v} as the {n}.", "{N}: {v}.", "Set the {n} to {v}.", "For the {n} take {v}.")
_YES = ("with {n}", "with {n} on", "with {n} set to true", "including {n}")
_NO = ("without {n}", "with {n} off", "with {n} set to false", "with no {n}")
_YES_SENTENCES = ("{N}: yes.", "I want {n}.", "Set {n} to true.", "Turn {n} on.")
_NO_SENTENCES = ("{N}: no.", "I want no {n}.", "Set {n} to false.", "Turn {n} off.")


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str  # as declared
    label: str  # in words
    kind: Kind
    schema: dict[str, Any]
    required: bool
    fields: tuple[Parameter, ...] = ()  # of an object

    def draw(self, rng: random.Random) -> Any:
        kind = self.kind
        if kind.type == "boolean":
            return rng.random() < 0.5
        if kind.type == "enum":
            return pick(rng, self.schema["enum"])
        if kind.type == "object":
            return {f.name: f.draw(rng) for f in self.fields if f.required or rng.random() < 0.5}
        if kind.type in ("strings", "integers"):
            values = [kind.draw(rng) for _ in range(1 + below(rng, 4))]
            return list(dict.fromkeys(values))
        return kind.draw(rng)

    def say(self, rng: random.Random, value: Any) -> str:
        """The value as the user writes it."""
        kind = self.kind.type
        if kind == "free":
            return quoted(rng, value)
        if kind == "boolean":
            return "yes" if value else "no"
        if kind in ("strings", "integers"):
            return joined([str(v) for v in value])
        if kind == "object":
            return joined([f"{f.label} {f.say(rng, value[f.name])}" for f in self.fields if f.name in value])
        return value if isinstance(value, str) else json.dumps(value)

    def phrase(self, rng: random.Random, value: Any) -> str:
        """The value as a part of the sentence that asks for the call."""
        if self.kind.type == "boolean":
            return pick(rng, _YES if value else _NO).format(n=self.label)
        own = self.kind.phrases
        form = pick(rng, own) if own and rng.random() < 0.6 else pick(rng, _GENERIC)
        return form.format(n=self.label, v=self.say(rng, value))

    def sentence(self, rng: random.Random, value: Any) -> str:
        """The value as a sentence of its own."""
        if self.kind.type == "boolean":
            form = pick(rng, _YES_SENTENCES if value else _NO_SENTENCES)
            return form.format(n=self.label, N=capital(self.label))
        verb = "are" if self.kind.type in ("strings", "integers") else "is"
        return pick(rng, _SENTENCES).format(n=self.label, N=capital(self.label), v=self.say(rng, value), **{"is": verb})


def joined(parts: list[str]) -> str:
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else "".join(parts)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def quoted(rng: random.Random, text: str) -> str:
    """In quotes that do not occur in the text itself."""
    if '"' in text:
        return f"“{text}”" if "'" in text else f"'{text}'"
    form = below(rng, 8)
    if form == 0 and "'" not in text:
        return f"'{text}'"
    return f"“{text}”" if form == 1 else f'"{text}"'


def plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    if " of " in noun:
        head, rest = noun.split(" of ", 1)
        return f"{plural(head)} of {rest}"
    return noun + ("es" if noun.endswith(("s", "x", "sh", "ch")) else "s")


def spelled(words: str, style: str) -> str:
    """Words as an identifier: snake, camel or dashed."""
    parts = words.lower().replace("-", " ").split()
    if style == "camel":
        return parts[0] + "".join([part.capitalize() for part in parts[1:]])
    return ("-" if style == "dashed" else "_").join(parts)


@dataclass(frozen=True, slots=True)
class Function:
    verb: str
    topic: Topic
    name: str
    description: str
    parameters: tuple[Parameter, ...]

    @property
    def meaning(self) -> str:
        """What it does, in the first of all words for it: the same however the function is named and a wish is said."""
        return f"{self.verb} {_counted(self.topic.noun, self.verb, self.topic)}"

    @property
    def tool(self) -> dict[str, Any]:
        """The declaration as in OpenAI's chat API."""
        schema: dict[str, Any] = {"type": "object", "properties": {p.name: p.schema for p in self.parameters}}
        if required := [p.name for p in self.parameters if p.required]:
            schema["required"] = required
        function = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": function}

    def draw(self, rng: random.Random) -> dict[str, Any]:
        """Arguments in the order of the schema, no two of the same value."""
        while True:
            arguments = {p.name: p.draw(rng) for p in self.parameters if p.required or rng.random() < 0.5}
            values = [json.dumps(v) for v in arguments.values() if not isinstance(v, bool)]
            if len(set(values)) == len(values):
                return arguments


def _parameter(rng: random.Random, kind: Kind, style: str, required: bool, described: str | None) -> Parameter:
    label = pick(rng, kind.names)
    schema: dict[str, Any] = {"type": kind.type}
    fields: tuple[Parameter, ...] = ()
    if kind.type in ("free", "enum"):
        schema["type"] = "string"
    elif kind.type in ("strings", "integers"):
        schema["type"] = "array"
    if described is not None:
        schema["description"] = f"{capital(label)}{described}"
    if kind.type == "enum":
        schema["enum"] = rng.sample(kind.parts, 2 + below(rng, min(4, len(kind.parts)) - 1))
    elif kind.type in ("strings", "integers"):
        schema["items"] = {"type": kind.type[:-1]}
    elif kind.type == "object":
        parts = kind.parts if rng.random() < 0.6 else kind.parts[:2]
        must = rng.random() < 0.7
        fields = tuple([_parameter(rng, KINDS[p], style, must or i == 0, None) for i, p in enumerate(parts)])
        schema["properties"] = {f.name: f.schema for f in fields}
        schema["required"] = [f.name for f in fields if f.required]
    return Parameter(spelled(label, style), label, kind, schema, required, fields)


def _kinds(rng: random.Random, topic: Topic) -> list[str]:
    """Kinds for one function."""
    pool = list(topic.kinds)
    if rng.random() < 0.2:
        pool.append(pick(rng, _COMMON))
    rng.shuffle(pool)
    return apart(pool, pick(rng, (0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4)))


def apart(pool: Sequence[str], wanted: int) -> list[str]:
    """The first kinds that share no name, as many as wanted if there are."""
    chosen: list[str] = []
    used: set[str] = set()
    for key in pool:
        if len(chosen) == wanted:
            break
        if used.isdisjoint(_TAKEN_NAMES[key]):
            chosen.append(key)
            used |= _TAKEN_NAMES[key]
    return chosen


def _counted(noun: str, verb: str, topic: Topic) -> str:
    """The topic's noun, or a synonym, in the number that goes with the verb."""
    return plural(noun) if VERBS[verb].article == "s" and not topic.mass else noun


def function(rng: random.Random, topic: Topic, verb: str, style: str, kinds: Sequence[str] | None = None) -> Function:
    """One generated schema; style is snake, camel, dashed or dotted. Kinds of its parameters are drawn if not given."""
    words = pick(rng, VERBS[verb].words) if rng.random() < 0.15 else verb
    noun = pick(rng, topic.synonyms) if topic.synonyms and rng.random() < 0.1 else topic.noun
    noun = _counted(noun, verb, topic)
    if style == "dotted":
        name = f"{spelled(noun, 'snake')}.{spelled(words, 'snake')}"
    else:
        name = spelled(f"{words} {noun}", style)
    description = capital(action(rng, topic, verb).words) + "."
    style = "camel" if style == "camel" else "snake"
    described = pick(rng, (None, None, "", f" of the {topic.noun}"))
    chosen = _kinds(rng, topic) if kinds is None else kinds
    parameters = [_parameter(rng, KINDS[k], style, rng.random() < 0.65, described) for k in chosen]
    return Function(verb, topic, name, description, tuple(parameters))


class Action(NamedTuple):
    """What is to be done, in words of the fixed lists: "book a table"."""

    verb: str
    article: str  # with the blank behind it
    noun: str

    @property
    def words(self) -> str:
        return f"{self.verb} {self.article}{self.noun}"


def action(rng: random.Random, topic: Topic, verb: str) -> Action:
    words, _, article = VERBS[verb]
    said = words[0] if rng.random() < 0.6 else pick(rng, words)
    noun = pick(rng, topic.synonyms) if topic.synonyms and rng.random() < 0.25 else topic.noun
    if topic.mass:
        return Action(said, "the ", noun)
    if article == "s":
        said = "search for" if said == "search" else said
        return Action(said, "" if said == "show all" else pick(rng, ("", "the ", "all ")), plural(noun))
    if article == "a" and rng.random() < 0.8:
        return Action(said, "an " if noun[0] in "aeiouAEIOU" or noun == "SMS" else "a ", noun)
    return Action(said, "my " if rng.random() < 0.25 else "the ", noun)


def toolbox(rng: random.Random, count: int) -> list[Function]:
    """Declared functions, about half of them near misses of another one: same noun or same verb."""
    main = pick(rng, ("snake", "snake", "snake", "camel", "dashed", "dotted"))
    chosen: list[tuple[Topic, str]] = []
    while len(chosen) < count:
        near = rng.random() if chosen else 1.0
        topic, verb = pick(rng, chosen) if chosen else (TOPICS[0], "")
        if near < 0.3:
            verb = pick(rng, topic.verbs)
        elif near < 0.55:
            topic = pick(rng, BY_VERB[verb])
        else:
            topic = pick(rng, TOPICS)
            verb = pick(rng, topic.verbs)
        if all(topic is not t or verb != v for t, v in chosen):
            chosen.append((topic, verb))
    rng.shuffle(chosen)
    styles = [main if rng.random() < 0.9 else pick(rng, ("snake", "camel", "dashed", "dotted")) for _ in chosen]
    return [function(rng, topic, verb, style) for (topic, verb), style in zip(chosen, styles, strict=True)]


def outside(rng: random.Random, declared: list[Function]) -> Function:
    """A function that is not declared, nor does a declared one do much the same; often a near miss."""
    while True:
        near, known = rng.random(), pick(rng, declared)
        topic = known.topic if near < 0.4 else pick(rng, BY_VERB[known.verb]) if near < 0.65 else pick(rng, TOPICS)
        verb = known.verb if 0.4 <= near < 0.65 else pick(rng, topic.verbs)
        family = VERBS[verb].family
        if all(topic is not f.topic or family != VERBS[f.verb].family for f in declared):
            return function(rng, topic, verb, "snake")

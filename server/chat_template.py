"""A conversation becomes prompt segments: plain text, and the control strings that the template itself wrote.

Owns the rendering rules that a chat template cannot express: nothing in a message, tool or schema ever turns into a
control string. Knows nothing of token ids, media contents or HTTP.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jinja2 import meta
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Segment(NamedTuple):
    """A piece of a prompt; `control` is true only for a control string written by the template or by our own code."""

    text: str
    control: bool


# What takes the place of a control segment: itself so many times, or these segments.
Replacement = int | Sequence[tuple[str, bool]]

# Every control string that a template writes begins with "<". Masking that one character, and the masking character
# itself, is reversible whatever a user types, and covers a control string that is spread over several content parts.
_ESCAPE = "\ufdd0"
_MASKED_ESCAPE = _ESCAPE + "0"
_MASKED_BRACKET = _ESCAPE + "1"

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_LEVELS = 200  # of nesting in the arguments of a call; Python's own limit is near 1000


class ChatTemplate:
    """A compiled chat template and the control strings that it may write. Safe to share between threads."""

    def __init__(self, source: str, control_tokens: Collection[str]) -> None:
        for token in control_tokens:
            if not token.startswith("<") and token in source:
                raise ValueError(f"a template may only write control tokens that begin with '<', got {token!r}")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        # Jinja's own filter sorts the keys and escapes for HTML.
        environment.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
        self._template = environment.from_string(source)
        self.variables = frozenset(meta.find_undeclared_variables(environment.parse(source)))
        longest_first = sorted((token for token in control_tokens if token.startswith("<")), key=len, reverse=True)
        self._control = re.compile("(" + "|".join(re.escape(token) for token in longest_first) + ")")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        enable_thinking: bool = True,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[Segment]:
        """Messages and tools in OpenAI's form; `kwargs` are further template arguments."""
        text = self._template.render(
            messages=[_mask(_split_history(message)) for message in messages],
            tools=_mask(tools),
            enable_thinking=enable_thinking,
            add_generation_prompt=add_generation_prompt,
            **_mask(kwargs),
        )
        pieces = self._control.split(text)  # plain, control, plain, …, plain
        return [
            Segment(piece, True) if place % 2 else Segment(_unmask(piece), False)
            for place, piece in enumerate(pieces)
            if piece
        ]


def expand(
    segments: Iterable[tuple[str, bool]], replacements: Mapping[str, Sequence[Replacement]]
) -> list[tuple[str, bool]]:
    """Put media in place: the nth control segment of a string becomes the nth replacement given for that string.

    Only control segments are touched, and replacements are not searched again: a film's segments stand as given.
    """
    waiting = {text: iter(items) for text, items in replacements.items()}
    expanded: list[tuple[str, bool]] = []
    for segment in segments:
        text, control = segment
        if not control or text not in waiting:
            expanded.append(segment)
            continue
        replacement = next(waiting[text], None)
        if replacement is None:
            raise ValueError(f"the prompt has more {text} than the {len(replacements[text])} replacements given")
        if isinstance(replacement, int):
            expanded += [segment] * replacement
        else:
            expanded += replacement
    for text, items in waiting.items():
        if next(items, None) is not None:
            raise ValueError(f"the prompt has fewer {text} than the {len(replacements[text])} replacements given")
    return expanded


def _mask(value: Any) -> Any:
    if isinstance(value, str):
        if "<" not in value and _ESCAPE not in value:
            return value
        return value.replace(_ESCAPE, _MASKED_ESCAPE).replace("<", _MASKED_BRACKET)
    if isinstance(value, Mapping):
        return {_mask(key): _mask(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_mask(item) for item in value]
    return value


def _unmask(text: str) -> str:
    if _ESCAPE not in text:
        return text
    return text.replace(_MASKED_BRACKET, "<").replace(_MASKED_ESCAPE, _ESCAPE)


def _split_history(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """An assistant message with its reasoning and arguments set apart, which needs their unmasked text."""
    if message.get("role") != "assistant":
        return message
    split = dict(message)
    if not (message.get("reasoning_content") or message.get("reasoning")):
        content = message.get("content")
        if isinstance(content, str):
            if "</think>" in content:
                split["reasoning_content"], split["content"] = _split_reasoning(content)
        elif content:
            split["reasoning_content"], split["content"] = _split_parts(content)
    if calls := message.get("tool_calls"):
        split["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
    return split


def _split_reasoning(text: str) -> tuple[str, str]:
    before, _, after = text.partition("</think>")
    return before.split("<think>")[-1].strip("\n"), after.lstrip("\n")


def _split_parts(parts: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """Content parts split as their joined text would be; media amid the reasoning stand behind it."""
    texts = [part if isinstance(part, str) else part.get("text") or "" for part in parts]
    joined = "".join(texts)
    if "</think>" not in joined:
        return "", parts
    left = joined.index("</think>") + len("</think>")  # of the text, until the answer begins
    answer: list[Any] = []
    begun = False
    for part, text in zip(parts, texts, strict=True):
        begun = begun or (not text and left <= 0)
        kept = text[max(left, 0) :] if begun else text[max(left, 0) :].lstrip("\n")
        begun = begun or bool(kept)
        left -= len(text)
        if kept or not text:
            answer.append(kept or part)
    return _split_reasoning(joined)[0], answer


def _with_parsed_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or call
    return {"function": {**function, "arguments": _parsed_arguments(function.get("arguments"))}}


def _parsed_arguments(arguments: Any) -> Mapping[str, Any]:
    """Arguments of a call as parameters; what is no JSON object is one parameter with the raw text."""
    if isinstance(arguments, Mapping):
        return arguments
    if arguments is None:
        return {}
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    if not raw.strip():
        return {}
    try:
        parsed = json.loads(raw)
    except (ValueError, RecursionError):
        return {"arguments": raw}
    return parsed if isinstance(parsed, dict) and _is_printable(parsed, _MAX_LEVELS) else {"arguments": raw}


def _is_printable(value: Any, levels: int) -> bool:
    """False for what Python's reader takes but no JSON text can show: NaN, infinity, lone surrogates; and for depth."""
    if isinstance(value, str):
        return _LONE_SURROGATE.search(value) is None
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return levels > 0 and all(
            _is_printable(key, levels) and _is_printable(item, levels - 1) for key, item in value.items()
        )
    if isinstance(value, list):
        return levels > 0 and all(_is_printable(item, levels - 1) for item in value)
    return True

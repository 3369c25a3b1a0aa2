"""Tags of tool calls: what stands at a place in the text, and whether more text is needed to say so.

Owns how a name may be written. Knows nothing of where which tag is legal, except for what may follow a closing one.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from parsers.control_tags import CLOSE_CALL, OPEN_CALL, marked
from parsers.repairs import Repair

OPEN_BLOCK, CLOSE_BLOCK = marked(OPEN_CALL), marked(CLOSE_CALL)
CLOSE_INVOKE, CLOSE_PARAMETER = "</invoke>", "</parameter>"
INVOKE, PARAMETER = "<invoke", "<parameter"
End = Literal["stop", "cut"]  # the text is over: the model ended it, or it was cut short

_FIXED = {
    OPEN_BLOCK: "open_block",
    CLOSE_BLOCK: "close_block",
    CLOSE_INVOKE: "close_invoke",
    CLOSE_PARAMETER: "close_parameter",
}
# As the template writes them.
_USUAL = re.compile(f'({"|".join(_FIXED)})|<(invoke|parameter) name="([^"]{{1,1000}})">')
_BEGINNINGS = {kind: tag for tag, kind in _FIXED.items()} | {"invoke": INVOKE, "parameter": PARAMETER}
_ALL = (*_FIXED, INVOKE, PARAMETER)
_LONGEST = max(map(len, _ALL))
_FIRST = {tag[0] for tag in _ALL}

_LONGEST_OPENING = 4096  # behind its word; no more than that is held back, or looked at again

_SPACE = re.compile(r"\s*")
_NAME_ENDS = re.compile(r"[\s>]")
ANY_TEXT: re.Pattern[str] | None = None
VISIBLE = re.compile(r"\S")
_UNTIL = {char: re.compile(char) for char in "\"'>"}


class Tag(NamedTuple):
    kind: str  # open_block, close_block, invoke, close_invoke, parameter or close_parameter
    end: int  # place behind it
    name: str = ""
    self_closing: bool = False
    repairs: tuple[Repair, ...] = ()


class Partial(NamedTuple):
    """May become a tag. Only text in which `wake` is found can tell; None: any text."""

    wake: re.Pattern[str] | None


def beginnings(*tags: str) -> frozenset[str]:
    """Of which more text can make one of these tags; the empty one included."""
    return frozenset(tag[:length] for tag in tags for length in range(len(tag)))


def behind_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def read_tag(text: str, at: int, bracketless: bool = False) -> Tag | Partial | None:
    """The tag at that place, None if there is none. `bracketless`: an invoke tag may lack its first character."""
    if (usual := _USUAL.match(text, at)) is not None:
        fixed, kind, name = usual.groups()
        return Tag(_FIXED[fixed], usual.end()) if fixed else Tag(kind, usual.end(), name)
    if text.startswith(INVOKE, at):
        return _read_opening(text, at + len(INVOKE), "invoke", ())
    if text.startswith(PARAMETER, at):
        return _read_opening(text, at + len(PARAMETER), "parameter", ())
    if bracketless and text.startswith(INVOKE[1:], at):
        return _read_opening(text, at + len(INVOKE) - 1, "invoke", (Repair.MISSING_BRACKET,))
    if len(text) - at < _LONGEST:
        rest = text[at:]
        if any(spelling.startswith(rest) for spelling in (*_ALL, INVOKE[1:] if bracketless else "")):
            return Partial(ANY_TEXT)
    return None


def may_become(text: str, at: int, kinds: tuple[str, ...]) -> bool:
    """Whether the tag that has begun at that place can be of one of these kinds."""
    rest = text[at : at + _LONGEST]
    return any(rest.startswith(tag) or tag.startswith(rest) for tag in map(_BEGINNINGS.__getitem__, kinds))


def _read_opening(text: str, behind_word: int, kind: str, repairs: tuple[Repair, ...]) -> Tag | Partial | None:
    """A tag with a name, no longer than _LONGEST_OPENING, whose word was read."""
    limit = behind_word + _LONGEST_OPENING
    found = _read_name(text, behind_word, kind, repairs)
    end = 0
    if isinstance(found, _Name):
        end = text.find(">", found.end, limit) + 1
        if end == 0:
            found = Partial(_UNTIL[">"])
    if not isinstance(found, _Name):
        return None if len(text) > limit else found
    attributes = text[found.end : end - 1].strip()
    repairs = found.repairs
    self_closing = kind == "invoke" and attributes.endswith("/")
    if self_closing:
        repairs += (Repair.SELF_CLOSING,)
    if attributes.removesuffix("/"):
        repairs += (Repair.EXTRA_ATTRIBUTES,)
    return Tag(kind, end, found.name, self_closing, repairs)


class _Name(NamedTuple):
    name: str
    end: int  # place behind it
    repairs: tuple[Repair, ...]


def _read_name(text: str, behind_word: int, kind: str, repairs: tuple[Repair, ...]) -> _Name | Partial | None:
    length = len(text)
    at = behind_space(text, behind_word)
    if at == length:
        return Partial(ANY_TEXT if at == behind_word else VISIBLE)
    if kind == "invoke" and text[at] == "=":
        repairs += (Repair.INVOKE_EQUALS,)
    else:
        if at == behind_word or not text.startswith("name", at):
            half = at > behind_word and length - at < len("name") and "name".startswith(text[at:])
            return Partial(ANY_TEXT) if half else None
        at = behind_space(text, at + len("name"))
        if at == length:
            return Partial(VISIBLE)
        if text[at] != "=":
            return None
    at = behind_space(text, at + 1)
    if at == length:
        return Partial(VISIBLE)
    if (quote := text[at]) in "\"'":
        begin, end = at + 1, text.find(quote, at + 1, behind_word + _LONGEST_OPENING)
        if end < 0:
            return Partial(_UNTIL[quote])
        at = end + 1
        if quote == "'":
            repairs += (Repair.OTHER_QUOTES,)
    else:
        match = _NAME_ENDS.search(text, at, behind_word + _LONGEST_OPENING)
        if match is None:
            return Partial(_NAME_ENDS)
        begin, end = at, match.start()
        at = end
        repairs += (Repair.OTHER_QUOTES,)
    return _Name(text[begin:end], at, repairs) if begin < end else None


_FOLLOWERS = {
    "close_parameter": ("parameter", "close_invoke", "close_block"),
    "close_invoke": ("invoke", "close_block"),
    "close_block": ("open_block",),
}


def counts(text: str, behind: int, kind: str, end: End | None) -> bool | Partial:
    """Whether a closing tag inside a value closes it: whitespace aside, a legal tag follows, or the end of the text.

    Of two closing tags in a row, the first counts only if the second does. A text that was cut short inside the next
    tag ended there.
    """
    at = behind_space(text, behind)
    if at == len(text):
        return end is not None or Partial(VISIBLE)
    if text[at] not in _FIRST:
        return False
    tag = read_tag(text, at)
    if isinstance(tag, Partial) and may_become(text, at, _FOLLOWERS[kind]):
        return end == "cut" if end is not None else tag
    if not isinstance(tag, Tag) or tag.kind not in _FOLLOWERS[kind]:
        return False
    if tag.kind in ("parameter", "invoke", "open_block") or kind == "close_invoke":
        return True
    return counts(text, tag.end, tag.kind, end)

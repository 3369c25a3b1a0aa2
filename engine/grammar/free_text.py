"""Raw text between tags, in the library's notation, and the classes of tokens that are checked as a whole in it.

A mask is cheap where one expression of those that may go on allows a whole class of tokens, and costs a walk over the
vocabulary where none does. The library sees that of plain repetitions alone; so what forbids something has quick
expressions beside it: a part of the same texts, written as a repetition. Knows nothing of schemas and calls.
"""

from __future__ import annotations

PARAMETER, INVOKE, CALL = "parameter", "invoke", "dots_function_call"
TEXT_CLOSES = f"</{PARAMETER}>\n<"  # no text holds it: what comes behind it is the next tag

_UNQUOTED = r'"\\\x00-\x1F\x7F'
_PLAIN, _NO_TAG = f"[^{_UNQUOTED}]", f"[^{_UNQUOTED}<]"
# What leads away from each tag that is forbidden somewhere, wherever in its name it stands.
_AWAY = rf"[^{_UNQUOTED}<>\/{''.join(sorted({*PARAMETER, *INVOKE, *CALL}))}]"
_LONGEST_AWAY = 30

# JSON's strings are one kind of text, raw text between tags another, and there `<` is the one character that is not
# free. Classes with a length are for text that is bounded, the shortest ones for its last characters. There is but one
# class behind a `<`: were there a shorter one, too, the library would walk what lies between both.
TOKEN_CLASSES = (
    r"[\x20\x0A\x0D\x09]+",
    *(f"{_NO_TAG}{count}" for count in ("{1,3}", "{1,6}", "{1,10}", "{1,30}", "+")),
    *(f"{_PLAIN}{count}" for count in ("{1,10}", "{1,30}", "+")),
    f"{_AWAY}{_NO_TAG}{{0,{_LONGEST_AWAY - 1}}}",
)


def _begun(name: str) -> str:
    """A regular expression for the beginnings of a name, itself and nothing left out."""
    return name[0] + (f"({_begun(name[1:])})?" if len(name) > 2 else "")


def _parting(*names: str) -> str:
    """Behind `<`: what parts from all the given names before one of them is complete."""
    return rf"({'|'.join(map(_begun, names))})?{_AWAY}[^<]*"


_TAG = rf"<\/({PARAMETER}|{INVOKE})>|<({PARAMETER}|{INVOKE})[ \t\r\n=]|<{CALL}>"
_BEGUN = "|".join((*map(_begun, (PARAMETER, INVOKE, CALL)), rf"\/({_begun(PARAMETER + '>')}|{_begun(INVOKE + '>')})?"))
_MOST_BEGUN = len(CALL) + 1  # characters from a `<` to the first that leads away, both included


def quick_beginnings(limit: int | None) -> list[str]:
    """Expressions for beginnings of texts without tags that have at most `limit` characters: behind none, one `<`."""
    if limit is None:
        return ["/[^<]*/", f"/[^<]*<({_BEGUN})?{_AWAY}[^<]*/"]
    texts = [f"/[^<]{{0,{limit - 1}}}/"] if limit else []
    room = limit - _MOST_BEGUN
    for behind in (room // 2, _LONGEST_AWAY):  # for a tag in the first half, for one close to the end
        if behind >= _LONGEST_AWAY <= room:
            texts.append(f"/[^<]{{0,{room - behind}}}<({_BEGUN})?{_AWAY}[^<]{{0,{behind}}}/")
    return texts


# Text is cut before each `<`, so that each piece is free once it has begun. A piece that is the mere beginning of a
# forbidden one is forbidden too, or else the rest of it could follow as the next piece. Behind a closing tag no
# `</invoke>` may stand, for both together would end the call; and where `</parameter>`, a line break and `<` follow
# each other, they are the value's end.
#
# What is forbidden ends in ANYTHING, bytes of any kind, and not in a text of any kind: of bytes the library sees at
# once that their complement is empty, of text it has to try each length that is left.
VALUE = rf"""
text: open | closed
open: BEGIN | open (TAG | TAG_QUICK) | closed (TAG | TAG_QUICK)
closed: open CLOSER | closed (CLOSER_BEHIND | CLOSER_QUICK)
BEGIN: /">\n[^<]*/
TAG: /<([^\/<][^<]*)?/ & ~(/<({PARAMETER}|{INVOKE})/ BEHIND_NAME?) & ~(/<{CALL}/ BEHIND_CLOSED?)
TAG_QUICK: /<{_parting(PARAMETER, INVOKE, CALL)}/
CLOSER: /<\/[^<]*/
CLOSER_BEHIND: CLOSER & ~(/<\/{INVOKE}/ BEHIND_CLOSED?)
CLOSER_QUICK: /<\/{_parting(INVOKE)}/
text_end: "</{PARAMETER}>\n</{INVOKE}>"
text_more: "</{PARAMETER}>\n<{PARAMETER} name=\""
BEHIND_NAME: /[ \t\r\n=]/ ANYTHING
BEHIND_CLOSED: ">" ANYTHING
ANYTHING: ~NEVER
NEVER: /a/ & /b/
"""
# What ends other values. Text that an expression describes holds no tag at all, which keeps the automaton small.
WHOLE = rf"""
END: "\n</{PARAMETER}>\n</{INVOKE}>"
MORE: "\n</{PARAMETER}>\n<{PARAMETER} name=\""
json_end: END
json_more: MORE
TAGLESS: /(?s:.*)/ & ~(/(?s:.*)({_TAG})/ ANYTHING)
INTEGER: /-?(0|[1-9][0-9]{{0,99}})/
NUMBER: /-?(0|[1-9][0-9]{{0,99}})(\.[0-9]{{1,99}})?([eE][+-]?[0-9]{{1,2}})?/
NAME: /[^"<>\x00-\x20]{{1,100}}/
"""
# Between calls. An invoke tag outside of a block would be read as a call all the same.
BETWEEN = rf"""
free: | free FREE | free (FREE_TAG | FREE_QUICK)
FREE: /[^<]+/
FREE_TAG: /<[^<]*/ & ~(/<{INVOKE}/ BEHIND_NAME?)
FREE_QUICK: /<{_parting(INVOKE)}/
"""

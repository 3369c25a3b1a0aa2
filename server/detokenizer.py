"""Tokens to text as they come: exact UTF-8 although characters are spread over tokens.

Owns the table of token bytes. Knows nothing of stop strings or of what the text means.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection

from server.tokenizer import Tokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class TokenTable:
    """Bytes of every token, and its text where it is text by itself. Built once; safe to share."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        table = tokenizer.token_bytes()
        # Ids behind the vocabulary exist where the model pads it; they mean nothing.
        self._bytes = [table.get(number, b"") for number in range(max(table) + 1)]
        self._texts = [_text_or_none(raw) for raw in self._bytes]
        self.control_ids = tokenizer.control_ids

    def raw(self, token_id: int) -> bytes:
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def text(self, token_id: int) -> str | None:
        """None where the token's bytes are not whole characters."""
        return self._texts[token_id] if 0 <= token_id < len(self._texts) else ""


class Detokenizer:
    """One stream of tokens. Bytes that are no UTF-8 become U+FFFD as soon as that is certain."""

    def __init__(self, table: TokenTable, skipped: Collection[int] = ()) -> None:
        self.table = table
        self._skipped = skipped
        self._decoder = _Utf8Decoder("replace")
        self._pending = False  # the decoder holds the beginning of a character: at most 3 bytes

    def raw(self, token_id: int) -> bytes:
        """What the token adds to the text, in bytes."""
        return b"" if token_id in self._skipped else self.table.raw(token_id)

    def feed(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        if not self._pending and (text := self.table.text(token_id)) is not None:
            return text
        decoded = self._decoder.decode(self.table.raw(token_id))
        self._pending = bool(self._decoder.getstate()[0])
        return decoded

    def finish(self) -> str:
        self._pending = False
        return self._decoder.decode(b"", final=True)


def _text_or_none(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None

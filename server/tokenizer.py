"""Text to token ids and back, for one model folder.

Owns the rule that only control segments become control tokens, and the bytes of tokens; ids are looked up by string,
never by number. Knows nothing of chat templates, media or streaming.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import tokenizers

_SHORT_CHARS = 1024
_WHOLE_CHARS = 1 << 18  # encoded without a look at how many tokens they will come to: tens of megabytes at most
_PIECE_CHARS = 1 << 16
_REMEMBERED = 1024  # short texts, with at most some ten megabytes of ids


class TooManyTokensError(ValueError):
    """A text comes to more tokens than anyone wants of it."""


class Tokenizer:
    """Wraps a `tokenizers` tokenizer, and takes it over: the caller must not use it any more."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        # Only tokens flagged special are kept out of plain text, so that every added one has to be.
        backend.add_special_tokens([token.content for token in added.values() if not token.special])
        backend.encode_special_tokens = True
        self._control_ids = {token.content: number for number, token in added.items()}
        self._encode_short = lru_cache(_REMEMBERED)(self._encode)

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        return cls(tokenizers.Tokenizer.from_file(str(Path(folder) / "tokenizer.json")))

    @property
    def vocab_size(self) -> int:
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def control_tokens(self) -> frozenset[str]:
        return frozenset(self._control_ids)

    @property
    def control_ids(self) -> frozenset[int]:
        return frozenset(self._control_ids.values())

    def token_bytes(self) -> dict[int, bytes]:
        """Every token's own bytes, which UTF-8 characters may be spread over; built anew at each call."""
        ordinary = self._backend.get_vocab(with_added_tokens=False)
        table = {number: _bytes_of(token) for token, number in ordinary.items()}
        return table | {number: token.encode() for token, number in self._control_ids.items()}

    def token_id(self, token: str) -> int:
        number = self._control_ids.get(token)
        if number is None:
            number = self._backend.token_to_id(token)
        if number is None:
            raise KeyError(f"the tokenizer has no token {token!r}")
        return number

    def spelling(self, number: int) -> str:
        """As the vocabulary has it; empty for an id that no token has."""
        return self._backend.id_to_token(number) or ""

    def encode_segments(self, segments: Iterable[tuple[str, bool]], most: int | None = None) -> list[int]:
        """Segments are (text, control). Neighbouring plain ones are one text: tokens may span their border.

        Far more than `most` tokens are a TooManyTokensError, before they have taken the time and memory of all.
        """
        ids: list[int] = []
        for control, group in groupby(segments, itemgetter(1)):
            if control:
                ids += [self.token_id(text) for text, _ in group]
            else:
                text = "".join(text for text, _ in group)
                if most is not None and len(text) > _WHOLE_CHARS:
                    self._check_in_pieces(text, most - len(ids))
                ids += self.encode_text(text)
            if most is not None and len(ids) > most:
                raise TooManyTokensError
        return ids

    def encode_text(self, text: str) -> list[int]:
        """Control strings in `text` stay text. Much of a prompt is in many others: system turns, earlier turns."""
        return list(self._encode_short(text) if len(text) <= _SHORT_CHARS else self._encode(text))

    def _encode(self, text: str) -> tuple[int, ...]:
        if len(text) <= _SHORT_CHARS:
            return tuple(self._backend.encode(text, add_special_tokens=False).ids)
        # A batch, though of one: for a single text the library holds the interpreter's lock, hence up the event loop.
        [encoded] = self._backend.encode_batch_fast([text], add_special_tokens=False)
        return tuple(encoded.ids)

    def _check_in_pieces(self, text: str, most: int) -> None:
        """Tokens that a border cuts count more than once, but borders are few: a piece has thousands of tokens."""
        count = 0
        for start in range(0, len(text), _PIECE_CHARS):
            count += len(self._encode(text[start : start + _PIECE_CHARS]))
            if count > most:
                raise TooManyTokensError

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        if len(ids) <= _SHORT_CHARS:
            return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        [text] = self._backend.decode_batch([ids], skip_special_tokens=skip_special_tokens)  # as for `_encode`
        return text


def _bytes_of(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF[letter] for letter in token)
    except KeyError as error:
        raise ValueError(f"the tokenizer's vocabulary is not of byte level: it has {token!r}") from error


def _byte_alphabet() -> dict[str, int]:
    """How byte-level vocabularies spell bytes: printable Latin-1 as itself, the rest in order from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()

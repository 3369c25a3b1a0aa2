"""What a request brings of pictures and sounds, checked and cut into parts.

Knows nothing of how parts are encoded. The data stay where the gateway put them until the request is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engine.config.encoders import CHUNK_TOKENS, SAMPLES_PER_TOKEN
from engine.sched.parts import Part
from engine.wire.blobs import probe
from engine.wire.messages import MediaItem, MediaKind, MediaSupport, Submit
from engine.wire.refused import RefusedError
from engine.wire.submitted_media import content_of, own_content, salted

IDENTITY_BYTES = 32
_SAMPLE_BYTES = 4
_CHUNK_SAMPLES = CHUNK_TOKENS * SAMPLES_PER_TOKEN


class MediaIntake:
    def __init__(self, placeholders: Mapping[MediaKind, int], token_side: int, max_item_tokens: int) -> None:
        """`placeholders`: token id of each kind that can be encoded. `token_side`: pixels, of the square of a token."""
        self._placeholders = placeholders
        self._token_side = token_side
        self._max_item_tokens = max_item_tokens
        self._probe = probe()

    @property
    def support(self) -> MediaSupport:
        name = "" if self._probe is None else self._probe.name
        return MediaSupport(tuple(self._placeholders), self._max_item_tokens, name)

    def parts(self, submit: Submit) -> tuple[Part, ...]:
        """In the order of their offsets. RefusedError for a request whose media do not fit its prompt or their data."""
        data = content_of(submit)
        parts: list[Part] = []
        end = 0
        for number, item in enumerate(submit.media):
            name = f"media[{number}]"
            self._check(name, item, submit.prompt_ids, end)
            own = own_content(name, item, data)
            identity = salted(item.identity, submit.cache_salt)
            if item.kind == "image":
                parts.append(Part("image", (identity, 0), item.offset, item.num_tokens, item.shape, own))
            else:
                parts += _chunks(item, identity, own)
            end = item.offset + item.num_tokens
        return tuple(parts)

    def _check(self, name: str, item: MediaItem, prompt_ids: tuple[int, ...], end: int) -> None:
        if item.kind not in self._placeholders:
            taken = " or ".join(self._placeholders)
            raise RefusedError("unsupported_value", f"{name}: this worker takes {taken}, got {item.kind}")
        if len(item.identity) != IDENTITY_BYTES:
            raise _refused(f"{name}: an identity must have {IDENTITY_BYTES} bytes, got {len(item.identity)}")
        if item.num_tokens != (num_tokens := self._num_tokens(name, item)):
            raise _refused(f"{name}: {item.kind} of shape {item.shape} has {num_tokens} tokens, got {item.num_tokens}")
        if num_tokens > self._max_item_tokens:
            raise _refused(f"{name} must have at most {self._max_item_tokens} tokens, got {num_tokens}")
        if item.offset < end:
            raise _refused(f"{name} must begin at {end} or after, got {item.offset}")
        placeholder = self._placeholders[item.kind]
        if prompt_ids[item.offset : item.offset + num_tokens] != (placeholder,) * num_tokens:
            where = f"from {item.offset} to {item.offset + num_tokens - 1}"
            raise _refused(f"{name}: the prompt must have the placeholder {placeholder} {where}")

    def _num_tokens(self, name: str, item: MediaItem) -> int:
        side = self._token_side
        if item.kind == "audio":
            if len(item.shape) != 1 or item.shape[0] < 1:
                raise _refused(f"{name}: a sound must have shape (samples,) with at least 1, got {item.shape}")
            return -(-item.shape[0] // SAMPLES_PER_TOKEN)
        if len(item.shape) != 3 or item.shape[2] != 3 or any(size < side or size % side for size in item.shape[:2]):
            raise _refused(f"{name}: a picture must have shape (h, w, 3) in multiples of {side}, got {item.shape}")
        return item.shape[0] // side * (item.shape[1] // side)


def _chunks(item: MediaItem, identity: bytes, data: memoryview) -> Iterator[Part]:
    """Minutes of a sound: each is encoded on its own."""
    for number, start in enumerate(range(0, item.shape[0], _CHUNK_SAMPLES)):
        samples = min(_CHUNK_SAMPLES, item.shape[0] - start)
        yield Part(
            "audio",
            (identity, number),
            item.offset + number * CHUNK_TOKENS,
            -(-samples // SAMPLES_PER_TOKEN),
            (samples,),
            data[start * _SAMPLE_BYTES : (start + samples) * _SAMPLE_BYTES],
        )


def _refused(message: str) -> RefusedError:
    return RefusedError("invalid_value", message)

"""The quality meter's held-out items as requests to a worker: text, tools, pictures, sounds and films."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from engine.wire.messages import MediaData, MediaItem, MediaKind, Sampling, Submit
from multimodal import image
from multimodal.audio import num_audio_tokens
from training.data.conversation import Conversation, Film, Picture, Sound
from training.encode import Encoder
from training.evaluation.held_out import Key, item
from training.film_input import film_parts

Array = npt.NDArray[np.uint8] | npt.NDArray[np.float32]

PAGE_OF_A_PICTURE = 28  # pixels of a token's side


def submit_of_item(encoder: Encoder, key: Key, sampling: Sampling) -> Submit:
    conversation = item(key)
    example = encoder.prompt(conversation)
    ids = tuple(example.ids.tolist())
    items: list[MediaItem] = []
    data = b""
    places = example.media_tokens.tolist()
    for kind, array in _media(conversation, encoder):
        is_picture = kind == "image"
        count = array.shape[0] * array.shape[1] // PAGE_OF_A_PICTURE**2 if is_picture else num_audio_tokens(len(array))
        raw = np.ascontiguousarray(array).tobytes()
        identity = hashlib.sha256(kind.encode() + str(array.shape).encode() + raw).digest()
        items.append(MediaItem(kind, 0, count, array.shape, identity, len(data)))
        data += raw
    return Submit(
        f"{key.task} {key.index}",
        ids,
        sampling,
        media=tuple(_placed(items, places, example.media_kinds.tolist())),
        media_data=MediaData(len(data), inline=data) if items else None,
    )


def _media(conversation: Conversation, encoder: Encoder) -> Iterator[tuple[MediaKind, Array]]:
    """Pictures in the order of their placeholders, and so sounds."""
    for one in conversation.media:
        match one:
            case Picture():
                size = image.plan_size(*one.rgb.shape[:2], encoder.limits)
                yield "image", image.resize(one.rgb, size.height, size.width)
            case Sound():
                yield "audio", one.wave
            case Film():
                parts = film_parts(one, encoder.limits, encoder.context_length)
                yield from (("image", frame) for frame in parts.frames)
                yield from (("audio", wave) for wave in parts.waves)


def _placed(items: list[MediaItem], places: list[int], kinds: list[int]) -> Iterator[MediaItem]:
    """`kinds`: 0 for a picture's placeholder, else a sound's."""
    left = {kind: [one for one in items if one.kind == kind] for kind in ("image", "audio")}
    number = 0
    while number < len(places):
        one = left["audio" if kinds[number] else "image"].pop(0)
        yield MediaItem(one.kind, places[number], one.num_tokens, one.shape, one.identity, one.start)
        number += one.num_tokens

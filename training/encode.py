"""A conversation -> model input: ids, what is to be learnt, patches and log-mel, all made by the product's own code.

Owns the rule which tokens are targets. Knows nothing of batches or the model.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multimodal import image
from multimodal.audio import log_mel, num_audio_tokens
from server.chat_template import ChatTemplate, Replacement, Segment, expand
from server.tokenizer import Tokenizer
from training.data.conversation import Conversation, Film, Picture, Sound
from training.film_input import film_parts

MODEL_FOLDER = Path(__file__).parent.parent / "models" / "dots3-note-tiny"
IGNORED = -100
MEL_FRAMES = 512  # longest chunk of sound in training data: 5.12 s
PICTURE_KIND, SOUND_KIND = 0, 1


class Patches(NamedTuple):
    patches: NDArray[np.uint8]  # [patches, 588]
    places: NDArray[np.int64]  # [patches, 2], row and column of each in the picture


class Chunk(NamedTuple):
    mel: NDArray[np.float32]  # [bands, frames]
    samples: int
    tokens: int


class Example(NamedTuple):
    ids: NDArray[np.int64]
    targets: NDArray[np.int64]  # the next token where it is to be learnt, else IGNORED
    media_tokens: NDArray[np.int64]  # positions of media placeholders
    media_kinds: NDArray[np.int64]  # PICTURE_KIND or SOUND_KIND of each
    pictures: list[Patches]
    sounds: list[Chunk]
    prompt_length: int  # tokens before the wanted message


def picture_patches(rgb: NDArray[np.uint8], limits: image.ImageLimits) -> Patches:
    height, width, _ = rgb.shape
    size = image.plan_size(height, width, limits)
    ordered = image.order_patches(image.resize(rgb, size.height, size.width))
    return Patches(ordered, _places(size.height // limits.patch_size, size.width // limits.patch_size))


@lru_cache(maxsize=256)
def _places(rows: int, columns: int) -> NDArray[np.int64]:
    grid = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), axis=-1)
    return grid.reshape(rows // 2, 2, columns // 2, 2, 2).transpose(0, 2, 1, 3, 4).reshape(-1, 2)


def sound_chunk(wave: NDArray[np.float32]) -> Chunk:
    """One chunk; training sounds are far shorter than 60 s."""
    return Chunk(log_mel(wave)[0], len(wave), num_audio_tokens(len(wave)))


class Encoder:
    """Template, tokenizer and media settings of one model folder."""

    def __init__(self, folder: Path = MODEL_FOLDER) -> None:
        self.tokenizer = Tokenizer.from_folder(folder)
        self.template = ChatTemplate((folder / "chat_template.jinja").read_text(), self.tokenizer.control_tokens)
        self.limits = image.ImageLimits.from_preprocessor(json.loads((folder / "preprocessor_config.json").read_text()))
        self.context_length: int = json.loads((folder / "config.json").read_text())["max_position_embeddings"]
        token = self.tokenizer.token_id
        self.pad_id = token("<|pad|>")
        self._picture_id, self._sound_id = token("<|imgpad|>"), token("<|audio_comp_pad|>")
        self._assistant, self._end = token("<|assistant|>"), token("<|endofassistant|>")
        self._think, self._end_think = token("<think>"), token("</think>")

    def __call__(self, conversation: Conversation) -> Example:
        segments, pictures, sounds = self._segments(conversation)
        prompt, wanted = split_wanted(segments, conversation.thinking)
        prompt_ids = self.tokenizer.encode_segments(prompt)
        ids = np.array(prompt_ids + self.tokenizer.encode_segments(wanted))
        kinds = np.full(len(ids), -1)
        kinds[ids == self._picture_id] = PICTURE_KIND
        kinds[ids == self._sound_id] = SOUND_KIND
        places = np.flatnonzero(kinds >= 0)
        targets = np.full(len(ids), IGNORED)
        learnt = self._learnt(ids, len(prompt_ids), conversation.thinking)
        shown = np.flatnonzero(learnt[1:])
        targets[shown] = ids[shown + 1]
        return Example(ids, targets, places, kinds[places], pictures, sounds, len(prompt_ids))

    def prompt(self, conversation: Conversation) -> Example:
        """The prompt alone, as a server would see it."""
        whole = self(conversation)
        end = whole.prompt_length
        return whole._replace(ids=whole.ids[:end], targets=np.full(end, IGNORED))

    def _segments(self, conversation: Conversation) -> tuple[list[Segment], list[Patches], list[Chunk]]:
        rendered = self.template.render(
            conversation.messages,
            conversation.tools,
            enable_thinking=conversation.thinking,
            add_generation_prompt=False,
        )
        if not conversation.media:
            return rendered, [], []
        pictures: list[Patches] = []
        sounds: list[Chunk] = []
        places: dict[str, list[Replacement]] = {"<|imgpad|>": [], "<|audio_comp_pad|>": [], "<|video_pad|>": []}
        for item in conversation.media:
            match item:
                case Picture():
                    pictures.append(picture_patches(item.rgb, self.limits))
                    places["<|imgpad|>"].append(len(pictures[-1].patches) // 4)
                case Sound():
                    sounds.append(sound_chunk(item.wave))
                    places["<|audio_comp_pad|>"].append(sounds[-1].tokens)
                case Film():
                    parts = film_parts(item, self.limits, self.context_length)
                    pictures += [picture_patches(frame, self.limits) for frame in parts.frames]
                    sounds += [sound_chunk(wave) for wave in parts.waves]
                    places["<|video_pad|>"].append(parts.segments)
        return [Segment(*s) for s in expand(rendered, places)], pictures, sounds

    def _learnt(self, ids: NDArray[np.int64], prompt_length: int, thinking: bool) -> NDArray[np.bool_]:
        """[tokens] which are to be learnt: the wanted message, and earlier answers that show how to answer.

        A turn that lost its thinking on the way (clients do not send it back) is no example of how to answer with
        thinking on. With thinking off the empty block and its line ends are the template's, not the model's.
        """
        learnt = np.zeros(len(ids), dtype=bool)
        learnt[prompt_length:] = True
        starts = np.flatnonzero(ids[:prompt_length] == self._assistant) + 1
        for start, end in zip(starts, np.flatnonzero(ids[:prompt_length] == self._end) + 1, strict=False):
            if thinking and ids[start] == self._think:
                learnt[start:end] = True
            elif not thinking:
                closed = start + int(np.argmax(ids[start:end] == self._end_think))
                learnt[closed + 2 : end] = True
        return learnt


def split_wanted(segments: list[Segment], thinking: bool) -> tuple[list[Segment], list[Segment]]:
    """Cut a rendered conversation where generation of its last message begins.

    The prompt is encoded by itself when it is served, so no token may span the cut.
    """
    cut = max(i for i, s in enumerate(segments) if s == Segment("<|assistant|>", True)) + 1
    if thinking:
        return segments[:cut], segments[cut:]
    opened, blank, closed, rest = segments[cut : cut + 4]
    if (opened.text, blank.text, closed.text) != ("<think>", "\n\n", "</think>") or not rest.text.startswith("\n\n"):
        raise ValueError(f"no empty thinking block before {rest.text!r}")
    prompt = [*segments[: cut + 3], Segment("\n\n", False)]
    return prompt, [Segment(rest.text[2:], False), *segments[cut + 4 :]]

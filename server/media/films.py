"""How much of the context each film of a conversation may take, and its plan within that.

The films of one turn share equally what is left after everything else up to the end of that turn. Later turns do not
count, so that a film is planned again as it was when it was new, and the conversation's prefix stays the same. The only
film of a conversation that has just begun may plan with the whole context, as the model was trained, while that fits.
Knows nothing of files or of how text is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multimodal.film import ProbedFilm, plan_film
from multimodal.frame_budget import context_room
from multimodal.image import ImageLimits, SizeOverrides
from multimodal.video import VideoPlan, VideoRequest
from server.errors import RequestError
from server.schemas.media_knobs import MediaKnobs
from server.schemas.media_parts import MediaPart

# What the planner sets aside for the text around a film: so much of other text costs a film nothing.
_PLANNED_TEXT_TOKENS = 9 + 5 + 2 + 64
# In place of the user's question, as the reference has it where none is given; it only seeds the mode `logk`.
_NO_QUESTION = "<|video_pad|>"


@dataclass(frozen=True)
class Asker:
    """What a request says about all its films, and the model about all requests."""

    knobs: MediaKnobs
    detail: str
    limits: ImageLimits
    max_model_len: int

    @property
    def seq(self) -> int:
        return self.knobs.seq or self.max_model_len

    @property
    def overrides(self) -> SizeOverrides:
        knobs = self.knobs
        return SizeOverrides(knobs.min_pixels, knobs.max_pixels, knobs.target_height, knobs.target_width)

    def request(self, seq: int, output_reserve: int | None, max_new_tokens: int) -> VideoRequest:
        knobs = self.knobs
        return VideoRequest(
            seq=seq,
            output_reserve=output_reserve,
            max_new_tokens=max_new_tokens,
            audio_cap=1.0 if knobs.audio_cap is None else knobs.audio_cap,
            k_mode=knobs.k_mode or "eval_ek",
            question=_NO_QUESTION if knobs.video_question is None else knobs.video_question,
        )


@dataclass(frozen=True)
class Turn:
    """Messages up to where the assistant answers, and the media in them."""

    num_messages: int  # of the conversation, up to its end
    num_answers: int  # before it
    parts: Sequence[MediaPart]


def turns_of(messages: Sequence[Mapping[str, Any]]) -> list[Turn]:
    """Only those with media. An assistant's message is a turn of its own."""
    turns, parts, answers = list[Turn](), list[MediaPart](), 0
    for place, message in enumerate(messages):
        parts += media_of(message)
        is_answer = message["role"] == "assistant"
        is_last = place + 1 == len(messages) or is_answer or messages[place + 1]["role"] == "assistant"
        if is_last and parts:
            turns.append(Turn(place + 1, answers, parts))
            parts = []
        answers += is_answer
    return turns


def media_of(message: Mapping[str, Any]) -> list[MediaPart]:
    content = message.get("content")
    return [part["media"] for part in content if "media" in part] if isinstance(content, list) else []


def plan_films(
    turns: Sequence[Turn],
    films: Mapping[str, ProbedFilm],
    other_tokens: Mapping[str, int],
    count: Callable[[int], int],
    asker: Asker,
) -> dict[str, VideoPlan]:
    """By path. `count` tells the tokens of the first messages as a prompt, in which each item is one token;
    `other_tokens`, how many the pictures and sounds are. RequestError for a film that cannot be shown.
    """
    plans = dict[str, VideoPlan]()
    before = 0  # media tokens beyond one each, of earlier turns and this one's pictures and sounds
    for turn in turns:
        new = [part for part in turn.parts if part.kind == "video"]
        before += sum(other_tokens[part.path] - 1 for part in turn.parts if part.kind != "video")
        if not new:
            continue
        others = count(turn.num_messages) + before - len(new)
        is_only = len(turn.parts) == 1 and turn is turns[0] and turn.num_answers == 0
        for part in new:
            plans[part.path] = _planned(part, films[part.path], others, len(new), is_only, asker)
            before += plans[part.path].prompt_tokens - 1
    return plans


def _planned(part: MediaPart, film: ProbedFilm, others: int, films: int, is_only: bool, asker: Asker) -> VideoPlan:
    reserve, new_tokens = asker.knobs.output_reserve, asker.knobs.max_new_tokens or 0
    try:
        if is_only:
            plan = plan_film(
                film, asker.request(asker.seq, reserve, new_tokens), asker.limits, asker.overrides, asker.detail
            )
            if others + plan.prompt_tokens < asker.max_model_len:
                return plan
        left = asker.seq - max(0, others - _PLANNED_TEXT_TOKENS)
        if left < films:
            raise ValueError(f"the rest of the request comes to {others} tokens of {asker.seq}, and leaves it no room")
        share = context_room(left, reserve, new_tokens) // films
        return plan_film(film, asker.request(share, 0, 0), asker.limits, asker.overrides, asker.detail)
    except ValueError as error:
        raise RequestError("invalid_value", f"`{part.path}`: {error}", part.path) from error

"""How many frames of a film are shown, and how large, within a token budget.

Pure arithmetic on the film's facts: owns the split of a context between answer, sound and frames, and the search over
frame rate and frame size. Knows nothing of which frames are taken, of groups, files or pixels.
"""

from __future__ import annotations

from typing import NamedTuple

from multimodal.audio import SAMPLE_RATE, num_audio_tokens
from multimodal.image import Size, fit_pixels

MIN_FRAMES = 4
MIN_FRAME_TOKENS = 128
MAX_FRAME_TOKENS = 1024
FRAME_OVERHEAD_TOKENS = 15  # the timestamp and the two marks of a picture

_ROOM_FOR_TEXT_TOKENS = 2240
_FIXED_OVERHEAD_TOKENS = 2 + 64  # besides the system turn and the video's tag
_LEAST_FRAME_COST = MIN_FRAME_TOKENS + FRAME_OVERHEAD_TOKENS
_MAX_FPS, _MIN_FPS = 1.0, 0.2
_USUAL_MAX_FRAMES = 1024
_PLANNED_PIECE_SAMPLES = 30 * SAMPLE_RATE
_MARK_TOKENS_PER_GROUP = 3
_BISECTIONS = 50


class SoundBudget(NamedTuple):
    """What is set aside for sound; `drop_reason` says why sound that exists is left out."""

    planned_tokens: int
    reserved_tokens: int
    drop_reason: str | None


class FrameBudget(NamedTuple):
    num_frames: int
    cap_tokens: int  # of one frame


def context_room(seq: int, output_reserve: int | None, max_new_tokens: int) -> int:
    """Tokens left for the prompt."""
    if seq <= 0:
        raise ValueError(f"`seq` must be at least 1, got {seq}")
    reserve = max(seq // 4 if output_reserve is None else output_reserve, max_new_tokens)
    if reserve >= seq:
        raise ValueError(f"the reserve for the answer must be less than `seq` ({seq}), got {reserve}")
    return seq - reserve


def plan_sound(num_samples: int, audio_cap: float, room: int) -> SoundBudget:
    """`num_samples` 0 means no sound; three tokens are set aside even then, unless the context is very short."""
    duration_s = num_samples / SAMPLE_RATE
    planned = 0
    if num_samples > 0:
        counted = int(duration_s * SAMPLE_RATE)  # as the model was trained: can be one sample short
        pieces, rest = divmod(counted, _PLANNED_PIECE_SAMPLES)
        planned = pieces * num_audio_tokens(_PLANNED_PIECE_SAMPLES) + num_audio_tokens(rest) + 2
    reserved = planned + _MARK_TOKENS_PER_GROUP * max(1, int(duration_s))
    drop_reason = None
    if planned > audio_cap * room:
        drop_reason = "audio_cap"
    elif reserved + MIN_FRAMES * _LEAST_FRAME_COST + _ROOM_FOR_TEXT_TOKENS > room:
        drop_reason = "budget"
    return SoundBudget(planned, 0 if drop_reason else reserved, drop_reason if num_samples > 0 else None)


def visual_budget(room: int, system_turn_tokens: int, video_tag_tokens: int, reserved_for_sound: int) -> int:
    left = room - system_turn_tokens - video_tag_tokens - _FIXED_OVERHEAD_TOKENS - reserved_for_sound
    return max(_LEAST_FRAME_COST, left)


def native_tokens(height: int, width: int, factor: int) -> int:
    return max(1, round(height / factor)) * max(1, round(width / factor))


def frame_target(height: int, width: int, max_tokens: int, factor: int) -> Size:
    """Size of a frame that may take `max_tokens`, grown to 128 tokens where that is within them."""
    return fit_pixels(height, width, MIN_FRAME_TOKENS * factor**2, max_tokens * factor**2, factor)


def solve_frames(
    height: int, width: int, duration_s: float, fps: float, visual_budget_tokens: int, room: int, factor: int
) -> FrameBudget:
    """Rate and size are raised together, from the least to the film's own, as far as the budget goes."""
    max_frames = _max_frames(room)
    full_fps = min(_MAX_FPS, max(fps, 1e-6))
    full_cap = min(MAX_FRAME_TOKENS, max(native_tokens(height, width, factor), MIN_FRAME_TOKENS))

    def frame_cost(cap: int) -> int:
        size = frame_target(height, width, max(MIN_FRAME_TOKENS, cap), factor)
        return size.height * size.width // factor**2 + FRAME_OVERHEAD_TOKENS

    def at(quality: float) -> FrameBudget:
        wanted = round(duration_s * (_MIN_FPS + quality * (full_fps - _MIN_FPS)))
        cap = round(MIN_FRAME_TOKENS + quality * (full_cap - MIN_FRAME_TOKENS))
        return FrameBudget(max(MIN_FRAMES, min(wanted, max_frames)), cap)

    def fits(budget: FrameBudget) -> bool:
        return budget.num_frames * frame_cost(budget.cap_tokens) <= visual_budget_tokens

    if fits(at(1.0)):
        return at(1.0)
    if not fits(at(0.0)):
        affordable = visual_budget_tokens // frame_cost(MIN_FRAME_TOKENS)
        return FrameBudget(max(MIN_FRAMES, min(affordable, max_frames)), MIN_FRAME_TOKENS)
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(at(middle)) else (low, middle)
    return at(low)


def _max_frames(room: int) -> int:
    affordable = (room - _ROOM_FOR_TEXT_TOKENS) // _LEAST_FRAME_COST
    if affordable <= _USUAL_MAX_FRAMES:
        return _USUAL_MAX_FRAMES
    return 1 << (affordable - 1).bit_length()

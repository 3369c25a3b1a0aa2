"""Films: a film's facts and a request -> which frames, how large, under which stamps, and the sound between them.

Owns the plan of a film and the order in which it is laid out as stamps, pictures and pieces of sound. Arithmetic, but
for the two lossy steps that every film goes through. Knows nothing of files: who decodes tells the facts.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from multimodal.audio import SAMPLE_RATE, num_audio_tokens
from multimodal.frame_budget import (
    MIN_FRAMES,
    context_room,
    frame_target,
    native_tokens,
    plan_sound,
    solve_frames,
    visual_budget,
)
from multimodal.image import NO_OVERRIDES, ImageLimits, Size, SizeOverrides, num_image_tokens, plan_size
from multimodal.sound_groups import K_MODES, AudioSegment, cut_sound, draw_seed, group_bounds

STAMP_TOKENS = 13
MARK_TOKENS = 2  # before and after a picture or a piece of sound

_UNTOLD_FPS = 25.0
_JPEG_QUALITY = 85


@dataclass(frozen=True)
class VideoFacts:
    """A film as its header, or better its decoder, tells it. Times count from the film's beginning."""

    height: int  # upright
    width: int
    duration_s: float
    fps: float = 0.0  # 0: not told
    total_frames: int = 0  # 0: not told
    decodable_frames: int | None = None  # where it is known to differ from what the header tells
    frame_times_s: Sequence[float] | None = None  # of every decodable frame; without it the rate is taken as constant
    has_audio: bool = False
    audio_samples: int = 0  # at 16 kHz
    content_sha1: str = ""  # of the file, in hex; only the mode `logk` draws from it

    @classmethod
    def constant_rate(cls, height: int, width: int, fps: float, num_frames: int, audio_samples: int = 0) -> VideoFacts:
        """A film of which everything is known, with sound if it has any sample."""
        return cls(
            height,
            width,
            duration_s=num_frames / fps,
            fps=fps,
            total_frames=num_frames,
            has_audio=audio_samples > 0,
            audio_samples=audio_samples,
        )


@dataclass(frozen=True)
class VideoRequest:
    seq: int  # context length
    output_reserve: int | None = None  # None: a quarter of seq
    max_new_tokens: int = 0
    audio_cap: float = 1.0  # share of the room that sound may take; 0: sound is not wanted
    k_mode: str = "eval_ek"
    question: str = ""
    system_turn_tokens: int = 9
    video_tag_tokens: int = 5

    def __post_init__(self) -> None:
        context_room(self.seq, self.output_reserve, self.max_new_tokens)
        if not self.audio_cap >= 0:
            raise ValueError(f"`audio_cap` must be at least 0, got {self.audio_cap}")
        if self.k_mode not in K_MODES:
            raise ValueError(f"`k_mode` must be one of {', '.join(K_MODES)}, got {self.k_mode!r}")

    @property
    def room(self) -> int:
        """Tokens left for the prompt."""
        return context_room(self.seq, self.output_reserve, self.max_new_tokens)


class Emission(NamedTuple):
    """One piece of a film as the model reads it, and its place among the frames or the audio segments."""

    kind: Literal["timestamp", "image", "audio"]
    place: int


@dataclass(frozen=True)
class VideoPlan:
    visual_budget_tokens: int
    solved_num_frames: int  # before it is held against the frames that exist
    patch_cap: int
    target: Size  # a frame is resized to this, then goes through JPEG
    resized: Size  # then to this; differs only for the smallest
    image_tokens_per_frame: int
    frame_indices: tuple[int, ...]
    frame_times_s: tuple[float, ...]  # thousandths
    audio_planned_tokens: int
    audio_drop_reason: str | None  # why sound that exists is left out
    group_bounds: tuple[int, ...] | None
    audio_segments: tuple[AudioSegment, ...]

    @property
    def timestamps(self) -> tuple[str, ...]:
        return tuple(timestamp(time_s) for time_s in self.frame_times_s)

    @property
    def audio_kept(self) -> bool:
        return self.group_bounds is not None

    @property
    def image_tokens(self) -> int:
        return self.image_tokens_per_frame * len(self.frame_indices)

    @property
    def audio_tokens_per_segment(self) -> tuple[int, ...]:
        return tuple(num_audio_tokens(segment.end - segment.start) for segment in self.audio_segments)

    @property
    def prompt_tokens(self) -> int:
        """Everything that takes the place of the film in the prompt."""
        frames = len(self.frame_indices) * (STAMP_TOKENS + MARK_TOKENS) + self.image_tokens
        return frames + len(self.audio_segments) * MARK_TOKENS + sum(self.audio_tokens_per_segment)


def plan_video(
    facts: VideoFacts,
    request: VideoRequest,
    limits: ImageLimits,
    overrides: SizeOverrides = NO_OVERRIDES,
    detail: str = "auto",
) -> VideoPlan:
    """ValueError where nothing that fits can be shown."""
    if not (facts.duration_s > 0 and math.isfinite(facts.duration_s)):
        raise ValueError(f"a film must last more than 0 seconds, got {facts.duration_s}")
    room, factor = request.room, limits.factor
    fps = facts.fps if facts.fps > 0 else _UNTOLD_FPS
    wanted_samples = facts.audio_samples if facts.has_audio and request.audio_cap > 0 else 0
    sound = plan_sound(wanted_samples, request.audio_cap, room)
    budget = visual_budget(room, request.system_turn_tokens, request.video_tag_tokens, sound.reserved_tokens)
    solved = solve_frames(facts.height, facts.width, facts.duration_s, fps, budget, room, factor)

    max_tokens = min(solved.cap_tokens, native_tokens(facts.height, facts.width, factor))
    target = frame_target(facts.height, facts.width, max_tokens, factor)
    resized = plan_size(target.height, target.width, limits, overrides, detail)

    indices = _spread(solved.num_frames, _real_frames(facts, fps))
    times_s = tuple(
        round(index / fps if facts.frame_times_s is None else facts.frame_times_s[index], 3) for index in indices
    )
    bounds: tuple[int, ...] | None = None
    segments: tuple[AudioSegment, ...] = ()
    if wanted_samples > 0 and sound.drop_reason is None:
        seed = draw_seed(facts.content_sha1, request.question)
        bounds = group_bounds(len(indices), wanted_samples / SAMPLE_RATE, request.k_mode, seed)
        segments = cut_sound(bounds, times_s, wanted_samples)
    plan = VideoPlan(
        visual_budget_tokens=budget,
        solved_num_frames=solved.num_frames,
        patch_cap=solved.cap_tokens,
        target=target,
        resized=resized,
        image_tokens_per_frame=num_image_tokens(resized, limits),
        frame_indices=indices,
        frame_times_s=times_s,
        audio_planned_tokens=sound.planned_tokens,
        audio_drop_reason="audio_cap_zero" if facts.has_audio and request.audio_cap == 0 else sound.drop_reason,
        group_bounds=bounds,
        audio_segments=segments,
    )
    if plan.prompt_tokens > room:
        raise ValueError(f"the film needs {plan.prompt_tokens} tokens, but `seq` less the answer's reserve is {room}")
    return plan


def _real_frames(facts: VideoFacts, fps: float) -> int:
    if facts.frame_times_s is not None:
        return len(facts.frame_times_s)
    told = facts.total_frames if facts.total_frames > 0 else max(1, int(facts.duration_s * fps))
    return told if facts.decodable_frames is None else min(told, facts.decodable_frames)


def _spread(num_frames: int, real_frames: int) -> tuple[int, ...]:
    """Frame numbers from the first to the last, evenly by number."""
    if real_frames < 1:
        raise ValueError(f"a film must have at least 1 frame, got {real_frames}")
    count = max(MIN_FRAMES, min(num_frames, real_frames))
    step = (real_frames - 1) / (count - 1)
    return tuple(sorted({min(real_frames - 1, round(i * step)) for i in range(count)}))


def timestamp(time_s: float) -> str:
    """HH:MM:SS.cc, hours unbounded."""
    hundredths = max(0, round(100 * time_s))
    minutes, rest = divmod(hundredths, 6000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 100:02d}.{rest % 100:02d}"


def flatten(plan: VideoPlan) -> list[Emission]:
    """The film in reading order: each frame under its stamp, each piece of sound after its group of frames."""
    sound_after = {segment.frames_before: index for index, segment in enumerate(plan.audio_segments)}
    emissions = []
    for frame in range(len(plan.frame_indices)):
        emissions += [Emission("timestamp", frame), Emission("image", frame)]
        if frame + 1 in sound_after:
            emissions.append(Emission("audio", sound_after[frame + 1]))
    return emissions


def jpeg_round_trip(rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Frames reach the model through JPEG, as in its training."""
    encoded = io.BytesIO()
    Image.fromarray(rgb).save(encoded, format="JPEG", quality=_JPEG_QUALITY)
    return np.asarray(Image.open(encoded).convert("RGB"))


def pcm16_round_trip(wave: NDArray[np.float32]) -> NDArray[np.float32]:
    """A film's sound reaches the model through 16-bit samples, as in its training."""
    samples: NDArray[np.int16] = np.trunc(np.clip(wave, -1.0, 1.0) * np.float32(32767)).astype(np.int16)
    return samples.astype(np.float32) / np.float32(32768)

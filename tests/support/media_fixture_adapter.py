"""The product's own media code under the field names of the media fixtures.

For tests that know a case only as the fixtures write it: a refusal raises ValueError.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multimodal import audio, image, video
from multimodal.film import prepare_film
from multimodal.sound_file import read_sound

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
REQUEST_DEFAULTS = {
    "seq": 131072,
    "output_reserve": None,
    "max_new_tokens": 0,
    "audio_cap": 1.0,
    "k_mode": "eval_ek",
    "question": "What is shown, and what is heard?",
    "system_turn_tokens": 9,
    "video_tag_tokens": 5,
}
LIMITS = image.ImageLimits(min_pixels=3136, max_pixels=1016064, mean=MEAN, std=STD)


def plan_image(case_in: Mapping[str, Any]) -> dict[str, Any]:
    """`in` of a case of image_plan.jsonl -> its `out`."""
    limits = image.ImageLimits.from_preprocessor(
        {"image_mean": MEAN, "image_std": STD, **case_in["limits"], "image_details": case_in["image_details"]}
    )
    overrides = image.SizeOverrides(**case_in["overrides"])
    size = image.plan_size(case_in["height"], case_in["width"], limits, overrides, case_in["detail"])
    return _image_fields(size, limits)


def plan_video(case_in: Mapping[str, Any]) -> dict[str, Any]:
    """`in` of a case of video_plan.jsonl -> its `out`, and where the reference is wrong, what is right."""
    facts = video.VideoFacts(
        height=case_in["orig_h"],
        width=case_in["orig_w"],
        duration_s=case_in["duration_s"],
        fps=case_in["fps"],
        total_frames=case_in["total_frames"],
        decodable_frames=case_in["decodable_frames"],
        has_audio=case_in["has_audio"],
        audio_samples=case_in["audio_samples"],
        content_sha1=case_in["video_sha1"],
    )
    return _plan_fields(video.plan_video(facts, _video_request(case_in), LIMITS))


def prepare(path: str | Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """A media file -> the fields of its run's `right`; of a picture or a sound, of its `truth` that they have."""
    data = Path(path).read_bytes()
    kind = (mimetypes.guess_type(path)[0] or "").split("/")[0]
    if kind == "image":
        return _prepare_picture(data)
    if kind == "audio":
        wave = read_sound(data)
        return {"audio_tokens": audio.num_audio_tokens(wave.size), "audio_decoded": _heard(wave)}
    film = prepare_film(data, _video_request({**REQUEST_DEFAULTS, **request}), LIMITS)
    return {
        **_plan_fields(film.plan),
        "frame_pts_s": [round(time_s, 4) for time_s in film.plan.frame_times_s],
        "frame_rgb": [_mean_colour(frame) for frame in film.frames],
        "frame_quadrants": _quadrants(film.frames[0]),
        "audio_decoded": _heard(np.concatenate(film.sounds)) if film.sounds else None,
    }


def log_mel(waveform_float32: NDArray[np.float32]) -> NDArray[np.float32]:
    return audio.log_mel(waveform_float32)


def _video_request(fields: Mapping[str, Any]) -> video.VideoRequest:
    return video.VideoRequest(**{name: fields[name] for name in video.VideoRequest.__dataclass_fields__})


def _prepare_picture(data: bytes) -> dict[str, Any]:
    rgb = image.upright_rgb(data)
    height, width, _ = rgb.shape
    size = image.plan_size(height, width, LIMITS)
    resized = image.resize(rgb, *size)
    return {
        "upright_h": height,
        "upright_w": width,
        **_image_fields(size, LIMITS),
        "frame_rgb": [_mean_colour(resized)],
        "frame_quadrants": _quadrants(resized),
    }


def _mean_colour(rgb: NDArray[np.uint8]) -> list[int]:
    return [round(float(value)) for value in rgb.mean(axis=(0, 1))]


def _quadrants(rgb: NDArray[np.uint8]) -> dict[str, list[int]]:
    """Mean colours of the four quarters, away from their edges."""
    height, width = rgb.shape[0] // 8, rgb.shape[1] // 8
    tops, lefts = {"top": height, "bottom": 5 * height}, {"left": width, "right": 5 * width}
    return {
        f"{row}_{column}": _mean_colour(rgb[top : top + 2 * height, left : left + 2 * width])
        for row, top in tops.items()
        for column, left in lefts.items()
    }


def _heard(wave: NDArray[np.float32]) -> dict[str, Any]:
    peak = float(np.abs(wave).max())
    return {"samples_16k": wave.size, "duration_s": wave.size / audio.SAMPLE_RATE, "peak": round(peak, 4)}


def _image_fields(size: image.Size, limits: image.ImageLimits) -> dict[str, Any]:
    rows, columns = size.height // limits.patch_size, size.width // limits.patch_size
    return {
        "resized_h": size.height,
        "resized_w": size.width,
        "grid_thw": [1, rows, columns],
        "patches": rows * columns,
        "tokens": image.num_image_tokens(size, limits),
    }


def _plan_fields(plan: video.VideoPlan) -> dict[str, Any]:
    return {
        "visual_budget_tokens": plan.visual_budget_tokens,
        "solved_num_frames": plan.solved_num_frames,
        "patch_cap": plan.patch_cap,
        "target_h": plan.target.height,
        "target_w": plan.target.width,
        "resized_h": plan.resized.height,
        "resized_w": plan.resized.width,
        "num_frames": len(plan.frame_indices),
        "frame_indices": list(plan.frame_indices),
        "timestamps": list(plan.timestamps),
        "audio_kept": plan.audio_kept,
        "audio_drop_reason": plan.audio_drop_reason,
        "audio_planned_tokens": plan.audio_planned_tokens,
        "group_bounds": None if plan.group_bounds is None else list(plan.group_bounds),
        "audio_segments": [[segment.start, segment.end] for segment in plan.audio_segments],
        "audio_tokens_per_segment": list(plan.audio_tokens_per_segment),
        "audio_tokens": sum(plan.audio_tokens_per_segment),
        "image_tokens_per_frame": plan.image_tokens_per_frame,
        "image_tokens": plan.image_tokens,
        "order": _order(plan),
        "prompt_tokens": plan.prompt_tokens,
    }


def _order(plan: video.VideoPlan) -> str:
    """`F<n>`: n frames under their stamps; `A`: a piece of sound."""
    words, frames = [], 0
    for emission in video.flatten(plan):
        if emission.kind == "image":
            frames += 1
        elif emission.kind == "audio":
            words += [f"F{frames}", "A"]
            frames = 0
    return " ".join([*words, f"F{frames}"] if frames else words)

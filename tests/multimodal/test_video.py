"""Films: every golden plan, what the reference gets wrong, and the order in which a film is laid out."""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from multimodal.placeholders import audio_placeholder, film_placeholder, image_placeholder
from multimodal.sound_groups import draw_seed, group_bounds
from multimodal.video import (
    Emission,
    VideoFacts,
    VideoRequest,
    flatten,
    jpeg_round_trip,
    pcm16_round_trip,
    plan_video,
    timestamp,
)
from tests.multimodal import goldens
from tests.support import media_fixture_adapter
from tests.support.media_fixture_adapter import LIMITS

REFUSALS = {
    "no_room_after_reserve": "reserve for the answer must be less",
    "no_duration": "more than 0 seconds",
    "audio_cap_negative": "audio_cap",
    "seq_not_positive": "`seq` must be",
    "k_mode_unknown": "k_mode",
    "aspect_ratio_over_200": "200 times",
}
CASES = goldens.cases("video_plan.jsonl")
FILM = VideoFacts.constant_rate(360, 640, 25.0, 150, audio_samples=96000)
REQUEST = VideoRequest(seq=131072)


def refusal_of(case: dict[str, Any]) -> str | None:
    right = case.get("right", {})
    if right.get("over_budget") == "must_be_refused":
        return "tokens, but `seq`"
    if right.get("k_mode") == "must_be_refused":
        return REFUSALS["k_mode_unknown"]
    return REFUSALS[case["out"]["error"]] if "error" in case["out"] else None


@pytest.mark.parametrize("case", [case for case in CASES if refusal_of(case)], ids=lambda case: case["id"])
def test_a_film_that_cannot_be_shown_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=refusal_of(case)):
        media_fixture_adapter.plan_video(case["in"])


@pytest.mark.parametrize("case", [case for case in CASES if not refusal_of(case)], ids=lambda case: case["id"])
def test_plan_is_the_golden_one(case: dict[str, Any]) -> None:
    plan = {name: goldens.shortened(value) for name, value in media_fixture_adapter.plan_video(case["in"]).items()}
    wanted = dict(case["out"])
    if spread := case.get("right", {}).get("sampled_over_real_frames"):
        following = {"group_bounds", "audio_segments", "audio_tokens_per_segment", "audio_tokens"}
        following |= {"image_tokens", "order", "prompt_tokens"}
        wanted = {name: value for name, value in wanted.items() if name not in following} | spread
        assert plan["image_tokens"] == plan["image_tokens_per_frame"] * spread["num_frames"]
        plan = {name: value for name, value in plan.items() if name in wanted}
    assert plan == wanted
    if case.get("right", {}).get("audio_drop") == "must_be_reported":
        assert plan["audio_drop_reason"]


def test_real_frame_times_are_the_labels_and_the_borders_of_groups() -> None:
    times = [0.0, 0.5, 1.0, 4.0, 8.0, 9.0]
    facts = replace(FILM, duration_s=10.0, total_frames=9, frame_times_s=times, audio_samples=160_000)
    plan = plan_video(facts, replace(REQUEST, k_mode="eval30"), LIMITS)
    assert plan.frame_times_s == tuple(times)
    assert plan.timestamps[3] == "00:00:04.00"
    assert [segment[:2] for segment in plan.audio_segments] == [(0, 64_000), (64_000, 160_000)]


def test_layout_follows_reading_order() -> None:
    plan = plan_video(FILM, REQUEST, LIMITS)
    kinds = [emission.kind for emission in flatten(plan)]
    assert kinds == (["timestamp", "image"] * 2 + ["audio"]) * 3
    assert flatten(plan)[-1] == Emission("audio", 2)


def test_placeholder_of_a_film_has_the_planned_tokens() -> None:
    plan = plan_video(FILM, REQUEST, LIMITS)
    parts = film_placeholder(plan)
    pads = [part.text for part in parts if part.control]
    assert pads.count("<|imgpad|>") == plan.image_tokens
    assert pads.count("<|audio_comp_pad|>") == sum(plan.audio_tokens_per_segment)
    assert [part.text for part in parts if not part.control] == [f"<{stamp}>" for stamp in plan.timestamps]
    assert len(pads) + 13 * len(plan.frame_indices) == plan.prompt_tokens


def test_placeholders_are_marked_and_of_one_control_token_each() -> None:
    assert [text for text, control in image_placeholder(2) if control] == [
        "<|img|>",
        "<|imgpad|>",
        "<|imgpad|>",
        "<|endofimg|>",
    ]
    assert [text for text, control in audio_placeholder(1) if control] == [
        "<|audio_comp_start|>",
        "<|audio_comp_pad|>",
        "<|audio_comp_end|>",
    ]
    with pytest.raises(ValueError, match="at least 1 token"):
        image_placeholder(0)


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (0.005, "00:00:00.00"),
        (1.005, "00:00:01.00"),
        (59.999, "00:01:00.00"),
        (3661.234, "01:01:01.23"),
        (360000, "100:00:00.00"),
        (-1.0, "00:00:00.00"),
    ],
)
def test_timestamps_round_to_even_hundredths(time_s: float, text: str) -> None:
    assert timestamp(time_s) == text


def test_random_groups_are_drawn_from_film_and_question() -> None:
    film = hashlib.sha1(b"example-video-bytes").hexdigest()
    assert draw_seed(film, "describe") == 3802858368
    assert group_bounds(60, 60.0, "logk", 3802858368) == (0, 21, 29, 32, 52, 54, 60)


def test_jpeg_and_16_bits_cost_little() -> None:
    rgb = np.full((56, 56, 3), (200, 30, 30), dtype=np.uint8)
    assert np.abs(jpeg_round_trip(rgb).astype(int) - rgb).max() <= 3
    wave = np.linspace(-1.5, 1.5, 999, dtype=np.float32)
    assert np.abs(pcm16_round_trip(wave) - np.clip(wave, -1, 1)).max() < 1e-4

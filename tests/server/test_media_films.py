"""Films of a conversation: how they share the context, and that an earlier one is planned as it was when it was new."""

from itertools import pairwise
from typing import Any

import pytest

from multimodal.film import ProbedFilm
from multimodal.film_file import FilmIndex
from multimodal.image import Size
from multimodal.video import VideoFacts, VideoPlan, VideoRequest, plan_video
from server.errors import RequestError
from server.media.films import Asker, plan_films, turns_of
from server.schemas.media_knobs import NO_KNOBS, MediaKnobs
from server.schemas.media_parts import MediaPart
from tests.support.live_gateway import LiveGateway
from tests.support.media_fixture_adapter import LIMITS
from tests.support.media_links import file_part, text, user

pytestmark = pytest.mark.e2e

LONG = VideoFacts.constant_rate(1080, 1920, 30.0, 18_000)  # ten minutes
LENGTH = 32_768


def probed(facts: VideoFacts) -> ProbedFilm:
    return ProbedFilm(facts, FilmIndex(Size(facts.height, facts.width), [], 0.0, None), None)


def message(role: str, *kinds: str, place: int = 0) -> dict[str, Any]:
    parts = [MediaPart(kind, "", f"messages[{place}].content[{at}]") for at, kind in enumerate(kinds)]  # type: ignore[arg-type]
    return {"role": role, "content": [{"type": part.kind, "media": part} for part in parts]}


def planned(
    conversation: list[dict[str, Any]], text_tokens: int = 40, picture_tokens: int = 0, knobs: MediaKnobs = NO_KNOBS
) -> dict[str, VideoPlan]:
    """Every message counts `text_tokens`, and each of its items one more."""
    turns = turns_of(conversation)
    parts = [part for turn in turns for part in turn.parts]

    def count(num_messages: int) -> int:
        return sum(text_tokens + len(one["content"]) for one in conversation[:num_messages])

    return plan_films(
        turns,
        {part.path: probed(LONG) for part in parts if part.kind == "video"},
        {part.path: picture_tokens for part in parts if part.kind != "video"},
        count,
        Asker(knobs, "auto", LIMITS, LENGTH),
    )


def alone(room: int) -> VideoPlan:
    return plan_video(LONG, VideoRequest(seq=room, output_reserve=0), LIMITS)


def test_the_only_film_of_a_new_conversation_has_the_whole_context() -> None:
    [plan] = planned([message("user", "video")]).values()
    assert plan == plan_video(LONG, VideoRequest(seq=LENGTH), LIMITS)
    assert plan.solved_num_frames == 145  # as worked out for the reference


def test_a_long_text_takes_its_part_only_where_both_would_not_fit() -> None:
    whole = plan_video(LONG, VideoRequest(seq=LENGTH), LIMITS)
    [plan] = planned([message("user", "video")], text_tokens=5000).values()
    assert plan == whole
    [plan] = planned([message("user", "video")], text_tokens=20_000).values()
    left = LENGTH - (20_000 - 80)
    assert plan == alone(left - left // 4)
    assert plan.prompt_tokens + 20_000 < LENGTH


@pytest.mark.parametrize("films", [2, 3, 5])
def test_films_of_a_turn_share_equally_and_fit(films: int) -> None:
    plans = list(planned([message("user", *["video"] * films)]).values())
    room = LENGTH - LENGTH // 4
    assert plans == [alone(room // films)] * films
    assert sum(plan.prompt_tokens for plan in plans) + 40 < room


def test_pictures_and_sounds_of_the_turn_take_their_part_first_wherever_they_stand() -> None:
    plans = planned([message("user", "image", "video", "audio")], text_tokens=60, picture_tokens=1000)
    left = LENGTH - (60 + 2000 - 80)
    assert list(plans.values()) == [alone(left - left // 4)]


def test_a_later_turn_leaves_the_films_before_it_as_they_were() -> None:
    first = [message("user", "video", "image")]
    then = planned(first, picture_tokens=300)
    talk = [*first, message("assistant", place=1), message("user", "video", "video", place=2)]
    now = planned(talk, picture_tokens=300)
    assert {path: now[path] for path in then} == then
    before = 40 * 3 + then["messages[0].content[0]"].prompt_tokens + 300
    left = LENGTH - (before - 80)
    assert now["messages[2].content[0]"] == now["messages[2].content[1]"] == alone((left - left // 4) // 2)

    later = [*talk, message("assistant", place=3), message("user", "image", "video", place=4)]
    assert planned(later, picture_tokens=300).items() >= now.items()


def test_the_first_film_stays_whole_when_others_follow() -> None:
    talk = [message("user", "video"), message("assistant", place=1), message("user", "video", place=2)]
    plans = planned(talk)
    assert plans["messages[0].content[0]"] == plan_video(LONG, VideoRequest(seq=LENGTH), LIMITS)
    assert sum(plan.prompt_tokens for plan in plans.values()) + 120 < LENGTH


def test_messages_until_the_next_answer_are_one_turn() -> None:
    talk = [message("user", "video"), message("user", "video", place=1), message("tool", "image", place=2)]
    talk += [message("assistant", "image", place=3), message("user", place=4)]
    turns = turns_of(talk)
    assert [(turn.num_messages, turn.num_answers, len(turn.parts)) for turn in turns] == [(3, 0, 3), (4, 0, 1)]


def test_the_answers_reserve_follows_the_knobs() -> None:
    for knobs, reserve in (
        (MediaKnobs(output_reserve=500), 500),
        (MediaKnobs(max_new_tokens=20_000), 20_000),
        (MediaKnobs(output_reserve=500, max_new_tokens=900), 900),
    ):
        [plan] = planned([message("user", "video")], knobs=knobs).values()
        assert plan == alone(LENGTH - reserve)
    [plan] = planned([message("user", "video")], knobs=MediaKnobs(seq=16_384)).values()
    assert plan == plan_video(LONG, VideoRequest(seq=16_384), LIMITS)


def test_where_nothing_is_left_the_film_is_named() -> None:
    for tokens in (LENGTH - 500, LENGTH + 500):
        with pytest.raises(RequestError, match=r"`messages\[0\].content\[0\]`") as caught:
            planned([message("user", "video", "image")], text_tokens=tokens, picture_tokens=1)
        assert (caught.value.status, caught.value.param) == (400, "messages[0].content[0]")


def test_a_conversation_that_goes_on_keeps_its_prefix(gateway: LiveGateway) -> None:
    """Through the real prompt: what was sent is how the next prompt begins."""
    talk = [user(file_part("opus.webm"), text("What is it?")), {"role": "assistant", "content": "A film."}]
    talk += [user(file_part("no_audio.mp4"), file_part("exif6.jpg")), {"role": "assistant", "content": "Another."}]
    talk += [user(file_part("cfr_tone.mp4"))]
    prompts = []
    for end in (1, 3, 5):
        assert gateway.chat(messages=talk[:end]).status_code == 200
        prompts.append(gateway.engine.submitted[-1])
    for before, after in pairwise(prompts):
        assert after.prompt_ids[: len(before.prompt_ids)] == before.prompt_ids
        kept = after.media[: len(before.media)]
        assert list(map(without_start, kept)) == list(map(without_start, before.media))


def without_start(item: Any) -> tuple[Any, ...]:
    return item.kind, item.offset, item.num_tokens, item.shape, item.identity

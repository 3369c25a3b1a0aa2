"""What is remembered of a worker's cache: prefixes, whose prompt a request goes on from, media; no more than fits."""

from engine.wire.messages import PROTOCOL_VERSION, GroupCapacity, MediaItem, Ready, Sampling, Submit
from server.affinity import Affinity, Known, Pages

PAGE = 4
SYSTEM = tuple(range(100, 110))


def ready(cache_tokens: int = 1000) -> Ready:
    groups = (GroupCapacity("dsa", 10, True), GroupCapacity("swa", 99, False))
    return Ready(PROTOCOL_VERSION, "w", 1, "cpu", "float32", "m", 3072, 100, 4, 64, PAGE, cache_tokens * 10, groups)


def request(*prompt: int, behind_system: int = 0, salt: str = "", media: tuple[MediaItem, ...] = ()) -> Submit:
    ends = (behind_system, len(prompt)) if behind_system else (len(prompt),)
    return Submit("r", prompt, Sampling(max_tokens=5), cache_salt=salt, keep_offsets=ends, media=media)


def remember(affinity: Affinity, *requests: Submit) -> None:
    for one in requests:
        affinity.remember(one, Pages(one, PAGE))


def known(affinity: Affinity, one: Submit) -> Known:
    return affinity.known(one, Pages(one, PAGE))


def test_whole_pages_of_a_common_prefix_count() -> None:
    affinity = Affinity(ready())
    assert known(affinity, request(*range(20))) == (0, False)
    remember(affinity, request(*range(10)))
    assert known(affinity, request(*range(9), 77, 78, 79)) == (8, False)
    assert known(affinity, request(*range(7), 77)) == (4, False)
    assert known(affinity, request(77, *range(1, 10))) == (0, False)
    assert known(affinity, request(*range(20), salt="other")) == (0, False)


def test_a_request_that_begins_with_a_whole_earlier_prompt_goes_on_from_it() -> None:
    affinity = Affinity(ready())
    remember(affinity, request(*range(10)), request(*range(8), 50), request(*range(8)))
    assert known(affinity, request(*range(10), 1, 2, 3)) == (8, True)
    assert known(affinity, request(*range(8), 50, 51)).continues
    assert known(affinity, request(*range(8), 60, 61)).continues  # from the third
    assert not known(affinity, request(*range(7), 60, 61)).continues


def test_requests_that_only_share_a_system_turn_do_not_go_on_from_each_other() -> None:
    affinity = Affinity(ready())
    remember(affinity, request(*SYSTEM, behind_system=10))
    assert known(affinity, request(*SYSTEM, 1, 2, behind_system=10)) == (8, False)
    remember(affinity, request(*SYSTEM, 1, 2, behind_system=10))
    assert known(affinity, request(*SYSTEM, 1, 2, 3, behind_system=10)) == (12, True)
    assert known(affinity, request(*SYSTEM, 1, 9, behind_system=10)) == (8, False)


def test_media_count_where_they_are_the_same_in_the_prefix_and_behind_it() -> None:
    def picture(offset: int, name: bytes) -> MediaItem:
        return MediaItem("image", offset, 3, (32, 32, 3), name)

    pads = (9, 9, 9)
    affinity = Affinity(ready())
    remember(affinity, request(1, *pads, 2, 3, media=(picture(1, b"cat"),)))
    assert known(affinity, request(1, *pads, 4, 5, 6, 7, media=(picture(1, b"cat"),))) == (4, False)
    assert known(affinity, request(1, *pads, 2, 3, media=(picture(1, b"dog"),))) == (0, False)
    assert known(affinity, request(8, 8, 8, *pads, 2, 3, media=(picture(3, b"cat"),))) == (3, False)


def test_no_more_is_remembered_than_the_cache_holds_and_ends_are_forgotten_before_beginnings() -> None:
    affinity = Affinity(ready(cache_tokens=5 * PAGE))
    remember(affinity, request(*range(12)), request(*range(50, 62)))
    assert known(affinity, request(*range(50, 62))).tokens == 12
    assert known(affinity, request(*range(12))).tokens == 8


def test_very_long_prompts_are_compared_as_far_as_time_allows() -> None:
    affinity = Affinity(ready(cache_tokens=1 << 20))
    remember(affinity, request(*range(40_000)))
    assert known(affinity, request(*range(35_000), 7)).tokens == 32_768

"""Requests are let in up to a bound of sequences and of tokens, and those outside are told when to come again."""

from pathlib import Path

import pytest

from server.admission import Admission
from server.errors import RequestError
from server.siblings import Siblings

MANY = 1 << 30


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def refusal(admission: Admission) -> RequestError:
    with pytest.raises(RequestError) as raised:
        admission.enter()
    return raised.value


def test_as_many_as_run_and_wait_are_let_in_and_the_next_is_told_the_limit() -> None:
    admission = Admission(2, MANY, num_slots=lambda: 3)
    permits = [admission.enter() for _ in range(5)]
    assert (admission.num_inside, admission.num_sequences) == (5, 5)
    error = refusal(admission)
    assert (error.code, error.status, error.retry_after_s) == ("queue_full", 429, 5)
    assert error.message == "The server takes ≤ 5 sequences at once; it has 5, and 1 more came"
    permits[0].release()
    with admission.enter():
        assert admission.num_inside == 5


def test_a_request_counts_as_the_sequences_that_it_brings() -> None:
    admission = Admission(2, MANY, num_slots=lambda: 3)
    first, second = admission.enter(), admission.enter()
    first.claim(4, 10)
    assert (admission.num_inside, admission.num_sequences, admission.num_tokens) == (2, 5, 10)
    with pytest.raises(RequestError) as raised:
        second.claim(2, 1)
    assert raised.value.code == "queue_full"
    assert admission.num_sequences == 5
    assert refusal(admission).code == "queue_full"
    first.release()
    second.claim(2, 1)
    assert (admission.num_inside, admission.num_sequences, admission.num_tokens) == (1, 2, 1)


def test_what_never_fits_is_429_and_not_to_be_sent_again() -> None:
    permit = Admission(2, 100, num_slots=lambda: 1).enter()
    for sequences, tokens, words in (
        (4, 1, "takes ≤ 3 sequences at once, and this request alone has 4"),
        (1, 101, "takes ≤ 100 prompt tokens at once, and this request has 101"),
    ):
        with pytest.raises(RequestError, match=words) as raised:
            permit.claim(sequences, tokens)
        assert (raised.value.code, raised.value.status) == ("request_exceeds_queue", 429)
    permit.claim(3, 100)


def test_tokens_inside_are_bounded_too() -> None:
    admission = Admission(9, 100, num_slots=lambda: 1)
    first, second = admission.enter(), admission.enter()
    first.claim(1, 60)
    with pytest.raises(RequestError, match="it has 60, and 41 more came") as raised:
        second.claim(1, 41)
    assert (raised.value.code, raised.value.retry_after_s) == ("queue_full", 5)
    second.claim(1, 40)


def test_a_permit_gives_its_place_back_once_however_it_ends() -> None:
    admission = Admission(8, MANY, num_slots=lambda: 0)
    permit = admission.enter()
    permit.claim(7, 7)
    with pytest.raises(KeyError), permit:
        raise KeyError("x")
    permit.release()
    permit.release()
    assert (admission.num_inside, admission.num_sequences, admission.num_tokens) == (0, 0, 0)
    with pytest.raises(ValueError, match="given back"):
        permit.claim(1, 1)


@pytest.mark.parametrize("each", [1, 2])
def test_the_time_to_come_again_follows_the_rate_at_which_sequences_leave(each: int) -> None:
    clock = Clock()
    admission = Admission(10, MANY, num_slots=lambda: 0, clock=clock)
    for _ in range(20):  # two requests leave each second
        permit = admission.enter()
        permit.claim(each, 1)
        clock.now += 0.5
        permit.release()
    for _ in range(10):
        admission.enter()
    assert refusal(admission).retry_after_s == {1: 5, 2: 3}[each]
    clock.now += 10_000  # nothing has left for hours
    assert refusal(admission).retry_after_s == 60


def test_a_fast_server_asks_for_a_second() -> None:
    clock = Clock()
    admission = Admission(1, MANY, num_slots=lambda: 0, clock=clock)
    for _ in range(50):
        admission.enter().release()
        clock.now += 0.001
    admission.enter()
    assert refusal(admission).retry_after_s == 1


def test_a_draining_server_lets_nobody_in() -> None:
    admission = Admission(2, MANY, num_slots=lambda: 2)
    admission.drain()
    error = refusal(admission)
    assert (error.code, error.status) == ("draining", 503)
    assert error.retry_after_s is not None


def test_room_grows_when_workers_announce_their_slots() -> None:
    slots = [0]
    admission = Admission(0, MANY, num_slots=lambda: slots[0])
    assert refusal(admission).code == "queue_full"
    slots[0] = 1
    admission.enter()


def test_the_limits_are_of_all_gateway_processes_together(tmp_path: Path) -> None:
    clock = Clock()
    first, second, third = (
        Admission(2, 100, num_slots=lambda: 2, siblings=Siblings.of_group(tmp_path, place, 3, 0, 1), clock=clock)
        for place in range(3)
    )
    permits = [first.enter() for _ in range(3)]
    second.enter().claim(1, 70)
    assert refusal(first).message == "The server takes ≤ 4 sequences at once; it has 4, and 1 more came"
    assert refusal(third).code == "queue_full"
    with pytest.raises(RequestError, match="it has 70, and 31 more came"):
        permits[0].claim(1, 31)
    assert (first.num_inside, second.num_inside, third.num_inside) == (3, 1, 0)
    permits[0].release()
    third.enter()
    assert second.num_sequences == 4


def test_the_time_to_come_again_follows_what_leaves_any_process(tmp_path: Path) -> None:
    clock = Clock()
    first, second = (
        Admission(10, MANY, num_slots=lambda: 0, siblings=Siblings.of_group(tmp_path, place, 2, 0, 1), clock=clock)
        for place in range(2)
    )
    for _ in range(20):  # two requests leave each second, one of each process
        for one in (first, second):
            permit = one.enter()
            clock.now += 0.5
            permit.release()
    for _ in range(10):
        second.enter()
    assert refusal(first).retry_after_s == refusal(second).retry_after_s == 5

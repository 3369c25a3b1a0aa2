"""Requests are let in up to a bound, and those outside are told when to come again."""

import pytest

from server.admission import Admission
from server.errors import RequestError


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
    admission = Admission(max_queue=2, num_slots=lambda: 3)
    permits = [admission.enter(10) for _ in range(5)]
    assert (admission.num_inside, admission.num_tokens) == (5, 50)
    error = refusal(admission)
    assert (error.code, error.status, error.retry_after_s) == ("queue_full", 429, 5)
    assert "≤ 5 requests" in error.message
    permits[0].release()
    with admission.enter():
        assert admission.num_inside == 5


def test_a_permit_gives_its_place_back_once_however_it_ends() -> None:
    admission = Admission(max_queue=2, num_slots=lambda: 0)
    permit = admission.enter(7)
    with pytest.raises(KeyError), permit:
        raise KeyError("x")
    permit.release()
    permit.release()
    assert (admission.num_inside, admission.num_tokens) == (0, 0)


def test_the_time_to_come_again_follows_the_rate_at_which_requests_leave() -> None:
    clock = Clock()
    admission = Admission(max_queue=10, num_slots=lambda: 0, clock=clock)
    for _ in range(20):  # two leave each second
        permit = admission.enter()
        clock.now += 0.5
        permit.release()
    for _ in range(10):
        admission.enter()
    assert refusal(admission).retry_after_s == 5
    clock.now += 10_000  # nothing has left for hours
    assert refusal(admission).retry_after_s == 60


def test_a_fast_server_asks_for_a_second() -> None:
    clock = Clock()
    admission = Admission(max_queue=1, num_slots=lambda: 0, clock=clock)
    for _ in range(50):
        admission.enter().release()
        clock.now += 0.001
    admission.enter()
    assert refusal(admission).retry_after_s == 1


def test_a_draining_server_lets_nobody_in() -> None:
    admission = Admission(max_queue=2, num_slots=lambda: 2)
    admission.drain()
    error = refusal(admission)
    assert (error.code, error.status) == ("draining", 503)
    assert error.retry_after_s is not None


def test_room_grows_when_workers_announce_their_slots() -> None:
    slots = [0]
    admission = Admission(max_queue=0, num_slots=lambda: slots[0])
    assert refusal(admission).code == "queue_full"
    slots[0] = 1
    admission.enter()

"""Error answers: one form, small, valid JSON, with what a client's retry logic needs."""

import json

import pytest

from server.errors import KINDS, RequestError, error_headers, error_json, shown


@pytest.mark.parametrize("code", sorted(KINDS))
def test_every_code_is_answered_in_the_nested_form(code: str) -> None:
    error = json.loads(error_json(RequestError(code, "why", "field")))["error"]
    assert error == {"message": "why", "type": KINDS[code].type, "param": "field", "code": code}


def test_a_code_that_nobody_knows_is_an_internal_error() -> None:
    assert RequestError("surprise", "why").status == 500


def test_an_answer_stays_small_and_valid_whatever_the_message() -> None:
    body = error_json(RequestError("invalid_value", "\ud83d" + "é" * 100_000, "p" * 5000 + "\udc00"))
    assert len(body) < 4000
    assert json.loads(body.decode("utf-8"))["error"]["message"].startswith("?é")


@pytest.mark.parametrize("code", ["queue_full", "concurrency_exceeded", "engine_dead", "engine_not_ready", "draining"])
def test_what_may_go_well_later_says_when(code: str) -> None:
    assert int(error_headers(RequestError(code, "why"))["Retry-After"]) >= 1
    assert error_headers(RequestError(code, "why", retry_after_s=7))["Retry-After"] == "7"


@pytest.mark.parametrize("code", ["request_timeout", "request_quarantined"])
def test_what_would_fail_again_asks_clients_not_to_retry(code: str) -> None:
    assert error_headers(RequestError(code, "why"))["x-should-retry"] == "false"


def test_other_errors_say_nothing_of_retries() -> None:
    assert error_headers(RequestError("invalid_value", "why")) == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (3, "3"),
        (0.01, "0.01"),
        ("a\nb", '"a\\nb"'),
        ({"a": 1}, "an object"),
        ([1, 2], "a list of 2"),
        (-(10**100), "an integer of more than 100 digits"),
    ],
)
def test_a_value_is_shown_on_one_short_line(value: object, text: str) -> None:
    assert shown(value) == text


def test_a_long_value_is_cut() -> None:
    assert len(shown("x" * 10**6)) <= 101

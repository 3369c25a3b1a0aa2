"""HTTP as such, on a real port: methods, paths, bodies, keys, origins, ids. A refusal has one status and one form."""

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.live_gateway import MODEL, LiveGateway, live_gateway, wait_until

JSON = {"Content-Type": "application/json"}
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def gateway() -> Iterator[LiveGateway]:
    with live_gateway({"max_body_bytes": 100_000}) as running:
        yield running


def assert_refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) >= {"error"}
    assert "detail" not in body
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["code"] == code
    assert len(answer.content) < 4000
    error: dict[str, Any] = body["error"]
    return error


def answer_on(connection: socket.socket) -> tuple[int, str | None, bytes]:
    """Status, type and body."""
    with contextlib.closing(http.client.HTTPResponse(connection)) as answer:
        answer.begin()
        return answer.status, answer.headers["content-type"], answer.read()


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize("method", ["GET", "OPTIONS", "PUT", "DELETE", "PATCH"])
def test_another_method_on_a_post_route_is_405(gateway: LiveGateway, method: str, path: str) -> None:
    answer = gateway.client.request(method, path)
    assert_refused(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


def test_head_on_a_post_route_is_405_without_a_body(gateway: LiveGateway) -> None:
    answer = gateway.client.head(CHAT)
    assert (answer.status_code, answer.content) == (405, b"")


@pytest.mark.parametrize("path", ["/livez", "/health", "/readyz", "/v1/models", "/metrics", "/version", "/docs"])
def test_head_on_a_get_route_is_its_get_without_a_body(gateway: LiveGateway, path: str) -> None:
    whole, head = gateway.client.get(path), gateway.client.head(path)
    assert (whole.status_code, head.status_code, head.content) == (200, 200, b"")


@pytest.mark.parametrize(
    "path", ["/", "/v1", CHAT + "/", "/v1/completions/", "/V1/chat/completions", "/v1/chat", "/%00", "/livez/"]
)
def test_a_path_that_nobody_serves_is_404(gateway: LiveGateway, path: str) -> None:
    assert_refused(gateway.client.post(path, json={}), 404, "not_found")


def test_a_path_with_two_slashes_is_404(gateway: LiveGateway) -> None:
    assert_refused(gateway.client.post(gateway.url + "//v1/chat/completions", json={}), 404, "not_found")


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xef\xbb\xbf{}", b'"\xff"', b"[" * 90_000, b"{" * 90_000, b"null"]
)
def test_a_body_that_is_no_json_object_is_400(gateway: LiveGateway, path: str, body: bytes) -> None:
    assert_refused(gateway.client.post(path, content=body, headers=JSON), 400, "invalid_json")


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/jsonx"},
        {"Content-Type": "application/json; charset=latin-1"},
        {},
        JSON | {"Content-Encoding": "gzip"},
    ],
)
def test_another_kind_of_body_is_415(gateway: LiveGateway, headers: dict[str, str]) -> None:
    assert_refused(gateway.client.post(CHAT, content=b"{}", headers=headers), 415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.x+json"])
def test_json_under_its_other_names_is_read(gateway: LiveGateway, kind: str) -> None:
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]})
    assert gateway.client.post(CHAT, content=body, headers={"Content-Type": kind}).status_code == 200


def test_a_body_too_large_is_413_before_it_is_read(gateway: LiveGateway) -> None:
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100001\r\n\r\n"
        connection.sendall(head.encode())
        status, _, body = answer_on(connection)
        assert status == 413
        assert "≤ 100000 bytes, got 100001" in json.loads(body)["error"]["message"]


def test_a_body_too_large_without_a_stated_length_is_413(gateway: LiveGateway) -> None:
    answer = gateway.client.post(CHAT, content=(b" " * 10_000 for _ in range(11)), headers=JSON)
    assert_refused(answer, 413, "too_large")


def test_a_body_as_large_as_allowed_is_read(gateway: LiveGateway) -> None:
    assert_refused(gateway.client.post(CHAT, content=b"{}".ljust(100_000), headers=JSON), 400, "missing_field")


@pytest.mark.parametrize(
    "head", ["BREW /v1/models HTTP/1.1", "\\x16\\x03\\x01", "POST / HTTP/1.1\r\nContent-Length: x", "GET / HTTP/9.9"]
)
def test_what_is_no_http_is_400_in_the_same_form(gateway: LiveGateway, head: str) -> None:
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(head.encode() + b"\r\nHost: x\r\n\r\n")
        status, kind, body = answer_on(connection)
        assert (status, kind) == (400, "application/json")
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


def test_a_client_that_leaves_amid_its_body_does_no_harm(gateway: LiveGateway) -> None:
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
        connection.sendall(head.encode() + b'{"model')
    assert gateway.chat().status_code == 200


def test_a_body_shorter_than_its_stated_length_is_408_after_a_while() -> None:
    with live_gateway({"write_timeout": 0.3}) as impatient:
        host, port = impatient.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
            connection.sendall(head.encode() + b"{}")
            status, _, body = answer_on(connection)
    assert (status, json.loads(body)["error"]["code"]) == (408, "request_timeout")


def connected(gateway: LiveGateway) -> socket.socket:
    host, port = gateway.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


@pytest.mark.parametrize("start", [b"GET /", b"GET /livez HTTP/1.1\r\nHost: x\r\n", b"\r\n"])
def test_a_head_that_does_not_come_to_its_end_is_408(start: bytes) -> None:
    with live_gateway({"write_timeout": 0.3}) as impatient, connected(impatient) as connection:
        began_s = time.monotonic()
        connection.sendall(start)
        with contextlib.suppress(TimeoutError, BrokenPipeError, ConnectionResetError):
            for _ in range(4):  # more bytes do not move the end
                time.sleep(0.06)
                connection.sendall(b"\r\n" if start == b"\r\n" else b"a")
        status, _, body = answer_on(connection)
        assert (status, json.loads(body)["error"]["code"]) == (408, "request_timeout")
        assert 0.25 < time.monotonic() - began_s < 8
        assert connection.recv(1) == b""


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nX: ", b"a" * 1000),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\n", b"X: " + b"a" * 995 + b"\r\n"),
        (b"GET /", b"a" * 1000),
    ],
    ids=["one header", "many headers", "path"],
)
def test_a_head_that_grows_without_end_is_413(gateway: LiveGateway, start: bytes, more: bytes) -> None:
    with connected(gateway) as connection:
        connection.sendall(start)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(20_000):
                connection.sendall(more)
            pytest.fail("20 MB were taken")
    assert gateway.client.get("/livez").status_code == 200


def test_a_head_too_large_is_told_its_limit(gateway: LiveGateway) -> None:
    with connected(gateway) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 66_000)
        status, _, body = answer_on(connection)
    assert (status, json.loads(body)["error"]["code"]) == (413, "too_large")
    assert "≤ 65536 bytes" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize("start", [b"0\r\nX: ", b"1;x="], ids=["trailer", "chunk extension"])
def test_what_stands_between_the_pieces_of_a_body_is_bounded_too(gateway: LiveGateway, start: bytes) -> None:
    with connected(gateway) as connection:
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        connection.sendall(head.encode() + start)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(20_000):
                connection.sendall(b"a" * 1000)
            pytest.fail("20 MB were taken")
    assert gateway.chat().status_code == 200


def test_heads_and_bodies_below_their_limits_are_read_on_one_connection(gateway: LiveGateway) -> None:
    body = b"[" + b" " * 90_000 + b"]"
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nX: {'a' * 60_000}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with connected(gateway) as connection:
        for _ in range(3):
            connection.sendall(head + body)
            assert answer_on(connection)[0] == 415


def test_a_second_request_on_a_connection_has_its_own_time() -> None:
    with live_gateway({"write_timeout": 1.0}) as impatient, connected(impatient) as connection:
        for _ in range(3):
            time.sleep(0.4)
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answer_on(connection)[0] == 200


def test_a_body_that_trickles_is_408() -> None:
    with live_gateway({"write_timeout": 0.4}) as impatient, connected(impatient) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
        connection.sendall(head.encode())
        began_s = time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(8):
                connection.sendall(b"{")
                time.sleep(0.1)
        status, _, body = answer_on(connection)
        assert (status, json.loads(body)["error"]["code"]) == (408, "request_timeout")
        assert "1000 bytes/s" in json.loads(body)["error"]["message"]
        assert time.monotonic() - began_s < 8


def test_connections_are_bounded_and_those_outside_get_429() -> None:
    with live_gateway({"max_connections": 2}) as small, connected(small) as one, connected(small) as two:
        for connection in (one, two):
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answer_on(connection)[0] == 200
        with connected(small) as third:
            status, kind, body = answer_on(third)
            assert (status, kind) == (429, "application/json")
            assert "≤ 2 connections" in json.loads(body)["error"]["message"]
        one.close()
        wait_until(lambda: small.client.get("/livez").status_code == 200)


def test_the_request_id_of_a_client_is_given_back_and_another_is_made(gateway: LiveGateway) -> None:
    assert gateway.client.get("/livez", headers={"X-Request-Id": "my-id.1"}).headers["x-request-id"] == "my-id.1"
    made = gateway.client.get("/livez", headers={"X-Request-Id": "no good"}).headers["x-request-id"]
    assert len(made) == 32
    assert gateway.client.get("/livez").headers["x-request-id"] != made


def test_requests_with_the_same_id_reach_the_engine_under_different_ones(gateway: LiveGateway) -> None:
    for _ in range(2):
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "request_id": "same"}
        answer = gateway.client.post(CHAT, json=body, headers={"X-Request-Id": "same"})
        assert answer.json()["id"] == "chatcmpl-same"
    first, second = gateway.engine.submitted[-2:]
    assert first.request_id != second.request_id


@pytest.mark.parametrize("path", ["/livez", "/nowhere", "/docs", "/v1/models"])
def test_every_answer_bears_the_security_headers(gateway: LiveGateway, path: str) -> None:
    headers = gateway.client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "no-store" in headers["cache-control"]


def test_no_origin_is_allowed_unless_it_is_named(gateway: LiveGateway) -> None:
    answer = gateway.client.get("/v1/models", headers={"Origin": "https://example.com"})
    assert "access-control-allow-origin" not in answer.headers


@pytest.fixture(scope="module")
def locked() -> Iterator[LiveGateway]:
    with live_gateway({"api_key": ["right", "other"]}) as running:
        yield running


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", CHAT),
        ("POST", "/v1/completions"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("GET", "/version"),
        ("GET", "/nowhere"),
        ("POST", "/V1/chat/completions"),
        ("OPTIONS", CHAT),
        ("PROPFIND", "/v1/models"),
        ("GET", "/health/"),
        ("GET", "/livez/../v1/models"),
        ("GET", "/%6cive"),
    ],
)
def test_without_a_key_everything_but_a_probe_is_401(locked: LiveGateway, method: str, path: str) -> None:
    answer = locked.client.request(method, path)
    assert_refused(answer, 401, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_two_slashes_do_not_get_round_the_key(locked: LiveGateway) -> None:
    assert_refused(locked.client.get(locked.url + "//v1/models"), 401, "invalid_api_key")


@pytest.mark.parametrize("path", ["/livez", "/health", "/readyz"])
def test_probes_need_no_key(locked: LiveGateway, path: str) -> None:
    assert locked.client.get(path).status_code == 200


@pytest.mark.parametrize(
    "value", ["Bearer wrong", "Bearer", "right", "Basic right", "Bearer right,other", "Bearer Right"]
)
def test_a_wrong_key_is_401(locked: LiveGateway, value: str) -> None:
    assert_refused(locked.client.get("/v1/models", headers={"Authorization": value}), 401, "invalid_api_key")


def test_a_key_that_is_no_ascii_is_401(locked: LiveGateway) -> None:
    headers = {b"Authorization": "Bearer schlüssel".encode("latin-1")}
    assert_refused(locked.client.get("/v1/models", headers=headers), 401, "invalid_api_key")


@pytest.mark.parametrize("value", ["Bearer right", "bearer other"])
def test_each_of_the_keys_opens(locked: LiveGateway, value: str) -> None:
    assert locked.client.get("/v1/models", headers={"Authorization": value}).status_code == 200


@pytest.fixture(scope="module")
def open_to_one() -> Iterator[LiveGateway]:
    with live_gateway({"allowed_origins": ["https://example.com"], "api_key": ["right"]}) as running:
        yield running


def preflight(gateway: LiveGateway, origin: str) -> httpx.Response:
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-a"}
    return gateway.client.options(CHAT, headers=headers)


def test_a_preflight_of_an_allowed_origin_needs_no_key(open_to_one: LiveGateway) -> None:
    answer = preflight(open_to_one, "https://example.com")
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == "https://example.com"
    assert answer.headers["access-control-allow-headers"] == "x-a"


def test_a_preflight_of_another_origin_is_a_json_error(open_to_one: LiveGateway) -> None:
    answer = preflight(open_to_one, "https://example.org")
    assert_refused(answer, 401, "invalid_api_key")
    assert "access-control-allow-origin" not in answer.headers


def test_errors_can_be_read_by_an_allowed_origin_too(open_to_one: LiveGateway) -> None:
    answer = open_to_one.client.get("/v1/models", headers={"Origin": "https://example.com"})
    assert_refused(answer, 401, "invalid_api_key")
    assert answer.headers["access-control-allow-origin"] == "https://example.com"

"""Where the gateway listens: TCP, Unix sockets, what is taken, and the line that a user pastes."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from server.listener import Listener, ListenError
from server.settings import Settings


@contextmanager
def bound(**fields: Any) -> Iterator[Listener]:
    listener = Listener.bind(Settings(**fields))
    try:
        yield listener
    finally:
        listener.close()


def test_port_0_is_any_free_one_and_is_told() -> None:
    with bound(port=0) as listener:
        port = listener.socket.getsockname()[1]
        assert listener.url == f"http://127.0.0.1:{port}"
        socket.create_connection(("127.0.0.1", port)).close()


@pytest.mark.parametrize(("host", "shown"), [("0.0.0.0", "localhost"), ("localhost", "localhost"), ("::1", "[::1]")])
def test_the_url_is_one_that_can_be_asked(host: str, shown: str) -> None:
    try:
        with bound(host=host, port=0) as listener:
            assert listener.url.startswith(f"http://{shown}:")
    except ListenError:
        if host != "::1":  # a machine may be without IPv6
            raise


def test_a_port_in_use_is_refused_by_name() -> None:
    with bound(port=0) as first:
        port = first.socket.getsockname()[1]
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1 port {port}"):
            Listener.bind(Settings(port=port))


def test_a_unix_socket_goes_away_with_its_listener(tmp_path: Path) -> None:
    path = tmp_path / "dots3.sock"
    with bound(uds=str(path)):
        assert path.is_socket()
        with pytest.raises(ListenError, match="another process does"):
            Listener.bind(Settings(uds=str(path)))
    assert not path.exists()


def test_a_socket_file_left_behind_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "dots3.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    with bound(uds=str(path)) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert listener.uds == str(path)


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("precious")
    with pytest.raises(ListenError, match=r"notes\.txt"):
        Listener.bind(Settings(uds=str(path)))
    assert path.read_text() == "precious"


def test_the_curl_line_is_quoted_and_shows_no_key(tmp_path: Path) -> None:
    with bound(uds=str(tmp_path / "s"), api_key=("secret",)) as listener:
        line = listener.curl("it's", with_key=True)
    assert "secret" not in line
    assert line.endswith('-H "Authorization: Bearer $API_KEY"')
    assert f"--unix-socket {tmp_path / 's'}" in line
    assert """'"'"'""" in line

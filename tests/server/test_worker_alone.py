"""Where `dots3 worker` reaches its own worker."""

import pytest

from server.worker_alone import reached


@pytest.mark.parametrize(
    ("listens", "wanted"),
    [
        ("ipc:///run/w", "ipc:///run/w"),
        ("tcp://127.0.0.1:5555", "tcp://127.0.0.1:5555"),
        ("tcp://gpu-1.example:5555", "tcp://gpu-1.example:5555"),
        ("tcp://*:5555", "tcp://127.0.0.1:5555"),
        ("tcp://0.0.0.0:5555", "tcp://127.0.0.1:5555"),
        ("tcp://[::]:5555", "tcp://[::1]:5555"),
    ],
)
def test_all_interfaces_are_reached_through_the_loopback(listens: str, wanted: str) -> None:
    assert reached(listens) == wanted

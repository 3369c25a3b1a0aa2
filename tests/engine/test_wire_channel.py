import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from engine.wire.channel import AddressError, DealerEnd, Received, RouterEnd, WireKey, check_address

WAIT_S = 5.0
KEY = WireKey(b"k" * 32)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/wire"


def received_by(router: RouterEnd, timeout_s: float = WAIT_S) -> Received | None:
    router.socket.poll(int(timeout_s * 1000))
    return router.receive()


async def next_at(router: RouterEnd) -> Received:
    """What the worker gets next, while the gateway's event loop goes on."""
    give_up = time.monotonic() + WAIT_S
    while time.monotonic() < give_up:
        if (got := router.receive()) is not None:
            return got
        await asyncio.sleep(0.005)
    raise TimeoutError("nothing arrived at the worker")


async def sent(dealer: DealerEnd, frame: bytes) -> None:
    give_up = time.monotonic() + WAIT_S
    while not dealer.send(frame):
        assert time.monotonic() < give_up, "no connection"
        await asyncio.sleep(0.005)


def free_tcp_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(params=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if request.param == "uvloop" else None) as runner:
        yield runner


def test_a_new_connection_is_announced_and_frames_pass_both_ways(runner: asyncio.Runner, address: str) -> None:
    async def talk() -> None:
        dealer = DealerEnd(address, "g1")
        assert not dealer.send(b"too early")
        router = RouterEnd(address)
        assert await next_at(router) == Received(b"g1", b"")
        await sent(dealer, b"up")
        assert await next_at(router) == Received(b"g1", b"up")
        for number in range(100):
            assert router.send(b"g1", b"down %d" % number)
        assert [await asyncio.wait_for(dealer.receive(), WAIT_S) for _ in range(100)] == [
            b"down %d" % number for number in range(100)
        ]
        dealer.close()
        dealer.close()
        router.close()

    runner.run(talk())


def test_a_new_worker_gets_no_frames_of_the_old_one_and_is_greeted_again(runner: asyncio.Runner, address: str) -> None:
    async def talk() -> None:
        dealer = DealerEnd(address, "g1")
        for number in range(3):
            router = RouterEnd(address)
            assert await next_at(router) == Received(b"g1", b"")
            await sent(dealer, b"%d" % number)
            assert await next_at(router) == Received(b"g1", b"%d" % number)
            assert router.send(b"g1", b"answer")
            assert await asyncio.wait_for(dealer.receive(), WAIT_S) == b"answer"
            router.close()
            give_up = time.monotonic() + WAIT_S
            while dealer.send(b"stale"):
                assert time.monotonic() < give_up, "the lost connection was not noticed"
                await asyncio.sleep(0.01)
        dealer.close()

    runner.run(talk())


def test_a_worker_hears_that_a_gateway_left(runner: asyncio.Runner, address: str) -> None:
    async def talk() -> None:
        router = RouterEnd(address)
        first, second = DealerEnd(address, "g1"), DealerEnd(address, "g2")
        assert {(await next_at(router)).peer, (await next_at(router)).peer} == {b"g1", b"g2"}
        first.close()
        give_up = time.monotonic() + WAIT_S
        while router.send(b"g1", b"beat"):
            assert time.monotonic() < give_up
            await asyncio.sleep(0.01)
        assert router.send(b"g2", b"beat")
        assert await asyncio.wait_for(second.receive(), WAIT_S) == b"beat"
        second.close()
        router.close()

    runner.run(talk())


def test_one_reader_only(runner: asyncio.Runner, address: str) -> None:
    async def talk() -> None:
        dealer = DealerEnd(address, "g1")
        first = asyncio.create_task(dealer.receive())
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match="one reader"):
            await dealer.receive()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        dealer.close()

    runner.run(talk())


@pytest.mark.parametrize(("gateway_key", "gets_in"), [(KEY, True), (WireKey(b"x" * 32), False), (None, False)])
def test_only_a_gateway_with_the_key_gets_in(gateway_key: WireKey | None, gets_in: bool) -> None:
    async def talk() -> None:
        address = f"tcp://127.0.0.1:{free_tcp_port()}"
        router = RouterEnd(address, KEY)
        dealer = DealerEnd(address, "g1", gateway_key)
        if gets_in:
            assert await next_at(router) == Received(b"g1", b"")
            assert router.send(b"g1", b"hello")
            assert await asyncio.wait_for(dealer.receive(), WAIT_S) == b"hello"
        else:
            await asyncio.sleep(0.3)
            assert router.receive() is None
            assert not dealer.send(b"let me in")
        dealer.close()
        router.close()

    asyncio.run(talk())


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:5000", "tcp://10.0.0.1:5000", "tcp://[::]:1", "tcp://*:1"])
def test_tcp_off_loopback_needs_a_key(address: str) -> None:
    with pytest.raises(AddressError, match="needs a wire key"):
        check_address(address, None)
    check_address(address, KEY)


@pytest.mark.parametrize("address", ["", "ipc://", "tcp://", "http://127.0.0.1:1", "/tmp/x", "inproc://a"])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(AddressError, match="must be ipc://PATH or tcp://HOST:PORT"):
        check_address(address, KEY)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:5000", "tcp://localhost:1", "tcp://[::1]:1", "ipc:///run/x"])
def test_this_host_needs_no_key(address: str) -> None:
    check_address(address, None)


def test_a_short_key_is_refused() -> None:
    with pytest.raises(AddressError, match="≥ 32 bytes, got 5"):
        WireKey(b"short")


def test_a_stale_socket_file_is_replaced_and_a_living_worker_is_not(tmp_path: Path) -> None:
    path = tmp_path / "wire"
    left_over = socket.socket(socket.AF_UNIX)
    left_over.bind(str(path))
    left_over.close()
    router = RouterEnd(f"ipc://{path}")
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(AddressError, match="another process listens"):
        RouterEnd(f"ipc://{path}")
    router.close()


def test_a_file_in_the_way_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(AddressError, match="is not a socket"):
        RouterEnd(f"ipc://{path}")
    assert path.read_text() == "mine"


def test_a_port_in_use_is_an_error_that_names_the_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AddressError, match=f"cannot listen on '{address}'"):
            RouterEnd(address)

"""The I/O thread over real sockets, without an engine."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.runtime.mailroom import Arrived, Left, Letter, Mailroom, Stopping
from engine.wire.channel import DealerEnd, RouterEnd
from engine.wire.codec import decode_to_gateway, encode
from engine.wire.gateways import BEAT_S
from engine.wire.messages import Abort, Beat, Failed, Finished, Message, Ready, Tokens

WAIT_S = 5.0
READY = Ready(1, "w", 2, "cpu", "float32", "/m", 9, 8, 7, 6, 16, 5, ())


class Office:
    def __init__(self, address: str) -> None:
        self.progress = 0
        self.mailroom = Mailroom(RouterEnd(address), READY, self.beat)
        self.mailroom.start()

    def beat(self) -> Beat:
        self.progress += 1
        return Beat(self.progress, False, 0, 0, {}, 0, 0, 0)

    def next(self, kind: type[Letter]) -> Letter:
        letter = self.mailroom.inbox.get(timeout=WAIT_S)
        assert isinstance(letter, kind)
        return letter


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/wire"


@pytest.fixture
def office(address: str) -> Iterator[Office]:
    office = Office(address)
    yield office
    office.mailroom.close()


async def receive(dealer: DealerEnd, beats: bool = False) -> list[Message]:
    while True:
        messages: list[Message] = list(decode_to_gateway(await asyncio.wait_for(dealer.receive(), WAIT_S)))
        if beats or not all(isinstance(message, Beat) for message in messages):
            return messages


async def connected(address: str, name: str) -> DealerEnd:
    dealer = DealerEnd(address, name)
    assert await receive(dealer) == [READY]
    return dealer


async def letter(office: Office, kind: type[Letter]) -> Letter:
    return await asyncio.to_thread(office.next, kind)


def test_ready_comes_first_then_messages_pass_both_ways(office: Office, address: str) -> None:
    async def talk() -> None:
        dealer = await connected(address, "g")
        dealer.send(encode([Abort("a"), Abort("b")]))
        assert await letter(office, Arrived) == Arrived(b"g", Abort("a"))
        assert await letter(office, Arrived) == Arrived(b"g", Abort("b"))
        for number in range(50):
            office.mailroom.post(b"g", [Tokens("a", 0, (number,)), Tokens("b", 0, (number,))])
        for number in range(50):
            assert await receive(dealer) == [Tokens("a", 0, (number,)), Tokens("b", 0, (number,))]
        dealer.close()

    asyncio.run(talk())


@pytest.mark.usefixtures("office")
def test_beats_come_to_every_gateway_while_the_loop_is_busy(address: str) -> None:
    async def talk() -> None:
        dealers = [await connected(address, f"g{number}") for number in range(3)]
        busy = threading.Thread(target=lambda: sum(range(20_000_000)))
        busy.start()
        for dealer in dealers:
            begun = time.monotonic()
            beats = [(await receive(dealer, beats=True))[0] for _ in range(3)]
            assert time.monotonic() - begun < 20 * BEAT_S
            numbers = [beat.progress for beat in beats if isinstance(beat, Beat)]
            assert numbers == sorted(set(numbers))
            assert len(numbers) == 3
            dealer.close()
        await asyncio.to_thread(busy.join)

    asyncio.run(talk())


def test_a_gateway_that_leaves_or_connects_anew_is_told_to_the_loop(office: Office, address: str) -> None:
    async def talk() -> None:
        first = await connected(address, "g")
        first.close()
        second = await connected(address, "g")
        assert await letter(office, Left) == Left(b"g")
        other = await connected(address, "h")
        second.close()
        assert await letter(office, Left) == Left(b"g")
        office.mailroom.post(b"g", [Failed("to nobody", "x", "y")])
        office.mailroom.post(b"h", [Failed("r", "x", "y")])
        assert await receive(other) == [Failed("r", "x", "y")]
        other.close()

    asyncio.run(talk())


def test_nonsense_is_logged_and_passed_over(office: Office, address: str, caplog: pytest.LogCaptureFixture) -> None:
    async def talk() -> None:
        dealer = await connected(address, "g")
        dealer.send(b"\x63nonsense")
        dealer.send(encode([Abort("a")])[:-1])
        dealer.send(encode([Tokens("not for a worker", 0, ())]))
        dealer.send(encode([Abort("a")]))
        assert await letter(office, Arrived) == Arrived(b"g", Abort("a"))
        dealer.close()

    asyncio.run(talk())
    assert len([record for record in caplog.records if "sent nonsense" in record.message]) == 3


def test_what_was_posted_before_closing_still_arrives(address: str) -> None:
    async def talk() -> None:
        office = Office(address)
        dealer = await connected(address, "g")
        ends: list[Message] = [Finished(f"r{number}", 1, 0, 1, 0.0) for number in range(100)]
        for end in ends:
            office.mailroom.post(b"g", [end])
        closing = asyncio.create_task(asyncio.to_thread(office.mailroom.close))  # a gateway always reads meanwhile
        assert [(await receive(dealer))[0] for _ in ends] == ends
        await closing
        assert await letter(office, Stopping) == Stopping(failed=False)
        dealer.close()

    asyncio.run(talk())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_loop_is_told_if_the_thread_dies(address: str) -> None:
    def broken() -> Beat:
        raise ZeroDivisionError("as the test wants")

    async def talk() -> None:
        office.mailroom._beat = broken
        dealer = DealerEnd(address, "g")
        assert await letter(office, Stopping) == Stopping(failed=True)
        dealer.close()

    office = Office(address)
    asyncio.run(talk())
    office.mailroom.close()

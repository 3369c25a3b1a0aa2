"""How arrays reach the worker, in shared memory or in the message; and how long what was decoded is kept."""

import asyncio
import os
import resource
import signal

import msgspec
import numpy as np
import pytest

from engine.wire.blobs import FOLDER, SharedBlob, take
from engine.wire.messages import MediaData, MediaSupport, Ready
from multimodal.decode_jobs import Sound
from server.errors import RequestError
from server.media.decoded_cache import DecodedCache
from server.media.pool import Decoded
from server.media.prepared import Piece, PlacedMedia, PreparedMedia, place
from server.media.staging import stage
from server.router import Router
from server.worker_link import WorkerLink
from tests.support.fake_engine import READY
from tests.support.open_files import open_files

PADS = {"image": 7, "audio": 8}


def piece(kind: str, num_tokens: int, fill: int = 0) -> Piece:
    data = np.full(num_tokens * 4, fill, dtype=np.uint8)
    return Piece(kind, num_tokens, data.shape, data.data)  # type: ignore[arg-type]


def placed(ids: list[int], *pieces: Piece) -> PlacedMedia:
    return place(PreparedMedia({}, pieces, ()), ids, PADS)  # type: ignore[arg-type]


MEDIA = placed([1, 7, 7, 2, 8, 3, 7, 7], piece("image", 2, 1), piece("audio", 1, 2), piece("image", 2, 1))


def ready_with(probe: str, max_model_len: int = 8192) -> Ready:
    media = MediaSupport(kinds=("image", "audio"), max_item_tokens=100, probe=probe)
    return msgspec.structs.replace(READY, media=media, max_model_len=max_model_len)


# ---- places


def test_items_know_their_places_and_share_equal_bytes() -> None:
    assert [(item.offset, item.num_tokens, item.start) for item in MEDIA.items] == [(1, 2, 0), (4, 1, 8), (6, 2, 0)]
    assert MEDIA.items[0].identity == MEDIA.items[2].identity != MEDIA.items[1].identity
    assert b"".join(MEDIA.parts) == bytes([1] * 8 + [2] * 4)


@pytest.mark.parametrize("ids", [[7], [7, 7, 7], [7, 1, 7], [8, 8], []])
def test_placeholders_that_are_not_those_of_the_pieces_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="placeholders"):
        placed(ids, piece("image", 2))


def test_identity_is_of_kind_shape_and_content() -> None:
    data = np.zeros(12, dtype=np.uint8).data
    pieces = [
        Piece("image", 1, (2, 2, 3), data),
        Piece("image", 1, (1, 4, 3), data),
        Piece("audio", 1, (2, 2, 3), data),
        Piece("image", 1, (2, 2, 3), np.ones(12, dtype=np.uint8).data),
    ]
    assert len({one.identity() for one in pieces}) == 4
    assert all(len(one.identity()) == 32 for one in pieces)


# ---- staging


def test_without_media_nothing_is_staged() -> None:
    async def run() -> None:
        with await stage(None, READY) as data:
            assert data is None

    asyncio.run(run())


def test_a_worker_that_shares_memory_finds_the_bytes_there_until_the_request_is_over() -> None:
    async def run() -> str:
        probe = SharedBlob([b"probe"])
        try:
            with await stage(MEDIA, ready_with(probe.name)) as data:
                assert isinstance(data, MediaData)
                assert (data.inline, data.num_bytes) == (b"", 12)
                assert bytes(take(data.blob, 12)) == b"".join(MEDIA.parts)
            with await stage(MEDIA, ready_with(probe.name)) as second:
                assert second is not None
                assert (FOLDER / second.blob).exists()
                return second.blob
        finally:
            probe.close()

    assert not (FOLDER / asyncio.run(run())).exists()


@pytest.mark.parametrize("probe", ["", "dots3-blob-" + "0" * 32])
def test_a_worker_elsewhere_gets_the_bytes_in_the_message(probe: str) -> None:
    async def run() -> None:
        with await stage(MEDIA, ready_with(probe)) as data:
            assert data == MediaData(num_bytes=12, inline=b"".join(MEDIA.parts))

    asyncio.run(run())


def test_a_shared_memory_that_is_full_is_done_without(caplog: pytest.LogCaptureFixture) -> None:
    """As in a container: here a limit on the size of files takes its place."""
    large = PlacedMedia((), (memoryview(bytes(2**20)),) * 2, ())

    async def run(probe: str) -> None:
        with await stage(large, ready_with(probe)) as data:
            assert data is not None
            assert (data.blob, len(data.inline)) == ("", 2**21)

    probe, limits = SharedBlob([b"probe"]), resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
        asyncio.run(run(probe.name))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
        probe.close()
    assert "no room in shared memory for 2097152 bytes" in caplog.text


def test_what_no_message_can_hold_is_refused() -> None:
    large = PlacedMedia((), (memoryview(bytes(2**20)),) * 225, ())

    async def run() -> None:
        await stage(large, ready_with(""))

    with pytest.raises(RequestError, match=r"234881024 bytes when decoded .* got 235929600") as caught:
        asyncio.run(run())
    assert caught.value.status == 413


def test_a_request_that_leaves_while_its_blob_is_filled_leaves_none() -> None:
    large = PlacedMedia((), (memoryview(bytes(2**24)),) * 4, ())

    async def run(probe: str) -> None:
        before = own_blobs()
        task = asyncio.create_task(stage(large, ready_with(probe)))
        await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(200):
            if own_blobs() == before:
                return
            await asyncio.sleep(0.01)
        pytest.fail("a blob was left behind")

    probe = SharedBlob([b"probe"])
    try:
        asyncio.run(run(probe.name))
    finally:
        probe.close()


def own_blobs() -> set[str]:
    return {str(path) for path in open_files(os.getpid()) if "dots3-blob-" in path.name}


def test_workers_that_do_not_all_share_memory_get_messages() -> None:
    links = [WorkerLink(f"worker-{place}", f"ipc:///tmp/none-{place}") for place in range(2)]
    router = Router(links)
    probe = SharedBlob([b"probe"])
    try:
        links[0].ready = ready_with(probe.name)
        assert router.ready == links[0].ready
        links[1].ready = ready_with("dots3-blob-" + "0" * 32, max_model_len=9000)
        assert router.ready == ready_with("")
    finally:
        probe.close()


# ---- what was decoded last


def test_the_cache_holds_so_many_bytes_and_lets_the_longest_unused_go() -> None:
    cache = DecodedCache(max_bytes=30_000)
    for key in (b"a", b"b"):
        cache.put(key, Decoded(Sound(), bytes(10_000)))
    assert cache.get(b"a") is not None
    cache.put(b"c", Decoded(Sound(), bytes(10_000)))
    assert cache.get(b"b") is None
    assert cache.get(b"a") is not None
    assert cache.num_bytes <= 30_000
    cache.put(b"d", Decoded(Sound(), bytes(40_000)))
    assert cache.get(b"d") is None
    assert cache.get(b"a") is not None

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from engine.wire.blobs import BlobError, SharedBlob, is_here, sweep, take

NAME = "dots3-blob-" + "0" * 32


def test_content_is_the_parts_one_after_the_other(tmp_path: Path) -> None:
    blob = SharedBlob([b"abc", memoryview(b"defg"), b""], tmp_path)
    assert bytes(take(blob.name, 7, tmp_path)) == b"abcdefg"
    blob.close()


def test_a_taken_blob_has_no_name_and_outlives_its_maker(tmp_path: Path) -> None:
    blob = SharedBlob([b"abc"], tmp_path)
    view = take(blob.name, 3, tmp_path)
    assert list(tmp_path.iterdir()) == []
    blob.close()
    blob.close()
    assert bytes(view) == b"abc"


def test_a_blob_is_taken_once(tmp_path: Path) -> None:
    blob = SharedBlob([b"abc"], tmp_path)
    take(blob.name, 3, tmp_path)
    with pytest.raises(BlobError, match="cannot be opened: No such file"):
        take(blob.name, 3, tmp_path)
    blob.close()


def test_closing_removes_what_nobody_took(tmp_path: Path) -> None:
    SharedBlob([b"abc"], tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_length_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    blob = SharedBlob([b"abc"], tmp_path)
    with pytest.raises(BlobError, match="must have 4 bytes, got 3"):
        take(blob.name, 4, tmp_path)
    assert list(tmp_path.iterdir()) == []
    blob.close()


@pytest.mark.parametrize("name", ["", "../passwd", f"../{NAME}", NAME + "/", NAME[:-1] + "G"])
def test_a_name_cannot_lead_elsewhere(name: str, tmp_path: Path) -> None:
    with pytest.raises(BlobError, match="a blob is called"):
        take(name, 1, tmp_path)


def test_a_blob_that_nobody_holds_any_more_is_closed(tmp_path: Path) -> None:
    SharedBlob([b"abc"], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_copy_of_the_process_does_not_close_its_blobs(tmp_path: Path) -> None:
    blob = SharedBlob([b"abc"], tmp_path)
    child = os.fork()
    if child == 0:
        blob.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert is_here(blob.name, tmp_path)
    blob.close()


def test_a_part_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def parts():  # noqa: ANN202
        yield b"abc"
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        SharedBlob(parts(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_gateway_elsewhere_does_not_see_a_blob(tmp_path: Path) -> None:
    blob = SharedBlob([b"probe"], tmp_path)
    assert is_here(blob.name, tmp_path)
    blob.close()
    assert not is_here(blob.name, tmp_path)


def test_sweeping_spares_what_its_maker_holds(tmp_path: Path) -> None:
    blob = SharedBlob([b"abc"], tmp_path)
    (tmp_path / "of-somebody-else").write_bytes(b"")
    assert sweep(tmp_path) == 0
    assert is_here(blob.name, tmp_path)
    blob.close()


def test_sweeping_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    here, there = multiprocessing.Pipe()
    child = os.fork()
    if child == 0:
        blob = SharedBlob([b"abc"], tmp_path)
        there.send(blob.name)
        signal.pause()
    name = here.recv()
    assert sweep(tmp_path) == 0
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert is_here(name, tmp_path)
    assert sweep(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []

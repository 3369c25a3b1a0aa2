"""A process that holds a part of the model and does what rank 0 tells it: `engine.runtime.parallel` says what.

Started by rank 0 with the number of an open socket. Ends with it. Knows no request, no gateway and no settings of its
own.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from engine.config.log_format import set_up_logging
from engine.config.model import ModelConfig
from engine.model.load import load_drafter
from engine.model.mtp import Drafter
from engine.runtime.assembly import Held
from engine.runtime.build import DTYPES, hold
from engine.runtime.media import load_media
from engine.runtime.media_encoder import MediaEncoder
from engine.runtime.parallel import Draft, Encode, Logits, Place, Told, context_of, join
from engine.runtime.parallel_draft import follow_draft
from engine.runtime.parallel_encode import follow_encode

EXIT_FAILED = 1
EXIT_REFUSED = 2
_PARENT_CHECK_S = 0.25

log = logging.getLogger("engine.runtime.rank")  # also where the module runs as __main__


def main() -> int:
    channel: Connection[Any, Any] = Connection(int(sys.argv[1]))
    for number in (signal.SIGTERM, signal.SIGINT):  # rank 0 may still have work for it
        signal.signal(number, signal.SIG_IGN)
    place = msgspec.msgpack.decode(channel.recv_bytes(), type=Place)
    folder = Path(place.meeting).parent
    threading.Thread(target=_end_with, args=(int(sys.argv[2]), folder), daemon=True).start()
    set_up_logging(place.log_level, place.log_format)
    torch.set_num_threads(place.threads)
    try:
        held, encoder, drafter = _hold(place)
    except (ValueError, OSError) as error:
        log.critical("rank %d cannot start: %s", place.rank, error)
        return EXIT_REFUSED
    decoder = msgspec.msgpack.Decoder(Told)
    with torch.inference_mode():
        while True:
            try:
                frame = channel.recv_bytes()
            except (EOFError, OSError):  # rank 0 has ended, and may not have done so in order
                shutil.rmtree(folder, ignore_errors=True)
                return 0
            follow(held, decoder.decode(frame), place.rank, encoder, drafter)


def _hold(place: Place) -> tuple[Held, MediaEncoder | None, Drafter | None]:
    """Encoders are whole on every rank, and so is the layer that drafts, where ranks have sequences of their own."""
    ranks = join(place)
    folder, device, dtype = Path(place.folder), torch.device(place.engine.device), DTYPES[place.engine.dtype]
    config = ModelConfig.from_folder(folder)
    media = load_media(folder, config, device, dtype)
    drafter = None
    if place.engine.speculative_tokens and place.engine.attention_data_parallel:
        drafter = load_drafter(folder, config, device, dtype, place.engine.max_model_len)
    held = hold(folder, place.engine, ranks, media)
    return held, None if media is None else media.encoder(device, None), drafter


def follow(
    held: Held, message: Told, rank: int, encoder: MediaEncoder | None = None, drafter: Drafter | None = None
) -> None:
    """Does what rank 0 said and does itself."""
    model = held.model
    if isinstance(message, Encode):
        assert encoder is not None
        nothing = torch.empty(0, model.config.hidden, dtype=model.dtype, device=model.device)
        follow_encode(message, rank, nothing, encoder.encode)
        return
    if isinstance(message, Logits):
        model.logits(_from_first(held, message.num_rows))
        return
    if isinstance(message, Draft):
        assert drafter is not None
        follow_draft(message, rank, drafter, _from_first(held, sum(message.step.counts)), held.pool)
        return
    device = torch.device("cpu") if message.recorded else model.device
    tokens, context = context_of(message, device)
    if message.embedded:
        counts = message.counts
        tokens = _from_first(held, sum(counts) if counts else message.num_tokens)
        if counts:
            tokens = torch.split(tokens, counts)[rank]
    if message.recorded:
        assert held.graphs is not None
        held.graphs.forward(tokens, context)
    else:
        model.forward(tokens, context, held.pool)


def _from_first(held: Held, num_rows: int) -> torch.Tensor:
    rows = torch.empty(num_rows, held.model.config.hidden, dtype=held.model.dtype, device=held.model.device)
    dist.broadcast(rows, 0)
    return rows


def _end_with(parent_pid: int, folder: Path) -> None:
    """Also where it hangs in an exchange with ranks that are gone."""
    while os.getppid() == parent_pid:
        time.sleep(_PARENT_CHECK_S)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(EXIT_FAILED)


if __name__ == "__main__":
    sys.exit(main())

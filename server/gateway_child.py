"""`python -m server.gateway_child`: one of several gateway processes, started and kept alive by `server.gateway_group`.

Its workers run elsewhere as far as it knows. What its siblings have to know it writes into the numbers that they share.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop

from engine.config.log_format import set_up_logging
from engine.wire.channel import WireKey
from server.engine_client import WorkerHealth
from server.gateway_process import GatewayProcess
from server.life import live
from server.metrics import share_metrics
from server.serving import read_model
from server.settings import Settings
from server.siblings import Siblings
from server.worker_link import WorkerLink
from server.workers import Workers, addresses

_LOOK_S = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--place", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--settings", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    flags = parser.parse_args(arguments)
    settings = _settings(flags.settings)
    set_up_logging(settings.log_level, settings.log_format)
    where = addresses(settings, flags.folder)
    siblings = Siblings.of_group(flags.folder, flags.place, settings.gateway_workers, len(settings.keys), len(where))
    assert siblings.metrics_folder is not None
    share_metrics(siblings.metrics_folder, flags.place)
    key = WireKey.from_file(Path(settings.wire_key)) if settings.wire_key else None
    links = [_Link(name, address, key, siblings, place) for place, (name, address) in enumerate(where.items())]

    def tell_others() -> None:
        for link in links:
            link.tell()

    front = GatewayProcess(
        settings,
        read_model(settings),
        links,
        socket.socket(fileno=flags.socket),
        siblings,
        on_tick=tell_others,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        orphaned = _until_orphaned(flags.parent_pid, flags.folder)
        return runner.run(live(front, Workers.elsewhere(links), lambda: None, orphaned))


def _settings(file: int) -> Settings:
    # The place in the file is shared with all who have it open, so that it is not to be moved.
    return msgspec.json.decode(os.pread(file, os.fstat(file).st_size, 0), type=Settings)


class _Link(WorkerLink):
    """Tells of a worker what all gateways know: its restarts, which their parent counts, and the work asked of it."""

    def __init__(self, name: str, address: str, key: WireKey | None, siblings: Siblings, place: int) -> None:
        super().__init__(name, address, key)
        self._all_restarts = siblings.restarts(place)
        self._all_outstanding = siblings.outstanding(place)

    def health(self) -> WorkerHealth:
        self.tell()
        known = super().health()
        return dataclasses.replace(
            known, restarts=self._all_restarts.total(), outstanding_tokens=self._all_outstanding.total()
        )

    def tell(self) -> None:
        self._all_outstanding.set(self.outstanding_tokens)


async def _until_orphaned(parent_pid: int, folder: Path) -> None:
    while os.getppid() == parent_pid:
        await asyncio.sleep(_LOOK_S)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

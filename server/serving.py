"""The process of `dots3 serve`: listens, starts the workers, serves, and stops in order. Owns start, signals, end.

The first SIGTERM or SIGINT drains: readiness turns false, new requests are refused, running ones finish within the
grace period. The second ends at once. With several gateway processes it is their parent (`server.gateway_group`), and
serves nothing itself. Knows nothing of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

import uvloop

from engine.config.log_format import set_up_logging
from engine.wire.channel import AddressError, WireKey
from server.gateway_group import GatewayGroup
from server.gateway_process import GatewayProcess
from server.life import Front, live
from server.listener import Listener, ListenError
from server.prompt import Prompts
from server.settings import Settings
from server.workers import Workers

logger = logging.getLogger("dots3.serving")

EXIT_REFUSED = 2  # a setting, the checkpoint or the address is wrong

Say = Callable[[str], None]


class StartError(Exception):
    """The server cannot start as it is asked to."""


def run_server(settings: Settings, say: Say) -> int:
    """Until it is told to stop. `say` shows a line to whoever started it; returns the exit status."""
    set_up_logging(settings.log_level, settings.log_format)
    try:
        prompts = read_model(settings)
        key = wire_key(settings)
        listener = Listener.bind(settings)
    except (StartError, AddressError, ListenError) as error:
        logger.critical("cannot start: %s", error)
        return EXIT_REFUSED
    with (
        contextlib.closing(listener),
        tempfile.TemporaryDirectory(prefix="dots3-") as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        workers = Workers.of(settings, key, Path(folder))
        if settings.gateway_workers == 1:
            front: Front = GatewayProcess(settings, prompts, workers.links, listener.socket)
        else:
            front = GatewayGroup(settings, listener, Path(folder), workers.links)
        return runner.run(live(front, workers, lambda: say(_address(settings, listener))))


def read_model(settings: Settings) -> Prompts:
    folder = Path(settings.model)
    if not (folder / "config.json").is_file():
        raise StartError(f"model {settings.model} is no checkpoint folder: it has no config.json")
    template = None if settings.chat_template is None else Path(settings.chat_template)
    try:
        return Prompts.from_folder(folder, template)
    except Exception as error:  # the tokenizer's library raises the bare class for a file that it cannot read
        raise StartError(f"model {settings.model}: {error}") from error


def wire_key(settings: Settings) -> WireKey | None:
    return WireKey.from_file(Path(settings.wire_key)) if settings.wire_key else None


def _address(settings: Settings, listener: Listener) -> str:
    names = settings.model_names
    where = listener.uds or f"{listener.url}/v1"
    return f"\n{', '.join(names)} is ready at {where}\n\n  {listener.curl(names[0], with_key=bool(settings.keys))}\n"

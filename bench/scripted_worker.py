"""A worker without a model for the gateway to be measured with: the real wire, and messages that were encoded before.

A request's first token goes out when it arrives, the others a step at a time, all sequences of a step in one frame, as
a real worker sends them. The text is always the same.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import zmq

from engine.wire.channel import RouterEnd
from engine.wire.codec import decode_to_worker, encode
from engine.wire.messages import PROTOCOL_VERSION, Abort, Beat, Finished, Message, Ready, Submit, Tokens
from server.tokenizer import Tokenizer

_VERSION = bytes([PROTOCOL_VERSION])
_BEAT_S = 0.25
_TEXT = "The small green boat sails to the north, and nobody on the old wall counts the seven birds. "

_encoder = msgspec.msgpack.Encoder()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", required=True)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--steps-per-s", type=float, default=50.0)
    flags = parser.parse_args()
    ids = Tokenizer.from_folder(flags.model).encode_text(_TEXT)
    _Worker(RouterEnd(flags.listen), tuple(ids), 1 / flags.steps_per_s).run()


class _Worker:
    def __init__(self, router: RouterEnd, ids: tuple[int, ...], step_s: float) -> None:
        self._router = router
        self._ids = ids
        self._step_s = step_s
        self._running: dict[bytes, dict[str, Iterator[bytes]]] = {}  # by gateway and request: what is left to say
        self._num_steps = 0

    def run(self) -> None:
        sys.stdout.write("listens\n")
        sys.stdout.flush()
        next_step_s = next_beat_s = time.monotonic()
        while True:
            wait_s = min(next_step_s, next_beat_s) - time.monotonic()
            self._router.socket.poll(max(0, round(1000 * wait_s)), zmq.POLLIN)
            while (received := self._router.receive()) is not None:
                self._take(*received)
            now_s = time.monotonic()
            if now_s >= next_step_s:
                next_step_s = max(next_step_s + self._step_s, now_s)
                self._step()
            if now_s >= next_beat_s:
                next_beat_s = now_s + _BEAT_S
                self._tell_all(Beat(self._num_steps, any(self._running.values()), 0, 0, {}, 0, 0, 0))

    def _take(self, peer: bytes, frame: bytes) -> None:
        if not frame:
            self._running[peer] = {}
            self._router.send(peer, encode([_ready()]))
            return
        for message in decode_to_worker(frame):
            if isinstance(message, Submit):
                said = self._said(message)
                self._router.send(peer, _frame([next(said)]))
                # Encoded now, and not while others wait for their step.
                self._running[peer][message.request_id] = iter(list(said))
            elif isinstance(message, Abort) and self._running[peer].pop(message.request_id, None) is not None:
                self._router.send(peer, encode([Finished(message.request_id, 0, 0, 0, 0.0, aborted=True)]))

    def _said(self, submit: Submit) -> Iterator[bytes]:
        request_id, count = submit.request_id, submit.sampling.max_tokens
        for number, token in enumerate(itertools.islice(itertools.cycle(self._ids), count), 1):
            reason = "length" if number == count else None
            yield _encoder.encode(Tokens(request_id, 0, (token,), finish_reason=reason))
        yield _encoder.encode(Finished(request_id, len(submit.prompt_ids), 0, count, 0.0))

    def _step(self) -> None:
        self._num_steps += 1
        for peer, requests in self._running.items():
            messages = []
            for request_id, said in tuple(requests.items()):
                if (message := next(said, None)) is None:
                    del requests[request_id]
                else:
                    messages.append(message)
            if messages:
                self._router.send(peer, _frame(messages))

    def _tell_all(self, message: Message) -> None:
        for peer in self._running:
            self._router.send(peer, encode([message]))


def _frame(messages: list[bytes]) -> bytes:
    """An array of messages that are encoded already."""
    return _VERSION + b"\xdc" + len(messages).to_bytes(2, "big") + b"".join(messages)


def _ready() -> Ready:
    return Ready(PROTOCOL_VERSION, "scripted", os.getpid(), "cpu", "float32", "none", 3072, 8192, 256, 512, 16, 1, ())


if __name__ == "__main__":
    main()

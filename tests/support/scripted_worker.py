"""A worker process without a model: the real wire, Ready and beats, and answers that the prompt itself asks for.

The first prompt token chooses what happens; by default the rest of the prompt comes back, a token a message. Run it as
`python -m tests.support.scripted_worker --listen ADDRESS`; the other flags are ways to go wrong.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence

from engine.runtime.mailroom import Arrived, Mailroom, Stopping
from engine.wire.channel import RouterEnd
from engine.wire.messages import (
    PROTOCOL_VERSION,
    Abort,
    Beat,
    Failed,
    Finished,
    FinishReason,
    Message,
    Ready,
    Stop,
    Submit,
    Tokens,
)

ECHO, HOLD, EXIT, FAIL, STALL = range(5)
EXIT_STATUS = 3
MAX_MODEL_LEN = 1000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", required=True)
    parser.add_argument("--refuse", help="say this and end")
    parser.add_argument("--never-ready", action="store_true")
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--progress-deadline", type=float, default=2.0)
    flags = parser.parse_args(arguments)
    if flags.refuse:
        sys.stderr.write(flags.refuse + "\n")
        return 2
    if flags.never_ready:
        time.sleep(600)
    worker = ScriptedWorker(flags.listen, flags.progress_deadline)
    signal.signal(
        signal.SIGTERM,
        signal.SIG_IGN if flags.ignore_sigterm else lambda *_: worker.mailroom.inbox.put(Stopping()),
    )
    sys.stderr.write("scripted worker listens\n")
    worker.run()
    return 0


class ScriptedWorker:
    def __init__(self, address: str, progress_deadline_s: float, max_model_len: int = MAX_MODEL_LEN) -> None:
        self._progress_deadline_s = progress_deadline_s
        self._busy = False
        self._held: dict[str, Submit] = {}
        self.mailroom = Mailroom(RouterEnd(address), _ready(max_model_len), self._beat)

    def run(self) -> None:
        self.mailroom.start()
        while not isinstance(letter := self.mailroom.inbox.get(), Stopping):
            if isinstance(letter, Arrived):
                for message in self._answers(letter.message):
                    self.mailroom.post(letter.peer, [message])
        self.mailroom.close()

    def _beat(self) -> Beat:
        figures = (len(self._held), 0, {"dsa": 0.5}, 0, 0, 0)
        return Beat(1, self._busy, *figures, progress_deadline_s=self._progress_deadline_s)

    def _answers(self, message: Submit | Abort | Stop) -> list[Message]:
        if isinstance(message, Submit):
            return self.take(message)
        held = self._held.pop(message.request_id, None)
        if held is None:
            return []
        if isinstance(message, Abort):
            return [finished(held, 0, aborted=True)]
        return [tokens_of(held, (), "stop"), finished(held, message.num_tokens)]

    def take(self, request: Submit) -> list[Message]:
        """What is said at once."""
        first, *rest = request.prompt_ids
        if first == EXIT:
            os._exit(EXIT_STATUS)
        if first == FAIL:
            return [Failed(request.request_id, "internal_error", "as it was told to")]
        if first in (HOLD, STALL):
            self._busy = first == STALL
            self._held[request.request_id] = request
            return [tokens_of(request, (token,), None) for token in rest]
        messages: list[Message] = [tokens_of(request, (token,), None) for token in rest[:-1]]
        return [*messages, tokens_of(request, tuple(rest[-1:]), "stop"), finished(request, len(rest))]


def tokens_of(request: Submit, ids: tuple[int, ...], reason: FinishReason | None) -> Tokens:
    return Tokens(request.request_id, 0, ids, None, reason)


def finished(request: Submit, tokens: int, aborted: bool = False) -> Finished:
    return Finished(request.request_id, len(request.prompt_ids), 0, tokens, 0.0, aborted)


def _ready(max_model_len: int) -> Ready:
    return Ready(
        protocol_version=PROTOCOL_VERSION,
        worker_id="scripted",
        pid=os.getpid(),
        device="cpu",
        dtype="float32",
        model_path="none",
        vocab_size=3072,
        max_model_len=max_model_len,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        page_size=16,
        cache_bytes=1,
        groups=(),
    )


if __name__ == "__main__":
    sys.exit(main())

"""A checkpoint's whole engine without sockets: requests in, all their answers out.

The worker's own loop over what its own builder makes, with a post that collects.
"""

from __future__ import annotations

import queue
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from engine.config.engine import EngineConfig
from engine.runtime.build import build
from engine.runtime.mailroom import Arrived, Letter, Stopping
from engine.wire.messages import Abort, Failed, Finished, Message, Sampling, Submit, TokenLogprobs, Tokens


class Answer:
    def __init__(self) -> None:
        self.choices: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[TokenLogprobs]] = {}
        self.prompt_logprobs: Sequence[TokenLogprobs | None] | None = None
        self.finished: Finished | None = None

    @property
    def only(self) -> list[int]:
        return self.choices[0]


class Answers:
    """The post of a loop that runs until each of its requests is over."""

    def __init__(self, submits: Sequence[Submit], aborted: Collection[str] = ()) -> None:
        """`aborted`: these are, as soon as they have said something."""
        self._to_abort = set(aborted)
        self.inbox: queue.SimpleQueue[Letter] = queue.SimpleQueue()
        self.by_id = {submit.request_id: Answer() for submit in submits}
        for submit in submits:
            self.inbox.put(Arrived(b"g", submit))

    def post(self, peer: bytes, messages: Iterable[Message]) -> None:
        assert peer == b"g"
        for message in messages:
            assert not isinstance(message, Failed), message
            if isinstance(message, Tokens):
                answer = self.by_id[message.request_id]
                if message.request_id in self._to_abort:
                    self._to_abort.remove(message.request_id)
                    self.inbox.put(Arrived(b"g", Abort(message.request_id)))
                answer.choices.setdefault(message.index, []).extend(message.token_ids)
                answer.logprobs.setdefault(message.index, []).extend(message.logprobs or ())
                answer.prompt_logprobs = message.prompt_logprobs or answer.prompt_logprobs
            elif isinstance(message, Finished):
                self.by_id[message.request_id].finished = message
        if all(answer.finished for answer in self.by_id.values()):
            self.inbox.put(Stopping())


class LoopRun:
    def __init__(self, folder: Path, **settings: Any) -> None:
        torch.set_num_threads(1)
        self.loop = build(folder, EngineConfig.for_device("cpu", **settings), "test").loop

    def answers(self, submits: Sequence[Submit], aborted: Collection[str] = ()) -> dict[str, Answer]:
        post = Answers(submits, aborted)
        self.loop._stopping = None
        assert self.loop.run(post)
        return post.by_id


def submit_of(
    name: str,
    prompt: Sequence[int],
    *,
    stop_ids: tuple[int, ...] = (),
    n: int = 1,
    salt: str = "",
    max_tokens: int = 40,
    **fields: Any,
) -> Submit:
    fields.setdefault("temperature", 0.0)
    sampling = Sampling(max_tokens=max_tokens, stop_token_ids=stop_ids, **fields)
    return Submit(name, tuple(prompt), sampling, n=n, cache_salt=salt)

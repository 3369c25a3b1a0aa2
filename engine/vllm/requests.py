"""All requests of this worker: a task each, and one for each of its choices. Owns who gets which answer.

Every accepted request ends in exactly one Finished or Failed, unless its gateway has left. Runs in one event loop.
Knows nothing of sockets or of vLLM's types.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from engine.vllm.hosted import Ask, EngineDiedError, News
from engine.vllm.media import Prompt
from engine.vllm.sampling import check_drafts, sampling_fields
from engine.wire.grammar import Grammar
from engine.wire.messages import Abort, Failed, Finished, FinishReason, Message, Stop, Submit, Tokens, ToWorker
from engine.wire.refused import RefusedError

log = logging.getLogger(__name__)

Send = Callable[[bytes, Sequence[Message]], None]


class Generator(Protocol):
    """The engine, as far as it matters here."""

    def generate(self, ask: Ask) -> AsyncGenerator[News, None]: ...


class Choice:
    def __init__(self) -> None:
        self.num_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.task: asyncio.Task[None] | None = None

    def stop(self, num_tokens: int) -> None:
        """The gateway has found its end, behind so many tokens."""
        if self.finish_reason is None and self.task is not None:
            self.finish_reason = "stop"
            self.num_tokens = min(self.num_tokens, num_tokens)
            self.task.cancel()


class Running:
    """A request from its receipt to its end."""

    def __init__(self, peer: bytes, submit: Submit) -> None:
        self.peer = peer
        self.submit = submit
        self.choices = [Choice() for _ in range(submit.n)]
        self.received_s = time.monotonic()
        self.cached_tokens = 0
        self.queue_s: float | None = None
        self.aborted = False
        self.began = False  # a task that is cancelled before never runs, and so would tell no end
        self.prompt_is_computed = asyncio.Event()  # or never will be: the other choices may begin
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def abort(self) -> None:
        """Idempotent."""
        self.aborted = True
        if self.task is not None and self.began:
            self.task.cancel()

    def finished(self) -> Finished:
        waited_s = time.monotonic() - self.received_s if self.queue_s is None else self.queue_s
        return Finished(
            self.submit.request_id,
            len(self.submit.prompt_ids),
            self.cached_tokens,
            sum(choice.num_tokens for choice in self.choices),
            waited_s,
            self.aborted,
        )


class Requests:
    def __init__(
        self,
        engine: Generator,
        num_drafts: int,
        prompt_of: Callable[[Submit], Prompt],
        text_of: Callable[[Grammar], str],
        send: Send,
        on_death: Callable[[str], None],
    ) -> None:
        """`prompt_of` and `text_of` take their time, in a thread; they may refuse."""
        self._engine = engine
        self._num_drafts = num_drafts
        self._prompt_of = prompt_of
        self._text_of = text_of
        self._one_grammar = asyncio.Lock()
        self._send = send
        self._on_death = on_death
        self._running: dict[str, Running] = {}
        self._loose: set[asyncio.Task[None]] = set()  # of gateways that have left
        self.moves = 0  # changes with every event

    @property
    def num_choices(self) -> int:
        """That have not ended."""
        return sum(choice.finish_reason is None for running in self._running.values() for choice in running.choices)

    def take(self, peer: bytes, message: ToWorker) -> None:
        self.moves += 1
        if isinstance(message, Submit):
            self._submit(peer, message)
            return
        running = self._running.get(message.request_id)
        if running is None or running.peer != peer:
            return  # it is over, and its end is on the way
        if isinstance(message, Abort):
            running.abort()
        elif isinstance(message, Stop) and 0 <= message.index < len(running.choices):
            running.choices[message.index].stop(message.num_tokens)

    def left(self, peer: bytes) -> None:
        for request_id, running in tuple(self._running.items()):
            if running.peer == peer:
                del self._running[request_id]
                running.abort()
                if running.task is not None:
                    self._loose.add(running.task)
                    running.task.add_done_callback(self._loose.discard)

    async def close(self, message: str | None) -> None:
        """Fails all that runs; None: without a word."""
        tasks = [running.task for running in self._running.values() if running.task is not None]
        if message is not None:
            for running in tuple(self._running.values()):
                self._end(running, Failed(running.submit.request_id, "engine_dead", message))
        self._running.clear()
        for task in (*tasks, *self._loose):
            task.cancel()
        await asyncio.gather(*tasks, *self._loose, return_exceptions=True)

    # ---- a request

    def _submit(self, peer: bytes, submit: Submit) -> None:
        if submit.request_id in self._running:
            self._send(peer, [Failed(submit.request_id, "invalid_value", "a request of this id is running")])
            return
        running = self._running[submit.request_id] = Running(peer, submit)
        loop = asyncio.get_running_loop()
        running.task = loop.create_task(self._serve(running), name=submit.request_id)
        if submit.deadline_s is not None:
            running.timer = loop.call_later(submit.deadline_s, running.abort)

    async def _serve(self, running: Running) -> None:
        request_id = running.submit.request_id
        running.began = True
        end: Message
        try:
            if not running.aborted:
                await self._answer(running)
            end = running.finished()
        except asyncio.CancelledError:
            end = running.finished()
        except RefusedError as error:
            end = Failed(request_id, error.code, str(error))
        except EngineDiedError as error:
            # The end of this process tells everybody at once. Who heard of it before would come back too early.
            self._on_death(str(error))
            return
        except Exception as error:  # the one broad except: whatever a request dies of, the others live on
            log.error("request %s failed", request_id, exc_info=error)
            end = Failed(request_id, "internal_error", "the engine failed in this request")
        self._end(running, end)

    def _end(self, running: Running, message: Message) -> None:
        """Once; nobody hears of the end of a request whose gateway has left."""
        self.moves += 1
        if running.timer is not None:
            running.timer.cancel()
        if self._running.get(running.submit.request_id) is running:
            del self._running[running.submit.request_id]
            self._send(running.peer, [message])

    async def _answer(self, running: Running) -> None:
        submit = running.submit
        check_drafts(submit, self._num_drafts)
        fields = [sampling_fields(submit, index) for index in range(submit.n)]
        grammar = None if submit.grammar is None else await self._grammar(submit.grammar)
        prompt = _fields(await asyncio.to_thread(self._prompt_of, submit), submit.cache_salt)
        tasks = []
        for index, choice in enumerate(running.choices):
            ask = Ask(f"{submit.request_id}/{index}", prompt, fields[index], grammar, submit.priority)
            choice.task = asyncio.create_task(self._generate(running, index, ask))
            tasks.append(choice.task)
        tasks[0].add_done_callback(lambda _: running.prompt_is_computed.set())
        try:
            # A choice that is stopped is cancelled, which ends it and nothing else.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for error in _failures(ends):
            raise error

    async def _grammar(self, grammar: Grammar) -> str:
        async with self._one_grammar:
            return await asyncio.to_thread(self._text_of, grammar)

    async def _generate(self, running: Running, index: int, ask: Ask) -> None:
        if index > 0:  # they find the prompt in the cache, instead of computing it side by side
            await running.prompt_is_computed.wait()
        async for news in self._engine.generate(ask):
            self._tell(running, index, news)

    def _tell(self, running: Running, index: int, news: News) -> None:
        self.moves += 1
        choice = running.choices[index]
        if choice.finish_reason is not None:
            return
        if index == 0:
            running.cached_tokens = news.cached_tokens
            running.queue_s = running.queue_s if news.queue_s is None else news.queue_s
        running.prompt_is_computed.set()
        choice.num_tokens += len(news.token_ids)
        choice.finish_reason = news.finish_reason
        tokens = Tokens(
            running.submit.request_id,
            index,
            news.token_ids,
            news.logprobs,
            news.finish_reason,
            news.prompt_logprobs,
        )
        if self._running.get(running.submit.request_id) is running:
            self._send(running.peer, [tokens])


def _fields(prompt: Prompt, cache_salt: str) -> Mapping[str, Any]:
    fields: dict[str, Any] = {"prompt_token_ids": prompt.token_ids}
    if prompt.data:
        fields |= {"multi_modal_data": prompt.data, "multi_modal_uuids": prompt.identities}
    if prompt.processor_options:
        fields["mm_processor_kwargs"] = prompt.processor_options
    if cache_salt:
        fields["cache_salt"] = cache_salt
    return fields


def _failures(ends: Sequence[BaseException | None]) -> Iterator[BaseException]:
    for end in ends:
        if end is not None and not isinstance(end, asyncio.CancelledError):
            yield end

"""Grammars of requests: compiled beside the engine's steps, kept by their content, refused within a bounded time.

Owns the threads that compile, their judges and the cache. Knows nothing of batches.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from engine.grammar.judging import Judge
from engine.grammar.limits import BusyError, GrammarError, JudgeClosedError
from engine.grammar.matcher import CompiledGrammar, Matcher
from engine.grammar.vocabulary import Vocabulary
from engine.runtime.mailroom import Compiled
from engine.wire.grammar import Rule
from engine.wire.messages import Submit

_NUM_JUDGES = 2  # so that one grammar that takes its whole time holds up no other
_MAX_WAIT_S = 2.5  # for a judge: the time that it may take comes on top, and a refusal has to be there within 5 s
_MAX_CACHED = 128  # grammars, and refusals
_MAX_CACHED_BYTES = 64 << 20  # of the rules that they were made of; what is made of one takes several times as much

log = logging.getLogger(__name__)


class Grammars:
    def __init__(self, folder: Path, vocab_size: int) -> None:
        self._threads = ThreadPoolExecutor(_NUM_JUDGES, "grammar")
        self._judges: queue.LifoQueue[Judge] = queue.LifoQueue()  # the one that was used last is warm
        self._all_judges = [Judge(folder, vocab_size) for _ in range(_NUM_JUDGES)]
        for judge in self._all_judges:
            self._judges.put(judge)
        self._vocabulary = self._threads.submit(_vocabulary, folder, vocab_size)
        self._cache = Cache()
        self._threads.submit(self._warm)

    def compile(self, submit: Submit, done: Callable[[Compiled], None]) -> None:
        """Calls `done`, from another thread, with a matcher for each choice or the reason why there is none."""
        job = self._threads.submit(self._matchers, submit, time.monotonic())
        job.add_done_callback(lambda ended: None if ended.cancelled() else done(_compiled(submit, ended)))

    def close(self) -> None:
        for judge in self._all_judges:
            judge.close()
        self._threads.shutdown(cancel_futures=True)

    def _warm(self) -> None:
        """So that the first request does not wait for a judge to read the vocabulary."""
        if (error := self._vocabulary.exception()) is not None:
            log.warning("no answer can be held to a grammar: %s", error)
            return
        judge = self._judges.get()
        try:
            judge.start()
        except JudgeClosedError:
            pass
        except GrammarError as error:
            log.warning("a judge of grammars did not start: %s", error)
        finally:
            self._judges.put(judge)

    def _matchers(self, submit: Submit, since: float) -> tuple[Matcher, ...]:
        assert submit.grammar is not None
        grammar = self._grammar(submit.grammar.rule, since)
        stop_ids, begins = submit.sampling.stop_token_ids, submit.grammar.begins
        return tuple(grammar.matcher(begins, stop_ids) for _ in range(submit.n))

    def _grammar(self, rule: Rule, since: float) -> CompiledGrammar:
        key = msgspec.msgpack.encode(rule)
        found = self._cache.get(key)
        if found is None:
            found = self._made(rule, since)
            self._cache.put(key, found)
        if isinstance(found, GrammarError):
            raise found
        return found

    def _made(self, rule: Rule, since: float) -> CompiledGrammar | GrammarError:
        if time.monotonic() - since > _MAX_WAIT_S:
            raise BusyError("too many others are being compiled; it may be sent again")
        judge = self._judges.get()
        try:
            text, counted = judge.counted_text_of(msgspec.to_builtins(rule))
            return CompiledGrammar(text, self._vocabulary.result(), counted)
        except GrammarError as error:
            return error
        finally:
            self._judges.put(judge)


def _vocabulary(folder: Path, vocab_size: int) -> Vocabulary:
    vocabulary = Vocabulary(folder, vocab_size)
    _ = vocabulary.text_lengths  # now, and not while requests are served
    return vocabulary


def _compiled(submit: Submit, ended: Future[tuple[Matcher, ...]]) -> Compiled:
    error = ended.exception()
    if error is None:
        return Compiled(submit, ended.result())
    if isinstance(error, GrammarError):
        return Compiled(submit, (), str(error), "queue_full" if isinstance(error, BusyError) else "invalid_value")
    log.error("the grammar of %s could not be compiled", submit.request_id, exc_info=error)
    return Compiled(submit, (), str(error), "internal_error")


class Cache:
    """By content, the least recently used one goes first. Any thread."""

    def __init__(self) -> None:
        self._entries: OrderedDict[bytes, CompiledGrammar | GrammarError] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def get(self, key: bytes) -> CompiledGrammar | GrammarError | None:
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: bytes, value: CompiledGrammar | GrammarError) -> None:
        with self._lock:
            if key not in self._entries:
                self._num_bytes += len(key)
            self._entries[key] = value
            while len(self._entries) > _MAX_CACHED or self._num_bytes > _MAX_CACHED_BYTES:
                oldest, _ = self._entries.popitem(last=False)
                self._num_bytes -= len(oldest)

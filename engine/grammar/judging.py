"""The other side of a judge: a process that is asked what a rule comes to, and that may die of it.

Knows how to start and end it. One caller at a time; closing may come from any thread.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine.config.log_format import form_in_use
from engine.grammar.counted_text import Counted
from engine.grammar.frames import read_frame, write_frame
from engine.grammar.limits import COMPILE_S, MAX_RULE_CHARS, GrammarError, JudgeClosedError

_START_S = 30.0  # reading a large vocabulary on a busy machine
_GRACE_S = 1.0  # beyond the time that the judge itself allows
_TOP = Path(__file__).parents[2]  # where the judge's module is found


class Judge:
    def __init__(self, folder: Path, vocab_size: int) -> None:
        arguments = (folder.resolve(), vocab_size, form_in_use())
        self._command = [sys.executable, "-m", "engine.grammar.judge", *map(str, arguments)]
        self._asking = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def start(self) -> None:
        """A trivial question, so that the next one finds it ready."""
        self._ask({"type": "Choice", "choices": ["yes"]}, False, _START_S)

    def text_of(self, rule: Mapping[str, Any]) -> str:
        """The rule as a grammar in the library's notation, found to be within the limits."""
        text: str = self._tried(rule, counting=False)["text"]
        return text

    def counted_text_of(self, rule: Mapping[str, Any]) -> tuple[str, Counted]:
        """The same, and what it leaves to be counted beside it."""
        answer = self._tried(rule, counting=True)
        return answer["text"], msgspec.convert(answer["counted"], Counted)

    def _tried(self, rule: Mapping[str, Any], counting: bool) -> dict[str, Any]:
        if self._process is None or self._process.poll() is not None:
            self.start()
        answer = self._ask(rule, counting, COMPILE_S + _GRACE_S)
        if "error" in answer:
            raise GrammarError(answer["error"])
        return answer

    def close(self) -> None:
        self._closed = True
        if (process := self._process) is not None:
            process.kill()  # which ends the wait of who is asking
        with self._asking:
            self._end()

    def _ask(self, rule: Mapping[str, Any], counting: bool, limit_s: float) -> dict[str, Any]:
        body = json.dumps([rule, counting]).encode()
        if len(body) > MAX_RULE_CHARS:
            raise GrammarError(f"it must have at most {MAX_RULE_CHARS} characters, got {len(body)}")
        with self._asking:
            self._check_open()
            process = self._running()
            timer = threading.Timer(limit_s, process.kill)
            timer.start()
            try:
                answer = _exchanged(process, body)
            finally:
                timer.cancel()
            if answer is None:
                self._end()
                self._check_open()
                raise GrammarError(f"it could not be compiled within {limit_s:g} s")
        found: dict[str, Any] = json.loads(answer)
        return found

    def _check_open(self) -> None:
        if self._closed:
            raise JudgeClosedError("the worker is shutting down")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_TOP, bufsize=-1
            )
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
            self._process = None


def _exchanged(process: subprocess.Popen[bytes], body: bytes) -> bytes | None:
    """None where the judge has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        write_frame(process.stdin, body)
        return read_frame(process.stdout)
    except OSError:
        return None

"""The process in which clients' grammars are written out and tried first, where neither time nor memory can run away.

Started by `Judge`, and never imported by it. Each grammar is tried in a fork of its own with a timer and a limit of
memory; what survives is then made once more, of the text that comes back, by who asked. Ends when that one does.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from engine.config.log_format import set_up_logging
from engine.grammar.counted_text import Counted
from engine.grammar.frames import read_frame, write_frame
from engine.grammar.limits import COMPILE_BYTES, COMPILE_S, GrammarError
from engine.grammar.rules import check, grammar_text
from engine.grammar.vocabulary import Vocabulary

_NICENESS = 10  # the engine's steps go first
_PAGE_BYTES = resource.getpagesize()

log = logging.getLogger("engine.grammar.judge")  # also where the module runs as __main__


def main() -> None:
    set_up_logging("warning", sys.argv[3])
    vocabulary = Vocabulary(Path(sys.argv[1]), int(sys.argv[2]))
    os.nice(_NICENESS)
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while (body := read_frame(requests)) is not None:
        try:
            write_frame(answers, _tried(body, vocabulary))
        except BrokenPipeError:
            os._exit(0)  # nobody waits for the answer any more; Python's own end would try to write it once more


def _answer(rule: Any, counting: bool, vocabulary: Vocabulary) -> dict[str, Any]:
    counted: Counted = {}
    try:
        text = grammar_text(rule, vocabulary, counted if counting else None)
        check(text, vocabulary)
    except GrammarError as error:
        return {"error": str(error)}
    except MemoryError:
        raise
    except Exception as error:
        # The one broad except: whatever a schema does to us, its sender gets an answer.
        log.error("a rule of type %s failed", rule.get("type"), exc_info=error)
        return {"error": f"it cannot be read: {type(error).__name__}"}
    return {"text": text, "counted": counted}


def _tried(body: bytes, vocabulary: Vocabulary) -> bytes:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        for inherited in (reading, sys.stdin.fileno(), sys.stdout.fileno()):
            os.close(inherited)  # or who asks would not see that the judge has ended
        _try(body, vocabulary, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        return answer
    late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
    limit = f"{COMPILE_S:g} s" if late else f"{COMPILE_BYTES >> 20} MiB of memory"
    return json.dumps({"error": f"it takes more than {limit} to compile"}).encode()


def _try(body: bytes, vocabulary: Vocabulary, writing: int) -> None:
    """In the fork, which ends here: by itself, by the timer, or for lack of memory."""
    status = 1
    try:
        signal.setitimer(signal.ITIMER_REAL, COMPILE_S)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (used + COMPILE_BYTES, used + COMPILE_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        rule, counting = json.loads(body)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(json.dumps(_answer(rule, counting, vocabulary)).encode())
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()

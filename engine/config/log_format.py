"""How gateway and worker log: lines for people or one JSON object a line for machines, on standard error.

Knows nothing of who logs what.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

FIELDS = "fields"  # key of `extra`: a mapping of what a line tells besides its message

_AWKWARD = re.compile(r'[ "=\n]')
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 the parent's name
        return " ".join([super().formatMessage(record), *(f"{k}={_word(v)}" for k, v in _fields(record).items())])


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logging(level: str, form: str) -> None:
    """Once, at the start of a process."""
    # Neither form shows where a line comes from, and to find it out is a quarter of what a line costs.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    sys.excepthook = _log_uncaught


def form_in_use() -> str:
    """For processes that this one starts."""
    is_json = any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)
    return "json" if is_json else "text"


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Also the last words of a process are lines in its form."""
    logging.getLogger("dots3").critical("ended by %s", kind.__name__, exc_info=(kind, error, trace))


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, FIELDS, {})
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in fields.items()}


def _word(value: Any) -> str:
    """Without a space in it, so that a line can be split again."""
    if isinstance(value, list):
        return ",".join(map(_word, value))
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if _AWKWARD.search(text) else text

"""Log lines for machines."""

import json
import logging
import sys

from server.log_format import JsonFormatter


def test_a_line_is_one_json_object_even_with_a_traceback() -> None:
    try:
        raise ValueError("no\nway")
    except ValueError:
        record = logging.LogRecord("dots3", logging.ERROR, "f", 1, "bad %s", ("ünit\n",), sys.exc_info())
    line = JsonFormatter().format(record)
    assert "\n" not in line
    body = json.loads(line)
    assert (body["level"], body["logger"], body["message"]) == ("error", "dots3", "bad ünit\n")
    assert "ValueError: no" in body["exception"]

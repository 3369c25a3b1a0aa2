"""Log lines for machines."""

import json
import logging
import sys

from engine.config.log_format import FIELDS, JsonFormatter, TextFormatter


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


def test_fields_stand_beside_the_message_in_either_form() -> None:
    record = logging.LogRecord("dots3.access", logging.INFO, "f", 1, "request", (), None)
    setattr(record, FIELDS, {"status": 200, "took_s": 0.25, "finish_reasons": ["stop", "length"], "path": 'a "b'})
    body = json.loads(JsonFormatter().format(record))
    assert (body["message"], body["status"], body["finish_reasons"]) == ("request", 200, ["stop", "length"])
    text = TextFormatter().format(record)
    assert text.endswith(r'INFO dots3.access: request status=200 took_s=0.25 finish_reasons=stop,length path="a \"b"')

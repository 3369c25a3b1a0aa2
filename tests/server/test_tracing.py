"""Spans as a collector gets them: in the caller's trace, with the facts of the request, and without its content."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.datastructures import Headers

from server.request_record import RequestRecord
from server.tracing import Tracing
from tests.support.fake_engine import Fail
from tests.support.live_gateway import MODEL, live_gateway, says

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []
        self.url = f"http://127.0.0.1:{self.server_port}/v1/traces"

    def spans(self) -> list[Any]:
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return [span for one in requests for of in one.resource_spans for by in of.scope_spans for span in by.spans]


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def attributes(span: Any) -> dict[str, Any]:
    values = {}
    for one in span.attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        values[one.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return values


def test_a_request_is_a_span_in_the_trace_of_its_caller(collector: Collector) -> None:
    tracing = Tracing(collector.url)
    with live_gateway(script=says("Hello."), on_end=tracing.ended) as gateway:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "sesame"}], "stream": True}
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "r-1"}
        assert gateway.client.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
        gateway.client.get("/livez")  # probes leave no span
        gateway.engine.script = lambda _: [Fail("internal_error")]
        assert gateway.complete().status_code == 500
    tracing.close()
    first, second = sorted(collector.spans(), key=lambda span: span.start_time_unix_nano)
    assert (first.trace_id.hex(), first.parent_span_id.hex(), first.name) == (TRACE, PARENT, f"chat {MODEL}")
    told = attributes(first)
    assert told.pop("dots3.queue_time") >= 0
    assert 0 < told.pop("dots3.time_to_first_token") < 10
    assert told == {
        "http.request.method": "POST",
        "url.path": "/v1/chat/completions",
        "http.response.status_code": 200,
        "dots3.request_id": "r-1",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "dots3",
        "gen_ai.request.model": MODEL,
        "gen_ai.response.model": MODEL,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": told["gen_ai.usage.input_tokens"],
        "gen_ai.usage.output_tokens": told["gen_ai.usage.output_tokens"],
        "gen_ai.usage.cache_read.input_tokens": 0,
    }
    assert told["gen_ai.usage.input_tokens"] > told["gen_ai.usage.output_tokens"] > 0
    assert [event.name for event in first.events] == ["first token"]
    assert first.start_time_unix_nano < first.events[0].time_unix_nano < first.end_time_unix_nano
    assert second.trace_id.hex() != TRACE
    assert (second.status.code, attributes(second)["error.type"]) == (2, "internal_error")
    assert b"sesame" not in b"".join(collector.bodies)


def test_a_caller_that_does_not_record_its_trace_gets_no_span_in_it(collector: Collector) -> None:
    tracing, records = Tracing(collector.url), list[RequestRecord]()

    def ended(record: RequestRecord, headers: Headers) -> None:
        tracing.ended(record, headers)
        records.append(record)

    with live_gateway(script=says("Hello."), on_end=ended) as gateway:
        for flags, broken in (("00", ""), ("01", "zz")):
            headers = {"traceparent": f"00-{TRACE}-{PARENT}{broken}-{flags}"}
            gateway.client.get("/v1/models", headers=headers)
    tracing.close()
    # The second names no trace, and begins one.
    [span] = collector.spans()
    assert (span.name, span.parent_span_id) == ("GET /v1/models", b"")
    assert [record.trace_id for record in records] == [TRACE, span.trace_id.hex()]

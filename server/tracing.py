"""A span of OpenTelemetry for every request, made when it is over: its place in the caller's trace, and gen_ai.* facts.

Needs the extra `tracing`. Owns the exporter; knows no route, and nothing of a request but its record.
"""

from __future__ import annotations

import time
from importlib.metadata import version

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from starlette.datastructures import Headers

from server.request_record import RequestRecord

_NS = 10**9
_OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
_FIRST_SERVER_ERROR = 500
_NOTHING = Context()
_UNSET = Status()


class Tracing:
    """Close it, so that the last spans go out."""

    def __init__(self, endpoint: str) -> None:
        """`endpoint` takes OTLP over HTTP, such as http://collector:4318/v1/traces."""
        resource = Resource.create({SERVICE_NAME: "dots3", SERVICE_VERSION: version("dots3")})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._processor = BatchSpanProcessor(OTLPSpanExporter(endpoint))
        self._provider.add_span_processor(self._processor)
        self._scope = InstrumentationScope("dots3.gateway")
        self._propagator = TraceContextTextMapPropagator()

    def close(self) -> None:
        self._provider.shutdown()

    def ended(self, record: RequestRecord, headers: Headers) -> None:
        """Adds the id of the trace to the record."""
        end_ns = time.time_ns()
        start_ns = end_ns - int((record.took_s or 0.0) * _NS)
        operation = _OPERATIONS.get(record.path)
        name = f"{operation} {record.model}" if operation and record.model else f"{record.method} {record.path}"
        context, parent = self._contexts(name, headers)
        record.trace_id = f"{context.trace_id:032x}"
        if not context.trace_flags.sampled:
            return
        events = []
        if record.first_token_s is not None:
            events.append(Event("first token", timestamp=start_ns + int(record.first_token_s * _NS)))
        is_error = record.status is None or record.status >= _FIRST_SERVER_ERROR
        # The whole span is known. One that is filled bit by bit, each under a lock, took three times as long to make.
        span = ReadableSpan(
            name,
            context,
            parent,
            self._provider.resource,
            _attributes(record, operation),
            events,
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR, record.error) if is_error else _UNSET,
            start_time=start_ns,
            end_time=end_ns,
            instrumentation_scope=self._scope,
        )
        self._processor.on_end(span)

    def _contexts(self, name: str, headers: Headers) -> tuple[SpanContext, SpanContext | None]:
        """Of the request's span, and of the caller's if it is in a trace."""
        ids = self._provider.id_generator
        carrier = {header: headers[header] for header in ("traceparent", "tracestate") if header in headers}
        around = self._propagator.extract(carrier) if carrier else _NOTHING
        parent = get_current_span(around).get_span_context() if carrier else None
        if parent is not None and not parent.is_valid:
            parent = None
        trace_id = ids.generate_trace_id() if parent is None else parent.trace_id
        chosen = self._provider.sampler.should_sample(around, trace_id, name, SpanKind.SERVER)
        is_wanted = chosen.decision.is_sampled()  # type: ignore[no-untyped-call]
        flags = TraceFlags(TraceFlags.SAMPLED if is_wanted else TraceFlags.DEFAULT)
        return SpanContext(trace_id, ids.generate_span_id(), False, flags, chosen.trace_state), parent


def _attributes(record: RequestRecord, operation: str | None) -> dict[str, AttributeValue]:
    """Names of OpenTelemetry's conventions for HTTP servers and for generative models."""
    known: dict[str, AttributeValue | None] = {
        "http.request.method": record.method,
        "url.path": record.path,
        "http.response.status_code": record.status,
        "error.type": record.error,
        "dots3.request_id": record.request_id,
    }
    if operation is not None:
        known |= {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "dots3",
            "gen_ai.request.model": record.model,
            "gen_ai.response.model": record.model,
            "gen_ai.response.finish_reasons": tuple(record.finish_reasons) or None,
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
            "dots3.time_to_first_token": record.first_token_s,
            "dots3.queue_time": record.queue_s,
        }
    return {name: value for name, value in known.items() if value is not None}

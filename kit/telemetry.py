"""Logs and traces: what a process says about itself.

    telemetry.setup("sessions", settings.log_level)
    log.info("turn granted", session_id=session_id)

Logs are JSON lines on stderr, one object each, with the service, the request id of the call in progress and, where a
trace is on, its trace id. A value under a key that sounds like a secret is masked, and so is every registered secret
wherever it appears in a line, tracebacks of other libraries included.

Traces exist only where the environment names an OTLP endpoint (`OTEL_EXPORTER_OTLP_ENDPOINT` or
`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`). Without one no SDK is loaded, and `inject`, `extract` and `tracer` cost next to
nothing.
"""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import orjson
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kit.lean import without
from kit.redaction import mask_keys, mask_text, register_secret

with without("rich"):
    # It would only draw tracebacks for a terminal; ours are JSON.
    import structlog

__all__ = [
    "bind_request_id",
    "continue_trace",
    "extract",
    "flush",
    "inject",
    "log",
    "register_secret",
    "request_id",
    "setup",
    "traceparent",
    "tracer",
    "tracing",
    "untraced",
]

log: structlog.stdlib.BoundLogger = structlog.get_logger()
request_id: ContextVar[str] = ContextVar("request_id", default="")
_propagator = TraceContextTextMapPropagator()
_provider: Any = None
_HANDLER = "managed-agents"


class _Stderr:
    """Whatever `sys.stderr` is when a line is written: tests and daemons exchange it.

    A line that can't be written (the disk is full, the reader is gone) is lost: what logs must go on, and most of all
    where it is about to handle the very same failure.
    """

    def write(self, text: str) -> int:
        with suppress(OSError):
            return sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


_stderr: Any = _Stderr()


def setup(service_name: str, log_level: str = "info") -> None:
    """Set up logs, and traces where the environment asks for them. Called once, before anything connects."""
    _set_up_logs(service_name, log_level)
    if _endpoint_is_set():
        _set_up_traces(service_name)


def bind_request_id(value: str) -> None:
    """Name the request in every log line of the current task from here on."""
    request_id.set(value)


def tracing() -> bool:
    """Whether spans are recorded in this process."""
    return _provider is not None


def tracer() -> trace.Tracer:
    """For spans of our own; its spans are no-ops while tracing is off."""
    return trace.get_tracer("managed_agents")


def inject(headers: dict[str, str] | None = None) -> dict[str, str]:
    """Add `traceparent` (while tracing) and `request-id` of the current work to message headers."""
    headers = {} if headers is None else headers
    if _provider is not None:
        _propagator.inject(headers)
    if current := request_id.get():
        headers.setdefault("request-id", current)
    return headers


def extract(headers: Mapping[str, str] | None) -> otel_context.Context:
    """The trace context that a message brought along."""
    if _provider is None or not headers:
        return otel_context.Context()
    return _propagator.extract(headers)


def traceparent() -> str:
    """The W3C traceparent of the current work, to be stored with what goes on later; empty while tracing is off."""
    if _provider is None:
        return ""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get("traceparent", "")


@contextmanager
def continue_trace(headers: Mapping[str, str] | str | None, span_name: str, **attributes: Any) -> Iterator[trace.Span]:
    """Run a block as a span of the trace that message headers, or a stored traceparent, name."""
    if _provider is None:
        yield trace.INVALID_SPAN
        return
    carrier = {"traceparent": headers} if isinstance(headers, str) else headers
    with tracer().start_as_current_span(span_name, context=extract(carrier), attributes=attributes) as span:
        yield span


@contextmanager
def untraced() -> Iterator[None]:
    """Record no spans of libraries in this block: for loops that look into the database for ever."""
    if _provider is None:
        yield
        return
    from opentelemetry.instrumentation.utils import suppress_instrumentation

    with suppress_instrumentation():
        yield


def flush() -> None:
    """Send the spans that still wait; part of an orderly stop. Bounded by the exporter's own time limit."""
    if _provider is not None:
        _provider.force_flush(5_000)


def _endpoint_is_set() -> bool:
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return any(os.environ.get(name) for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))


def _set_up_traces(service_name: str) -> None:
    global _provider
    if _provider is not None:
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.instrumentation.psycopg import PsycopgInstrumentor
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": f"managed-agents-{service_name}"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    PsycopgInstrumentor().instrument(tracer_provider=provider)
    _provider = provider


def _set_up_logs(service_name: str, log_level: str) -> None:
    level = logging.getLevelNamesMapping().get(log_level.upper(), logging.INFO)

    def add_context(_logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
        event["service"] = service_name
        if current := request_id.get():
            event.setdefault("request_id", current)
        if _provider is not None and (span := trace.get_current_span().get_span_context()).is_valid:
            event["trace_id"] = format(span.trace_id, "032x")
        return event

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_context,
        structlog.processors.format_exc_info,
        mask_keys,
    ]
    render = structlog.processors.JSONRenderer(serializer=_to_json)
    structlog.configure(
        processors=[*shared, render, _mask_line],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=_stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(_stderr)
    handler.name = _HANDLER
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared[:2], structlog.stdlib.add_logger_name, *shared[2:]],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render, _mask_line],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [*(other for other in root.handlers if other.name != _HANDLER), handler]
    root.setLevel(max(level, logging.INFO))
    for chatty in ("httpx2", "httpcore2", "openai", "anthropic", "asyncio", "uvicorn.access", "nats"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _to_json(event: Any, **_options: Any) -> str:
    return orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()


def _mask_line(_logger: Any, _method: str, line: Any) -> str:
    return mask_text(line)

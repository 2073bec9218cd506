"""With an OTLP endpoint set, one request is one trace: through rpc, SQL, the outbox, a consumer and its later turn."""

import asyncio
import gzip
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kit.outbox import OUTBOX_DDL, PROCESSED_MESSAGES_DDL
from kit.waiting import within

CHILD = Path(__file__).with_name("tracing_child.py")


@pytest.fixture
def collector():
    """An OTLP endpoint that keeps the spans that it gets."""
    spans = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            request = ExportTraceServiceRequest.FromString(body)
            spans.extend(
                span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans
            )
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_arguments) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.spans = spans
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def test_one_request_is_one_trace(collector, make_database, nats_url, tmp_path):
    (tmp_path / "0001_initial.sql").write_text(OUTBOX_DDL + PROCESSED_MESSAGES_DDL)
    dsn = await make_database("box", tmp_path)
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(CHILD), dsn, nats_url, f"T{os.getpid()}", str(tmp_path / "rpc.sock"),
        env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, logged = await within(child.communicate(), 60)
    assert child.returncode == 0, logged.decode()
    assert output == b"Internal\n"
    (request,) = [span for span in collector.spans if span.name == "request"]
    ours = [span for span in collector.spans if span.trace_id == request.trace_id]
    kinds = [(span.name.strip("/"), span.kind) for span in ours]
    method = "managed_agents.sessions.v1.TurnsService"
    client, server = 3, 2
    for name in ("AppendTurnEvents", "ReadTurnContext"):
        assert {(f"{method}/{name}", client), (f"{method}/{name}", server)} <= set(kinds)
    names = [name for name, _ in kinds]
    assert {"INSERT", "COMMIT", "consume c", "effect", "turn"} <= set(names)
    # The relay looks into the outbox for ever, and says nothing about it.
    assert not [span for span in collector.spans if span.name == "DELETE"]
    # The id of the trace is in the log line of the failed call.
    assert request.trace_id.hex() in logged.decode()
    # No span holds a payload.
    assert not [span for span in collector.spans if b"wrkspc_a" in span.SerializeToString()]

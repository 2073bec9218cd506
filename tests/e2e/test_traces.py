"""With an OTLP endpoint in the environment, one trace follows a message through every process that touches it."""

from __future__ import annotations

import gzip
import json
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kit.testing import await_until
from tests.support.platform import running_platform

Spans = dict[str, set[tuple[str, str]]]


@pytest.fixture
def collector() -> Iterator[tuple[str, Spans]]:
    """An OTLP receiver: its URL, and by trace id the (service, span name) pairs that it got."""
    received: Spans = defaultdict(set)

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        service = attributes["service.name"].removeprefix("managed-agents-")
                        received[span.trace_id.hex()].add((service, span.name))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keeps the test's output quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    thread.join()
    server.server_close()


def post(url: str, body: dict) -> dict:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as response:
        return json.load(response)


def test_a_message_is_one_trace_from_the_gateway_to_the_end_of_its_turn(
    tmp_path: Path, collector: tuple[str, Spans]
) -> None:
    endpoint, received = collector
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "200"}
    with running_platform(tmp_path / "data", environment=environment) as platform:
        agent = post(f"{platform.url}/v1/agents", {"name": "a", "model": "demo", "system": "s"})
        session = post(f"{platform.url}/v1/sessions", {"agent": agent["id"]})
        post(f"{platform.url}/v1/sessions/{session['id']}/messages", {"content": "hello"})

        def whole_trace() -> set[tuple[str, str]] | None:
            for spans in list(received.values()):
                names = {name for _, name in spans}
                services = {service for service, _ in spans}
                if "turn" in names and {"gateway", "sessions", "runner"} <= services:
                    return set(spans)
            return None

        spans = await_until(
            whole_trace, timeout=30, message=str([spans for spans in received.values() if len(spans) > 3][-6:])
        )

    by_service = {service: {name for found, name in spans if found == service} for service, _ in spans}
    assert any("/v1/sessions/{session_id}/messages" in name for name in by_service["gateway"])
    assert any("AppendEvents" in name for name in by_service["sessions"])
    assert any(name.split(" ")[0] in ("SELECT", "INSERT", "UPDATE", "WITH") for name in by_service["sessions"])


# What the runtime does on every run of the session gateway, in this order.
STEPS = [
    ("gateway", "gateway.access"),
    ("sessions", "gateway.configuration"),
    ("runner", "guardrail.input"),
    ("runner", "memory.follow"),
    ("runner", "model.request"),
    ("runner", "tool.run"),
    ("runner", "guardrail.output"),
    ("runner", "memory.finish"),
]


def test_every_step_of_a_run_of_the_session_gateway_is_in_its_trace(
    tmp_path: Path, collector: tuple[str, Spans]
) -> None:
    endpoint, received = collector
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "200"}
    with running_platform(tmp_path / "data", environment=environment) as platform:
        store = post(f"{platform.url}/v1/memory_stores", {"name": "notes"})
        definition = {
            "name": "a",
            "model": "demo",
            "system": "s",
            "tools": [{"type": "agent_toolset_20260401"}],
            "guardrails": {side: {"deny_patterns": ["never said"]} for side in ("input", "output")},
            "gateway_session": {"resources": [{"type": "memory_store", "memory_store_id": store["id"]}]},
        }
        agent = post(f"{platform.url}/v1/agents", definition)
        gate = f"{platform.url}/api/agents/{agent['id']}/eve/v1/session"
        request = urllib.request.Request(
            gate,
            json.dumps({"message": 'TOOL:bash:{"command": "echo noted > /mnt/memory/notes/n.txt"}'}).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            session_id, run_id = response.headers["session-id"], response.headers["run-id"]
            told = response.read().decode()
        assert "event: completed" in told, told
        with urllib.request.urlopen(f"{gate}/{session_id}/runs/{run_id}", timeout=20) as response:
            trace_id = json.load(response)["traceId"]
        await_until(lambda: set(STEPS) <= received[trace_id], timeout=30, message=f"{STEPS} in {trace_id}")
        with urllib.request.urlopen(f"{platform.url}/v1/memory_stores/{store['id']}/memories", timeout=20) as response:
            assert [memory["path"] for memory in json.load(response)["data"]] == ["/n.txt"]

"""Traces: a request is one span, named after its route, in the caller's trace."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from kit import telemetry
from managed_agents.sessions.v1 import agents_pb2
from tests.unit.gateway.support import Stub, agent, http

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_provider", provider)
    monkeypatch.setattr(telemetry, "tracer", lambda: provider.get_tracer("test"))
    return exporter


async def test_a_request_is_one_span_of_the_callers_trace(spans: InMemorySpanExporter) -> None:
    agents = Stub(GetAgent=agents_pb2.GetAgentResponse(agent=agent()), ArchiveAgent=ValueError("broken"))
    async with http(agents=agents) as client:
        headers = {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"}
        answer = await client.get("/v1/agents/agent_1", headers=headers)
        await client.post("/v1/agents/agent_1/archive")
        await client.get("/v1/nope")
    found, failed, unrouted = spans.get_finished_spans()
    assert found.name == "GET /v1/agents/{agent_id}"
    assert format(found.context.trace_id, "032x") == TRACE_ID
    assert found.attributes["http.response.status_code"] == 200
    assert found.attributes["request_id"] == answer.headers["request-id"]
    assert (failed.name, failed.status.status_code) == ("POST /v1/agents/{agent_id}/archive", StatusCode.ERROR)
    assert (unrouted.name, unrouted.attributes["http.response.status_code"]) == ("GET", 404)

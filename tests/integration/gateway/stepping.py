"""Conversations over the HTTP agent protocol with a real gateway, and a runner that does what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, LiteralString

import httpx2
import psycopg

from kit.rpc.client import channel
from kit.rpc.context import CallContext
from managed_agents.sessions.v1.turns_pb2 import TurnEvent, TurnGrant
from tests.integration.gateway.conftest import Gateway
from tests.integration.sessions.turn_driver import WORKSPACE, Replica, Runner, answer, end, event

SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"], "additionalProperties": False}
LOOKUP = {"name": "lookup", "description": "Looks something up.", "input_schema": SCHEMA}
TOOLSET = {"type": "agent_toolset_20260401"}
AGENT = {"name": "assistant", "model": "default", "system": "You are helpful.", "tools": [TOOLSET]}
_ROWS: LiteralString = """
SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM events), (SELECT count(*) FROM steps),
       (SELECT count(*) FROM step_conversations), (SELECT count(*) FROM turns), (SELECT count(*) FROM outbox)
"""


@dataclass
class Stage:
    """What the tests drive."""

    http: httpx2.AsyncClient
    runner: Runner
    replica: Replica
    agent_id: str
    database_url: str

    async def step(self, name: str = "c", *, agent_id: str = "", key: str = "", **body: Any) -> httpx2.Response:
        """One step, and its answer."""
        headers = {"idempotency-key": key} if key else {}
        path = f"/v1/agents/{agent_id or self.agent_id}/step"
        return await self.http.post(path, json={"session_id": name, **body}, headers=headers)

    def begin(self, name: str = "c", **body: Any) -> asyncio.Task[httpx2.Response]:
        """One step whose answer is still to come."""
        return asyncio.create_task(self.step(name, **body))

    async def agent(self, **fields: Any) -> str:
        """A further agent; one whose `system` is null is made by a published client."""
        published = {"anthropic-version": "2026-10-21", "anthropic-beta": "managed-agents-2026-04-01"}
        headers = published if fields.get("system", "") is None else {}
        body = {key: value for key, value in (AGENT | fields).items() if value is not None}
        made = await self.http.post("/v1/agents", json=body, headers=headers)
        assert made.status_code == 200, made.text
        return made.json()["id"]

    async def replied(self, text: str = "Hi.") -> TurnGrant:
        """The next turn says something and ends."""
        grant = await self.runner.granted()
        assert (await self.replica.append(grant, *answer(text), end=end())).ended
        return grant

    async def called(self, *names: str, asking: str = "", says: str = "") -> list[str]:
        """The next turn calls the caller's tools and waits, and for a confirmation too; ids of the calls."""
        grant = await self.runner.granted()
        calls = [custom_call(name) for name in names] + ([own_call(asking, "ask")] if asking else [])
        ids = [call.id for call in calls]
        begun = [event("span.model_request_start"), *(answer(says)[1:2] if says else ())]
        ended = await self.replica.append(grant, *begun, *calls, end=end("REQUIRES_ACTION", event_ids=ids))
        assert ended.ended
        return ids

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """A request of the session's owner."""
        answered = await self.http.request(method, path, json=body)
        assert answered.status_code == 200, answered.text
        return answered.json()

    async def send(self, session_id: str, **fields: Any) -> None:
        """An event of the session's owner."""
        await self.call("POST", f"/v1/sessions/{session_id}/events", {"events": [fields]})

    async def log(self, answered: httpx2.Response) -> list[dict[str, Any]]:
        """The log of a step's session."""
        return await self.replica.log(answered.headers["step-session"])

    async def rows(self) -> tuple[int, ...]:
        """How much is stored, but for what the relay is still to send."""
        async with await psycopg.AsyncConnection.connect(self.database_url) as connection:
            await connection.execute("SET search_path TO sessions")
            found = await (await connection.execute(_ROWS)).fetchone()
        assert found is not None
        return found[:-1]


def custom_call(name: str, **arguments: Any) -> TurnEvent:
    """A call of a tool of the caller's."""
    value = arguments or {"id": name}
    block = {"type": "tool_use", "id": f"toolu_{name}", "name": "lookup", "input": value}
    return event("agent.custom_tool_use", name="lookup", input=value, content=[block])


def own_call(name: str, permission: str = "allow") -> TurnEvent:
    """A call of a built-in tool."""
    block = {"type": "tool_use", "id": f"toolu_{name}", "name": "bash", "input": {}}
    return event("agent.tool_use", name="bash", input={}, evaluated_permission=permission, content=[block])


def ok(call_id: str, result: Any = None) -> dict[str, Any]:
    """A result of a call."""
    return {"id": call_id, "ok": True, "result": result}


def code(answered: httpx2.Response) -> tuple[int, str]:
    """Status and code of a refusal."""
    return answered.status_code, answered.json()["error"]["code"]


@asynccontextmanager
async def stage(gateway: Gateway) -> AsyncIterator[Stage]:
    """An agent, and a runner with many seats."""
    connection = channel(gateway.sessions_address)
    replica = Replica(connection, CallContext(workspace_id=WORKSPACE, principal_id="test"))
    try:
        async with (
            replica.runner(slots=64) as runner,
            httpx2.AsyncClient(base_url=gateway.url, timeout=30) as http,
        ):
            made = Stage(http, runner, replica, "", gateway.database_url)
            made.agent_id = await made.agent()
            yield made
    finally:
        await connection.close()

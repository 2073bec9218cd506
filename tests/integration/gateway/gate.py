"""Sessions of the session gateway with a real gateway, and a runner that does what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import orjson

from kit.ids import new_id
from kit.rpc.client import channel
from kit.rpc.context import CallContext
from kit.testing.swept import SweptDatabases
from managed_agents.sessions.v1.turns_pb2 import TurnEvent, TurnGrant
from tests.integration.gateway.conftest import Gateway, serving
from tests.integration.sessions.turn_driver import WORKSPACE, Replica, Runner, answer, end, event

QUESTION = {
    "type": "custom",
    "name": "ask_person",
    "description": "Asks the person.",
    "input_schema": {"type": "object", "properties": {"question": {"type": "string"}}},
}
AGENT = {
    "name": "assistant",
    "model": "default",
    "system": "You are helpful.",
    "tools": [{"type": "agent_toolset_20260401"}, QUESTION],
}
SEATS = 64
_KEPT = ("http", "runner", "replica", "agent_id", "preview", "headers", "own")
ENDS = ("completed", "failed", "cancelled")


@dataclass
class Stream:
    """One answer, while it comes and afterwards."""

    status: int = 0
    headers: Any = None
    frames: list[bytes] = field(default_factory=list)
    error: dict[str, Any] = field(default_factory=dict)
    body: Any = None

    @property
    def events(self) -> list[dict[str, Any]]:
        """What came, decoded; each frame is held to its form."""
        told = []
        for frame in self.frames:
            index, kind, data = (line.partition(b": ")[2] for line in frame.split(b"\n"))
            event = orjson.loads(data)
            assert (event["index"], event["type"]) == (int(index), kind.decode())
            told.append(event)
        return told

    @property
    def types(self) -> list[str]:
        """The types of what came."""
        return [event["type"] for event in self.events]

    @property
    def code(self) -> tuple[int, str]:
        """Status and code of a refusal."""
        return self.status, self.error.get("code", "")


@dataclass
class Gate:
    """What the tests drive."""

    http: httpx2.AsyncClient
    runner: Runner
    replica: Replica
    agent_id: str
    preview: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    # Agents whose turns are this test's.
    own: set[str] = field(default_factory=set)

    @property
    def base(self) -> str:
        """The path of the door."""
        return f"/api/agents/{self.agent_id}/{'preview/' if self.preview else ''}eve/v1"

    def door(self, **changes: Any) -> Gate:
        """The same ground for another caller, agent or route."""
        kept = {name: getattr(self, name) for name in _KEPT}
        return Gate(**(kept | changes))

    async def send(
        self, body: Any, session_id: str = "", *, until: Callable[[dict[str, Any]], bool] | None = None, **headers: str
    ) -> Stream:
        """One POST, to its end or until an event fits."""
        path = f"{self.base}/session{f'/{session_id}' if session_id else ''}"
        named = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        return await self._read("POST", path, until, json=body, headers=named)

    def begin(self, text: str = "Hello", session_id: str = "", **headers: str) -> asyncio.Task[Stream]:
        """A message whose run is still to come."""
        return asyncio.create_task(self.send({"message": text}, session_id, **headers))

    async def watch(
        self, session_id: str, start: int | None = None, *, until: Callable[[dict[str, Any]], bool], last: str = ""
    ) -> Stream:
        """The stream of a session until an event fits, or its end."""
        query = "" if start is None else f"?startIndex={start}"
        headers = self.headers | ({"last-event-id": last} if last else {})
        return await self._read("GET", f"{self.base}/session/{session_id}/stream{query}", until, headers=headers)

    async def cancel(self, session_id: str, body: Any = None) -> httpx2.Response:
        """Cancels what a session does."""
        return await self.http.post(f"{self.base}/session/{session_id}/cancel", json=body, headers=self.headers)

    async def run(self, session_id: str, run_id: str) -> dict[str, Any]:
        """A run as it is read back."""
        answered = await self.http.get(f"{self.base}/session/{session_id}/runs/{run_id}", headers=self.headers)
        assert answered.status_code == 200, answered.text
        return answered.json()

    async def says(self, text: str = "Hi.", *cuts: int, grant: TurnGrant | None = None) -> TurnGrant:
        """The next turn says something, in parts up to each cut, and ends."""
        grant = grant or await self.granted()
        request = answer(text)
        request[1].id = new_id("sevt")
        parts = [part(request[1].id, start, text[start:cut]) for start, cut in zip((0, *cuts), cuts, strict=False)]
        for each in parts:
            await self.replica.append(grant, each)
        assert (await self.replica.append(grant, *request, end=end())).ended
        return grant

    async def waits(self, *calls: TurnEvent, grant: TurnGrant | None = None) -> list[str]:
        """The next turn waits for a person; ids of its calls."""
        grant = grant or await self.granted()
        ids = [each.id for each in calls]
        begun = event("span.model_request_start")
        assert (await self.replica.append(grant, begun, *calls, end=end("REQUIRES_ACTION", event_ids=ids))).ended
        return ids

    async def agent(self, **fields: Any) -> str:
        """A further agent."""
        made = await self.http.post("/v1/agents", json=AGENT | fields, headers=self.headers)
        assert made.status_code == 200, made.text
        self.own.add(made.json()["id"])
        return made.json()["id"]

    async def granted(self) -> TurnGrant:
        """The next turn of an agent of this test."""
        while True:
            grant = await self.runner.granted()
            if grant.session.agent.id in self.own:
                return grant

    async def fresh(self) -> Gate:
        """The same ground for another test: an agent of its own, and a runner with every seat free."""
        await self.runner.wait(SEATS)
        made = self.door(own=set())
        made.agent_id = await made.agent()
        return made

    async def sessions(self) -> list[dict[str, Any]]:
        """The sessions of the agent."""
        return (await self.call("GET", f"/v1/sessions?agent_id={self.agent_id}"))["data"]

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """A request of the session's owner on another door."""
        answered = await self.http.request(method, path, json=body, headers=self.headers)
        assert answered.status_code == 200, answered.text
        return answered.json()

    async def _read(
        self, method: str, path: str, until: Callable[[dict[str, Any]], bool] | None, **options: Any
    ) -> Stream:
        stream = Stream()
        async with self.http.stream(method, path, **options) as response:
            stream.status, stream.headers = response.status_code, response.headers
            if not response.headers["content-type"].startswith("text/event-stream"):
                stream.body = orjson.loads(await response.aread())
                stream.error = stream.body.get("error", {})
                return stream
            unread = b""
            async for piece in response.aiter_raw():
                *frames, unread = (unread + piece).split(b"\n\n")
                for frame in frames:
                    if frame.startswith(b":"):
                        continue
                    stream.frames.append(frame)
                    if until is not None and until(stream.events[-1]):
                        return stream
        return stream


def part(message_id: str, offset: int, text: str) -> TurnEvent:
    """Text while the model speaks."""
    return event("agent.message_part", message_id=message_id, offset=offset, text=text)


def confirmation(command: str = "ls") -> TurnEvent:
    """A call that a person has to decide on."""
    block = {"type": "tool_use", "id": new_id("toolu"), "name": "bash", "input": {"command": command}}
    return event("agent.tool_use", name="bash", input={"command": command}, evaluated_permission="ask", content=[block])


def question(text: str = "Which month?") -> TurnEvent:
    """A question to a person."""
    block = {"type": "tool_use", "id": new_id("toolu"), "name": "ask_person", "input": {"question": text}}
    return event("agent.custom_tool_use", name="ask_person", input={"question": text}, content=[block])


def over(told: dict[str, Any]) -> bool:
    """Whether an event ends a run."""
    return told["type"] in ENDS


@asynccontextmanager
async def gate(gateway: Gateway) -> AsyncIterator[Gate]:
    """An agent, and a runner with many seats."""
    connection = channel(gateway.sessions_address)
    replica = Replica(connection, CallContext(workspace_id=WORKSPACE, principal_id="test"))
    try:
        async with (
            replica.runner(slots=SEATS) as runner,
            httpx2.AsyncClient(base_url=gateway.url, timeout=20) as http,
        ):
            made = Gate(http, runner, replica, "")
            made.agent_id = await made.agent()
            yield made
    finally:
        await connection.close()


@asynccontextmanager
async def ground_of(databases: SweptDatabases, nats_url: str) -> AsyncIterator[tuple[Gateway, Gate]]:
    """A gateway with all that is behind it, for a whole file of tests."""
    async with databases.maker() as make, serving(make, nats_url) as gateway, gate(gateway) as made:
        yield gateway, made

"""However often a client reconnects, it sees each event once by id, and each queued message read in the end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from kit.rpc.client import channel
from kit.rpc.context import CallContext
from tests.integration.gateway.conftest import Gateway
from tests.integration.sessions.turn_driver import WORKSPACE, Replica, Runner, answer, call, end, event, user

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest.fixture
def gateway(fresh_gateway: Gateway) -> Gateway:
    """Runners take whatever turn waits, so there must be no other."""
    return fresh_gateway


PUBLISHED = {"anthropic-version": "2023-06-01", "anthropic-beta": "managed-agents-2026-04-01"}
Step = Callable[[], Awaitable[Any]]


@pytest_asyncio.fixture(loop_scope="package")
async def replica(gateway: Gateway) -> AsyncIterator[Replica]:
    """The rpcs of the sessions service behind the gateway."""
    connection = channel(gateway.sessions_address)
    try:
        yield Replica(connection, CallContext(workspace_id=WORKSPACE, principal_id="test"))
    finally:
        await connection.close()


class Client:
    """Knows what a client knows: its cursor, and the newest copy of each event."""

    def __init__(self, http: httpx2.AsyncClient, session_id: str, headers: dict[str, str]) -> None:
        self._http = http
        self._url = f"/v1/sessions/{session_id}/events/stream"
        self._headers = headers
        self.cursor = 0
        self.seqs: list[int] = []
        self.copies: dict[str, list[dict[str, Any]]] = {}

    async def read(self, up_to: int, most: int | None = None) -> None:
        """Connects, and leaves at the end of the log or after so many new events."""
        target = up_to if most is None else min(up_to, self.cursor + most)
        if self.cursor >= target:
            return
        headers = self._headers | {"last-event-id": str(self.cursor)}
        async with self._http.stream("GET", self._url, headers=headers) as response:
            assert response.status_code == 200
            seq = None
            async for line in response.aiter_lines():
                if line.startswith("id: "):
                    seq = int(line[4:])
                elif line.startswith("data: "):
                    body = json.loads(line[6:])
                    self.copies.setdefault(body["id"], []).append(body)
                    if seq is None:
                        assert body["seq"] <= self.cursor, "only a later copy comes without an id"
                        continue
                    self.cursor, seq = seq, None
                    self.seqs.append(self.cursor)
                    if self.cursor >= target:
                        return

    def unread(self) -> list[int]:
        """Seqs of the events whose newest copy was not read."""
        return [copies[-1]["seq"] for copies in self.copies.values() if copies[-1]["processed_at"] is None]


async def story(replica: Replica, runner: Runner, session_id: str) -> list[Step]:
    """A turn with inputs that wait for a while: each step is something that happens to the log."""
    grant = await runner.granted()
    seen = grant.session.last_seq

    async def append(*events: Any, **options: Any) -> None:
        nonlocal seen
        await runner.renew(grant)
        written = await replica.append(grant, *events, known_seq=seen, **options)
        seen = written.last_seq

    system = {"type": "system.message", "content": [{"type": "text", "text": "Be brief."}]}
    request = [event("span.model_request_start"), call("agent.tool_use", "toolu_1")]
    return [
        lambda: append(*request),
        lambda: replica.send(session_id, user("one"), system),
        lambda: append(event("agent.tool_result", tool_use_id=request[1].id, content=[], is_error=False)),
        lambda: replica.send(session_id, user("two")),
        # It has not heard of the second message yet: only the first two are read here.
        lambda: append(*answer("first")),
        lambda: append(event("agent.thinking")),
        lambda: append(*answer("second")),
        lambda: replica.send(session_id, user("three")),
        lambda: append(*answer("third")),
        lambda: append(*answer("fourth"), end=end()),
    ]


@pytest.mark.parametrize("headers", [{}, PUBLISHED], ids=["local", "published"])
async def test_who_reconnects_at_any_point_sees_each_queued_message_read(
    http: httpx2.AsyncClient, replica: Replica, headers: dict[str, str]
) -> None:
    async with replica.runner() as runner:
        session_id = await replica.create_session(user("zero"))
        steps = await story(replica, runner, session_id)
        # One client for each two moments at which it reads everything, and some that leave after a few events.
        pairs = {(i, j): Client(http, session_id, headers) for i in range(len(steps)) for j in range(i)}
        hasty = {most: Client(http, session_id, headers) for most in (1, 2, 3, 5)}
        for index, step in enumerate(steps):
            await step()
            last_seq = len(await replica.log(session_id))
            for pair, client in pairs.items():
                if index in pair:
                    await client.read(last_seq)
            for most, client in hasty.items():
                await client.read(last_seq, most)
    for client in (*pairs.values(), *hasty.values()):
        while client.cursor < last_seq:
            await client.read(last_seq, 4)
        assert client.seqs == list(range(1, last_seq + 1))
        assert client.unread() == []
        assert max(len(copies) for copies in client.copies.values()) <= 2
    assert any(len(copies) > 1 for client in pairs.values() for copies in client.copies.values())


async def test_a_live_stream_that_opens_after_a_message_was_queued_shows_it_read(
    http: httpx2.AsyncClient, replica: Replica
) -> None:
    async with replica.runner() as runner:
        session_id = await replica.create_session(user("zero"))
        grant = await runner.granted()
        queued = (await replica.send(session_id, user("one"))).events[0]
        url = f"/v1/sessions/{session_id}/events/stream"
        async with http.stream("GET", url) as response:
            lines = response.aiter_lines()
            assert await anext(lines) == ": open"
            await replica.append(grant, *answer(), known_seq=queued.seq, end=end())
            heard = [line async for line in _until_idle(lines)]
    bodies = [json.loads(line[6:]) for line in heard if line.startswith("data: ")]
    assert [body["id"] for body in bodies].count(queued.id) == 1
    assert bodies[0]["id"] == queued.id and bodies[0]["processed_at"]
    assert f"id: {queued.seq}" not in heard


async def _until_idle(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    async for line in lines:
        yield line
        if '"type":"session.status_idle"' in line:
            return

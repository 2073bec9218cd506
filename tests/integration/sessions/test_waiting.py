"""The bound on waiting over a real database: found by an index, ended once, whatever the replicas do."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
import pytest_asyncio

from kit.errors import DomainError
from kit.ids import new_id
from kit.rpc.context import current_context
from kit.rpc.server import Server
from kit.testing import await_until
from managed_agents.sessions.v1 import sessions_pb2
from managed_agents.vault.v1 import vault_pb2
from managed_agents.vault.v1.vault_pb2_grpc import SettingsServiceServicer, add_SettingsServiceServicer_to_server
from services.sessions.operations import waits
from tests.integration.sessions.thread_driver import coordinator
from tests.integration.sessions.turn_driver import (
    Replica,
    answer,
    call,
    end,
    replica,
    types,
    user,
)

pytestmark = pytest.mark.asyncio(loop_scope="package")

# The primary thread stands where its session does.
ENDED = [sessions_pb2.SessionStatus.SESSION_STATUS_TIMED_OUT, sessions_pb2.SessionStatus.SESSION_STATUS_TERMINATED]
TIMED_OUT = ["session.error", "session.thread_status_terminated", "session.status_terminated"]


@dataclass
class Vault(SettingsServiceServicer):
    """Says how long each workspace lets its sessions wait."""

    bounds: dict[str, int] = field(default_factory=dict)
    address: str = ""
    asked: int = 0

    async def GetSettings(self, request: Any, context: Any) -> vault_pb2.GetSettingsResponse:
        self.asked += 1
        options: dict[str, Any] = {"default_max_steps": 25}
        if (bound := self.bounds.get(current_context().workspace_id)) is not None:
            options["requires_action_timeout_seconds"] = bound
        document = {"schema_version": 1, "loop_engine": {"provider": "builtin", "options": options}}
        return vault_pb2.GetSettingsResponse(document_json=orjson.dumps(document))

    async def GetLoopEngine(self, request: Any, context: Any) -> vault_pb2.GetLoopEngineResponse:
        return vault_pb2.GetLoopEngineResponse(provider="builtin")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ma-") as name:
        yield Path(name)


@pytest_asyncio.fixture(loop_scope="package")
async def vault(folder: Path) -> AsyncIterator[Vault]:
    stand_in = Vault(address=f"unix:{folder}/vault.sock")
    server = Server(stand_in.address, service="vault")
    server.add(add_SettingsServiceServicer_to_server, stand_in)
    await server.start()
    yield stand_in
    await server.stop()


@pytest.fixture(autouse=True)
def believes_vault_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "REFRESH_SECONDS", 0.05)


async def park(clients: Replica) -> tuple[str, str]:
    """A session that waits for an answer, and the id of the call."""
    session_id = await clients.create_session(user())
    async with clients.runner() as runner:
        grant = await runner.granted()
        parked = call("agent.custom_tool_use", new_id("toolu"))
        await clients.append(grant, *answer(), parked, end=end("REQUIRES_ACTION", event_ids=[parked.id]))
    assert await clients.status(session_id) == "requires_action"
    return session_id, parked.id


async def parked_for(dsn: str, session_id: str, seconds: int) -> None:
    async with await psycopg.AsyncConnection.connect(
        dsn, options="-c search_path=sessions -c managed_agents.workspace=*"
    ) as connection:
        await connection.execute(
            "UPDATE sessions SET parked_at = parked_at - make_interval(secs => %s), version = version + 1"
            " WHERE id = %s",
            [seconds, session_id],
        )


@asynccontextmanager
async def swept(dsn: str, nats_url: str, folder: Path, vault: Vault, **options: Any) -> AsyncIterator[Replica]:
    settings = {"sweep_seconds": 0.05, "vault_address": vault.address} | options
    async with replica(dsn, nats_url, folder, **settings) as clients:
        yield clients


async def status_is(clients: Replica, session_id: str, status: str) -> None:
    async def reached() -> bool:
        return await clients.status(session_id) == status

    await await_until(reached, timeout=10)


async def test_a_session_that_waited_too_long_is_timed_out(dsn: str, nats_url: str, folder: Path, vault: Vault) -> None:
    async with swept(dsn, nats_url, folder, vault) as one:
        session_id, call_id = await park(one)
        fresh, _ = await park(one)
        await parked_for(dsn, session_id, 3_600)
        vault.bounds["wrkspc_default"] = 3_600
        await status_is(one, session_id, "timed_out")
        log = await one.log(session_id)
        assert types(log)[-3:] == TIMED_OUT
        assert log[-3]["error"]["type"] == "requires_action_timeout"
        assert not [entry for entry in log if entry["type"].endswith("tool_result")]
        with pytest.raises(DomainError) as refused:
            await one.send(session_id, {"type": "user.custom_tool_result", "custom_tool_use_id": call_id})
        assert refused.value.reason == "SESSION_ENDED"
        assert await one.status(fresh) == "requires_action"


async def test_without_a_bound_a_session_waits_for_ever(dsn: str, nats_url: str, folder: Path, vault: Vault) -> None:
    async with swept(dsn, nats_url, folder, vault) as one:
        session_id, call_id = await park(one)
        await parked_for(dsn, session_id, 10**8)
        asked = vault.asked
        await await_until(lambda: vault.asked > asked + 3, timeout=10)
        assert await one.status(session_id) == "requires_action"
        await one.send(session_id, {"type": "user.custom_tool_result", "custom_tool_use_id": call_id})
        assert await one.status(session_id) == "running"


async def test_a_restart_does_not_begin_the_wait_anew(dsn: str, nats_url: str, folder: Path, vault: Vault) -> None:
    async with swept(dsn, nats_url, folder, vault) as one:
        session_id, _ = await park(one)
    await parked_for(dsn, session_id, 100)
    vault.bounds["wrkspc_default"] = 100
    async with swept(dsn, nats_url, folder, vault) as another:
        await status_is(another, session_id, "timed_out")


async def test_a_bound_is_of_its_workspace(dsn: str, nats_url: str, folder: Path, vault: Vault) -> None:
    async with (
        swept(dsn, nats_url, folder, vault) as ours,
        swept(dsn, nats_url, folder, vault, workspace_id="wrkspc_theirs") as theirs,
    ):
        mine, _ = await park(ours)
        theirs_id, _ = await park(theirs)
        for session_id in (mine, theirs_id):
            await parked_for(dsn, session_id, 1_000)
        vault.bounds["wrkspc_theirs"] = 1_000
        await status_is(theirs, theirs_id, "timed_out")
        assert await ours.status(mine) == "requires_action"


async def test_replicas_that_sweep_at_once_end_a_session_once(
    dsn: str, nats_url: str, folder: Path, vault: Vault
) -> None:
    async with swept(dsn, nats_url, folder, vault) as one, swept(dsn, nats_url, folder, vault):
        sessions = [(await park(one))[0] for _ in range(12)]
        for session_id in sessions:
            await parked_for(dsn, session_id, 1_000)
        vault.bounds["wrkspc_default"] = 1_000
        for session_id in sessions:
            await status_is(one, session_id, "timed_out")
            assert types(await one.log(session_id)).count("session.error") == 1


async def test_the_threads_of_a_session_that_waited_too_long_end_with_it(
    dsn: str, nats_url: str, folder: Path, vault: Vault
) -> None:
    async with swept(dsn, nats_url, folder, vault) as one, coordinator(one) as lead:
        (thread_id,) = await lead.start(await lead.begin(), "writer")
        grant = await lead.turn_of(thread_id)
        asked = call("agent.custom_tool_use", "toolu_of_a_thread")
        await one.append(grant, *answer(), asked, end=end("REQUIRES_ACTION", event_ids=[asked.id]))
        await status_is(one, lead.id, "requires_action")
        await parked_for(dsn, lead.id, 500)
        vault.bounds["wrkspc_default"] = 500
        await status_is(one, lead.id, "timed_out")
        log = await lead.log()
        assert types(log)[-3:] == TIMED_OUT and types(log).count("session.error") == 1
        ended = [entry["session_thread_id"] for entry in log if entry["type"] == "session.thread_status_terminated"]
        assert ended[0] == thread_id and len(ended) == 2
        for entries in (log, await lead.thread_log(thread_id)):
            assert not [entry for entry in entries if entry["type"].endswith("tool_result")]
        assert [thread.status for thread in await lead.threads()] == ENDED


async def test_the_sweep_reads_an_index_and_no_table(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(
        dsn, options="-c search_path=sessions -c managed_agents.workspace=*"
    ) as connection:
        found = await connection.execute(
            "EXPLAIN SELECT id, parked_at FROM sessions WHERE workspace_id = 'w' AND parked_at <= now()"
            " AND (parked_at, id) > ('-infinity', '') ORDER BY parked_at, id LIMIT 100"
        )
        plan = "\n".join(row[0] for row in await found.fetchall())
    assert "sessions_parked" in plan and "Seq Scan" not in plan

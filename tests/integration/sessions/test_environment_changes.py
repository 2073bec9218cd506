"""A session takes no event once its environment means no backend, on whatever replica and however it came to that."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from kit.errors import DomainError
from kit.postgres import Database
from managed_agents.sessions.v1 import environments_pb2
from tests.integration.sessions.turn_driver import WORKSPACE, Replica, answer, end, replica, types, user

pytestmark = pytest.mark.asyncio(loop_scope="package")

BROKEN = [
    ("{not json", "INVALID_ENVIRONMENT_CONFIG"),
    ("[]", "INVALID_ENVIRONMENT_CONFIG"),
    ('{"hosting_type":7}', "INVALID_ENVIRONMENT_CONFIG"),
    ('{"hosting_type":"cloud"}', "UNSUPPORTED_HOSTING_TYPE"),
    ('{"sandbox_provider":"acme"}', "SANDBOX_PROVIDER_NOT_REGISTERED"),
]


@pytest_asyncio.fixture(loop_scope="package")
async def replicas(one: Replica, dsn: str, nats_url: str, folder: Path) -> AsyncIterator[tuple[Replica, Replica]]:
    async with replica(dsn, nats_url, folder) as other:
        yield one, other


@pytest_asyncio.fixture(loop_scope="package")
async def database(dsn: str) -> AsyncIterator[Database]:
    opened = Database(dsn, "sessions")
    await opened.open()
    yield opened
    await opened.close()


async def environment(on: Replica) -> str:
    request = environments_pb2.CreateEnvironmentRequest(definition_json=b'{"name":"own","hosting_type":"local"}')
    return (await on.environments.CreateEnvironment(request)).environment.id


async def change(on: Replica, environment_id: str, **patch: Any) -> None:
    request = environments_pb2.UpdateEnvironmentRequest(environment_id=environment_id, patch_json=orjson.dumps(patch))
    await on.environments.UpdateEnvironment(request)


async def damage(database: Database, environment_id: str, config: str) -> None:
    """As a bad restore, or a person with a database client, would leave it."""
    async with database.transaction(WORKSPACE) as tx:
        await tx.execute(
            "UPDATE environments SET config = %(config)s WHERE workspace_id = %(workspace_id)s AND id = %(id)s",
            {"config": config, "id": environment_id},
        )


async def reason(awaitable: Any) -> str:
    with pytest.raises(DomainError) as caught:
        await awaitable
    return caught.value.reason


@pytest.mark.parametrize(("config", "expected"), BROKEN)
@pytest.mark.parametrize("is_default", [False, True], ids=["named", "default"])
async def test_a_damaged_environment_takes_no_event_and_a_repaired_one_does(
    replicas: tuple[Replica, Replica], database: Database, config: str, expected: str, is_default: bool
) -> None:
    one, other = replicas
    environment_id = "env_default" if is_default else await environment(one)
    session_id = await one.create_session(environment_id=environment_id)
    sent = {"type": "user.interrupt"}
    for on in replicas:
        # Both remember where it stands now.
        await on.send(session_id, sent)
    await damage(database, environment_id, config)
    if is_default and expected != "INVALID_ENVIRONMENT_CONFIG":
        # Its backend is the workspace's own, whatever its record declares.
        await one.send(session_id, sent)
        return
    for on in (*replicas, one):
        assert await reason(on.send(session_id, sent)) == expected
    assert len(await one.log(session_id)) == 2
    await change(other, environment_id, hosting_type="local", sandbox_provider="local")
    for on in replicas:
        await on.send(session_id, sent)
    assert len(await one.log(session_id)) == 4


async def test_an_update_to_a_backend_that_is_missing_closes_its_sessions_and_no_others(
    replicas: tuple[Replica, Replica],
) -> None:
    one, other = replicas
    changed, kept = await environment(one), await environment(one)
    inside = [await one.create_session(environment_id=changed) for _ in range(3)]
    outside = await one.create_session(environment_id=kept)
    await change(other, changed, sandbox_provider="acme")
    for session_id in inside:
        assert await reason(one.send(session_id, user())) == "SANDBOX_PROVIDER_NOT_REGISTERED"
        assert await one.log(session_id) == []
    await one.send(outside, user())
    assert await one.status(outside) == "running"


async def test_a_turn_that_runs_is_not_broken_by_it(replicas: tuple[Replica, Replica]) -> None:
    one, _ = replicas
    environment_id = await environment(one)
    session_id = await one.create_session(environment_id=environment_id)
    async with one.runner() as runner:
        await one.send(session_id, user())
        grant = await runner.granted()
        await change(one, environment_id, hosting_type="docker")
        assert await reason(one.send(session_id, user())) == "SANDBOX_PROVIDER_NOT_REGISTERED"
        await one.append(grant, *answer(), end=end())
    assert await one.status(session_id) == "idle"
    assert types(await one.log(session_id)).count("user.message") == 1


async def test_changes_that_mean_the_same_backend_and_an_archival_close_nothing(
    replicas: tuple[Replica, Replica],
) -> None:
    one, other = replicas
    environment_id = await environment(one)
    session_id = await one.create_session(environment_id=environment_id)
    await one.send(session_id, {"type": "user.interrupt"})
    await change(other, environment_id, name="renamed", network={"type": "limited"})
    await one.send(session_id, {"type": "user.interrupt"})
    await other.environments.ArchiveEnvironment(
        environments_pb2.ArchiveEnvironmentRequest(environment_id=environment_id)
    )
    # An archived environment takes no new sessions; those that it has go on.
    await one.send(session_id, {"type": "user.interrupt"})
    assert len(await one.log(session_id)) == 3


async def test_a_change_among_many_appends_loses_none_and_closes_all(replicas: tuple[Replica, Replica]) -> None:
    one, other = replicas
    environment_id = await environment(one)
    sessions = [await one.create_session(environment_id=environment_id) for _ in range(8)]

    async def send(on: Replica, session_id: str) -> int:
        stored = 0
        for _ in range(10):
            try:
                stored += len((await on.send(session_id, {"type": "user.interrupt"})).events)
            except DomainError as refused:
                assert refused.reason == "SANDBOX_PROVIDER_NOT_REGISTERED"
        return stored

    sending = [asyncio.create_task(send(on, name)) for name in sessions for on in replicas]
    await change(other, environment_id, sandbox_provider="acme")
    stored = sum(await asyncio.gather(*sending))
    logs = [await one.log(name) for name in sessions]
    assert sum(map(len, logs)) == stored
    for name, log in zip(sessions, logs, strict=True):
        assert [entry["seq"] for entry in log] == list(range(1, len(log) + 1))
        for on in replicas:
            assert await reason(on.send(name, {"type": "user.interrupt"})) == "SANDBOX_PROVIDER_NOT_REGISTERED"

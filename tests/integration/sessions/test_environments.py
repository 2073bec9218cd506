"""Environments over a real database: the default one, updates, damaged records, deletion, tenants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio

from kit.pages import InvalidCursor
from services.sessions.domain.errors import (
    DefaultEnvironmentStays,
    EnvironmentArchived,
    EnvironmentInUse,
    EnvironmentNotFound,
    InvalidEnvironmentConfig,
    UnsupportedHostingType,
)
from services.sessions.store.environments import EnvironmentStore
from tests.integration.sessions.definitions_driver import HOME, MIGRATIONS, Definitions, opened

pytestmark = pytest.mark.asyncio(loop_scope="package")

LIMITED = {"type": "limited", "allow_mcp_servers": False, "allow_package_managers": False, "allowed_hosts": []}


@pytest_asyncio.fixture(loop_scope="package")
async def platform(make_database: Any, clock: Any) -> AsyncIterator[Definitions]:
    async with opened(await make_database("sessions", MIGRATIONS), clock) as definitions:
        yield definitions


async def damage(platform: Definitions, environment_id: str, config: str) -> None:
    async with platform.database.transaction(HOME) as tx:
        await tx.execute(
            "UPDATE environments SET config = %(config)s WHERE workspace_id = %(workspace_id)s AND id = %(id)s",
            {"config": config, "id": environment_id},
        )


async def name_in_session(platform: Definitions, environment_id: str, *, workspace: str = HOME) -> None:
    async with platform.database.transaction(workspace) as tx:
        await EnvironmentStore(tx).load_for_session(environment_id)
        await tx.execute(
            """
            INSERT INTO sessions (
                workspace_id, id, created_at, updated_at, agent_id, agent_version, agent_name, environment_id,
                environment, thread_id
            )
            VALUES (%(workspace_id)s, 'sess_' || gen_random_uuid(), now(), now(), 'agent_x', 1, 'x', %(id)s, '{}', 't')
            """,
            {"id": environment_id},
        )


async def test_a_created_environment_reads_back_in_both_spellings(platform: Definitions) -> None:
    created = await platform.create_environment(
        {
            "description": "For the local machine",
            "metadata": {"a": "b"},
            "hosting_type": "local",
            "sandbox_provider": "local",
            "network": {
                "type": "limited",
                "allow_mcp_server_network_access": False,
                "allow_package_manager_network_access": True,
                "allowed_hosts": ["api.example.com"],
            },
            "packages": [],
        }
    )

    assert await platform.environment(created.id) == created
    assert created.id.startswith("env_")
    assert (created.hosting_type, created.sandbox_provider, created.worker_protocol) == ("local", "local", "")
    assert orjson.loads(created.network_json) == {
        "type": "limited",
        "allow_mcp_server_network_access": False,
        "allow_package_manager_network_access": True,
        "allowed_hosts": ["api.example.com"],
    }
    assert orjson.loads(created.config_json)["networking"] == LIMITED | {
        "allow_package_managers": True,
        "allowed_hosts": ["api.example.com"],
    }
    assert (created.packages_json, created.scope, created.description) == (
        b"[]",
        "organization",
        "For the local machine",
    )


async def test_names_need_not_be_unique(platform: Definitions) -> None:
    first, second = await platform.create_environment({}), await platform.create_environment({})
    assert first.name == second.name
    assert first.id != second.id


async def test_each_workspace_has_one_default_environment(platform: Definitions) -> None:
    many = await asyncio.gather(*(platform.environment("env_default") for _ in range(6)))
    elsewhere = await platform.environment("env_default", workspace="wrkspc_elsewhere")

    assert all(one == many[0] for one in many)
    assert (many[0].hosting_type, many[0].sandbox_provider) == ("local", "local")
    await platform.update_environment("env_default", {"description": "ours"})
    assert not (await platform.environment("env_default", workspace="wrkspc_elsewhere")).HasField("description")
    assert elsewhere.id == "env_default"


async def test_the_default_environment_is_listed_before_anybody_needs_it(platform: Definitions) -> None:
    assert [one.id for one in (await platform.list_environments()).environments] == ["env_default"]
    created = await platform.create_environment({}, workspace="wrkspc_elsewhere")
    listed = await platform.list_environments(workspace="wrkspc_elsewhere", limit=1)
    rest = await platform.list_environments(workspace="wrkspc_elsewhere", limit=1, cursor=listed.page_info.next_cursor)
    assert {one.id for page in (listed, rest) for one in page.environments} == {"env_default", created.id}


async def test_the_default_environment_can_be_neither_archived_nor_deleted(platform: Definitions) -> None:
    for call in (platform.archive_environment("env_default"), platform.delete_environment("env_default")):
        with pytest.raises(DefaultEnvironmentStays):
            await call


async def test_an_update_merges_and_one_that_changes_nothing_keeps_the_time(platform: Definitions, clock: Any) -> None:
    created = await platform.create_environment(
        {"metadata": {"a": "1", "b": "2", "c": "3"}, "config": {"type": "cloud", "networking": {"type": "limited"}}}
    )
    clock.advance(5)

    updated = await platform.update_environment(
        created.id,
        {
            "metadata": {"a": None, "b": "", "d": "4"},
            "description": "",
            "config": {"type": "cloud", "networking": {"type": "limited", "allowed_hosts": ["a.example.com"]}},
        },
    )
    clock.advance(5)
    again = await platform.update_environment(
        created.id, {"name": "place", "config": {"type": "cloud"}, "metadata": {"d": "4"}}
    )

    assert orjson.loads(updated.metadata_json) == {"c": "3", "d": "4"}
    assert updated.description == ""
    assert orjson.loads(updated.config_json)["networking"] == LIMITED | {"allowed_hosts": ["a.example.com"]}
    assert updated.updated_at > created.updated_at
    assert again == updated
    cleared = await platform.update_environment(created.id, {"description": None})
    assert not cleared.HasField("description")


async def test_concurrent_updates_of_different_parts_all_take_effect(platform: Definitions) -> None:
    created = await platform.create_environment({})
    await asyncio.gather(*(platform.update_environment(created.id, {"metadata": {f"k{n}": "v"}}) for n in range(8)))
    assert orjson.loads((await platform.environment(created.id)).metadata_json) == {f"k{n}": "v" for n in range(8)}


@pytest.mark.parametrize("config", ["{", "[]", '"local"', '{"hosting_type": 4}', '{"network": {"type": "open"}}'])
async def test_a_record_that_cannot_be_read_is_reported_closed_and_is_repaired_on_purpose(
    platform: Definitions, config: str
) -> None:
    created = await platform.create_environment({})
    await damage(platform, created.id, config)

    read = await platform.environment(created.id)
    assert (read.hosting_type, read.sandbox_provider) == ("unknown", "")
    assert orjson.loads(read.config_json)["networking"] == LIMITED
    with pytest.raises(InvalidEnvironmentConfig):
        await platform.update_environment(created.id, {"name": "still broken"})
    async with platform.database.read(HOME) as tx:
        stored = await EnvironmentStore(tx).load(created.id)
    with pytest.raises(InvalidEnvironmentConfig):
        stored.resolve()

    repaired = await platform.update_environment(created.id, {"hosting_type": "docker"})
    assert (repaired.hosting_type, repaired.sandbox_provider) == ("docker", "docker")


async def test_a_stored_hosting_type_that_cannot_be_served_is_echoed_and_never_lowered(platform: Definitions) -> None:
    created = await platform.create_environment({})
    await damage(platform, created.id, '{"hosting_type": "cloud"}')

    read = await platform.environment(created.id)
    assert (read.hosting_type, read.sandbox_provider) == ("cloud", "")
    async with platform.database.read(HOME) as tx:
        stored = await EnvironmentStore(tx).load(created.id)
    with pytest.raises(UnsupportedHostingType):
        stored.resolve()


async def test_refused_creations_write_nothing(platform: Definitions) -> None:
    for definition in ({"hosting_type": "cloud"}, {"hosting_type": "moon"}):
        with pytest.raises(UnsupportedHostingType):
            await platform.create_environment(definition)
    assert [one.id for one in (await platform.list_environments()).environments] == ["env_default"]


async def test_archiving_is_idempotent_and_final(platform: Definitions, clock: Any) -> None:
    created = await platform.create_environment({})
    archived = await platform.archive_environment(created.id)
    clock.advance(60)

    assert await platform.archive_environment(created.id) == archived
    with pytest.raises(EnvironmentArchived):
        await platform.update_environment(created.id, {"name": "late"})
    assert created.id not in {one.id for one in (await platform.list_environments()).environments}
    assert created.id in {one.id for one in (await platform.list_environments(include_archived=True)).environments}


async def test_an_environment_in_use_is_not_deleted_and_an_unused_one_is(platform: Definitions) -> None:
    used, unused = await platform.create_environment({}), await platform.create_environment({})
    await name_in_session(platform, used.id)
    # A session of another workspace doesn't hold ours.
    await platform.create_environment({}, workspace="wrkspc_elsewhere")

    with pytest.raises(EnvironmentInUse):
        await platform.delete_environment(used.id)
    await platform.delete_environment(unused.id)

    assert (await platform.environment(used.id)).id == used.id
    for call in (platform.environment(unused.id), platform.delete_environment(unused.id)):
        with pytest.raises(EnvironmentNotFound):
            await call


async def test_a_session_and_a_deletion_that_meet_never_both_succeed(platform: Definitions) -> None:
    for _ in range(10):
        created = await platform.create_environment({})
        session, deletion = await asyncio.gather(
            name_in_session(platform, created.id), platform.delete_environment(created.id), return_exceptions=True
        )
        assert (session is None) != (deletion is None), (session, deletion)


@pytest.mark.parametrize("environment_id", ["env_00000000000000000000000000", "", "x\x00y"])
async def test_an_unknown_id_is_not_found_by_every_rpc(platform: Definitions, environment_id: str) -> None:
    for call in (
        platform.environment(environment_id),
        platform.update_environment(environment_id, {"name": "x"}),
        platform.archive_environment(environment_id),
        platform.delete_environment(environment_id),
    ):
        with pytest.raises(EnvironmentNotFound):
            await call


async def test_an_environment_of_another_workspace_is_not_found_and_not_listed(platform: Definitions) -> None:
    created = await platform.create_environment({})
    elsewhere = "wrkspc_elsewhere"
    for call in (
        platform.environment(created.id, workspace=elsewhere),
        platform.update_environment(created.id, {"name": "x"}, workspace=elsewhere),
        platform.archive_environment(created.id, workspace=elsewhere),
        platform.delete_environment(created.id, workspace=elsewhere),
    ):
        with pytest.raises(EnvironmentNotFound):
            await call
    listed = await platform.list_environments(workspace=elsewhere)
    assert [one.id for one in listed.environments] == ["env_default"]
    assert await platform.environment(created.id) == created


async def test_walking_the_pages_meets_each_environment_once(platform: Definitions) -> None:
    before = {(await platform.create_environment({})).id for _ in range(12)} | {"env_default"}
    met: list[str] = []
    cursor = ""
    while True:
        page = await platform.list_environments(limit=5, cursor=cursor)
        met += [one.id for one in page.environments]
        await platform.create_environment({})
        cursor = page.page_info.next_cursor
        if not cursor:
            break

    assert len(met) == len(set(met))
    assert before <= set(met)
    first = await platform.list_environments(limit=1)
    with pytest.raises(InvalidCursor):
        await platform.list_environments(limit=1, cursor=first.page_info.next_cursor, include_archived=True)


async def test_a_repeated_creation_is_answered_as_the_first(platform: Definitions) -> None:
    answers = await asyncio.gather(*(platform.create_environment({}, key="k1") for _ in range(4)))
    assert len({answer.id for answer in answers}) == 1

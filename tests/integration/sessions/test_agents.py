"""Agents over a real database: versions, the optimistic lock, tenants, pages, repeats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from kit.idempotency import IdempotencyKeyReused
from kit.pages import InvalidCursor, encode_cursor
from kit.rpc.context import CallContext, use_context
from managed_agents.sessions.v1 import agents_pb2
from services.sessions.domain.errors import (
    AgentArchived,
    AgentNotFound,
    AgentVersionConflict,
    AgentVersionNotFound,
    InvalidJson,
)
from services.sessions.domain.session_errors import InvalidRequest, UnsupportedCapability
from tests.integration.sessions.definitions_driver import MIGRATIONS, Definitions, document, opened

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest_asyncio.fixture(loop_scope="package")
async def platform(make_database: Any, clock: Any) -> AsyncIterator[Definitions]:
    async with opened(await make_database("sessions", MIGRATIONS), clock) as definitions:
        yield definitions


async def test_a_created_agent_reads_back_as_it_was_answered(platform: Definitions) -> None:
    created = await platform.create_agent({"metadata": {"team": "a"}})

    assert await platform.agent(created.id) == created
    assert (created.version, created.model_id, created.archived_at) == (1, "default", "")
    assert created.id.startswith("agent_")
    assert document(created) == {
        "name": "assistant",
        "description": None,
        "system": "Help.",
        "tools": [
            {
                "type": "agent_toolset_20260401",
                "default_config": {"enabled": True, "permission_policy": {"type": "always_allow"}},
                "configs": [],
            }
        ],
        "mcp_servers": [],
        "skills": [],
        "metadata": {"team": "a"},
        "multiagent": None,
        "execution_identity": {"type": "service_account"},
        "model": {"id": "default", "speed": "standard"},
    }


async def test_two_agents_may_have_one_name(platform: Definitions) -> None:
    first, second = await platform.create_agent(), await platform.create_agent()
    assert first.id != second.id


async def test_an_update_adds_a_version_and_leaves_the_former_one_as_it_was(platform: Definitions, clock: Any) -> None:
    created = await platform.create_agent()
    clock.advance(5)

    updated = await platform.update_agent(created.id, {"name": "renamed", "expected_version": 1})

    assert (updated.version, document(updated)["name"]) == (2, "renamed")
    assert updated.created_at == created.created_at
    assert updated.updated_at > created.updated_at
    assert await platform.agent(created.id) == updated
    assert await platform.agent(created.id, 2) == updated
    assert document(await platform.agent(created.id, 1)) == document(created)


async def test_an_update_that_changes_nothing_writes_no_version(platform: Definitions, clock: Any) -> None:
    created = await platform.create_agent({"metadata": {"a": "1", "b": "2"}})
    clock.advance(5)

    same = await platform.update_agent(
        created.id, {"metadata": {"b": "2", "a": "1"}, "name": "assistant", "model": {"id": "default"}, "version": 1}
    )

    assert same == created
    assert len((await platform.agent_versions(created.id)).agents) == 1


async def test_a_failed_precondition_is_a_conflict_even_where_nothing_would_change(platform: Definitions) -> None:
    created = await platform.create_agent()
    for name in ("version", "expected_version"):
        with pytest.raises(AgentVersionConflict) as refusal:
            await platform.update_agent(created.id, {name: 7})
        assert refusal.value.metadata["current_version"] == "1"


async def test_of_concurrent_updates_on_one_version_exactly_one_wins(platform: Definitions) -> None:
    created = await platform.create_agent()

    outcomes = await asyncio.gather(
        *(platform.update_agent(created.id, {"name": f"name {n}", "version": 1}) for n in range(8)),
        return_exceptions=True,
    )

    won = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    assert len(won) == 1
    assert all(isinstance(outcome, AgentVersionConflict) for outcome in outcomes if outcome not in won)
    assert await platform.agent(created.id) == won[0]


async def test_concurrent_updates_without_a_precondition_all_take_effect(platform: Definitions) -> None:
    created = await platform.create_agent()

    await asyncio.gather(*(platform.update_agent(created.id, {"metadata": {f"k{n}": "v"}}) for n in range(8)))

    newest = await platform.agent(created.id)
    assert newest.version == 9
    assert document(newest)["metadata"] == {f"k{n}": "v" for n in range(8)}


async def test_a_refused_request_writes_nothing(platform: Definitions) -> None:
    created = await platform.create_agent()
    with pytest.raises(InvalidRequest):
        await platform.create_agent({"name": "nul \x00"})
    with pytest.raises(UnsupportedCapability):
        await platform.update_agent(
            created.id, {"tools": [{"type": "agent_toolset_20260401", "configs": [{"name": "web_search"}]}]}
        )

    assert [agent.id for agent in (await platform.list_agents()).agents] == [created.id]
    assert await platform.agent(created.id) == created


@pytest.mark.parametrize("agent_id", ["agent_00000000000000000000000000", "", "x\x00y", "a" * 300])
async def test_an_unknown_id_is_not_found_by_every_rpc(platform: Definitions, agent_id: str) -> None:
    for call in (
        platform.agent(agent_id),
        platform.agent(agent_id, 3),
        platform.update_agent(agent_id, {"name": "x"}),
        platform.archive_agent(agent_id),
        platform.agent_versions(agent_id),
    ):
        with pytest.raises(AgentNotFound):
            await call


async def test_an_agent_of_another_workspace_is_not_found_and_not_listed(platform: Definitions) -> None:
    created = await platform.create_agent()
    elsewhere = "wrkspc_elsewhere"

    for call in (
        platform.agent(created.id, workspace=elsewhere),
        platform.agent(created.id, 1, workspace=elsewhere),
        platform.update_agent(created.id, {"name": "taken"}, workspace=elsewhere),
        platform.archive_agent(created.id, workspace=elsewhere),
        platform.agent_versions(created.id, workspace=elsewhere),
    ):
        with pytest.raises(AgentNotFound):
            await call
    assert not (await platform.list_agents(workspace=elsewhere)).agents
    assert await platform.agent(created.id) == created


async def test_a_version_that_never_was_is_told_apart_from_an_unknown_agent(platform: Definitions) -> None:
    created = await platform.create_agent()
    for version in (2, -1, 2**31 - 1):
        with pytest.raises(AgentVersionNotFound):
            await platform.agent(created.id, version)


async def test_archiving_is_idempotent_and_final(platform: Definitions, clock: Any) -> None:
    created = await platform.create_agent()
    archived = await platform.archive_agent(created.id)
    clock.advance(60)

    assert await platform.archive_agent(created.id) == archived
    assert archived.archived_at
    assert await platform.agent(created.id) == archived
    assert (await platform.agent(created.id, 1)).archived_at == archived.archived_at
    with pytest.raises(AgentArchived):
        await platform.update_agent(created.id, {"name": "late"})


async def test_archived_agents_are_listed_on_demand_only(platform: Definitions) -> None:
    kept, gone = await platform.create_agent(), await platform.create_agent()
    await platform.archive_agent(gone.id)

    assert [agent.id for agent in (await platform.list_agents()).agents] == [kept.id]
    assert {agent.id for agent in (await platform.list_agents(include_archived=True)).agents} == {kept.id, gone.id}


async def test_bounds_on_creation_are_inclusive(platform: Definitions, clock: Any) -> None:
    agents = []
    for _ in range(3):
        agents.append(await platform.create_agent())
        clock.advance(60)
    middle = agents[1].created_at

    def ids(page: Any) -> list[str]:
        return [agent.id for agent in page.agents]

    assert ids(await platform.list_agents(created_at_gte=middle)) == [agents[2].id, agents[1].id]
    assert ids(await platform.list_agents(created_at_lte=middle)) == [agents[1].id, agents[0].id]
    assert ids(await platform.list_agents(created_at_gte=middle, created_at_lte=middle)) == [agents[1].id]
    for bad in ("yesterday", "2026-01-01", "2026-13-01T00:00:00Z"):
        with pytest.raises(InvalidRequest) as refusal:
            await platform.list_agents(created_at_gte=bad)
        assert refusal.value.field == "created_at[gte]"


async def test_walking_the_pages_meets_each_agent_once_while_others_are_created(
    platform: Definitions, clock: Any
) -> None:
    # All of one moment: only the id keeps them apart.
    before = {(await platform.create_agent()).id for _ in range(25)}
    stop = asyncio.Event()

    async def create_on() -> None:
        while not stop.is_set():
            clock.advance(0.001)
            await platform.create_agent()

    creating = asyncio.create_task(create_on())
    met: list[str] = []
    cursor = ""
    while True:
        page = await platform.list_agents(limit=7, cursor=cursor)
        met += [agent.id for agent in page.agents]
        cursor = page.page_info.next_cursor
        if not cursor:
            break
    stop.set()
    await creating

    assert len(met) == len(set(met))
    assert before <= set(met)


async def test_a_cursor_only_fits_the_listing_that_it_came_from(platform: Definitions) -> None:
    for _ in range(3):
        await platform.create_agent()
    cursor = (await platform.list_agents(limit=1)).page_info.next_cursor

    for call in (
        platform.list_agents(limit=1, cursor=cursor, include_archived=True),
        platform.list_agents(limit=1, cursor=cursor, created_at_gte="2026-01-01T00:00:00Z"),
        platform.list_environments(limit=1, cursor=cursor),
        platform.list_agents(limit=1, cursor="junk"),
    ):
        with pytest.raises(InvalidCursor):
            await call


@pytest.mark.parametrize(
    "position",
    [{}, {"created_at": 4, "id": "x"}, {"created_at": "0001-01-01T00:00:00+20:00", "id": "x"}, []]
    + [{"created_at": "2026-01-01T00:00:00Z", "id": bad} for bad in (None, "", "x\x00y")],
)
async def test_a_cursor_with_a_computed_checksum_gets_no_further(platform: Definitions, position: Any) -> None:
    with pytest.raises(InvalidCursor):
        await platform.list_environments(cursor=encode_cursor("environments?archived=False", position))
    with pytest.raises(InvalidCursor):
        await platform.agent_versions("agent_x", cursor=encode_cursor("agent_versions?agent=agent_x", position))


async def test_versions_page_from_the_newest(platform: Definitions) -> None:
    created = await platform.create_agent()
    for n in range(2, 6):
        await platform.update_agent(created.id, {"name": f"name {n}"})

    first = await platform.agent_versions(created.id, limit=3)
    second = await platform.agent_versions(created.id, limit=3, cursor=first.page_info.next_cursor)

    assert [version.version for version in [*first.agents, *second.agents]] == [5, 4, 3, 2, 1]
    assert second.page_info.next_cursor == ""
    assert document(second.agents[-1])["name"] == "assistant"
    other = await platform.create_agent()
    with pytest.raises(InvalidCursor):
        await platform.agent_versions(other.id, cursor=first.page_info.next_cursor)


async def test_a_repeated_creation_is_answered_as_the_first(platform: Definitions) -> None:
    first = await platform.create_agent(key="k1")
    assert await platform.create_agent(key="k1") == first
    assert len((await platform.list_agents()).agents) == 1
    with pytest.raises(IdempotencyKeyReused):
        await platform.update_agent(first.id, {"name": "another request"}, key="k1")


async def test_concurrent_repeats_of_a_creation_make_one_agent(platform: Definitions) -> None:
    answers = await asyncio.gather(*(platform.create_agent(key="k2") for _ in range(6)))
    assert len({answer.id for answer in answers}) == 1
    assert len((await platform.list_agents()).agents) == 1


async def test_a_repeated_update_is_answered_as_the_first_in_spite_of_its_precondition(
    platform: Definitions,
) -> None:
    created = await platform.create_agent()
    first = await platform.update_agent(created.id, {"name": "b", "version": 1}, key="k3")
    assert await platform.update_agent(created.id, {"name": "b", "version": 1}, key="k3") == first


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"name": "\\ud800"}'])
async def test_a_body_that_is_no_json_object_is_refused(platform: Definitions, body: bytes) -> None:
    with use_context(CallContext(workspace_id="wrkspc_home")), pytest.raises(InvalidJson):
        await platform.agents.CreateAgent(agents_pb2.CreateAgentRequest(definition_json=body), None)


async def test_rosters_name_versions_and_refuse_what_cannot_be_called(platform: Definitions) -> None:
    helper = await platform.create_agent({"name": "helper"})
    await platform.update_agent(helper.id, {"name": "helper 2"})
    coordinator = await platform.create_agent(
        {"multiagent": {"type": "coordinator", "agents": [helper.id, {"type": "self"}]}}
    )
    assert document(coordinator)["multiagent"]["agents"] == [
        {"type": "agent", "id": helper.id, "version": 2},
        {"type": "agent", "id": coordinator.id, "version": 1},
    ]

    same = await platform.update_agent(
        coordinator.id, {"multiagent": {"type": "coordinator", "agents": [helper.id, {"type": "self"}]}}
    )
    renamed = await platform.update_agent(coordinator.id, {"name": "boss"})
    assert same.version == 1
    assert document(renamed)["multiagent"]["agents"][1]["version"] == 2

    archived = await platform.create_agent()
    await platform.archive_agent(archived.id)
    foreign = await platform.create_agent(workspace="wrkspc_elsewhere")
    for entry in (
        "agent_unknown",
        {"type": "agent", "id": helper.id, "version": 9},
        archived.id,
        foreign.id,
        coordinator.id,
    ):
        with pytest.raises(InvalidRequest) as refusal:
            await platform.create_agent({"multiagent": {"type": "coordinator", "agents": [entry]}})
        assert refusal.value.field == "multiagent.agents.0"

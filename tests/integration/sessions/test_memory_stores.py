"""Memory stores: made, listed both ways, changed, archived for good, deleted with all that is in them."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio

from kit.nats import Nats
from managed_agents.sessions.v1 import memory_pb2 as pb
from tests.integration.sessions.harness import Harness, refusal
from tests.integration.sessions.memory_driver import Memories

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest_asyncio.fixture(loop_scope="package")
async def m(h: Harness, nats: Nats) -> AsyncIterator[Memories]:
    return Memories(h, nats)


async def page(m: Memories, *, limit: int = 20, cursor: str = "", **fields: Any) -> pb.ListMemoryStoresResponse:
    request = pb.ListMemoryStoresRequest(page={"limit": limit, "cursor": cursor}, **fields)
    return await m.call("ListMemoryStores", request)


async def test_a_store_reads_back_as_it_was_made(m: Memories) -> None:
    made = await m.make("Project notes", description="What we know", metadata={"team": "a"})
    assert made.id.startswith("memstore_")
    assert await m.get() == made
    assert (made.name, made.description, made.metadata_json) == ("Project notes", "What we know", b'{"team":"a"}')
    assert (made.archived_at, made.memory_count, made.updated_at) == ("", 0, made.created_at)


async def test_names_need_not_be_unique(m: Memories) -> None:
    assert (await m.make("Same")).id != (await m.make("Same")).id


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "   "}, "name"),
        ({"name": "n" * 256}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": 1}, "name"),
        ({"name": "n", "description": "d" * 1025}, "description"),
        ({"name": "n", "metadata": {str(number): "v" for number in range(17)}}, "metadata"),
        ({"name": "n", "metadata": {"k" * 65: "v"}}, "metadata"),
        ({"name": "n", "metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"name": "n", "other": 1}, "other"),
    ],
)
async def test_an_unsound_definition_is_refused_by_the_field(m: Memories, body: dict[str, Any], field: str) -> None:
    assert (await refusal(m.make(**{"name": "x"} | body))).field == field


async def test_an_update_merges_and_one_that_changes_nothing_writes_nothing(m: Memories) -> None:
    made = await m.make("Old", description="d", metadata={"a": "1", "b": "2"})
    changed = await m.update_store(name="New", metadata={"a": None, "c": "3"})
    assert (changed.name, changed.description, changed.metadata_json) == ("New", "d", b'{"b":"2","c":"3"}')
    assert changed.updated_at > made.updated_at
    assert (await m.update_store(name="New")).updated_at == changed.updated_at
    assert (await m.update_store(description="")).description == ""


async def test_changes_of_memories_do_not_touch_the_store(m: Memories) -> None:
    made = await m.make()
    memory = await m.add("/a")
    assert ((await m.get()).updated_at, (await m.get()).memory_count) == (made.updated_at, 1)
    await m.delete(memory.id)
    assert (await m.get()).memory_count == 0


async def test_an_archived_store_is_not_found_alone_but_listed_and_stays_archived(m: Memories) -> None:
    await m.make()
    memory = await m.add("/a", "kept")
    archived = await m.archive()
    assert archived.archived_at and (await m.archive()) == archived
    assert (await refusal(m.get())).reason == "MEMORY_STORE_NOT_FOUND"
    assert (await m.get(include_archived=True)).archived_at == archived.archived_at
    assert not (await page(m)).memory_stores
    assert [store.archived_at for store in (await page(m, include_archived=True)).memory_stores] == [
        archived.archived_at
    ]
    assert (await m.read(memory.id)).content == "kept"


async def test_an_archived_store_refuses_writes(m: Memories) -> None:
    await m.make()
    memory = await m.add("/a")
    await m.archive()
    refused = [m.add("/b"), m.update(memory.id, content="new"), m.update_store(name="x")]
    assert {(await refusal(each)).reason for each in refused} == {"MEMORY_STORE_ARCHIVED"}


async def test_a_deleted_store_takes_everything_with_it(m: Memories) -> None:
    await m.make()
    memory = await m.add("/a")
    await m.delete_store()
    for gone in (
        m.get(include_archived=True),
        m.read(memory.id),
        m.versions(),
        m.page(),
        m.delete_store(),
        m.archive(),
    ):
        assert (await refusal(gone)).reason == "MEMORY_STORE_NOT_FOUND"
    async with m.h.database.read(m.workspace) as tx:
        left = await tx.one("SELECT count(*) FROM memory_versions WHERE workspace_id = %(workspace_id)s")
    assert left == (0,)


async def test_pages_of_stores_lead_on_and_back(m: Memories) -> None:
    made = [(await m.make(f"Store {number}")).id for number in range(5)]
    newest_first = made[::-1]
    first = await page(m, limit=2)
    second = await page(m, limit=2, cursor=first.page_info.next_cursor)
    third = await page(m, limit=2, cursor=second.page_info.next_cursor)
    pages = [[store.id for store in each.memory_stores] for each in (first, second, third)]
    assert [each for one in pages for each in one] == newest_first
    assert (first.page_info.previous_cursor, third.page_info.next_cursor) == ("", "")
    back = await page(m, limit=2, cursor=third.page_info.previous_cursor)
    assert [store.id for store in back.memory_stores] == pages[1]
    front = await page(m, limit=2, cursor=back.page_info.previous_cursor)
    assert [store.id for store in front.memory_stores] == pages[0]
    assert front.page_info.previous_cursor == ""


async def test_a_cursor_belongs_to_its_view(m: Memories) -> None:
    for number in range(3):
        await m.make(f"Store {number}")
    cursor = (await page(m, limit=1)).page_info.next_cursor
    assert (await refusal(page(m, cursor=cursor, include_archived=True))).reason == "INVALID_CURSOR"
    assert (await refusal(m.page(cursor=cursor))).reason == "INVALID_CURSOR"


async def test_stores_are_narrowed_by_their_creation(m: Memories) -> None:
    made = [await m.make(f"Store {number}") for number in range(3)]
    middle = made[1].created_at
    later = await page(m, created_at_gte=middle)
    earlier = await page(m, created_at_lte=middle)
    assert [store.id for store in later.memory_stores] == [made[2].id, made[1].id]
    assert [store.id for store in earlier.memory_stores] == [made[1].id, made[0].id]


async def test_another_workspace_finds_none_of_it(m: Memories) -> None:
    await m.make()
    memory = await m.add("/a")
    m.workspace = "wrkspc_other"
    for foreign in (m.get(), m.read(memory.id), m.page(), m.versions(), m.add("/b"), m.delete(memory.id), m.archive()):
        assert (await refusal(foreign)).reason == "MEMORY_STORE_NOT_FOUND"
    assert not (await page(m, include_archived=True)).memory_stores
    assert (await m.pull())[0].state == pb.MEMORY_STORE_STATE_DELETED


async def test_only_an_active_store_is_attached_to_a_new_session(m: Memories) -> None:
    made = await m.make("Project notes", description="What we know")
    entry = {"type": "memory_store", "memory_store_id": made.id, "instructions": "i" * 4_096}
    agent = await m.h.agent()
    session = await m.h.create(agent, resources=[entry])
    [kept] = orjson.loads(session.resources_json)
    assert (kept["mount_path"], kept["access"], kept["name"]) == ("/mnt/memory/project-notes", "read_write", made.name)
    assert kept["description"] == "What we know"
    too_long = await refusal(m.h.create(agent, resources=[entry | {"instructions": "i" * 4_097}]))
    assert too_long.field == "resources.0.instructions"
    await m.update_store(name="Renamed")
    [kept] = orjson.loads((await m.h.get(session.id)).resources_json)
    assert kept["name"] == made.name
    await m.archive()
    refused = await refusal(m.h.create(agent, resources=[entry]))
    assert (refused.reason, refused.code) == ("MEMORY_STORE_NOT_FOUND", "INVALID_ARGUMENT")


async def test_sessions_are_listed_by_the_store_that_they_mount(m: Memories) -> None:
    agent, stores = await m.h.agent(), [(await m.make(name)).id for name in ("one", "two", "three")]
    entries = [{"type": "memory_store", "memory_store_id": store} for store in stores]
    both = (await m.h.create(agent, resources=entries[:2])).id
    second = (await m.h.create(agent, resources=[entries[1]])).id
    await m.h.create(agent)
    found = [{session.id for session in (await m.h.listed(memory_store_id=store)).sessions} for store in stores]
    assert found == [{both}, {both, second}, set()]
    assert not (await m.h.listed(memory_store_id=stores[0], workspace="wrkspc_other")).sessions

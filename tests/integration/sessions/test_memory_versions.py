"""Versions: one for each change, numbered by memory, immutable but for a redaction, never of what is current."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kit.errors import WriteConflict
from kit.ids import new_id
from kit.nats import Nats
from services.sessions.domain.memory import Actor, read_text
from services.sessions.store.memories import Change, MemoryTable
from tests.integration.sessions.harness import WORKSPACE, Harness, refusal
from tests.integration.sessions.memory_driver import Memories, changed, sha

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest_asyncio.fixture(loop_scope="package")
async def m(h: Harness, nats: Nats) -> AsyncIterator[Memories]:
    memories = Memories(h, nats)
    await memories.make()
    yield memories


async def test_each_change_is_a_version_newest_first(m: Memories) -> None:
    made = await m.add("/a", "one")
    await m.update(made.id, content="two")
    await m.update(made.id, path="/b")
    await m.delete(made.id)
    found = (await m.versions(with_content=True)).versions
    assert [(each.version, each.operation, each.path) for each in found] == [
        (4, "deleted", "/b"),
        (3, "modified", "/b"),
        (2, "modified", "/a"),
        (1, "created", "/a"),
    ]
    assert [each.content for each in found[1:]] == ["two", "two", "one"]
    assert [each.content_sha256 for each in found] == ["", sha("two"), sha("two"), sha("one")]
    assert not found[0].HasField("content") and not found[0].HasField("content_size_bytes")
    assert {each.memory_id for each in found} == {made.id}


async def test_numbering_is_per_memory(m: Memories) -> None:
    first, second = await m.add("/a"), await m.add("/b")
    await m.update(second.id, content="new")
    assert [each.version for each in (await m.versions(memory_id=first.id)).versions] == [1]
    assert [each.version for each in (await m.versions(memory_id=second.id)).versions] == [2, 1]


async def test_reading_a_version_leaves_the_memory_alone(m: Memories) -> None:
    made = await m.add("/a", "one")
    await m.update(made.id, content="two")
    assert (await m.version(made.memory_version_id)).content == "one"
    assert (await m.read(made.id)).content == "two"
    assert (await refusal(m.version("memver_none"))).reason == "MEMORY_VERSION_NOT_FOUND"


async def test_a_number_that_exists_is_refused_by_the_index(m: Memories) -> None:
    made = await m.add("/a", "one")
    change = Change(made.id, new_id("memver"), 1, "/a", 99)
    async with m.h.database.transaction(WORKSPACE) as tx:
        with pytest.raises(WriteConflict):
            await MemoryTable(tx, m.store_id).modify(
                change, read_text("two"), Actor("", ""), m.h.operations.clock.now()
            )
        await tx.execute("ROLLBACK")
        await tx.execute("BEGIN")
    assert (await m.version(made.memory_version_id)).content == "one"


async def test_versions_tell_who_wrote_them(m: Memories) -> None:
    unknown = await m.add("/a")
    m.principal = "apikey_1"
    by_key = await m.add("/b")
    session_id = await m.session_with()
    await m.push(session_id, changed("/c", "by the session"))
    by = {each.path: each.created_by for each in (await m.versions()).versions}
    assert (by["/a"].kind, by["/b"].kind, by["/b"].id) == ("", "api_key", "apikey_1")
    assert (by["/c"].kind, by["/c"].id) == ("session", session_id)
    assert [each.path for each in (await m.versions(session_id=session_id)).versions] == ["/c"]
    assert [each.memory_id for each in (await m.versions(api_key_id="apikey_1")).versions] == [by_key.id]
    assert not (await m.versions(service_account_id="svac_1")).versions
    assert unknown.id not in {each.memory_id for each in (await m.versions(session_id=session_id)).versions}


async def test_versions_are_narrowed_by_kind_and_time(m: Memories) -> None:
    made = await m.add("/a", "one")
    await m.update(made.id, content="two")
    await m.delete(made.id)
    whole = (await m.versions()).versions
    assert [each.version for each in (await m.versions(operation="modified")).versions] == [2]
    assert (await refusal(m.versions(operation="renamed"))).field == "operation"
    middle = whole[1].created_at
    assert [each.version for each in (await m.versions(created_at_gte=middle)).versions] == [3, 2]
    assert [each.version for each in (await m.versions(created_at_lte=middle)).versions] == [2, 1]


async def test_pages_of_versions_are_complete(m: Memories) -> None:
    made = await m.add("/a", "0")
    for number in range(1, 7):
        await m.update(made.id, content=str(number))
    found: list[int] = []
    cursor = ""
    while True:
        page = await m.versions(limit=3, cursor=cursor)
        found += [each.version for each in page.versions]
        cursor = page.page_info.next_cursor
        if not cursor:
            break
    assert found == [7, 6, 5, 4, 3, 2, 1]
    cursor = (await m.versions(limit=3)).page_info.next_cursor
    assert (await refusal(m.versions(cursor=cursor, memory_id=made.id))).reason == "INVALID_CURSOR"


async def test_a_redacted_version_tells_neither_path_nor_text(m: Memories) -> None:
    made = await m.add("/secret", "s3cret")
    await m.update(made.id, content="clean", path="/clean")
    m.principal = "apikey_1"
    redacted = await m.redact(made.memory_version_id)
    assert redacted.redacted_at and redacted.redacted_by.id == "apikey_1"
    assert not (redacted.HasField("path") or redacted.HasField("content") or redacted.HasField("content_size_bytes"))
    assert (redacted.content_sha256, redacted.operation, redacted.version) == ("", "created", 1)
    assert await m.version(made.memory_version_id) == redacted
    m.principal = "apikey_2"
    assert await m.redact(made.memory_version_id) == redacted
    async with m.h.database.read(WORKSPACE) as tx:
        left = await tx.all(
            "SELECT 1 FROM memory_versions WHERE workspace_id = %(workspace_id)s AND (content || path) LIKE '%%ecret%%'"
        )
    assert not left


async def test_the_newest_version_of_a_live_memory_is_never_redacted(m: Memories) -> None:
    made = await m.add("/a", "one")
    assert (await refusal(m.redact(made.memory_version_id))).reason == "MEMORY_VERSION_IS_HEAD"
    await m.delete(made.id)
    deletion = (await m.versions()).versions[0]
    for version_id in (made.memory_version_id, deletion.id):
        assert (await m.redact(version_id)).redacted_at


async def test_the_history_of_a_deleted_memory_stays(m: Memories) -> None:
    made = await m.add("/a", "one")
    await m.delete(made.id)
    await m.add("/a", "two")
    history = (await m.versions(memory_id=made.id, with_content=True)).versions
    assert [(each.operation, each.content) for each in history] == [("deleted", ""), ("created", "one")]

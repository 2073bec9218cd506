"""Memories: unique paths, limits in bytes, preconditions that make retries safe, listings by folder, history."""

import asyncio
import unicodedata
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.nats import Nats
from kit.postgres import Database
from services.sessions.domain.memory import MAX_CONTENT_BYTES, MAX_MEMORIES
from services.sessions.store.memories import MemoryTable
from tests.integration.sessions.harness import WORKSPACE, Harness, refusal
from tests.integration.sessions.memory_driver import Memories, sha

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest_asyncio.fixture(loop_scope="package")
async def m(h: Harness, nats: Nats) -> AsyncIterator[Memories]:
    memories = Memories(h, nats)
    await memories.make()
    yield memories


async def test_a_memory_reads_back_as_it_was_made(m: Memories) -> None:
    made = await m.add("/notes/release.md", "Keep it short. ß")
    assert made.id.startswith("mem_") and made.memory_version_id.startswith("memver_")
    assert (made.version, made.content_sha256) == (1, sha("Keep it short. ß"))
    assert made.content_size_bytes == len("Keep it short. ß".encode())
    assert await m.read(made.id) == made


async def test_an_empty_text_is_a_memory(m: Memories) -> None:
    made = await m.add("/empty", "")
    assert (await m.read(made.id)).content == "" and made.content_size_bytes == 0


@pytest.mark.parametrize(
    "path",
    [
        *("", "notes", "/", "/notes/", "//", "/a//b", "/./a", "/a/..", "/../a", "/a/.", "/a\x1fb", "/a\nb"),
        *("/a\u200bb", "/a\u2028b", "/a\u2029b", "/" + unicodedata.normalize("NFD", "é")),
        *("/" + "é" * 512, "/" + "/".join("abcdefghijklmnopqrstu")),
    ],
)
async def test_a_path_that_breaks_a_rule_is_refused(m: Memories, path: str) -> None:
    assert (await refusal(m.add(path))).reason == "INVALID_MEMORY_PATH"


@pytest.mark.parametrize("path", ["/" + "é" * 511 + "a", "/" + "/".join("abcdefghijklmnopqrst"), "/a b/.c", "/…/ü"])
async def test_a_path_at_its_limits_is_taken(m: Memories, path: str) -> None:
    assert (await m.add(path)).path == path


async def test_paths_are_case_sensitive_and_unique(m: Memories) -> None:
    first = await m.add("/a")
    await m.add("/A")
    refused = await refusal(m.add("/a"))
    assert refused.reason == "MEMORY_PATH_CONFLICT"
    assert orjson.loads(refused.metadata["details"]) == {"conflicting_memory_id": first.id}
    second = await m.add("/b")
    renamed = await refusal(m.update(second.id, path="/a"))
    assert orjson.loads(renamed.metadata["details"]) == {"conflicting_memory_id": first.id}


async def test_a_text_is_measured_in_bytes(m: Memories) -> None:
    fits = "é" * (MAX_CONTENT_BYTES // 2)
    assert (await m.add("/fits", fits)).content_size_bytes == MAX_CONTENT_BYTES == 102_400
    refused = await refusal(m.add("/large", fits + "a"))
    assert (refused.reason, refused.field) == ("MEMORY_TOO_LARGE", "content")
    memory = await m.add("/small")
    assert (await refusal(m.update(memory.id, content=fits + "a"))).reason == "MEMORY_TOO_LARGE"


async def test_an_update_overwrites_in_place_and_keeps_the_id(m: Memories) -> None:
    made = await m.add("/a", "one")
    changed = await m.update(made.id, content="two")
    assert (changed.id, changed.version, changed.path, changed.content) == (made.id, 2, "/a", "two")
    moved = await m.update(made.id, path="/b/c")
    assert (moved.id, moved.version, moved.path, moved.content) == (made.id, 3, "/b/c", "two")
    both = await m.update(made.id, path="/d", content="three")
    assert (both.version, both.path, both.content) == (4, "/d", "three")


async def test_an_update_that_changes_nothing_is_no_version(m: Memories) -> None:
    made = await m.add("/a", "one")
    for same in ({"content": "one"}, {"path": "/a"}, {"content": "one", "path": "/a"}, {}):
        assert await m.update(made.id, **same) == made
    assert len((await m.versions()).versions) == 1


async def test_a_precondition_keeps_stale_content_from_newer(m: Memories) -> None:
    made = await m.add("/a", "one")
    await m.update(made.id, expecting=sha("one"), content="two")
    refused = await refusal(m.update(made.id, expecting=sha("one"), content="three"))
    assert (refused.reason, refused.code) == ("PRECONDITION_FAILED", "ABORTED")
    assert orjson.loads(refused.metadata["details"])["current_content_sha256"] == sha("two")
    assert (await m.read(made.id)).content == "two"


async def test_a_stale_precondition_passes_where_the_stored_state_is_what_is_asked_for(m: Memories) -> None:
    made = await m.add("/a", "one")
    changed = await m.update(made.id, expecting=sha("one"), content="two", path="/b")
    assert await m.update(made.id, expecting=sha("one"), content="two", path="/b") == changed


@pytest.mark.parametrize(
    "precondition",
    [
        {},
        {"type": "etag", "content_sha256": "0" * 64},
        {"type": "content_sha256"},
        {"type": "content_sha256", "content_sha256": None},
        {"type": "content_sha256", "content_sha256": ""},
        {"type": "content_sha256", "content_sha256": "A" * 64},
        {"type": "content_sha256", "content_sha256": "0" * 63},
        {"type": "content_sha256", "content_sha256": "0" * 64, "other": 1},
        [],
        7,
    ],
)
async def test_a_precondition_that_says_nothing_is_refused(m: Memories, precondition: Any) -> None:
    made = await m.add("/a", "one")
    assert (await refusal(m.update(made.id, expecting=precondition, content="two"))).reason == "INVALID_PRECONDITION"
    assert (await m.read(made.id)).content == "one"


async def test_a_deletion_can_expect_a_text(m: Memories) -> None:
    made = await m.add("/a", "one")
    refused = await refusal(m.delete(made.id, sha("other")))
    assert orjson.loads(refused.metadata["details"])["current_content_sha256"] == sha("one")
    assert (await refusal(m.delete(made.id, "none"))).reason == "INVALID_PRECONDITION"
    await m.delete(made.id, sha("one"))
    assert (await refusal(m.read(made.id))).reason == "MEMORY_NOT_FOUND"
    assert (await m.add("/a", "again")).id != made.id


async def test_a_full_store_takes_no_more_but_changes(m: Memories) -> None:
    made = await m.add("/a", "one")
    await m.h.execute(
        "UPDATE memory_stores SET memory_count = %(most)s WHERE workspace_id = %(workspace_id)s", most=MAX_MEMORIES
    )
    assert (await refusal(m.add("/b"))).reason == "MEMORY_STORE_FULL"
    await m.update(made.id, content="two")
    assert (await m.read(made.id)).content == "two"
    await m.delete(made.id)
    await m.add("/b")


async def test_a_listing_shows_all_below_a_prefix_or_its_children(m: Memories) -> None:
    for path in ("/a", "/notes", "/notes/x", "/notes/deep/y", "/notes/deep/z", "/notes-archive/old", "/notes0"):
        await m.add(path)
    everything = ["/a", "/notes", "/notes-archive/old", "/notes/deep/y", "/notes/deep/z", "/notes/x", "/notes0"]
    assert await m.names() == everything
    assert await m.names(path_prefix="/") == everything
    assert await m.names(depth=1) == ["/a", "/notes", "/notes-archive/", "/notes/", "/notes0"]
    assert await m.names(path_prefix="/notes/") == ["/notes/deep/y", "/notes/deep/z", "/notes/x"]
    assert await m.names(path_prefix="/notes/", depth=1) == ["/notes/deep/", "/notes/x"]
    assert await m.names(path_prefix="/notes/deep/", depth=1) == ["/notes/deep/y", "/notes/deep/z"]
    assert await m.names(path_prefix="/none/") == []


@pytest.mark.parametrize("prefix", ["notes/", "/notes", "/a//", "/../", "/a/./", "//"])
async def test_an_unsound_prefix_is_refused(m: Memories, prefix: str) -> None:
    assert (await refusal(m.page(path_prefix=prefix))).field == "path_prefix"


async def test_depth_is_0_or_1(m: Memories) -> None:
    assert (await refusal(m.page(depth=2))).field == "depth"


async def test_texts_are_shown_when_asked_for(m: Memories) -> None:
    await m.add("/a/b", "one")
    await m.add("/c", "two")
    assert [item.memory.content for item in (await m.page(with_content=True)).items] == ["one", "two"]
    assert not any(item.memory.HasField("content") for item in (await m.page()).items)
    children = (await m.page(with_content=True, depth=1)).items
    assert [item.prefix or item.memory.content for item in children] == ["/a/", "two"]


async def test_a_cursor_belongs_to_its_prefix_and_depth(m: Memories) -> None:
    for path in ("/a/b", "/a/c", "/d"):
        await m.add(path)
    cursor = (await m.page(limit=1)).page_info.next_cursor
    for other in ({"depth": 1}, {"path_prefix": "/a/"}):
        assert (await refusal(m.page(cursor=cursor, **other))).reason == "INVALID_CURSOR"
    await m.make("Another")
    assert (await refusal(m.page(cursor=cursor))).reason == "INVALID_CURSOR"


_SEGMENT = st.text(st.sampled_from(" !-.0az\u00e9\U0001f600"), min_size=1, max_size=3).filter(
    lambda segment: segment not in (".", "..")
)
_PATHS = st.sets(st.lists(_SEGMENT, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts)), max_size=25)


@given(paths=_PATHS, limit=st.integers(1, 7), depth=st.integers(0, 1), data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_walk_over_the_pages_agrees_with_the_whole(
    m: Memories, paths: set[str], limit: int, depth: int, data: st.DataObject
) -> None:
    await m.make("Fresh")
    await _fill(m.h.database, m.store_id, sorted(paths))
    folders = sorted(
        {path[: index + 1] for path in paths for index, letter in enumerate(path) if letter == "/"} | {"/"}
    )
    prefix = data.draw(st.sampled_from(folders))
    below = [path for path in paths if path.startswith(prefix)]
    if depth == 1:
        rests = [path[len(prefix) :].partition("/") for path in below]
        below = list({f"{prefix}{name}{slash}" for name, slash, _ in rests})
    expected = sorted(below, key=str.encode)
    assert await m.names(path_prefix=prefix, depth=depth, limit=limit) == expected


async def _fill(database: Database, store_id: str, paths: list[str]) -> None:
    async with database.transaction(WORKSPACE) as tx:
        await tx.execute(
            """
            INSERT INTO memories (workspace_id, store_id, id, version_id, version, path, content_sha256, content_size,
                                  created_at, updated_at, revision)
            SELECT %(workspace_id)s, %(store_id)s, 'mem_' || %(store_id)s || number, 'memver_' || number, 1, path, '',
                   0, now(), now(), 1
            FROM unnest(%(paths)s::text[]) WITH ORDINALITY AS given (path, number)
            """,
            {"store_id": store_id, "paths": paths},
        )


async def test_two_who_create_one_path_at_once_are_told_apart(m: Memories) -> None:
    answers = await asyncio.gather(*(m.add("/a", str(number)) for number in range(8)), return_exceptions=True)
    refused = [each for each in answers if isinstance(each, Exception)]
    assert len(refused) == 7
    assert {getattr(each, "reason", "") for each in refused} == {"MEMORY_PATH_CONFLICT"}


async def test_of_writers_with_one_precondition_a_single_one_wins(m: Memories) -> None:
    made = await m.add("/a", "one")
    tries = [m.update(made.id, expecting=sha("one"), content=f"by {number}") for number in range(8)]
    answers = await asyncio.gather(*tries, return_exceptions=True)
    won = [each for each in answers if not isinstance(each, BaseException)]
    assert len(won) == 1
    assert (await m.read(made.id)).content == won[0].content
    assert [each.version for each in (await m.versions()).versions] == [2, 1]


async def test_a_page_of_ten_thousand_reads_no_more_than_it_shows(m: Memories) -> None:
    await _fill(m.h.database, m.store_id, [f"/f{number % 100:02}/{number:05}" for number in range(MAX_MEMORIES)])
    async with m.h.database.transaction(WORKSPACE) as tx:
        await tx.execute("ANALYZE memories")
        table = MemoryTable(tx, m.store_id)
        assert len(await table.children("/", from_path="/", limit=101)) == 100
        plan = await tx.all(
            """
            EXPLAIN (ANALYZE, FORMAT TEXT) SELECT path FROM memories
            WHERE workspace_id = %(workspace_id)s AND store_id = %(store_id)s AND path > '/f50/' AND path < '0'
            ORDER BY path LIMIT 100
            """,
            {"store_id": m.store_id},
        )
    text = "\n".join(line for (line,) in plan)
    assert "memories_path" in text and "Sort" not in text

"""A listing keeps what it read of a session for as long as nothing of it has changed, and shows nothing older."""

from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson
import pytest
import pytest_asyncio

from kit.nats import Nats
from managed_agents.sessions.v1 import agents_pb2, sessions_pb2, turns_pb2
from managed_agents.sessions.v1.sessions_pb2 import Session, SessionStatus
from services.sessions.handlers import listed_sessions
from services.sessions.store.session_row import SessionRow
from services.sessions.store.sessions import Sessions
from tests.integration.sessions.harness import MESSAGE, Harness, harness
from tests.integration.sessions.turn_driver import Replica, answer, call, end, event, park, replica, user

pytestmark = pytest.mark.asyncio(loop_scope="package")

# A change of each column that a row is read with; none changes `updated_at` beside it.
CHANGES = {
    "created_at": "created_at - interval '1 hour'",
    "revision": "revision + 1",
    "agent_id": "%(other_agent_id)s",
    "agent_version": "2",
    "agent_document": """'{"name":"own"}'""",
    "agent_model": """'{"id":"own"}'""",
    "agent_name": "'own'",
    "environment_id": "'env_other'",
    "environment": "'{}'",
    "title": "'Other'",
    "metadata": """'{"a":"b"}'""",
    "resources": """'[{"type":"file"}]'""",
    "vault_ids": """'["vlt_1"]'""",
    "loop_engine": "'http'",
    "deployment_id": "'dep_1'",
    "budget": "'{}'",
    "outcome_evaluations": """'[{"result":"satisfied"}]'""",
    "thread_id": "'sthr_other'",
    "archived_at": "now()",
    "updated_at": "updated_at + interval '1 microsecond'",
    "status": "'terminated'",
    "last_seq": "last_seq + 1",
    "stop_reason": """'{"type":"end_turn"}'""",
    "input_tokens": "1",
    "output_tokens": "1",
    "cache_read_input_tokens": "1",
    "cache_creation_5m_input_tokens": "1",
    "cache_creation_1h_input_tokens": "1",
    "active_seconds": "1",
    "running_since": "now(), status = 'running', turn_state = 'ready'",
    "spend": """'[["default",1,2,3,4,5,6,7,8]]'""",
    "web_search_requests": "1",
    "web_fetch_requests": "1",
    "loop_engine_options": """'{"url":"https://example.com"}'""",
    "text_parts": "true",
}
CHANGED = " WHERE workspace_id = %(workspace_id)s AND id = %(id)s"
# Changed by a row's end alone, which takes it out of every listing.
FIXED = {"workspace_id", "id", "deleted_at"}
# Columns that a reader is not shown.
UNSEEN = {"revision", "agent_name", "environment", "thread_id"}


@pytest_asyncio.fixture(loop_scope="package")
async def other(h: Harness, own_dsn: str, nats: Nats) -> AsyncIterator[Harness]:
    """The handlers of another replica on the same database."""
    async with harness(own_dsn, nats) as started:
        yield started


def at_any_time(session: Session) -> Session:
    """A session without what the clock alone changes."""
    copy = Session()
    copy.CopyFrom(session)
    copy.ClearField("active_seconds")
    copy.ClearField("duration_seconds")
    return copy


async def assert_listed(h: Harness, *ids: str, **fields: Any) -> None:
    """A listing, oldest first, holds exactly these sessions, each as a read of it alone."""
    fields |= {"ascending": True, "include_archived": True}
    listed = (await h.listed(**fields)).sessions
    encoded = (await h.listed(**fields, takes_encoded=True)).encoded_sessions
    shown = [at_any_time(await h.get(session_id)) for session_id in ids]
    assert [at_any_time(each) for each in listed] == shown
    assert [at_any_time(Session.FromString(each)) for each in encoded] == shown


async def test_every_column_that_is_read_has_its_change() -> None:
    assert CHANGES.keys() | FIXED == set(SessionRow._fields)


@pytest.mark.parametrize("column", CHANGES)
async def test_whatever_is_written_to_a_row_is_listed_at_once(h: Harness, other: Harness, column: str) -> None:
    agent_id = await h.agent()
    await h.save_another_version(agent_id)
    saved = {"type": "agent", "id": agent_id, "version": 1}
    changed, kept = (await h.create(saved)).id, (await h.create(saved)).id
    # Both replicas know both sessions.
    for replica_ in (h, other):
        await assert_listed(replica_, changed, kept)
    before = await h.get(changed)
    await h.execute(
        "".join(("UPDATE sessions SET ", column, " = ", CHANGES[column], CHANGED)),
        id=changed,
        other_agent_id=await h.agent(system="Be another."),
    )
    assert (await h.get(changed) == before) == (column in UNSEEN)
    for replica_ in (h, other, h, other):
        await assert_listed(replica_, changed, kept)


async def test_a_deleted_session_is_listed_no_longer(h: Harness, other: Harness) -> None:
    agent_id = await h.agent()
    gone, kept = (await h.create(agent_id)).id, (await h.create(agent_id)).id
    await assert_listed(other, gone, kept)
    await h.call(h.sessions.DeleteSession, sessions_pb2.DeleteSessionRequest(session_id=gone))
    await assert_listed(other, kept)


async def test_another_version_of_its_agent_changes_no_listed_session(h: Harness) -> None:
    agent_id = await h.agent()
    first = (await h.create(agent_id)).id
    await assert_listed(h, first)
    await h.save_another_version(agent_id)
    second = (await h.create(agent_id)).id
    await assert_listed(h, first, second)
    assert [each.agent.version for each in (await h.listed(ascending=True)).sessions] == [1, 2]


async def test_what_was_read_is_not_read_again_before_it_changes(h: Harness) -> None:
    agent_id = await h.agent()
    ids = [(await h.create(agent_id)).id for _ in range(3)]
    read: list[list[str]] = []
    original = Sessions.with_versions

    async def watched(sessions: Sessions, session_ids: list[str]) -> Any:
        read.append(session_ids)
        return await original(sessions, session_ids)

    with patch.object(Sessions, "with_versions", watched):
        await h.listed(limit=2, ascending=True)
        await h.listed(ascending=True)
        await h.listed()
        await h.update(ids[1], title="New")
        await h.listed()
    assert read == [ids[:2], [ids[2]], [ids[1]]]


async def test_the_durations_of_a_running_session_go_on(h: Harness) -> None:
    running = (await h.create(await h.agent(), initial_events=[MESSAGE])).id
    seen = [(await h.listed()).sessions[0] for _ in range(3)]
    assert {each.id for each in seen} == {running}
    assert seen[0].active_seconds < seen[1].active_seconds < seen[2].active_seconds
    assert seen[0].duration_seconds < seen[1].duration_seconds < seen[2].duration_seconds


@pytest.mark.parametrize("known", [True, False])
async def test_a_change_between_the_two_looks_is_shown_whole(h: Harness, other: Harness, known: bool) -> None:
    """Whatever happens after the page was found and before its rows are read: it is a page of one moment."""
    agent_id = await h.agent()
    ids = [(await h.create(agent_id)).id for _ in range(5)]

    async def listed_while(change: Callable[[], Coroutine[Any, Any, Any]]) -> sessions_pb2.ListSessionsResponse:
        original = Sessions.versions

        async def then_change(sessions: Sessions, *arguments: Any, **options: Any) -> Any:
            found = await original(sessions, *arguments, **options)
            await change()
            return found

        if known:
            await h.listed(ascending=True)
        # One that is not known, so that there is a second look.
        await other.update(ids[2], metadata={"n": str(len(changes))})
        changes.append(change)
        with patch.object(Sessions, "versions", then_change):
            return await h.listed(limit=3, ascending=True)

    changes: list[Any] = []
    renamed = await listed_while(lambda: other.update(ids[2], title="New"))
    assert [each.id for each in renamed.sessions] == ids[:3]
    assert renamed.sessions[2].title == "New"
    archive = sessions_pb2.ArchiveSessionRequest(session_id=ids[2])
    archived = await listed_while(lambda: other.call(other.sessions.ArchiveSession, archive))
    assert [each.id for each in archived.sessions] == [*ids[:2], ids[3]]
    ids.remove(ids[2])
    deletion = sessions_pb2.DeleteSessionRequest(session_id=ids[2])
    deleted = await listed_while(lambda: other.call(other.sessions.DeleteSession, deletion))
    assert [each.id for each in deleted.sessions] == [*ids[:2], ids[3]]
    assert not deleted.page_info.next_cursor


async def test_a_caller_of_a_former_build_is_sent_messages(h: Harness) -> None:
    await h.create(await h.agent())
    former, encoded = await h.listed(), await h.listed(takes_encoded=True)
    assert (len(former.sessions), len(former.encoded_sessions)) == (1, 0)
    assert (len(encoded.sessions), len(encoded.encoded_sessions)) == (0, 1)


async def test_pages_after_a_cursor_are_as_fresh_as_the_first(h: Harness, other: Harness) -> None:
    agent_id = await h.agent()
    ids = [(await h.create(agent_id)).id for _ in range(4)]
    cursor = (await h.listed(limit=2, ascending=True)).page_info.next_cursor
    for title in ("One", "Two", "Three"):
        await other.update(ids[3], title=title)
        page = (await h.listed(limit=2, ascending=True, cursor=cursor)).sessions
        assert list(page) == [await h.get(session_id) for session_id in ids[2:]]


@pytest.mark.parametrize("bound", ["MAX_SESSIONS", "MAX_BYTES"])
async def test_more_than_is_kept_is_listed_just_the_same(h: Harness, bound: str) -> None:
    agent_id = await h.agent()
    ids = [(await h.create(agent_id)).id for _ in range(6)]
    with patch.object(listed_sessions, bound, 2):
        for _ in range(3):
            await assert_listed(h, *ids)
            await assert_listed(h, *ids[:4], limit=4)
        assert len(h.sessions._listed._kept) <= 2


async def test_two_replicas_list_each_move_of_a_session(one: Replica, dsn: str, nats_url: str, folder: Path) -> None:
    async with replica(dsn, nats_url, folder) as two, one.runner() as runner:
        session_id = await one.create_session()
        seen: list[Session] = []

        async def look() -> None:
            request = sessions_pb2.ListSessionsRequest(page={"limit": 10}, include_archived=True)
            alone = (await one.sessions.GetSession(sessions_pb2.GetSessionRequest(session_id=session_id))).session
            for each in (one, two, one, two):
                (listed,) = (await each.sessions.ListSessions(request)).sessions
                assert at_any_time(listed) == at_any_time(alone)
            assert all(at_any_time(before) != at_any_time(alone) for before in seen)
            seen.append(alone)

        async def update(on: Replica, **patch_: Any) -> None:
            request = sessions_pb2.UpdateSessionRequest(session_id=session_id, patch_json=orjson.dumps(patch_))
            await on.sessions.UpdateSession(request)
            await look()

        await look()
        await update(one, title="First")
        await update(two, title="Second")
        await update(one, metadata={"a": "b"})
        await update(two, agent={"tools": []})
        await two.send(session_id, user())
        grant = await runner.granted()
        await look()
        spent = turns_pb2.ModelUsage(model_id="demo", usage=sessions_pb2.Usage(input_tokens=10, output_tokens=3))
        await one.append(grant, event("span.model_request_start"), usage=[spent])
        await look()
        await one.append(grant, *answer(), usage=[spent], end=end())
        await look()
        await park(one, runner, session_id, call("agent.tool_use", "c1"))
        await look()
        assert seen[-1].status == SessionStatus.SESSION_STATUS_REQUIRES_ACTION
        await two.send(session_id, {"type": "user.interrupt"})
        await look()
        assert seen[-1].status == SessionStatus.SESSION_STATUS_IDLE
        agent = agents_pb2.UpdateAgentRequest(agent_id=seen[-1].agent.id, patch_json=b'{"system":"Be long."}')
        await two.agents.UpdateAgent(agent)
        assert (await one.sessions.ListSessions(sessions_pb2.ListSessionsRequest())).sessions[0] == seen[-1]
        await two.sessions.ArchiveSession(sessions_pb2.ArchiveSessionRequest(session_id=session_id))
        await look()
        await one.sessions.DeleteSession(sessions_pb2.DeleteSessionRequest(session_id=session_id))
        assert not (await two.sessions.ListSessions(sessions_pb2.ListSessionsRequest(include_archived=True))).sessions

"""A runner is sent a context from its newest compaction on: what it needs, and of a long log nothing else."""

from typing import Any

import orjson
import pytest

from kit.errors import InvalidArgument
from managed_agents.sessions.v1 import turns_pb2
from services.sessions.store.contexts import BEGIN, ContextStore
from tests.integration.sessions.harness import WORKSPACE, Harness
from tests.integration.sessions.turn_driver import Replica, answer, end, event, types, user

pytestmark = pytest.mark.asyncio(loop_scope="package")

COMPACTED = "agent.thread_context_compacted"


def compaction(context_seq: int, summary: str = "so far") -> list[turns_pb2.TurnEvent]:
    """What a runner writes when it compacts."""
    start = event("span.model_request_start", context_seq=context_seq, purpose="compaction")
    content = [{"type": "text", "text": summary}]
    return [
        start,
        event(COMPACTED, content=content, system=[], context_seq=context_seq),
        event("span.model_request_end", model_request_start_id=start.id, is_error=False),
    ]


async def told(replica: Replica, session_id: str, **fields: Any) -> list[dict[str, Any]]:
    """What ReadTurnContext sends."""
    request = turns_pb2.ReadTurnContextRequest(session_id=session_id, **fields)
    return [orjson.loads(each.body) async for batch in replica.turns.ReadTurnContext(request) for each in batch.events]


async def compacted(one: Replica) -> tuple[str, int, int]:
    """A session that was compacted in its second turn: its id, where its context begins, the end of its log."""
    session_id = await one.create_session()
    async with one.runner() as runner:
        await one.send(session_id, user("first"))
        grant = await runner.granted()
        await one.append(grant, *answer("to the first"), end=end())
        await one.send(session_id, user("second"))
        grant = await runner.granted()
        # The second message is unread: the summary leaves it out.
        begins = grant.session.last_seq - 3
        written = await one.append(grant, *compaction(begins))
        over = await one.append(grant, *answer("to the second"), known_seq=written.last_seq, end=end())
    return session_id, begins, over.last_seq


async def test_a_runner_that_knows_nothing_begins_at_the_compaction(one: Replica) -> None:
    session_id, begins, _ = await compacted(one)
    async with one.runner() as runner:
        await one.send(session_id, user("third"))
        grant = await runner.granted()
    assert grant.context_starts_anew and grant.context_complete
    assert grant.context_after_seq == begins
    assert [each.type for each in grant.context] == [
        "user.message",
        "span.model_request_start",
        COMPACTED,
        "span.model_request_end",
        "span.model_request_start",
        "agent.message",
        "span.model_request_end",
        "user.message",
    ]
    assert orjson.loads(grant.context[0].body)["content"][0]["text"] == "second"
    # The log itself is whole.
    assert "to the first" in str(await one.log(session_id))


async def test_a_runner_that_knows_what_is_older_begins_anew(one: Replica) -> None:
    session_id, begins, _ = await compacted(one)
    async with one.runner(**{session_id: begins - 1}) as runner:
        await one.send(session_id, user("third"))
        grant = await runner.granted()
    assert grant.context_starts_anew and grant.context_after_seq == begins


@pytest.mark.parametrize("behind", [0, 3])
async def test_a_runner_that_knows_the_compaction_goes_on(one: Replica, behind: int) -> None:
    session_id, _, last_seq = await compacted(one)
    async with one.runner(**{session_id: last_seq - behind}) as runner:
        await one.send(session_id, user("third"))
        grant = await runner.granted()
    assert not grant.context_starts_anew and grant.context_after_seq == last_seq - behind
    assert [each.type for each in grant.context] == ["user.message"]


async def test_a_context_is_read_from_its_compaction_or_whole(one: Replica) -> None:
    session_id, begins, _ = await compacted(one)
    whole = await told(one, session_id)
    assert [each["content"][0]["text"] for each in whole if each["type"] == "user.message"] == ["first", "second"]
    rest = await told(one, session_id, from_compaction=True)
    assert rest == [each for each in whole if each["seq"] > begins]
    # Who has read some of it goes on after that, and is told of all that follows.
    assert await told(one, session_id, from_compaction=True, after_seq=2) == [each for each in whole if each["seq"] > 2]
    plain = await one.create_session(user("hello"))
    assert types(await told(one, plain, from_compaction=True)) == ["user.message"]


async def test_the_newest_compaction_counts(one: Replica) -> None:
    session_id, _, last_seq = await compacted(one)
    async with one.runner() as runner:
        await one.send(session_id, user("third"))
        grant = await runner.granted()
        await one.append(grant, *compaction(last_seq, "all of it"), *answer(), end=end())
    assert [each["type"] for each in await told(one, session_id, from_compaction=True)][:3] == [
        "user.message",
        "span.model_request_start",
        COMPACTED,
    ]


async def test_only_what_a_request_has_read_is_marked_as_read(one: Replica) -> None:
    """Input that came while the request was on its way to the log, or that a summary left out, still waits."""
    session_id = await one.create_session()
    async with one.runner() as runner:
        await one.send(session_id, user("first"))
        grant = await runner.granted()
        seq = grant.session.last_seq
        sent = await one.send(session_id, user("while it is asked"))
        start = event("span.model_request_start", context_seq=seq)
        written = await one.append(grant, start, known_seq=sent.events[-1].seq)
        assert [each["processed_at"] is None for each in await one.log(session_id)].count(True) == 1
        rest = [event("span.model_request_end", model_request_start_id=start.id)]
        over = await one.append(grant, *rest, known_seq=written.last_seq, end=end())
        assert not over.ended, "the message that waits is answered in this turn"
        await one.append(grant, *answer(), known_seq=over.last_seq, end=end())
    assert all(each["processed_at"] for each in await one.log(session_id))


@pytest.mark.parametrize("context_seq", [-1, 10_000, "4", None, True])
async def test_a_compaction_that_names_no_place_in_the_log_is_refused(one: Replica, context_seq: Any) -> None:
    session_id = await one.create_session()
    async with one.runner() as runner:
        await one.send(session_id, user())
        grant = await runner.granted()
        with pytest.raises(InvalidArgument):
            await one.append(grant, event(COMPACTED, content=[], context_seq=context_seq))
        assert len(await one.log(session_id)) == grant.session.last_seq


async def test_of_a_long_log_that_the_server_knows_nothing_about_little_is_read(h: Harness) -> None:
    session = await h.create(await h.agent())
    await h.execute(
        """
        INSERT INTO events (workspace_id, session_id, seq, id, type, in_context, created_at, body)
        SELECT %(workspace_id)s, %(session_id)s, seq, 'sevt_' || seq, 'agent.message', true, now(), '{}'
        FROM generate_series(1, 20000) seq
        """,
        session_id=session.id,
    )
    values = {"session_id": session.id, "after_seq": 0, "up_to_seq": 2**62, "limit": 201}
    assert await _read(h, values) <= 201
    assert await _read(h, values | {"after_seq": 19_990}) <= 10
    await h.execute(
        """
        INSERT INTO events (workspace_id, session_id, seq, id, type, in_context, created_at, body)
        VALUES (%(workspace_id)s, %(session_id)s, 20001, 'sevt_c', 'agent.thread_context_compacted', true, now(),
                '{"context_seq":19998}')
        """,
        session_id=session.id,
    )
    assert await _read(h, values) <= 4
    async with h.database.read(WORKSPACE) as tx:
        begins, events = await ContextStore(tx).begin(session.id, 0, 2**62, 201)
    assert (begins, [each.seq for each in events]) == (19_998, [19_999, 20_000, 20_001])


async def _read(h: Harness, values: dict[str, Any]) -> int:
    """How many events the server looked at."""
    async with h.database.read(WORKSPACE) as tx:
        ((plan,),) = await tx.all("EXPLAIN (ANALYZE, FORMAT JSON) " + BEGIN, values)
    return _touched(plan[0]["Plan"])


def _touched(node: dict[str, Any]) -> int:
    own = 0
    if node.get("Relation Name") == "events":
        own = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return round(own) + sum(_touched(child) for child in node.get("Plans", ()))

"""Steers over the rpc: receipts in the answer and in the log, and ids that are remembered."""

from typing import Any

import orjson
import psycopg
import pytest

from kit.errors import DomainError
from managed_agents.sessions.v1 import sessions_pb2
from tests.integration.sessions.turn_driver import Replica, once, types, user

pytestmark = pytest.mark.asyncio(loop_scope="package")


def steer(input_id: str = "steer_1", text: str = "smaller", **fields: Any) -> dict[str, Any]:
    return {"type": "user.steer", "input_id": input_id, "text": text, **fields}


async def states(clients: Replica, session_id: str, *events: dict[str, Any], **options: Any) -> list[str]:
    answer = await clients.send(session_id, *events, **options)
    return [receipt["state"] for receipt in orjson.loads(answer.steer_receipts_json)]


async def test_a_steer_is_rejected_while_a_turn_runs_as_while_none_does(one: Replica) -> None:
    session_id = await one.create_session()
    assert await states(one, session_id, steer()) == ["rejected"]
    assert await one.status(session_id) == "idle"
    async with one.runner() as runner:
        await one.send(session_id, user())
        await runner.granted()
        assert await states(one, session_id, steer("steer_2", expected_turn_id="turn_1")) == ["rejected"]
    log = [entry for entry in await one.log(session_id) if entry["type"] == "user.steer"]
    assert [entry["input_id"] for entry in log] == ["steer_1", "steer_2"]
    for entry in log:
        metadata = entry["metadata"]
        assert metadata["steer_state"] == "rejected" and metadata["input_id"] == entry["input_id"]
        assert metadata["detail"] and entry["text"] == "smaller" and "content" not in entry


async def test_what_was_rejected_is_judged_anew_and_another_text_is_a_conflict(one: Replica) -> None:
    session_id = await one.create_session()
    assert await states(one, session_id, steer()) == ["rejected"]
    assert await states(one, session_id, steer()) == ["rejected"]
    assert await states(one, session_id, steer(text="larger")) == ["conflict"]
    assert await states(one, session_id, steer(), steer("steer_2"), steer("steer_2", "x")) == [
        "rejected",
        "rejected",
        "conflict",
    ]
    other = await one.create_session()
    assert await states(one, other, steer(text="larger")) == ["rejected"]
    told = [entry["metadata"]["steer_state"] for entry in await one.log(session_id)]
    assert told == ["rejected", "rejected", "conflict", "rejected", "rejected", "conflict"]


async def test_what_was_delivered_before_is_a_duplicate(one: Replica, dsn: str) -> None:
    session_id = await one.create_session()
    async with await psycopg.AsyncConnection.connect(
        dsn, options="-c search_path=sessions -c managed_agents.workspace=*"
    ) as connection:
        for input_id, state in (("steer_1", "delivered"), ("steer_2", "outcome_unknown"), ("steer_3", "pending")):
            values = ["wrkspc_default", session_id, input_id, "smaller", state, "turn_1"]
            await connection.execute("INSERT INTO steers VALUES (%s, %s, %s, %s, %s, %s)", values)
    answer = await one.send(session_id, steer(), steer("steer_2"), steer("steer_3"))
    receipts = orjson.loads(answer.steer_receipts_json)
    assert [receipt["state"] for receipt in receipts] == ["duplicate", "outcome_unknown", "rejected"]
    assert receipts[0] == {"input_id": "steer_1", "state": "duplicate", "turn_id": "turn_1"}


async def test_a_steer_goes_with_other_events_all_or_none(one: Replica) -> None:
    session_id = await one.create_session()
    assert await states(one, session_id, steer(), user()) == ["rejected"]
    assert types(await one.log(session_id))[:2] == ["user.steer", "user.message"]
    before = await one.log(session_id)
    unknown = {"type": "user.custom_tool_result", "custom_tool_use_id": "sevt_none"}
    with pytest.raises(DomainError):
        await one.send(session_id, steer("steer_9", "first"), unknown)
    assert await one.log(session_id) == before
    # The refused request used no id.
    assert await states(one, session_id, steer("steer_9", "second")) == ["rejected"]


async def test_a_repeated_request_is_answered_with_the_same_receipt(one: Replica) -> None:
    session_id = await one.create_session()
    first = await one.send(session_id, steer(), idempotency=once("steered"))
    again = await one.send(session_id, steer(), idempotency=once("steered"))
    assert first == again and types(await one.log(session_id)) == ["user.steer"]


async def test_an_ended_session_takes_no_steer(one: Replica) -> None:
    session_id = await one.create_session()
    await one.sessions.StopSession(sessions_pb2.StopSessionRequest(session_id=session_id))
    with pytest.raises(DomainError) as refused:
        await one.send(session_id, steer())
    assert refused.value.reason == "SESSION_ENDED"

"""Outcomes as the sessions service admits and closes them, over a real database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit.clock import SystemClock
from kit.config import ConfigError
from kit.errors import DomainError
from kit.postgres import Database
from kit.rpc.context import CallContext, use_context
from kit.testing import await_until
from managed_agents.sessions.v1 import outcomes_pb2
from services.sessions.config import Settings
from services.sessions.handlers.outcomes import OutcomesHandler
from tests.integration.sessions.turn_driver import MIGRATIONS, Replica, answer, end, replica, types, user

pytestmark = pytest.mark.asyncio(loop_scope="package")

OUTCOME = {
    "type": "user.define_outcome",
    "description": "Ship it",
    "rubric": {"type": "text", "content": "It returns 200"},
}
END = "span.outcome_evaluation_end"


@pytest.fixture
def sessions(one: Replica) -> Replica:
    return one


async def refused(awaited: Any) -> DomainError:
    with pytest.raises(DomainError) as caught:
        await awaited
    return caught.value


async def test_a_platform_without_a_grader_takes_no_outcome(make_database: Any, nats_url: str, tmp_path: Path) -> None:
    dsn = await make_database("sessions", MIGRATIONS)
    async with replica(dsn, nats_url, tmp_path, outcome_grader="off") as sessions:
        error = await refused(sessions.create_session(user(), OUTCOME))
        assert (error.reason, error.field) == ("OUTCOME_GRADER_UNAVAILABLE", "initial_events.1")
        session_id = await sessions.create_session(user())
        before = await sessions.log(session_id)
        assert (await refused(sessions.send(session_id, OUTCOME))).reason == "OUTCOME_GRADER_UNAVAILABLE"
        assert await sessions.log(session_id) == before
    with pytest.raises(ConfigError):
        Settings(database_url=dsn, outcome_grader="perhaps").has_grader()


async def test_a_second_outcome_changes_nothing(sessions: Replica) -> None:
    session_id = await sessions.create_session(OUTCOME)
    before, shown = await sessions.log(session_id), await sessions.evaluations(session_id)
    error = await refused(sessions.send(session_id, user("more"), OUTCOME))
    assert (error.reason, error.metadata["outcome_id"]) == ("OUTCOME_ACTIVE", shown[0]["outcome_id"])
    assert await sessions.log(session_id) == before
    assert await sessions.evaluations(session_id) == shown


async def test_a_session_keeps_what_became_of_each_outcome(sessions: Replica) -> None:
    session_id = await sessions.create_session(OUTCOME, {"type": "user.message", "content": "x"})
    for _ in range(3):
        await sessions.send(session_id, {"type": "user.interrupt"})
        async with sessions.runner() as runner:
            grant = await runner.granted() if await sessions.status(session_id) != "idle" else None
            if grant is not None:
                await sessions.append(grant, *answer(), end=end())
        await sessions.send(session_id, OUTCOME)
    shown = await sessions.evaluations(session_id)
    assert [entry["result"] for entry in shown] == ["interrupted"] * 3 + ["pending"]
    log = await sessions.log(session_id)
    declared = [event["outcome_id"] for event in log if event["type"] == "user.define_outcome"]
    assert [entry["outcome_id"] for entry in shown] == declared
    assert len(set(declared)) == 4


async def test_a_runner_that_knows_no_outcomes_leaves_none_open(sessions: Replica) -> None:
    """One of a former version ends its turn without measuring: nobody waits for ever."""
    async with sessions.runner() as runner:
        session_id = await sessions.create_session(OUTCOME)
        grant = await runner.granted()
        response = await sessions.append(grant, *answer(), end=end())
        assert response.ended
        # It is told, since it keeps the context for the next turn.
        assert [event.type for event in response.new_events] == [END]
    log = await sessions.log(session_id)
    (closing,) = [event for event in log if event["type"] == END]
    assert (closing["result"], closing["outcome_evaluation_start_id"]) == ("failed", "")
    assert types(log).index(END) < types(log).index("session.thread_status_idle")


async def test_a_turn_that_is_given_up_closes_its_outcome(make_database: Any, nats_url: str, tmp_path: Path) -> None:
    dsn = await make_database("sessions", MIGRATIONS)
    async with replica(dsn, nats_url, tmp_path, sweep_seconds=0.05, lease_seconds=0.2) as sessions:
        session_id = await sessions.create_session(OUTCOME)
        for _ in range(3):
            async with sessions.runner() as runner:
                await runner.granted()

        async def is_idle() -> bool:
            return await sessions.status(session_id) == "idle"

        await await_until(is_idle)
        assert [entry["result"] for entry in await sessions.evaluations(session_id)] == ["failed"]
        log = await sessions.log(session_id)
        assert log[-1]["stop_reason"] == {"type": "retries_exhausted"}


async def test_outcomes_belong_to_their_workspace(make_database: Any) -> None:
    database = Database(await make_database("sessions", MIGRATIONS), "sessions")
    await database.open()
    handler = OutcomesHandler(database, SystemClock())
    try:
        with use_context(CallContext(workspace_id="wrkspc_a")):
            definition = outcomes_pb2.CreateOutcomeRequest(definition_json=b'{"name":"n","criteria":["c"]}')
            outcome_id = (await handler.CreateOutcome(definition, None)).outcome.id
        with use_context(CallContext(workspace_id="wrkspc_b")):
            for request, method in (
                (outcomes_pb2.GetOutcomeRequest(outcome_id=outcome_id), handler.GetOutcome),
                (outcomes_pb2.ArchiveOutcomeRequest(outcome_id=outcome_id), handler.ArchiveOutcome),
                (outcomes_pb2.UpdateOutcomeRequest(outcome_id=outcome_id, patch_json=b"{}"), handler.UpdateOutcome),
            ):
                assert (await refused(method(request, None))).reason == "OUTCOME_NOT_FOUND"
            listed = await handler.ListOutcomes(outcomes_pb2.ListOutcomesRequest(), None)
            assert not listed.outcomes
    finally:
        await database.close()

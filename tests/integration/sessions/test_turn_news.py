"""After every append a runner knows the context up to the end of the log: all of it, however much came."""

import pytest

from kit.errors import InvalidArgument
from services.sessions.handlers.turns import MAX_TURN_EVENTS, NEW_EVENTS_BATCH
from tests.integration.sessions.turn_driver import Replica, answer, call, end, event, user

pytestmark = pytest.mark.asyncio(loop_scope="package")

INTERRUPT = {"type": "user.interrupt"}
SYSTEM = {"type": "system.message", "content": [{"type": "text", "text": "Be brief."}]}


@pytest.mark.parametrize("count", [NEW_EVENTS_BATCH - 1, NEW_EVENTS_BATCH, NEW_EVENTS_BATCH + 1])
async def test_however_many_inputs_came_the_runner_gets_them_all(one: Replica, count: int) -> None:
    session_id = await one.create_session()
    async with one.runner() as runner:
        await one.send(session_id, user())
        grant = await runner.granted()
        sent: list[str] = []
        for size in (count // 2, count - count // 2):
            sent += [each.id for each in (await one.send(session_id, *[user()] * size)).events]
        written = await one.append(grant, *answer(), end=end())
        assert not written.ended
        assert [each.id for each in written.new_events] == sent
        over = await one.append(grant, *answer(), known_seq=written.last_seq, end=end())
        assert over.ended and not over.new_events


@pytest.mark.parametrize("count", [MAX_TURN_EVENTS, MAX_TURN_EVENTS + 1])
async def test_an_append_takes_so_many_events_and_no_more(one: Replica, count: int) -> None:
    session_id = await one.create_session()
    async with one.runner() as runner:
        await one.send(session_id, user())
        grant = await runner.granted()
        events = [event("agent.thinking") for _ in range(count)]
        if count > MAX_TURN_EVENTS:
            with pytest.raises(InvalidArgument):
                await one.append(grant, *events)
            events = []
        else:
            await one.append(grant, *events)
        assert len(await one.log(session_id)) == grant.session.last_seq + len(events)


@pytest.mark.parametrize("kind", ["END_TURN", "FAILED", "RETRIES_EXHAUSTED", "REFUSAL"])
async def test_what_came_in_the_last_moment_of_a_turn_is_not_missing_in_the_next(one: Replica, kind: str) -> None:
    session_id = await one.create_session()
    async with one.runner() as runner:
        await one.send(session_id, user())
        grant = await runner.granted()
        # A failed turn leaves also messages to the next one.
        late = [SYSTEM] if kind in ("END_TURN", "REFUSAL") else [user("late"), SYSTEM]
        sent = [each.id for each in (await one.send(session_id, *late)).events]
        ending = {"end": end(kind)}
        events = answer()
        over = await one.append(grant, *events, **ending)
        assert over.ended
        known = [each.id for each in over.new_events]
        repeated = await one.append(grant, *events, **ending)
        assert [each.id for each in repeated.new_events] == known
        await one.send(session_id, user("next"))
        following = await runner.granted()
        assert following.context_after_seq == over.last_seq
        known += [each.id for each in following.context]
        assert [each for each in known if each in sent] == sent


@pytest.mark.parametrize("goes_on", [False, True])
async def test_results_that_the_service_writes_for_given_up_calls_are_told(one: Replica, goes_on: bool) -> None:
    session_id = await one.create_session()
    async with one.runner() as runner:
        await one.send(session_id, user())
        grant = await runner.granted()
        waiting = call("agent.tool_use", "toolu_1")
        await one.send(session_id, INTERRUPT)
        if goes_on:
            await one.send(session_id, user("more"))
        events = [event("span.model_request_start"), waiting]
        over = await one.append(grant, *events, end=end("REQUIRES_ACTION", event_ids=[waiting.id]))
        assert over.ended is not goes_on
        assert "agent.tool_result" in [each.type for each in over.new_events]
        assert not {each.id for each in over.new_events} & {each.id for each in events}

"""What a model says to a session of the session gateway is in the log before anybody is shown it.

Live, on replay, after a reconnect and after kill -9 of the runner a client gets the same bytes under the same index.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import orjson
import pytest
import pytest_asyncio

from kit.rpc.client import channel
from kit.rpc.context import CallContext
from kit.testing.swept import SweptDatabases
from kit.waiting import within
from managed_agents.sessions.v1 import gateway_pb2 as pb
from managed_agents.sessions.v1.gateway_pb2_grpc import SessionGatewayServiceStub
from services.gateway.render.gateway import Projector
from services.sessions.app import MIGRATIONS
from services.worker.runner.loop.parts import EACH_SECONDS, PART
from services.worker.runner.models.base import ModelError, ModelErrorKind, TextDelta
from tests.integration.runner.harness import World, of, text_of, types, world
from tests.integration.runner.played import Gate, ScriptedModel, say, wait_at
from tests.integration.sessions.turn_driver import WORKSPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Doors:
    """The world, and the way of the session gateway into it."""

    def __init__(self, world: World, stub: Any) -> None:
        self.world, self._stub = world, stub

    async def start(self, text: str = "go", **fields: Any) -> str:
        """A session that was begun at the session gateway; its id."""
        agent = {"name": "tester", "model": "default", "system": "Be brief."} | fields
        caller = pb.GatewayCaller(agent_id=await self.world.agent(agent), owner="key_1")
        request = pb.StartRunRequest(caller=caller, message_json=orjson.dumps(text))
        context = CallContext(workspace_id=WORKSPACE, principal_id="key_1")
        return (await self._stub.StartRun(request, context=context)).session_id


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def doors(swept_databases: SweptDatabases, nats_url: str) -> AsyncIterator[Doors]:
    async with AsyncExitStack() as stack:
        dsn = await stack.enter_async_context(swept_databases.database("sessions", MIGRATIONS))
        made = await stack.enter_async_context(world(dsn, nats_url, lease_seconds=1.0))
        connection = channel(made.sessions_address)
        stack.push_async_callback(connection.close)
        yield Doors(made, connection.stub(SessionGatewayServiceStub))


def told(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What clients of the session gateway are told."""
    projector = Projector("s")
    events = [
        each for event in log for each in projector.take(event["seq"], event["id"], event["type"], orjson.dumps(event))
    ]
    return [orjson.loads(event.body) for event in events]


async def test_an_answer_that_takes_its_time_is_in_the_log_part_by_part(doors: Doors) -> None:
    first, second = Gate(), Gate()
    model = ScriptedModel([[TextDelta("One "), wait_at(first), TextDelta("two "), wait_at(second), *say("three.")]])
    async with doors.world.runner(model):
        session = await doors.start()
        assert [each["text"] for each in of(await doors.world.until_logged(session, PART), PART)] == ["One "]
        first.opened.set()
        assert [each["text"] for each in of(await doors.world.until_logged(session, PART, 2), PART)] == ["One ", "two "]
        second.opened.set()
        log = await doors.world.until(session)
    (message,) = of(log, "agent.message")
    assert text_of(message) == "One two three." and {each["message_id"] for each in of(log, PART)} == {message["id"]}
    assert [each["offset"] for each in of(log, PART)] == [0, 4]
    assert [each.get("delta") for each in told(log)] == [None, "One ", "two ", "three.", None]


async def test_an_answer_that_comes_at_once_has_no_parts(doors: Doors) -> None:
    async with doors.world.runner(ScriptedModel([say("At once.")])):
        log = await doors.world.until(await doors.start())
    assert not of(log, PART) and [each["type"] for each in told(log)] == ["started", "text-delta", "completed"]


async def test_other_sessions_have_no_parts(doors: Doors) -> None:
    gate = Gate()
    async with doors.world.runner(ScriptedModel([[TextDelta("One "), wait_at(gate), *say("two.")]])):
        session = await doors.world.session()
        await doors.world.say(session, "go")
        await gate.reached.wait()
        await asyncio.sleep(EACH_SECONDS)
        gate.opened.set()
        log = await doors.world.until(session)
    assert not of(log, PART) and text_of(of(log, "agent.message")[0]) == "One two."


async def test_parts_are_the_message_character_by_character(doors: Doors) -> None:
    """Halves of characters, NUL and what no log can hold are stored as the message stores them."""
    pieces = ["a\x00", "é\ud83d", "\ude00b", "\udfff", "c\ud83d"]
    model = ScriptedModel([[part for piece in pieces for part in (TextDelta(piece), _pause)] + [*say("\ude01.")]])
    async with doors.world.runner(model):
        log = await doors.world.until(await doors.start())
    text = text_of(of(log, "agent.message")[0])
    parts = of(log, PART)
    assert len(parts) > 2 and text == "a\ufffdé😀b\ufffdc😁."
    for each in parts:
        assert text[each["offset"] : each["offset"] + len(each["text"])] == each["text"]
    assert "".join(each.get("delta", "") for each in told(log)) == text


async def _pause() -> None:
    await asyncio.sleep(EACH_SECONDS * 1.2)


async def test_an_answer_that_failed_half_way_is_replaced_by_the_next_one(doors: Doors) -> None:
    gate = Gate()
    busy = ModelError(ModelErrorKind.OVERLOADED, "too busy", retry_after_seconds=0.05)
    model = ScriptedModel([[TextDelta("I was going to"), wait_at(gate), busy], say("Here.")])
    async with doors.world.runner(model):
        session = await doors.start()
        await doors.world.until_logged(session, PART)
        gate.opened.set()
        await doors.world.until_logged(session, "agent.message")
        log = await doors.world.until(session)
    events = told(log)
    assert [each["type"] for each in events] == ["started", "text-delta", "text-delta", "completed"]
    assert events[2] == {"index": 2, "type": "text-delta", "delta": "Here.", "replaces": 1}
    assert events[3]["output"] == "Here."


async def test_an_interrupt_keeps_what_was_shown(doors: Doors) -> None:
    gate = Gate()
    async with doors.world.runner(ScriptedModel([[TextDelta("Half an "), TextDelta("answer"), wait_at(gate)]])):
        session = await doors.start()
        await doors.world.until_logged(session, PART)
        await doors.world.clients.send(session, {"type": "user.interrupt"})
        log = await doors.world.until(session)
    assert [each["type"] for each in told(log)][-1] == "cancelled"
    assert (
        "".join(each.get("delta", "") for each in told(log)) == "Half an answer" == text_of(of(log, "agent.message")[0])
    )


async def test_a_check_on_the_output_lets_no_part_pass(doors: Doors) -> None:
    gate = Gate()
    model = ScriptedModel([[TextDelta("the secret "), wait_at(gate), *say("is 4711")]])
    async with doors.world.runner(model):
        session = await doors.start(guardrails={"output": {"deny_patterns": ["4711"], "code": "leak"}})
        await gate.reached.wait()
        await asyncio.sleep(EACH_SECONDS)
        gate.opened.set()
        log = await doors.world.until(session)
    assert not of(log, PART) and "secret" not in str(log)
    assert [(each["type"], each.get("code")) for each in told(log)] == [("started", None), ("failed", "leak")]


async def test_what_was_shown_before_the_runner_was_killed_is_shown_ever_after(doors: Doors) -> None:
    async with doors.world.runner_process() as process:
        session = await doors.start("DELAY:100 LEN:200")
        before = await doors.world.until_logged(session, PART, 3)
        process.send_signal(signal.SIGKILL)
        await within(process.wait(), 30)
    # More may have come in between, and nothing that came is gone.
    shown = told(before)
    gate = Gate()
    model = ScriptedModel([[TextDelta("Anew. "), wait_at(gate), *say("All of it.")]])
    async with doors.world.runner(model):
        await doors.world.until_logged(session, PART, len(of(await doors.world.clients.log(session), PART)))
        await gate.reached.wait()
        gate.opened.set()
        log = await doors.world.until(session, seconds=30)
    events = told(log)
    assert events[: len(shown)] == shown and len(shown) >= 4
    (replacing,) = [each for each in events if "replaces" in each]
    assert replacing["replaces"] == 1 and events[-1]["output"] == "Anew. All of it."
    assert types(log).count("agent.message") == 1

"""A step is never posted twice without saying so: whatever dies, a repeat has its number, its key and its content."""

import asyncio
import signal
from typing import Any

import pytest

from kit.waiting import within
from tests.integration.engines.sessions import remote_session, runner
from tests.integration.runner.harness import World, of, text_of
from tests.integration.runner.played import TOOLSET, PlayedSandboxes
from tests.support.http_agent import Answer, HttpAgent, calls, http_agent, reply

LEASE_SECONDS = 1.0
PROCESS = {"ALLOWED_PRIVATE_HOSTS": "127.0.0.1", "LEASE_SECONDS": str(LEASE_SECONDS)}


@pytest.fixture
def sessions_settings() -> dict[str, Any]:
    return {"lease_seconds": LEASE_SECONDS}


class Remembering:
    """An agent that tells repeats by their key, and answers them as it did before."""

    def __init__(self) -> None:
        # What each step asked for, by number, and how often it was asked.
        self.asked: dict[int, dict[str, Any]] = {}
        self.times: dict[int, int] = {}

    def __call__(self, step: dict[str, Any]) -> Answer:
        number = step["step"]
        self.times[number] = self.times.get(number, 0) + 1
        assert self.asked.setdefault(number, step) == step, "a repeat says something else"
        if "tool_results" in step:
            return reply(f"Heard of {len(step['tool_results'])} calls.")
        if step["message"].startswith("run"):
            return calls(("c1", "bash", {"command": "echo one"}), ("c2", "bash", {"command": "echo two"}))
        return reply(f"You said {step['message']}.")


def check(agent: HttpAgent, told: Remembering, log: list[dict[str, Any]]) -> None:
    """What holds whatever died: dense numbers, a key for each, one answer of each step in the log."""
    assert sorted(told.asked) == list(range(1, len(told.asked) + 1))
    assert [key.rpartition(":")[2] for key in agent.step_keys()] == [str(step["step"]) for step in agent.steps]
    answered = [end["step"] for end in of(log, "span.model_request_end") if end.get("step_outcome") == "answered"]
    assert answered == sorted(told.asked)
    starts = {event["id"] for event in of(log, "span.model_request_start")}
    assert {event["model_request_start_id"] for event in of(log, "span.model_request_end")} == starts


# Where a runner dies, and which steps are posted again for it.
DEATHS: list[tuple[str, dict[int, int]]] = [
    # Logged and not posted.
    ("runner.step.before_post=kill", {}),
    # Posted, answered, and the answer not logged.
    ("runner.step.answered=kill", {1: 2}),
    ("runner.step.answered=kill@2", {2: 2}),
    # While a call runs.
    ("runner.tool.running=kill@2", {}),
    # Before the answer of the first step is stored, the step itself being.
    ("runner.before_append=kill@2", {1: 2}),
]


@pytest.mark.slow
async def test_a_killed_runner_leaves_its_step_to_the_next(platform: World) -> None:
    for point, repeated in DEATHS:
        await _check_death(platform, point, repeated)


async def _check_death(platform: World, point: str, repeated: dict[int, int]) -> None:
    told = Remembering()
    async with http_agent(plan=told) as agent:
        session = await remote_session(platform, agent, TOOLSET)
        async with platform.runner_process(point, **PROCESS) as process:
            await platform.say(session, "run it")
            assert await within(process.wait(), 15) == -signal.SIGKILL
            # What comes in between changes nothing of the step that is repeated.
            await platform.say(session, "and this")
        async with runner(platform, None, PlayedSandboxes(), lease_seconds=LEASE_SECONDS):
            log = await platform.until(session, seconds=15)
        check(agent, told, log)
        assert told.times == {1: 1, 2: 1, 3: 1} | repeated, point
        assert told.asked[1]["message"] == "run it" and told.asked[3]["message"] == "and this"
        results = told.asked[2]["tool_results"]
        assert [each["id"] for each in results] == ["c1", "c2"]
        if "tool" in point:
            assert "work_outcome_unknown" in results[1]["error"]
        assert [text_of(event) for event in of(log, "agent.message")] == ["Heard of 2 calls.", "You said and this."]


async def test_a_runner_that_stops_in_order_leaves_its_step_to_the_next_under_its_number(platform: World) -> None:
    told, reached = Remembering(), asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    def first_hangs(step: dict[str, Any]) -> Answer:
        answer = told(step)
        answer.first = hang if told.times[step["step"]] == 1 else None
        return answer

    async with http_agent(plan=first_hangs) as agent:
        session = await remote_session(platform, agent)
        async with runner(platform, runner_drain_seconds=0.1, lease_seconds=LEASE_SECONDS):
            await platform.say(session, "hello")
            await reached.wait()
        async with runner(platform, lease_seconds=LEASE_SECONDS):
            log = await platform.until(session)
        check(agent, told, log)
        assert told.times == {1: 2} and agent.broken == 1
        assert not of(log, "session.error")


async def test_a_paused_runner_writes_nothing_of_the_step_that_another_one_repeated(platform: World) -> None:
    told, reached, gate = Remembering(), asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        reached.set()
        await gate.wait()

    def first_waits(step: dict[str, Any]) -> Answer:
        answer = told(step)
        answer.first = wait if told.times[step["step"]] == 1 else None
        return answer

    async with http_agent(plan=first_waits) as agent:
        session = await remote_session(platform, agent)
        async with platform.runner_process(**PROCESS) as process:
            await platform.say(session, "hello")
            await reached.wait()
            process.send_signal(signal.SIGSTOP)
            async with runner(platform, lease_seconds=LEASE_SECONDS):
                log = await platform.until(session, seconds=20)
            gate.set()
            process.send_signal(signal.SIGCONT)
            # It is awake again when it takes the next turn, and has had its chance to write by then.
            told.times[2] = 1
            await platform.say(session, "again")
            log = await platform.until_logged(session, "session.status_idle", 2)
        del told.times[2]
        check(agent, told, log)
        assert [text_of(event) for event in of(log, "agent.message")] == ["You said hello.", "You said again."]
        assert [event["seq"] for event in log] == list(range(1, len(log) + 1))


async def test_a_step_that_every_runner_died_of_is_repeated_before_the_next_message(platform: World) -> None:
    told = Remembering()
    async with http_agent(plan=told) as agent:
        session = await remote_session(platform, agent)
        await platform.say(session, "hello")
        for _ in range(3):
            async with platform.runner_process("runner.step.answered=kill", **PROCESS) as process:
                assert await within(process.wait(), 15) == -signal.SIGKILL
        log = await platform.until(session)
        assert log[-1]["stop_reason"]["type"] == "retries_exhausted" and len(of(log, "session.error")) == 1
        async with runner(platform, lease_seconds=LEASE_SECONDS):
            await platform.say(session, "still there?")
            log = await platform.until_logged(session, "session.status_idle", 2)
        check(agent, told, log)
        assert told.times == {1: 4, 2: 1}
        replies = ["You said hello.", "You said still there?."]
        assert [text_of(event) for event in of(log, "agent.message")] == replies

"""Proves how trials are played: the protocol's requests, its step budget, interleaving, and equal reports."""

import asyncio
import itertools
from collections import defaultdict
from pathlib import Path
from typing import Any

import orjson
import pytest

from cli.rehearse.agents import Calls, Reply, RuntimeFailure
from cli.rehearse.domain import Domain
from cli.rehearse.loading import load
from cli.rehearse.playing import CLOSING_REPLY, MAX_ROUNDS, Trial, play, play_all
from cli.rehearse.report import Run, report
from cli.rehearse.running import make_domain
from cli.rehearse.world import Call
from tests.unit.rehearse.domains import FILES, loaded

TWO_TURNS = """\
turns: [Hello., Goodbye.]
end: [{unchanged: {table: lockers}}]
"""
RUN = Run("run-1", "2026-12-01T00:00:00Z", "lockers", "http://a/step", 1, None, 100.0)


class Scripted:
    """Answers from a list, again from the start in each session; keeps what it was asked."""

    def __init__(self, *answers: Reply | Calls | Exception) -> None:
        self.asked: list[dict[str, Any]] = []
        self._sessions = defaultdict(lambda: itertools.cycle(answers))

    async def step(self, body: dict[str, Any]) -> Reply | Calls:
        self.asked.append(body)
        answer = next(self._sessions[body["session_id"]])
        if isinstance(answer, Exception):
            raise answer
        return answer


def _calls(*calls: tuple[str, dict[str, Any]]) -> Calls:
    return Calls([Call(f"c{index}", name, arguments) for index, (name, arguments) in enumerate(calls)])


@pytest.fixture(scope="module")
def domain(tmp_path_factory: pytest.TempPathFactory) -> Domain:
    return loaded(tmp_path_factory.mktemp("played"), {**FILES, "tasks/two-turns.yaml": TWO_TURNS})


async def _trial(domain: Domain, agent: Scripted, task: str = "two-turns") -> Trial:
    trial = Trial(domain.tasks[task], 0, f"run-1/{task}#0")
    await play(domain, agent, trial)
    return trial


async def test_each_request_has_session_system_tools_and_one_of_message_and_results(domain: Domain) -> None:
    agent = Scripted(_calls(("hours", {})), Reply("Hi."))
    await _trial(domain, agent)
    assert [set(body) for body in agent.asked] == [
        {"session_id", "system", "tools", "message"},
        {"session_id", "system", "tools", "tool_results"},
    ] * 2
    assert {body["session_id"] for body in agent.asked} == {"run-1/two-turns#0"}
    assert {body["system"] for body in agent.asked} == {"You keep the lockers.\n\nOne locker each."}
    assert [body["message"] for body in agent.asked[::2]] == ["Hello.", "Goodbye."]
    tool = agent.asked[0]["tools"][1]
    assert tool["name"] == "get_locker" and tool["description"] == "Shows a locker."
    assert tool["input_schema"] == {
        "type": "object",
        "properties": {"id": {"type": "string"}},
        "required": ["id"],
        "additionalProperties": False,
    }


async def test_results_go_back_in_order_and_in_one_request(domain: Domain) -> None:
    calls = _calls(("get_locker", {"id": "A"}), ("fly", {}), ("pay", {"locker": "A", "amount": 1}), ("hours", {}))
    agent = Scripted(calls, Reply("Done."))
    await _trial(domain, agent, "take")
    results = agent.asked[1]["tool_results"]
    assert [(each["id"], each["ok"]) for each in results] == [("c0", True), ("c1", False), ("c2", True), ("c3", True)]
    assert "error" not in results[0] and "result" not in results[1]
    assert results[2]["result"] == {"number": 1, "locker": "A", "amount": 1}


async def test_each_call_sees_what_the_one_before_left(domain: Domain) -> None:
    agent = Scripted(_calls(("pay", {"locker": "A", "amount": 1}), ("get_locker", {"id": "A"})), Reply("Done."))
    await _trial(domain, agent, "take")
    assert agent.asked[1]["tool_results"][1]["result"]["uses"] == 4


async def test_sixteen_rounds_are_run_and_the_seventeenth_ends_the_turn(domain: Domain) -> None:
    agent = Scripted(_calls(("hours", {})))
    trial = await _trial(domain, agent)
    # 16 rounds: one message, sixteen times results. Then the next turn goes on all the same.
    assert len(agent.asked) == 2 * (MAX_ROUNDS + 1)
    assert len(trial.log) == 2 * MAX_ROUNDS
    assert [each.text for each in trial.transcript if getattr(each, "who", "") == "rehearsal"] == [CLOSING_REPLY] * 2
    assert CLOSING_REPLY == "[agent exceeded its step budget for this turn]"
    assert trial.passed, "the budget is no failure of its own; the end state decides"


async def test_a_reply_after_sixteen_rounds_is_a_reply(domain: Domain) -> None:
    agent = Scripted(*[_calls(("hours", {}))] * MAX_ROUNDS, Reply("At last."))
    trial = await _trial(domain, agent, "take")
    assert trial.transcript[-1].text == "At last."


async def test_a_runtime_failure_ends_the_trial_and_shows_why(domain: Domain) -> None:
    agent = Scripted(_calls(("hours", {})), RuntimeFailure("status 500: down"))
    trial = await _trial(domain, agent)
    assert len(agent.asked) == 2
    assert [(each.kind, each.told) for each in trial.failures] == [("runtime", "status 500: down")]


async def _all(domain: Domain, agent: Any, **options: Any) -> list[Trial]:
    asked = {"run_id": "run-1", "tasks": list(domain.tasks.values()), "trials": 3, "concurrency": 4} | options
    return await play_all(domain, agent, **asked)


async def test_session_ids_name_run_task_and_trial_and_are_used_once(domain: Domain) -> None:
    trials = await _all(domain, Scripted(Reply("Hi.")))
    assert [trial.session_id for trial in trials] == [
        *(f"run-1/take#{number}" for number in range(3)),
        *(f"run-1/two-turns#{number}" for number in range(3)),
    ]


class Waiting:
    """Holds every step until so many are there at once."""

    def __init__(self, together: int) -> None:
        self._barrier = asyncio.Barrier(together)
        self.now = self.most = 0
        self._changed = asyncio.Condition()

    async def has(self, steps: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.now == steps)

    async def step(self, body: dict[str, Any]) -> Reply:
        async with self._changed:
            self.now += 1
            self.most = max(self.most, self.now)
            self._changed.notify_all()
        await self._barrier.wait()
        self.now -= 1
        return Reply("Hi.")


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_so_many_trials_run_at_once_and_no_more(domain: Domain, concurrency: int) -> None:
    agent = Waiting(concurrency)
    task = [domain.tasks["take"]]
    async with asyncio.timeout(10):
        await _all(domain, agent, tasks=task, trials=6, concurrency=concurrency)
    assert agent.most == concurrency


async def test_trials_do_not_see_each_other_s_world(domain: Domain) -> None:
    agent = Scripted(_calls(("get_locker", {"id": "A"}), ("take_locker", {"id": "A", "holder": "Lou"})), Reply("Yes."))
    trials = await _all(domain, agent, tasks=[domain.tasks["take"]], trials=8)
    assert all(trial.passed for trial in trials)
    assert all(trial.log[1].result["number"] == 1 for trial in trials)


async def test_a_seed_changes_the_order_of_beginning_and_not_of_the_report(domain: Domain) -> None:
    orders = []
    for seed in (None, 1, 1, 2):
        agent = Scripted(Reply("Hi."))
        trials = await _all(domain, agent, seed=seed, concurrency=1)
        orders.append([body["session_id"] for body in agent.asked])
        assert [trial.number for trial in trials] == [0, 1, 2] * 2
    assert orders[1] == orders[2] and orders[0] != orders[1] != orders[3]


async def test_equal_answers_give_equal_reports(domain: Domain) -> None:
    calls = _calls(("take_locker", {"id": "A", "holder": "Lou"}), ("get_locker", {}), ("fly", {"to": ["x"]}))
    found = []
    for seed in (None, 7):
        trials = await _all(domain, Scripted(calls, Reply("So.")), seed=seed)
        for trial in trials:
            trial.seconds = 0.0
        found.append(orjson.dumps(report(RUN, trials, 0.0)))
    assert found[0] == found[1]


async def test_progress_counts_up_to_all(domain: Domain) -> None:
    seen: list[tuple[int, int]] = []
    await _all(domain, Scripted(Reply("Hi.")), on_change=lambda running, done: seen.append((running, done)))
    assert seen[-1] == (0, 6) and max(running for running, _ in seen) <= 4
    assert [done for _, done in seen] == sorted(done for _, done in seen)


async def test_a_cancelled_run_cancels_its_steps(domain: Domain) -> None:
    agent = Waiting(99)
    running = asyncio.create_task(_all(domain, agent))
    await agent.has(4)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


class Lender:
    """Does what the policy of a new domain says."""

    async def step(self, body: dict[str, Any]) -> Reply | Calls:
        if "lend-one" not in body["session_id"] or "Hello" in body.get("message", ""):
            return Reply("I am afraid not.")
        if "message" in body:
            return _calls(("find_bicycles", {"kind": "city"}), ("lend_bicycle", {"bicycle": "C-2", "customer": "Sol"}))
        return Reply("It is yours.")


async def test_a_new_domain_can_be_passed(tmp_path: Path) -> None:
    make_domain(tmp_path / "new")
    new = load(tmp_path / "new")
    trials = await _all(new, Lender(), tasks=list(new.tasks.values()), trials=1)
    assert [trial.failures for trial in trials] == [[], []] and len(trials[0].log) == 2


def test_the_domain_has_the_tasks_in_the_order_of_their_names(domain: Domain, tmp_path: Path) -> None:
    assert list(domain.tasks) == ["take", "two-turns"]

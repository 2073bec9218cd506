"""Plays trials: user turns in order, rounds of tool calls against the trial's own world, several trials at once."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cli.rehearse.acting import perform
from cli.rehearse.agents import Calls, Reply, RuntimeFailure
from cli.rehearse.domain import Domain, Task
from cli.rehearse.grading import Failure, grade
from cli.rehearse.world import Record, World

MAX_ROUNDS = 16
CLOSING_REPLY = "[agent exceeded its step budget for this turn]"


class Stepping(Protocol):
    """What answers steps."""

    async def step(self, body: dict[str, Any]) -> Reply | Calls: ...


@dataclass(frozen=True)
class Said:
    """Something that was said in a turn: by the user, by the agent, or by us in its place."""

    who: str
    text: str


@dataclass
class Trial:
    """One task, played once. `transcript` has what was said and called, in order."""

    task: Task
    number: int
    session_id: str
    transcript: list[Said | Record] = field(default_factory=list)
    log: list[Record] = field(default_factory=list)
    failures: Sequence[Failure] = ()
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.failures


async def play_all(
    domain: Domain,
    agent: Stepping,
    *,
    run_id: str,
    tasks: Sequence[Task],
    trials: int,
    concurrency: int,
    seed: int | None = None,
    on_change: Callable[[int, int], None] = lambda running, done: None,
) -> list[Trial]:
    """Every trial, by task and number whatever the order was. `seed` shuffles the order in which they begin."""
    planned = [Trial(task, number, f"{run_id}/{task.id}#{number}") for number in range(trials) for task in tasks]
    waiting = list(planned)
    if seed is not None:
        random.Random(seed).shuffle(waiting)
    waiting.reverse()
    running = done = 0

    async def play_on() -> None:
        nonlocal running, done
        while waiting:
            trial = waiting.pop()
            running += 1
            on_change(running, done)
            await play(domain, agent, trial)
            running, done = running - 1, done + 1
            on_change(running, done)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(planned))):
            group.create_task(play_on())
    places = {task.id: place for place, task in enumerate(tasks)}
    return sorted(planned, key=lambda trial: (places[trial.task.id], trial.number))


async def play(domain: Domain, agent: Stepping, trial: Trial) -> None:
    """Play one trial and grade it."""
    started, world, runtime = time.monotonic(), trial.task.start, None
    try:
        for turn, message in enumerate(trial.task.turns):
            world = await _Turn(domain, agent, trial, turn).play(message, world)
    except _Ended as ended:
        world, runtime = ended.world, ended.told
    trial.failures = grade(domain, trial.task, trial.log, world, runtime)
    trial.seconds = time.monotonic() - started


class _Ended(Exception):
    """The trial ends here, with the world as it is."""

    def __init__(self, world: World, told: str) -> None:
        super().__init__(told)
        self.world, self.told = world, told


class _Turn:
    def __init__(self, domain: Domain, agent: Stepping, trial: Trial, turn: int) -> None:
        self._domain, self._agent, self._trial, self._turn = domain, agent, trial, turn

    async def play(self, message: str, world: World) -> World:
        """From what the user says to the agent's reply; the world after it."""
        self._say("user", message)
        given: dict[str, Any] = {"message": message}
        rounds = 0
        while True:
            try:
                answer = await self._agent.step(self._head() | given)
            except RuntimeFailure as failure:
                raise _Ended(world, str(failure)) from None
            if isinstance(answer, Reply):
                self._say("agent", answer.text)
                return world
            if rounds == MAX_ROUNDS:
                self._say("rehearsal", CLOSING_REPLY)
                return world
            rounds += 1
            world, results = self._run(answer, world)
            given = {"tool_results": results}

    def _head(self) -> dict[str, Any]:
        return {"session_id": self._trial.session_id, "system": self._domain.system, "tools": self._domain.offered}

    def _run(self, answer: Calls, world: World) -> tuple[World, list[dict[str, Any]]]:
        """All calls of an answer in order, each on what the one before left."""
        results: list[dict[str, Any]] = []
        for call in answer.calls:
            world, record = perform(self._domain, world, self._trial.log, call, self._turn)
            self._trial.log.append(record)
            self._trial.transcript.append(record)
            told = {"result": record.result} if record.ok else {"error": record.error}
            results.append({"id": call.id, "ok": record.ok, **told})
        return world, results

    def _say(self, who: str, text: str) -> None:
        self._trial.transcript.append(Said(who, text))

"""Outside workers: each effect at most once, each item with an honest end, nothing stuck, nobody starved.

The queue, the gateway, the runner and the worker program are the real ones. Meanwhile workers are killed, paused past
their lease and let go on, cut off, and restarted; the queue, the gateway and PostgreSQL are killed; every request of
one worker is made twice; and the clocks of half of them are wrong by an hour.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from cli.data_folder import DataFolder
from kit.ids import new_id
from kit.rpc.client import channel
from kit.rpc.context import CallContext, set_context
from kit.testing import await_until
from managed_agents.worker.v1.queue_pb2_grpc import QueueServiceStub
from services.worker.runner.outside.items import (
    LEASE_LOST,
    OUTCOME_UNKNOWN,
    QUEUE_TIMEOUT,
    Item,
    WorkFailed,
    WorkQueue,
    item_id,
)
from tests.faults.fleet import Line, Worker, cable, wrong_clocks
from tests.faults.ground import Ground, seen
from tests.faults.workload import patiently
from tests.support.api import Api, api, message, tool
from tests.support.rows import database_of

pytestmark = [pytest.mark.slow]
LEASE_SECONDS = 1.0
HOUR = 3600
DONE = "did "
MOST_HARM = 50
# With a key the platform also answers to the name that a worker behind a cable calls it by.
API_KEY = "ma_faults_of_workers"
WRONG = {"services.worker.queue": HOUR, "services.gateway": -HOUR, "near-1": HOUR, "far": -HOUR}


@dataclass
class Ledger:
    """What was asked for, and what came of it."""

    effects: Path
    ends: dict[str, str] = field(default_factory=dict)

    def counts(self) -> Counter[str]:
        """How often each item took effect."""
        return Counter(self.effects.read_text().split()) if self.effects.exists() else Counter()

    def note(self, name: str) -> None:
        """An effect, as the command has it."""
        with self.effects.open("a") as file:
            file.write(f"{name}\n")

    def faults(self) -> list[str]:
        """What is not as it must be."""
        found = [f"{name} took effect {count} times" for name, count in self.counts().items() if count > 1]
        for name, end in self.ends.items():
            count = self.counts()[name]
            if end == "completed" and count != 1:
                found.append(f"{name} is completed and took effect {count} times")
            elif end == QUEUE_TIMEOUT and count:
                found.append(f"{name} may be tried again and took effect")
            elif end not in ("completed", QUEUE_TIMEOUT, OUTCOME_UNKNOWN, LEASE_LOST):
                found.append(f"{name} ended as {end}")
        return found


@dataclass(frozen=True)
class Waits:
    """How long an item may be without a worker, and how long with one."""

    queue_seconds: float
    run_seconds: float


SHORT_WAITS, LONG_WAITS = Waits(8, 4), Waits(40, 20)


@dataclass
class Field:
    """A platform with a self-hosted environment."""

    ground: Ground
    client: Api
    queue: WorkQueue
    waits: Waits
    folder: Path
    environment_id: str
    key: str

    async def run(self, ledger: Ledger, session_id: str, seconds: float) -> None:
        """One item from the asker's side to its end."""
        name = new_id("sevt")
        command = f"echo {name} >> {ledger.effects}; sleep {seconds:.2f}; echo {DONE}{name}"
        payload = {"command": command, "timeout_ms": 6000}
        item = Item(item_id(name, 0), session_id, self.environment_id, "exec", payload)
        try:
            async with asyncio.timeout(self.waits.queue_seconds + self.waits.run_seconds + 15):
                result = await self.queue.run(item, run_seconds=self.waits.run_seconds, check=lambda: None)
        except WorkFailed as failed:
            ledger.ends[name] = failed.code
        except TimeoutError:
            ledger.ends[name] = "stuck"
        else:
            right = not result.failed and result.value["stdout"] == f"{DONE}{name}\n"
            ledger.ends[name] = "completed" if right else f"failed: {result.value}"

    async def status_counts(self) -> dict[str, int]:
        """How many items are where."""
        return (await self.client.call("GET", f"/v1/environments/{self.environment_id}/work-items"))["status_counts"]


@asynccontextmanager
async def field_of(tmp_path: Path, waits: Waits, **variables: str) -> AsyncIterator[Field]:
    """A platform whose leases are short."""
    settings = {
        "MANAGED_AGENTS_API_KEY": API_KEY,
        "MANAGED_AGENTS_WORK_LEASE_SECONDS": str(LEASE_SECONDS),
        "MANAGED_AGENTS_WORK_SWEEP_SECONDS": "0.3",
        "MANAGED_AGENTS_WORK_SILENCE_SECONDS": "3",
        "MANAGED_AGENTS_WORK_QUEUE_SECONDS": str(waits.queue_seconds),
        **variables,
    }
    ground = Ground(tmp_path / "data", environment=settings)
    try:
        await asyncio.to_thread(ground.platform.wait_healthy)
        folder = DataFolder(tmp_path / "data")
        queue = channel(f"unix:{folder.run / 'queue.sock'}", token=folder.internal_token.read_text().strip())
        set_context(CallContext("wrkspc_default", new_id("req"), "test"))
        async with api(ground.platform.url) as client:
            client.http.headers["authorization"] = f"Bearer {API_KEY}"
            body = {"name": "fleet", "hosting_type": "self_hosted"}
            environment_id = (await client.call("POST", "/v1/environments", body))["id"]
            keys = f"/v1/environments/{environment_id}/worker-keys"
            key = (await client.call("POST", keys, {"name": "w"}))["secret_key"]
            work = WorkQueue(queue.stub(QueueServiceStub), queue_seconds=waits.queue_seconds)
            yield Field(ground, client, work, waits, tmp_path, environment_id, key)
        await queue.close()
    finally:
        await asyncio.to_thread(ground.stop)


@asynccontextmanager
async def workers_of(ground: Field, *names: str, **variables: str) -> AsyncIterator[dict[str, Worker]]:
    """The worker program under these names; `far` lives behind a cable where one can be laid."""
    async with AsyncExitStack() as stack:
        found: dict[str, Worker] = {}
        laid = stack.enter_context(cable()) if "far" in names else None
        for name in names:
            behind = laid if name == "far" else None
            line = Line(ground.ground.platform.port, behind.here if behind else "127.0.0.1")
            await line.open()
            stack.push_async_callback(line.close)
            worker = Worker(
                name,
                line,
                ground.environment_id,
                ground.folder,
                {"MANAGED_AGENTS_ENVIRONMENT_KEY": ground.key, **variables},
                *(behind.prefix if behind else ()),
            )
            if behind is not None:
                # What dies is the cable, not the program that stands in for it.
                line.die, line.live = behind.pull, behind.plug
            worker.start()
            stack.callback(worker.kill)
            found[name] = worker
        yield found


class Doubler:
    """A worker by hand that makes each request twice, and pretends now and then to be another's."""

    def __init__(self, ground: Field, ledger: Ledger) -> None:
        self._ground = ground
        self._ledger = ledger
        self._http = ground.client.http
        self.faults: list[str] = []
        self.stopping = False

    async def work(self, name: str) -> None:
        """Until it is told to stop."""
        environment_id, key = self._ground.environment_id, self._ground.key
        while not self.stopping:
            body = {"worker_id": name, "environment_id": environment_id, "environment_key": key, "wait_ms": 1000}
            answer = await self._post("claim", body)
            if answer is None or answer.status_code not in (200, 204):
                await asyncio.sleep(0.1)
            elif answer.status_code == 200:
                await self._do(name, key, answer.json())

    async def _do(self, name: str, key: str, item: dict[str, Any]) -> None:
        mark = {"id": item["id"], "worker_id": name, "environment_key": key}
        stranger = {**mark, "worker_id": f"not-{name}"}
        accepts = await asyncio.gather(*(self._post("accept", each) for each in (mark, stranger, mark)))
        self._expect(accepts[1], 409, "a stranger's accept")
        if not any(answer is not None and answer.status_code == 200 for answer in (accepts[0], accepts[2])):
            return
        echo = item["payload"]["command"].split()
        if echo[0] != "echo":
            return
        # This worker does nothing but the effect, whatever else the command says.
        self._ledger.note(echo[1])
        result = {"stdout": f"{DONE}{echo[1]}\n", "stderr": "", "exitCode": 0, "timedOut": False}
        reports = [{**each, "result": result} for each in (stranger, mark, mark)]
        answers = await asyncio.gather(*(self._post("complete", each) for each in reports))
        self._expect(answers[0], 409, "a stranger's report")

    def _expect(self, answer: httpx2.Response | None, status: int, what: str) -> None:
        if answer is not None and answer.status_code not in (status, 503, 504):
            self.faults.append(f"{what} was answered with {answer.status_code}")

    async def _post(self, verb: str, body: dict[str, Any]) -> httpx2.Response | None:
        # As a worker it has no other credential than its key, whose requests are not counted.
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._ground.key}"}
        try:
            return await self._http.post(f"/v1/x/worker/{verb}", content=orjson.dumps(body), headers=headers)
        except httpx2.TransportError:
            return None


class Harm:
    """What goes wrong with workers, and with what they talk to."""

    def __init__(self, ground: Field, workers: dict[str, Worker], chance: random.Random) -> None:
        self._ground = ground.ground
        self._workers = workers
        self._chance = chance
        self.done: Counter[str] = Counter()
        self._kinds = {"kill": self._kill, "pause": self._pause, "dead line": self._dead, "cut": self._cut}

    async def strike(self, kind: str) -> None:
        """One harm, and its end."""
        if kind in self._kinds:
            await self._kinds[kind](await self._victim())
        else:
            killed = self._ground.signal(kind, signal.SIGKILL)
            await self._ground.until_back(kind, killed)
        self.done[kind] += 1

    async def _victim(self) -> Worker:
        """A worker in the middle of an item; any where all of the work is done."""
        try:
            return await seen(self._busy, 5, "a worker is at work")
        except AssertionError:
            return self._chance.choice(list(self._workers.values()))

    def _busy(self) -> Worker | None:
        """A worker in the middle of an item."""
        with database_of(self._ground.platform) as rows:
            found = rows.execute(
                "SELECT lease_holder FROM worker.work_items WHERE accepted_at IS NOT NULL AND finished_at IS NULL"
            ).fetchall()
        named = {f"{worker.name}-{worker.lives}": worker for worker in self._workers.values()}
        busy = [named[holder] for (holder,) in found if holder in named]
        return self._chance.choice(busy) if busy else None

    def served(self) -> set[str]:
        """Workers that were given work."""
        with database_of(self._ground.platform) as rows:
            found = rows.execute("SELECT DISTINCT lease_holder FROM worker.work_items WHERE accepted_at IS NOT NULL")
            return {holder.rpartition("-")[0] for (holder,) in found.fetchall()}

    async def _kill(self, worker: Worker) -> None:
        worker.kill()
        worker.start()

    async def _pause(self, worker: Worker) -> None:
        worker.signal(signal.SIGSTOP)
        await asyncio.sleep(LEASE_SECONDS * self._chance.uniform(0.5, 3))
        worker.signal(signal.SIGCONT)

    async def _dead(self, worker: Worker) -> None:
        worker.line.die()
        await asyncio.sleep(LEASE_SECONDS * self._chance.uniform(0.5, 3))
        worker.line.live()

    async def _cut(self, worker: Worker) -> None:
        worker.line.cut()


SHORT = ("kill", "dead line", "pause", "cut", "queue", "kill")
LONG = (*SHORT, "gateway", "postgres", "nats", "sessions", "runner", "pause", "dead line")


async def _ask(ground: Field, ledger: Ledger, chance: random.Random, count: int) -> None:
    """A session's items, one after another or a few at once; some are asked for twice."""
    session_id = new_id("sess")
    while count > 0:
        several = min(count, chance.choice((1, 1, 1, 2, 4)))
        count -= several
        # Some outlive the lease, so that they live by heartbeats.
        times = [LEASE_SECONDS * 1.5 if chance.random() < 0.05 else chance.uniform(0, 0.4) for _ in range(several)]
        await asyncio.gather(*(ground.run(ledger, session_id, seconds) for seconds in times))


async def _converse(client: Api, ledger: Ledger, environment_id: str, turns: int) -> list[str]:
    """A real session whose model calls a tool in each turn; what is wrong with its log."""
    agent_id = await patiently(client.agent)
    key = new_id("key")
    body = {"agent": agent_id, "environment_id": environment_id}
    session_id = (await patiently(lambda: client.call("POST", "/v1/sessions", body, idempotency_key=key)))["id"]
    for number in range(turns):
        name, sent = f"{session_id}-{number}", new_id("key")
        text = tool("bash", command=f"echo {name} >> {ledger.effects}; echo {DONE}{name}")
        await patiently(lambda: client.send(session_id, message(text), key=sent))  # noqa: B023
        await await_until(partial(_is_idle, client, session_id), timeout=120)
        log = await patiently(lambda: client.log(session_id))
        results = [event for event in log if event["type"] == "agent.tool_result"]
        calls = [event for event in log if event["type"] == "agent.tool_use"]
        if len(results) != len(calls) or not calls:
            return [f"{session_id} has {len(calls)} calls and {len(results)} results"]
        said = results[-1]["content"][0]["text"]
        code = said.partition(":")[0]
        right = said == f"{DONE}{name}"
        ledger.ends[name] = "completed" if right else code if results[-1]["is_error"] else said
    return []


def _said(workers: dict[str, Worker]) -> dict[str, str]:
    return {name: worker.said[-2000:] for name, worker in workers.items()}


async def _is_idle(client: Api, session_id: str) -> bool:
    # Reads are counted where there is a key.
    await asyncio.sleep(0.3)
    return await patiently(lambda: client.status(session_id)) == "idle"


@pytest.mark.timeout(0)
async def test_whatever_happens_to_workers_and_queue(tmp_path: Path, items: int, seed: int) -> None:
    chance = random.Random(seed)
    long = items > 500
    clocks = wrong_clocks(tmp_path / "clocks", WRONG)
    async with field_of(tmp_path, LONG_WAITS if long else SHORT_WAITS, **clocks) as ground, AsyncExitStack() as stack:
        ledger = Ledger(tmp_path / "effects")
        workers = await stack.enter_async_context(workers_of(ground, "near-1", "near-2", "far", **clocks))
        doubler = Doubler(ground, ledger)
        doubling = asyncio.create_task(doubler.work("doubler"))
        harm = Harm(ground, workers, chance)
        asking = [
            asyncio.create_task(_ask(ground, ledger, random.Random(f"{seed} {number}"), items // 6))
            for number in range(6)
        ]
        talking = [
            asyncio.create_task(_converse(ground.client, ledger, ground.environment_id, 20 if long else 2))
            for _ in range(2)
        ]
        working = {*asking, *talking}

        async def harming() -> None:
            for kind in LONG if long else SHORT:
                await harm.strike(kind)
            while long and harm.done.total() < MOST_HARM and not all(task.done() for task in working):
                await harm.strike(chance.choice(LONG))

        nemesis = asyncio.create_task(harming())
        try:
            await asyncio.wait({*working, nemesis}, return_when=asyncio.FIRST_EXCEPTION)
            if nemesis.done():
                nemesis.result()
            await asyncio.gather(*asking)
            faults = [fault for each in await asyncio.gather(*talking) for fault in each]
            await nemesis
            # Whatever the workers went through, they work on.
            doubler.stopping = True
            await doubling
            before = len(ledger.ends)
            await asyncio.gather(*(ground.run(ledger, f"sess_last{number}", 0.3) for number in range(6)))
            assert set(list(ledger.ends.values())[before:]) == {"completed"}, (ledger.ends, _said(workers))
            idle = set(workers) - await asyncio.to_thread(harm.served)
            assert not idle, (idle, _said(workers))
        finally:
            for task in (nemesis, *working, doubling):
                task.cancel()
            await asyncio.gather(nemesis, *working, doubling, return_exceptions=True)
        counts = await patiently(ground.status_counts)
        faults += ledger.faults() + doubler.faults
        told = {"ends": Counter(ledger.ends.values()), "harm": harm.done, "items": counts}
        print(told)
        assert not faults, (faults[:20], told, _said(workers))
        assert counts["pending"] == counts["claimed"] == 0, told
        assert len(ledger.ends) == 6 + items // 6 * 6 + len(talking) * (20 if long else 2)
        # Most of it simply works.
        assert told["ends"]["completed"] > 0.6 * len(ledger.ends), told


@pytest.mark.parametrize("end", ["a runner is killed", "a runner stops", "all stops"])
async def test_a_command_outlives_who_waits_for_it(tmp_path: Path, end: str) -> None:
    patience = {"MANAGED_AGENTS_WORK_SILENCE_SECONDS": "60", "MANAGED_AGENTS_RUNNER_DRAIN_SECONDS": "0.5"}
    effects, gate = tmp_path / "effects", tmp_path / "gate"
    async with field_of(tmp_path, LONG_WAITS, **patience) as ground, workers_of(ground, "near-1"):
        client, platform = ground.client, ground.ground
        body = {"agent": await client.agent(), "environment_id": ground.environment_id}
        session_id = (await client.call("POST", "/v1/sessions", body))["id"]
        command = f"echo x >> {effects}; until [ -e {gate} ]; do sleep 0.05; done; echo {DONE}it"
        await client.send(session_id, message(tool("bash", command=command)))
        await seen(effects.exists, 30, "the command runs")
        if end == "all stops":
            platform.platform.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(platform.start_again)
        else:
            (holder,) = await seen(lambda: platform.holders("mid tool"), 10, "a runner waits for it")
            gone = platform.signal(holder, signal.SIGKILL if end == "a runner is killed" else signal.SIGTERM)
            await platform.until_back(holder, gone)
        gate.touch()
        await await_until(partial(_is_idle, client, session_id), timeout=60)
        log = await patiently(lambda: client.log(session_id))
    (result,) = [event for event in log if event["type"] == "agent.tool_result"]
    assert (result["content"][0]["text"], result["is_error"]) == (f"{DONE}it", False)
    assert effects.read_text() == "x\n"

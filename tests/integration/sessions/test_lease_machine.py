"""Leases on a real database, in any order of messages, grants, renewals, lapses, sweeps, late writes and stops.

Two replicas and the runners that wait at them are moved at random. Whatever the order: epochs only grow, no turn has
two holders, who lost its lease writes nothing, and the log of a session holds its epochs one after another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from kit.clock import SystemClock
from kit.errors import FailedPrecondition, NotFound
from kit.ids import new_id
from kit.nats import Nats, connect
from kit.postgres import Database
from kit.relay import Relay
from kit.rpc.context import CallContext, use_context
from kit.testing.fixtures import MakeDatabase
from managed_agents.sessions.v1 import turns_pb2
from services.sessions.domain import turn
from services.sessions.domain.inbound import ClientEvent
from services.sessions.handlers.session_messages import session_message
from services.sessions.handlers.turns import TurnsHandlers
from services.sessions.operations.announcer import Announcer
from services.sessions.operations.claims import Claims
from services.sessions.operations.core import Operations, new_event_id
from services.sessions.operations.waiting_room import Seat, WaitingRoom
from services.sessions.sweeper import Sweeper
from tests.integration.sessions.harness import MIGRATIONS, WORKSPACE, Harness

SESSIONS, REPLICAS = 2, 2
MESSAGE = ClientEvent("user.message", {"content": [{"type": "text", "text": "go"}]})
REPLICA = st.integers(0, REPLICAS - 1)
SESSION = st.integers(0, SESSIONS - 1)


class Replica:
    """One replica of the service, without the tasks that move it by themselves, and one runner that waits at it."""

    def __init__(self, database: Database, nats: Nats) -> None:
        relay = Relay(database, nats, stream="SESSIONS", subjects=["sessions.log.>"])
        room = WaitingRoom()
        self.operations = Operations(
            database, SystemClock(), room, Announcer(nats, relay), session_message, lease_seconds=600
        )
        self.turns = TurnsHandlers(self.operations)
        self.sweeper, self.claims = Sweeper(self.operations), Claims(self.operations)
        self.harness = Harness(database, self.operations)
        self.seat = Seat("")

    def seat_runner(self) -> None:
        """Another runner in the place of the last."""
        self.operations.room.leave(self.seat)
        self.seat = self.operations.room.enter(new_id("runner"))


@dataclass
class Belief:
    """What a runner was granted, and may hold on to for too long."""

    session: int
    epoch: int
    runner_id: str


class World:
    """What all examples share; every call of a replica is one of its loop's."""

    def __init__(self, runner: asyncio.Runner, replicas: list[Replica], agent_id: str) -> None:
        self._runner = runner
        self.replicas = replicas
        self.agent_id = agent_id

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def in_context() -> Any:
            with use_context(CallContext(workspace_id=WORKSPACE)):
                return await work

        return self._runner.run(in_context())


class Leases(RuleBasedStateMachine):
    """Sessions whose turns come and go."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.replicas = world.replicas
        for replica in self.replicas:
            replica.seat_runner()
        harness = self.replicas[0].harness
        self.ids = [world.run(harness.create(world.agent_id)).id for _ in range(SESSIONS)]
        self.beliefs: list[Belief] = []
        self.holder: dict[int, Belief] = {}
        self.lapsed: set[int] = set()
        self.newest = [0] * SESSIONS
        self.wrote: dict[str, int] = {}
        # From here on something is always under way.
        for replica in range(REPLICAS):
            self.offer(replica, 2)
            self.send(replica, replica, False)

    def teardown(self) -> None:
        try:
            self.check_logs()
        finally:
            self.world.run(self._delete())

    def check_logs(self) -> None:
        """Each is whole, and holds one epoch after another."""
        for session_id in self.ids:
            log = self.world.run(self.replicas[1].harness.log(session_id))
            assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
            written = [event for event in log if event["type"] == "agent.message"]
            assert {event["id"] for event in written} <= set(self.wrote)
            epochs = [self.wrote[event["id"]] for event in written]
            assert epochs == sorted(epochs)

    async def _delete(self) -> None:
        operations = self.replicas[0].operations
        for session_id in self.ids:
            async with operations.unit(WORKSPACE) as unit:
                state = await unit.lock(session_id)
                await unit.apply(turn.delete(state, unit.now, new_event_id, refuse_running=False))

    def work(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do something, then take in what was granted meanwhile."""
        done = self.world.run(work)
        for replica in self.replicas:
            self.world.run(replica.operations.writer.stop())
            while not replica.seat.grants.empty():
                self.take(replica, replica.seat.grants.get_nowait())
        return done

    def take(self, replica: Replica, grant: turns_pb2.TurnGrant | None) -> None:
        assert grant is not None
        session = self.ids.index(grant.session.id)
        assert session not in self.holder, "a turn was given away that somebody holds"
        assert grant.epoch > self.newest[session], "an epoch came again"
        self.newest[session] = grant.epoch
        self.holder[session] = Belief(session, grant.epoch, replica.seat.runner_id)
        self.beliefs.append(self.holder[session])

    def loses(self, session: int) -> None:
        self.holder.pop(session, None)
        self.lapsed.discard(session)

    @rule(replica=REPLICA, free=st.sampled_from((0, 2, 3, 4)))
    def offer(self, replica: int, free: int) -> None:
        self.replicas[replica].operations.room.offer(self.replicas[replica].seat, free)

    @rule(replica=REPLICA, session=SESSION, interrupt=st.integers(0, 3).map(lambda number: number == 3))
    def send(self, replica: int, session: int, interrupt: bool) -> None:
        operations = self.replicas[replica].operations
        events = [ClientEvent("user.interrupt", {})] if interrupt else [MESSAGE]

        def decide(state: Any, now: Any, _: Any) -> Any:
            return turn.append_client_events(state, events, now, new_event_id)

        self.work(operations.move(WORKSPACE, self.ids[session], decide))

    @rule(replica=REPLICA)
    def claim(self, replica: int) -> None:
        self.work(self.replicas[replica].claims.claim())

    @precondition(lambda self: self.holder)
    @rule(which=SESSION, swept=st.booleans(), replica=REPLICA)
    def time_passes(self, which: int, swept: bool, replica: int) -> None:
        self.lapse(list(self.holder)[which % len(self.holder)])
        if swept:
            self.sweep(replica)

    def lapse(self, session: int) -> None:
        if session in self.holder:
            self.lapsed.add(session)
            self.world.run(
                self.replicas[0].harness.execute(
                    "UPDATE turns SET expires_at = clock_timestamp() - interval '1 s' "
                    "WHERE workspace_id = %(workspace_id)s AND session_id = %(id)s AND holder <> ''",
                    id=self.ids[session],
                )
            )

    @rule(replica=REPLICA)
    def sweep(self, replica: int) -> None:
        lapsed = len(self.lapsed)
        for session in list(self.lapsed):
            self.loses(session)
        assert self.work(self.replicas[replica].sweeper.expire_leases()) == lapsed

    @rule(replica=REPLICA, holder=REPLICA)
    def renew(self, replica: int, holder: int) -> None:
        """Of the runner's beliefs those are lost that are not true any more; the others live on."""
        runner_id = self.replicas[holder].seat.runner_id
        newest = {belief.session: belief for belief in self.beliefs if belief.runner_id == runner_id}
        held = [turns_pb2.HeldTurn(session_id=self.ids[one.session], epoch=one.epoch) for one in newest.values()]
        request = turns_pb2.RenewLeasesRequest(runner_id=runner_id, turns=held)
        answer = self.work(self.replicas[replica].turns.RenewLeases(request, None))
        kept = {session for session, belief in newest.items() if self.holder.get(session) == belief}
        assert {self.ids.index(name) for name in answer.lost_session_ids} == set(newest) - kept
        self.lapsed -= kept

    @rule(replica=REPLICA, which=st.integers(0, 30), ends=st.integers(0, 2).map(lambda number: number == 2))
    def write(self, replica: int, which: int, ends: bool) -> None:
        """By whoever once held the turn, on any replica: only the holder of today is heard."""
        belief = self.beliefs[-1 - which % len(self.beliefs)]
        event = turns_pb2.TurnEvent(
            id=new_id("sevt"), type="agent.message", fields_json=orjson.dumps({"content": [], "epoch": belief.epoch})
        )
        request = turns_pb2.AppendTurnEventsRequest(
            session_id=self.ids[belief.session], epoch=belief.epoch, known_seq=10_000, events=[event]
        )
        if ends:
            request.end.kind = turns_pb2.TURN_END_KIND_END_TURN
        writing = self.replicas[replica].turns.AppendTurnEvents(request, None)
        if self.holder.get(belief.session) != belief:
            with pytest.raises((FailedPrecondition, NotFound)):
                self.work(writing)
            return
        # Whether it ends is known before what follows from it: the next grant may be in the same step.
        before = self.holder.pop(belief.session)
        was_lapsed = belief.session in self.lapsed
        self.lapsed.discard(belief.session)
        answer = self.work(writing)
        self.wrote[event.id] = belief.epoch
        if not answer.ended:
            assert belief.session not in self.holder
            self.holder[belief.session] = before
            if was_lapsed:
                self.lapse(belief.session)

    @rule(replica=REPLICA, which=st.integers(0, 30))
    def release(self, replica: int, which: int) -> None:
        belief = self.beliefs[-1 - which % len(self.beliefs)]
        request = turns_pb2.ReleaseTurnRequest(session_id=self.ids[belief.session], epoch=belief.epoch)
        releasing = self.replicas[replica].turns.ReleaseTurn(request, None)
        if self.holder.get(belief.session) != belief:
            with pytest.raises((FailedPrecondition, NotFound)):
                self.work(releasing)
            return
        self.loses(belief.session)
        self.work(releasing)

    @invariant()
    def the_database_knows_the_same_holders(self) -> None:
        rows = self.world.run(self._holders())
        found = {self.ids.index(session_id): (epoch, holder) for session_id, epoch, holder in rows}
        assert found == {session: (belief.epoch, belief.runner_id) for session, belief in self.holder.items()}

    async def _holders(self) -> list[tuple[Any, ...]]:
        async with self.replicas[0].harness.database.read(WORKSPACE) as tx:
            return await tx.all(
                "SELECT session_id, epoch, holder FROM turns "
                "WHERE workspace_id = %(workspace_id)s AND holder <> '' AND session_id = ANY(%(ids)s)",
                {"ids": self.ids},
            )


@asynccontextmanager
async def _replicas(dsn: str, nats_url: str) -> AsyncIterator[list[Replica]]:
    async with AsyncExitStack() as stack:
        nats = await connect(nats_url, "leases")
        stack.push_async_callback(nats.close)
        replicas = []
        for _ in range(REPLICAS):
            database = Database(dsn, "sessions", max_connections=4)
            await database.open()
            stack.push_async_callback(database.close)
            replicas.append(Replica(database, nats))
            stack.push_async_callback(replicas[-1].operations.stop)
        yield replicas


@pytest.fixture
async def dsn(make_database: MakeDatabase) -> str:
    return await make_database("sessions", MIGRATIONS)


def test_leases_hold_whatever_comes_in_whatever_order(dsn: str, nats_url: str) -> None:
    with asyncio.Runner() as runner:
        opened = _replicas(dsn, nats_url)
        replicas = runner.run(opened.__aenter__())
        try:
            world = World(runner, replicas, runner.run(replicas[0].harness.agent()))
            run_state_machine_as_test(
                lambda: Leases(world),
                settings=settings(
                    max_examples=30,
                    stateful_step_count=40,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            runner.run(opened.__aexit__(None, None, None))

"""The outbox on real servers, in any order of commits, rollbacks, crashes of relays, changes of relay and repeats.

Whatever the order: each committed message is in the stream once and in order, none of a rolled back transaction is, and
a durable consumer has its effect once.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from kit import failpoints, outbox
from kit.consumer import Consumer, Message
from kit.nats import Nats, connect
from kit.outbox import OUTBOX_DDL, PROCESSED_MESSAGES_DDL, Relay
from kit.postgres import Database, Tx
from kit.relay import BATCH
from kit.testing import await_until
from kit.testing.fixtures import MakeDatabase
from tests.support.rows import cut_connections

RELAYS = 2
# The consumer takes its time over each message.
MOST_BATCHES = 2


class World:
    """What all examples share: a stream, its durable consumer, and up to two relays at a time."""

    def __init__(self, loop: asyncio.Runner, postgres: str, database: Database, nats: Nats) -> None:
        self.run = loop.run
        self.postgres, self.database, self.nats = postgres, database, nats
        self.stream = f"M{os.getpid()}"
        self.relays: list[Relay | None] = [None] * RELAYS
        # Ids in the order of their commits, and how many messages the stream had before this example.
        self.committed: list[str] = []
        self.unmade: set[str] = set()
        self.checked = 0
        self.batches = 0
        self.fails_once: set[str] = set()
        self.consumer = Consumer(
            database, nats, stream=self.stream, name="machine", subjects=[f"{self.stream}.>"], handler=self.handle
        )

    async def handle(self, tx: Tx, message: Message) -> None:
        await tx.execute("INSERT INTO effects (message_id) VALUES (%(id)s)", {"id": message.id})
        if message.id in self.fails_once:
            self.fails_once.discard(message.id)
            raise LookupError("not this time")

    async def write(self, count: int, *, commits: bool) -> None:
        names = [f"m{len(self.committed) + len(self.unmade) + number}" for number in range(count)]
        try:
            async with self.database.transaction("wrkspc_a") as tx:
                for name in names:
                    await outbox.add(tx, message_id=name, subject=f"{self.stream}.x", payload=name.encode())
                if not commits:
                    raise LookupError
        except LookupError:
            self.unmade.update(names)
            return
        self.committed += names
        for relay in self.relays:
            if relay is not None:
                relay.wake()

    async def start(self, which: int) -> None:
        if self.relays[which] is None:
            relay = self.relays[which] = Relay(self.database, self.nats, self.stream, [f"{self.stream}.>"])
            await relay.start()

    async def stop(self, which: int) -> None:
        relay, self.relays[which] = self.relays[which], None
        if relay is not None:
            await relay.stop()

    async def drained(self) -> None:
        """One relay at least works, until nothing is left."""
        await self.start(0)
        await await_until(self._is_empty, timeout=20)

    async def _is_empty(self) -> bool:
        async with self.database.platform_read() as tx:
            return (await tx.one("SELECT count(*) FROM outbox")) == (0,)

    async def in_stream(self) -> list[str]:
        """The ids that came since the last look."""
        jetstream = self.nats.jetstream()
        state = (await jetstream.stream_info(self.stream)).state
        first, self.checked = self.checked + 1, state.last_seq
        messages = [await jetstream.get_msg(self.stream, seq) for seq in range(first, state.last_seq + 1)]
        return [(message.headers or {})["Nats-Msg-Id"] for message in messages]

    async def effects(self) -> Counter[str]:
        async with self.database.platform_read() as tx:
            return Counter(name for (name,) in await tx.all("SELECT message_id FROM effects LIMIT 100000"))

    async def all_effects(self) -> Counter[str]:
        """What the consumer did, once it has seen everything."""

        async def has_seen_everything() -> bool:
            return set(await self.effects()) >= set(self.committed)

        await self.drained()
        await await_until(has_seen_everything, timeout=60)
        return await self.effects()


class Outbox(RuleBasedStateMachine):
    """Transactions and relays."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.first = len(world.committed)

    @rule(count=st.integers(1, 12), commits=st.integers(0, 3))
    def write(self, count: int, commits: int) -> None:
        self.world.run(self.world.write(count, commits=commits > 0))

    @precondition(lambda self: self.world.batches < MOST_BATCHES)
    @rule(count=st.sampled_from((BATCH, BATCH + 1)))
    def write_a_batch(self, count: int) -> None:
        self.world.batches += 1
        self.world.run(self.world.write(count, commits=True))

    @rule(which=st.integers(0, RELAYS - 1))
    def start_relay(self, which: int) -> None:
        self.world.run(self.world.start(which))

    @rule(which=st.integers(0, RELAYS - 1))
    def stop_relay(self, which: int) -> None:
        self.world.run(self.world.stop(which))

    @rule()
    def crash_between_publish_and_commit(self) -> None:
        """The next pass fails once its messages are out; its rows are back, and go again."""
        failpoints.arm("outbox.published=raise@1")

    @rule()
    def lose_the_database(self) -> None:
        self.world.run(cut_connections(self.world.postgres, self.world.database))

    @rule()
    def fail_in_the_consumer(self) -> None:
        """What is written next is not handled at first."""
        self.world.fails_once.add(f"m{len(self.world.committed) + len(self.world.unmade)}")

    @rule()
    def drain(self) -> None:
        self.world.run(self.world.drained())

    def teardown(self) -> None:
        self.world.run(self.world.drained())
        failpoints.arm("")
        found = self.world.run(self.world.in_stream())
        expected = self.world.committed[self.first :]
        assert found == expected


@asynccontextmanager
async def _world(loop: asyncio.Runner, postgres: str, dsn: str, nats_url: str) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        database = Database(dsn, "box")
        await database.open()
        stack.push_async_callback(database.close)
        nats = await connect(nats_url, "machine")
        stack.push_async_callback(nats.close)
        world = World(loop, postgres, database, nats)
        await world.consumer.start()
        stack.push_async_callback(world.consumer.stop)
        for which in range(RELAYS):
            stack.push_async_callback(world.stop, which)
        # The stream is made with its first message.
        await world.write(1, commits=True)
        await world.drained()
        assert await world.in_stream() == world.committed
        yield world


@pytest.fixture
async def dsn(make_database: MakeDatabase, tmp_path: Path) -> str:
    (tmp_path / "0001_initial.sql").write_text(
        OUTBOX_DDL + PROCESSED_MESSAGES_DDL + "CREATE TABLE effects (message_id text NOT NULL);"
    )
    return await make_database("box", tmp_path)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


def test_messages_leave_if_and_only_if_they_were_committed(dsn: str, postgres: str, nats_url: str) -> None:
    with asyncio.Runner() as runner:
        opened: Any = _world(runner, postgres, dsn, nats_url)
        world = runner.run(opened.__aenter__())
        try:
            run_state_machine_as_test(
                lambda: Outbox(world),
                settings=settings(
                    max_examples=12, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
                ),
            )
            effects = runner.run(world.all_effects())
            assert set(effects) == set(world.committed)
            assert max(effects.values(), default=1) == 1
        finally:
            runner.run(opened.__aexit__(None, None, None))

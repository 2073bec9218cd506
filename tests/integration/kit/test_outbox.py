"""A message leaves if and only if its transaction commits, once in the stream, whatever is killed or away."""

import asyncio
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from kit import outbox
from kit.consumer import Consumer
from kit.embedded.nats import EmbeddedNats
from kit.errors import Internal, Unavailable
from kit.nats import connect
from kit.outbox import OUTBOX_DDL, PROCESSED_MESSAGES_DDL, Relay
from kit.postgres import Database
from kit.testing import await_until
from kit.waiting import within
from tests.support.rows import cut_connections

CHILD = Path(__file__).with_name("outbox_child.py")


@pytest.fixture
async def database(make_database, tmp_path):
    (tmp_path / "0001_initial.sql").write_text(
        OUTBOX_DDL + PROCESSED_MESSAGES_DDL + "CREATE TABLE effects (message_id text NOT NULL);"
    )
    dsn = await make_database("box", tmp_path)
    database = Database(dsn, "box")
    database.dsn = dsn
    await database.open()
    yield database
    await database.close()


@pytest.fixture
def stream(request) -> str:
    """A stream of the test's own, since the server is shared."""
    return f"S{os.getpid()}_{abs(hash(request.node.nodeid)) % 10**9}"


@pytest.fixture
async def relay(database, nats, stream):
    relay = Relay(database, nats, stream, [f"{stream}.>"])
    await relay.start()
    yield relay
    await relay.stop()


async def write(database: Database, stream: str, first: int, count: int) -> None:
    async with database.transaction("wrkspc_a") as tx:
        for number in range(first, first + count):
            await outbox.add(
                tx, message_id=f"m{number}", subject=f"{stream}.x", payload=b"%d" % number, headers={"n": str(number)}
            )


async def waiting(database: Database) -> int:
    async with database.platform_read() as tx:
        return (await tx.one("SELECT count(*) FROM outbox"))[0]


async def published(nats, stream: str) -> list[bytes]:
    jetstream = nats.jetstream()
    info = await jetstream.stream_info(stream)
    state = info.state
    return [(await jetstream.get_msg(stream, seq)).data for seq in range(state.first_seq, state.last_seq + 1)]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def test_messages_arrive_in_order_with_their_id_and_headers(database, nats, stream, relay):
    await write(database, stream, 0, 450)
    relay.wake()
    await await_until(lambda: empty(database))
    assert await published(nats, stream) == numbers(450)
    message = await nats.jetstream().get_msg(stream, 8)
    assert message.headers == {"n": "7", "Nats-Msg-Id": "m7"}


async def empty(database: Database) -> bool:
    return await waiting(database) == 0


async def test_a_rolled_back_transaction_sends_nothing(database, nats, stream, relay):
    with pytest.raises(LookupError):
        async with database.transaction("wrkspc_a") as tx:
            await outbox.add(tx, message_id="ghost", subject=f"{stream}.x", payload=b"ghost")
            raise LookupError
    await write(database, stream, 0, 1)
    relay.wake()
    await await_until(lambda: empty(database))
    assert await published(nats, stream) == numbers(1)


async def test_wake_is_quick_and_a_lost_hint_costs_a_second(database, nats, stream, relay):
    await write(database, stream, 0, 1)
    await await_until(lambda: empty(database), timeout=30)
    subscription = await nats.client.subscribe(f"{stream}.x")
    took = []
    for number in range(1, 11):
        await write(database, stream, number, 1)
        begun = time.perf_counter()
        relay.wake()
        await subscription.next_msg(timeout=5)
        took.append(time.perf_counter() - begun)
    assert sorted(took)[5] < 0.1


async def test_a_message_too_large_to_send_is_refused_when_written(database):
    with pytest.raises(Internal):
        async with database.transaction("wrkspc_a") as tx:
            await outbox.add(tx, message_id="m", subject="s", payload=b"x" * (outbox.LARGEST_PAYLOAD + 1))
    assert await waiting(database) == 0


async def test_killed_between_publish_and_commit_each_message_is_in_the_stream_once(database, nats_url, nats, stream):
    await write(database, stream, 0, 250)
    child = await start_child(database, nats_url, stream, "outbox.published=kill")
    assert await within(child.wait(), 20) == -signal.SIGKILL
    # The first batch went out, but its rows are back.
    assert await published(nats, stream) == numbers(200)
    assert await waiting(database) == 250
    child = await start_child(database, nats_url, stream, "")
    try:
        await await_until(lambda: empty(database))
        assert await published(nats, stream) == numbers(250)
    finally:
        child.kill()
        await child.wait()


async def start_child(database, nats_url: str, stream: str, failpoints: str) -> asyncio.subprocess.Process:
    environment = {**os.environ, "MANAGED_AGENTS_FAILPOINTS": failpoints}
    return await asyncio.create_subprocess_exec(
        sys.executable, str(CHILD), database.dsn, nats_url, stream, env=environment, stderr=asyncio.subprocess.DEVNULL
    )


async def test_one_of_two_relays_works_and_the_other_takes_over(database, nats, stream):
    first, second = (Relay(database, nats, stream, [f"{stream}.>"]) for _ in range(2))
    await first.start()
    await await_until(lambda: first.active)
    await second.start()
    await write(database, stream, 0, 10)
    # The hint of the one that stands by reaches the active one.
    second.wake()
    await await_until(lambda: empty(database))
    assert (first.active, second.active) == (True, False)
    await first.stop()
    await await_until(lambda: second.active)
    await write(database, stream, 10, 10)
    second.wake()
    await await_until(lambda: empty(database))
    await second.stop()
    assert await published(nats, stream) == numbers(20)


async def test_rows_wait_while_nats_is_away_and_postgres_connections_break(database, postgres, tmp_path, stream):
    server = EmbeddedNats(tmp_path / "own-nats")
    url = server.start()
    try:
        nats = await connect(url, "test")
        relay = Relay(database, nats, stream, [f"{stream}.>"])
        await relay.start()
        await write(database, stream, 0, 5)
        relay.wake()
        await await_until(lambda: empty(database))
        server.kill()
        await await_until(lambda: not nats.connected)
        await write(database, stream, 5, 5)
        relay.wake()
        await cut_connections(postgres, database)
        await write(database, stream, 10, 5)
        relay.wake()
        assert await waiting(database) == 10
        server.start()
        await await_until(lambda: empty(database), timeout=20)
        assert await published(nats, stream) == numbers(15)
        await relay.stop()
        await nats.close()
    finally:
        server.stop()


async def test_a_server_that_lost_its_disk_gets_stream_and_consumer_anew(database, tmp_path, stream):
    server = EmbeddedNats(tmp_path / "own-nats")
    nats = await connect(server.start(), "test")
    effects = Effects(database)
    relay = Relay(database, nats, stream, [f"{stream}.>"])
    consumer = Consumer(database, nats, stream=stream, name="c", subjects=[f"{stream}.>"], handler=effects.handle)
    try:
        await relay.start()
        await consumer.start()
        await write(database, stream, 0, 1)
        await await_until(lambda: effects.are(["m0"]))
        server.kill()
        shutil.rmtree(tmp_path / "own-nats" / "jetstream")
        await await_until(lambda: not nats.connected)
        server.start()
        await write(database, stream, 1, 1)
        await await_until(lambda: effects.are(["m0", "m1"]), timeout=20)
        await consumer.stop()
        await relay.stop()
        await nats.close()
    finally:
        server.stop()


async def test_a_stop_publishes_what_is_committed(database, nats, stream):
    relay = Relay(database, nats, stream, [f"{stream}.>"])
    await relay.start()
    await await_until(lambda: relay.active)
    await write(database, stream, 0, 500)
    await relay.stop()
    assert await waiting(database) == 0
    assert await published(nats, stream) == numbers(500)


class Effects:
    """A handler that stores what it got, and fails as often as it is told."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.failures: dict[str, int] = {}
        self.attempts: list[str] = []

    async def handle(self, tx, message) -> None:
        self.attempts.append(message.id)
        await tx.execute("INSERT INTO effects (message_id) VALUES (%(id)s)", {"id": message.id})
        if self.failures.get(message.id, 0) > 0:
            self.failures[message.id] -= 1
            raise Unavailable("not yet")

    async def are(self, wanted: list[str]) -> bool:
        async with self.database.platform_read() as tx:
            rows = await tx.all("SELECT message_id FROM effects ORDER BY message_id LIMIT 99")
        return [row[0] for row in rows] == wanted


async def test_a_message_that_could_not_be_handled_comes_again(database, nats, stream, relay):
    effects = Effects(database)
    effects.failures = {"m1": 1}
    consumer = Consumer(database, nats, stream=stream, name="c", subjects=[f"{stream}.>"], handler=effects.handle)
    # Before the stream exists: the consumer waits for it.
    await consumer.start()
    await write(database, stream, 0, 3)
    relay.wake()
    await await_until(lambda: effects.are(["m0", "m1", "m2"]))
    assert sorted(effects.attempts) == ["m0", "m1", "m1", "m2"]
    await consumer.stop()
    assert await consumer.forget_old() == 0


async def test_a_consumer_that_waits_stops_at_once(database, nats, stream, relay):
    effects = Effects(database)
    consumer = Consumer(database, nats, stream=stream, name="c", subjects=[f"{stream}.>"], handler=effects.handle)
    await consumer.start()
    await write(database, stream, 0, 1)
    relay.wake()
    await await_until(lambda: effects.are(["m0"]))
    async with asyncio.timeout(1):
        await consumer.stop()


async def test_a_consumer_that_stops_leaves_nothing_on_its_way_to_nobody(database, nats, stream, relay):
    """Such a message would come to the next one only after half a minute."""
    effects = Effects(database)
    for passes in range(30):
        consumer = Consumer(database, nats, stream=stream, name="c", subjects=[f"{stream}.>"], handler=effects.handle)
        await consumer.start()
        await write(database, stream, passes, 1)
        relay.wake()
        for _ in range(passes * 3):
            await asyncio.sleep(0)
        await consumer.stop()
    last = Consumer(database, nats, stream=stream, name="c", subjects=[f"{stream}.>"], handler=effects.handle)
    await last.start()
    await await_until(lambda: effects.are(sorted(f"m{number}" for number in range(30))), timeout=30)
    await last.stop()


async def test_a_message_that_comes_twice_has_one_effect(database, nats, stream):
    # The stream forgets ids quickly, as it does in life when a repetition comes late.
    relay = Relay(database, nats, stream, [f"{stream}.>"], duplicate_seconds=0.1)
    await relay.start()
    await write(database, stream, 0, 2)
    await await_until(lambda: empty(database))
    await relay.stop()

    async def repeated() -> bool:
        ack = await nats.jetstream().publish(f"{stream}.x", b"0", headers={"Nats-Msg-Id": "m0"})
        return not ack.duplicate

    await await_until(repeated)
    assert (await nats.jetstream().publish(f"{stream}.x", b"2", headers={"Nats-Msg-Id": "m2"})).seq == 4
    effects = Effects(database)
    consumer = Consumer(database, nats, stream=stream, name="c", subjects=[f"{stream}.>"], handler=effects.handle)
    await consumer.start()
    await await_until(lambda: effects.are(["m0", "m1", "m2"]))
    assert effects.attempts == ["m0", "m1", "m2"]
    await consumer.stop()

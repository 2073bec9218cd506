"""A process does without NATS for as long as it must: hints never raise, subscriptions come back, slowness is told."""

import asyncio

import pytest

from kit import telemetry
from kit.embedded.nats import EmbeddedNats
from kit.errors import Unavailable
from kit.nats import connect
from kit.testing import await_until, free_port
from kit.waiting import within


@pytest.fixture
def server(tmp_path):
    server = EmbeddedNats(tmp_path / "nats")
    yield server
    server.stop()


async def test_a_hint_arrives_without_headers_while_nothing_is_traced(nats):
    got: asyncio.Queue = asyncio.Queue()
    await nats.subscribe("hints.a", got.put)
    telemetry.bind_request_id("req_7")
    assert await nats.publish("hints.a", b"x")
    message = await within(got.get(), 30)
    assert (message.data, message.headers) == (b"x", None)
    telemetry.bind_request_id("")


async def test_without_a_server_everything_goes_on():
    nats = await connect(f"nats://127.0.0.1:{free_port()}", "test", wait_seconds=0.1)
    got: asyncio.Queue = asyncio.Queue()
    await nats.subscribe_eventually("hints.b", got.put)
    assert not nats.connected
    assert not await nats.publish("hints.b", b"x")
    with pytest.raises(Unavailable):
        await nats.subscribe("hints.b", wait_seconds=0.05)
    await nats.close()
    await nats.close()
    assert not await nats.publish("hints.b", b"x")


async def test_a_server_that_comes_later_is_found(server):
    url = server.start()
    server.stop()
    nats = await connect(url, "test", wait_seconds=0.1)
    got: asyncio.Queue = asyncio.Queue()
    await nats.subscribe_eventually("hints.c", got.put)
    assert server.start() == url
    await await_until(lambda: nats.connected)
    await nats.wait_connected(5)
    assert await until_delivered(nats, "hints.c", got)
    await nats.close()


async def test_a_killed_server_is_rejoined_with_subscriptions_and_callbacks(server):
    url = server.start()
    nats = await connect(url, "test")
    got: asyncio.Queue = asyncio.Queue()
    seen = []
    nats.on_reconnect(lambda: seen.append("plain"))
    nats.on_reconnect(failing)

    async def called() -> None:
        seen.append("async")

    nats.on_reconnect(called)
    await nats.subscribe("hints.d", got.put)
    server.kill()
    await await_until(lambda: not nats.connected)
    assert not await nats.publish("hints.d", b"lost")
    server.start()
    await await_until(lambda: seen == ["plain", "async"])
    assert await until_delivered(nats, "hints.d", got)
    await nats.close()


def failing() -> None:
    raise ValueError("a callback's own fault")


async def until_delivered(nats, subject: str, got: asyncio.Queue) -> bool:
    async def delivered() -> bool:
        await nats.publish(subject, b"x")
        return not got.empty()

    return await await_until(delivered)


async def test_a_reader_that_is_too_slow_is_told(nats):
    slow = []
    nats.on_slow(slow.append)
    go = asyncio.Event()

    async def read(_message) -> None:
        await go.wait()

    await nats.subscribe("hints.e", read, pending_msgs_limit=2)
    for _ in range(10):
        await nats.publish("hints.e", b"x")
    await await_until(lambda: slow)
    assert set(slow) == {"hints.e"}
    go.set()

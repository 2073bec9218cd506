"""A deletion reaches each runner of a data folder, and one of them removes the files."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from nats.js.api import StreamConfig
from nats.js.errors import BadRequestError

from kit.embedded.nats import EmbeddedNats
from kit.nats import connect
from kit.testing import await_until
from services.worker.runner.handlers.deletions import STREAM, Deletions


class Host:
    """One runner's part of it."""

    def __init__(self, root: Path) -> None:
        self.removed: list[str] = []
        self.closed: list[str] = []
        self.deletions = Deletions(root, self._remove, self._close)

    async def _remove(self, session_id: str) -> None:
        self.removed.append(session_id)

    async def _close(self, session_id: str) -> None:
        self.closed.append(session_id)


async def test_each_runner_closes_and_one_removes(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path / "nats")
    url = server.start()
    bus = await connect(url, "test")
    hosts = [Host(tmp_path / "sandboxes") for _ in range(2)]
    try:
        with suppress(BadRequestError):
            await bus.jetstream().add_stream(StreamConfig(name=STREAM, subjects=["sessions.log.>"]))
        running = [asyncio.create_task(host.deletions.run(bus)) for host in hosts]
        await await_until(lambda: _consumers(bus))
        for number in range(5):
            await bus.jetstream().publish(f"sessions.log.sess_{number}.deleted", b"")
        expected = [f"sess_{number}" for number in range(5)]
        await await_until(lambda: all(host.closed == expected for host in hosts))
        await await_until(lambda: len(hosts[0].removed + hosts[1].removed) == 5)
        assert sorted(hosts[0].removed + hosts[1].removed) == expected
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    finally:
        await bus.close()
        server.stop()


async def test_it_ends_when_asked_to_whatever_arrives_just_then(tmp_path: Path) -> None:
    """The NATS client may turn a cancellation into the message that came with it, or into an error of its own."""
    server = EmbeddedNats(tmp_path / "nats")
    bus = await connect(server.start(), "test")
    try:
        await bus.jetstream().add_stream(StreamConfig(name=STREAM, subjects=["sessions.log.>"]))
        for passes in range(60):
            host = Host(tmp_path / "sandboxes")
            running = asyncio.create_task(host.deletions.run(bus))
            await bus.jetstream().publish(f"sessions.log.sess_{passes}.deleted", b"")
            for _ in range(passes):
                await asyncio.sleep(0)
            running.cancel()
            _, deaf = await asyncio.wait({running}, timeout=3)
            assert not deaf, f"still running after {passes} passes of the loop"
    finally:
        await bus.close()
        server.stop()


async def _consumers(bus) -> bool:
    return len(await bus.jetstream().consumers_info(STREAM)) > 0

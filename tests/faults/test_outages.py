"""What the platform stands on goes away: each write is refused in time, as 503 with a delay, or goes on without it.

Afterwards everything recovers on its own, and every acknowledged event is in the log, in the stream and at the reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from kit.embedded.postgres import EmbeddedPostgres
from kit.testing import await_until
from tests.faults.ground import Ground, seen
from tests.faults.history import faults_of
from tests.faults.outages import Writer, fill, gone, small_disk
from tests.faults.test_kills import check_outbox
from tests.support.api import Api, Reader, api, assert_same
from tests.support.rows import database_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.xdist_group("outages")]

RECOVERY_SECONDS = 60
DISK_MEGABYTES, BUS_MEGABYTES = 400, 32


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """One platform for all outages of this file: each has to leave it sound."""
    ground = Ground(tmp_path_factory.mktemp("outages") / "data")
    try:
        ground.platform.wait_healthy()
        yield ground
    finally:
        ground.stop()


@asynccontextmanager
async def _written(ground: Ground, *, size_bytes: int = 40) -> AsyncIterator[tuple[Api, Writer]]:
    """A session that is written to, and followed all the time; checked once the outage is over."""
    async with api(ground.platform.url, timeout=30) as client:
        session_id = await client.session(await client.agent())
        reader, writer = Reader(client, session_id), Writer(client, session_id, size_bytes=size_bytes)
        following = asyncio.create_task(_follow(reader))
        try:
            await writer.until_taken(10)
            yield client, writer
            await writer.until_taken(RECOVERY_SECONDS)
            await seen(lambda: ground.idle(session_id), RECOVERY_SECONDS, "the session is idle")
            log = await client.log(session_id)
            assert faults_of(log, writer.acknowledged, writer.unsure) == []
            await await_until(lambda: reader.last_seq == len(log), RECOVERY_SECONDS, "the reader has everything")
            assert_same(reader.events, log)
            await check_outbox(ground, {session_id: log})
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def _follow(reader: Reader) -> None:
    while True:
        await reader.follow_over_failures(lambda _: False)


async def test_a_restart_of_the_database_is_a_short_wait(ground: Ground) -> None:
    async with _written(ground) as (_, writer):
        stopped = ground.signal("postgres", signal.SIGINT)
        writing = asyncio.create_task(writer.throughout(3))
        await ground.until_back("postgres", stopped)
        await writing


async def test_without_a_database_writes_are_refused_until_it_is_back(ground: Ground, outage_seconds: float) -> None:
    async with _written(ground) as (_, writer):
        async with gone(ground, "postgres"):
            await writer.until_refused(20)
            await writer.throughout(outage_seconds)
        assert set(writer.refusals) == {"unavailable"}


async def test_a_database_without_a_free_connection_refuses_until_there_is_one(
    ground: Ground, outage_seconds: float
) -> None:
    async with _written(ground) as (_, writer):
        with _crowded(ground):
            await writer.until_refused(20)
            await writer.throughout(outage_seconds)
        assert set(writer.refusals) == {"unavailable"}


@contextlib.contextmanager
def _crowded(ground: Ground) -> Iterator[None]:
    """Others take every connection that the server has, and the services lose theirs."""
    address = EmbeddedPostgres(ground.data_dir / "postgres").address()
    with contextlib.ExitStack() as crowd:
        first = crowd.enter_context(contextlib.closing(psycopg.connect(address, autocommit=True)))

        def come() -> None:
            while True:
                crowd.enter_context(contextlib.closing(psycopg.connect(make_conninfo(address, dbname="postgres"))))

        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            come()
        for _ in range(3):
            # Whoever is put out comes back at once, unless another was quicker.
            first.execute(
                "SELECT pg_terminate_backend(pid, 2000) FROM pg_stat_activity WHERE application_name LIKE 'managed-%'"
            )
            with contextlib.suppress(psycopg.OperationalError):
                come()
        yield


async def test_without_the_message_bus_writes_and_turns_go_on(ground: Ground, outage_seconds: float) -> None:
    async with _written(ground) as (client, writer):
        async with gone(ground, "nats"):
            begun = time.monotonic()
            await writer.throughout(outage_seconds)
            session_id = await client.session(await client.agent())
            other = Writer(client, session_id)
            await other.until_taken(5)
            await seen(lambda: ground.idle(session_id), 15, "a turn ends")
            assert time.monotonic() - begun >= outage_seconds
        assert not writer.refusals and not other.refusals
        await check_outbox(ground, {session_id: await client.log(session_id)})


async def test_a_full_disk_is_told_and_once_there_is_room_all_goes_on(tmp_path: Path, outage_seconds: float) -> None:
    with small_disk(tmp_path / "disk", DISK_MEGABYTES) as disk:
        ground = Ground(disk / "data")
        try:
            await ground.until_ready()
            async with _written(ground, size_bytes=20_000) as (client, writer):
                filler = fill(disk)
                await writer.until_refused(30)
                # What needs no room goes on, and whatever ends comes back as soon as it can.
                assert len(await client.log(writer.session_id)) > 0
                killed = ground.signal("scheduler", signal.SIGKILL)
                await writer.throughout(outage_seconds / 2)
                # Nor is there room for the database's own log, without which it can't run.
                await asyncio.to_thread(_end_log_segment, ground)
                await writer.throughout(outage_seconds)
                filler.unlink()
                await ground.until_back("scheduler", killed)
            assert set(writer.refusals) == {"unavailable"}
        finally:
            ground.stop()


async def test_a_message_bus_with_a_full_disk_is_started_anew_once_there_is_room(
    tmp_path: Path, outage_seconds: float
) -> None:
    with small_disk(tmp_path / "data" / "nats", BUS_MEGABYTES) as disk:
        ground = Ground(tmp_path / "data")
        try:
            await ground.until_ready()
            # The check at the end includes that what was committed meanwhile is published.
            async with _written(ground) as (_, writer):
                filler = fill(disk)
                # A stream that met the full disk refuses for good, so it has to meet it.
                async with asyncio.timeout(RECOVERY_SECONDS):
                    while "relay can't publish" not in ground.platform.logs():
                        await writer.once()
                await writer.throughout(outage_seconds)
                filler.unlink()
            assert not writer.refusals
        finally:
            ground.stop()


def _end_log_segment(ground: Ground) -> None:
    with contextlib.suppress(psycopg.Error), database_of(ground.platform) as rows:
        rows.execute("SELECT pg_switch_wal()")
        rows.execute("SELECT pg_logical_emit_message(true, 'faults', 'x')")

"""Publishes the outbox of one schema to JetStream, in the order of its rows.

    relay = Relay(database, nats, stream="SESSIONS", subjects=["sessions.log.>"])
    service.add("relay", relay.start, relay.stop)

However many processes run, one relay works per schema: the one that holds an advisory lock on its own connection. It
deletes a batch of rows, publishes them with their message id, awaits every acknowledgement, and only then commits. A
crash in between leaves the rows, and the repeated messages carry the same ids, which the stream and the consumers use
to drop them. While NATS or Postgres is away the rows stay, and the relay tries again for ever.

It is woken by `wake()` right after a commit in its own process, by a hint over NATS from other processes, and once a
second in case a hint was lost. This is the one place that talks to the network inside a transaction: the batch and the
time to publish are bounded.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, LiteralString

import nats.errors
import psycopg
from nats.js import JetStreamContext
from nats.js.api import RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import NotFoundError
from psycopg.rows import class_row

from kit import failpoints
from kit.nats import Nats
from kit.postgres import Database
from kit.telemetry import log, untraced

BATCH = 200
_SWEEP_SECONDS = 1.0
_PUBLISH_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 5.0
_DAY = 86_400.0

_TAKE: LiteralString = """
DELETE FROM outbox
WHERE id IN (SELECT id FROM outbox ORDER BY id LIMIT %(batch)s FOR UPDATE)
RETURNING id, message_id, subject, payload, headers
"""


@dataclass(frozen=True, slots=True)
class _Message:
    id: int
    message_id: str
    subject: str
    payload: bytes
    headers: dict[str, str] | None


class Relay:
    """The relay of one process; many may run, one is active."""

    def __init__(
        self,
        database: Database,
        nats: Nats,
        stream: str,
        subjects: Sequence[str],
        *,
        keep_days: float = 7.0,
        duplicate_seconds: float = 600.0,
    ) -> None:
        self._database = database
        self._nats = nats
        self._config = StreamConfig(
            name=stream,
            subjects=list(subjects),
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            max_age=keep_days * _DAY,
            duplicate_window=duplicate_seconds,
        )
        self._wake_subject = f"outbox.{database.schema}.wake"
        self._woken = asyncio.Event()
        self._stop = asyncio.Event()
        self._active = False
        self._stream_ready = False
        self._task: asyncio.Task[None] | None = None

    @property
    def active(self) -> bool:
        """Whether this process's relay is the one that works."""
        return self._active

    async def start(self) -> None:
        """Begin to publish in the background; needs neither NATS nor the lock yet."""
        await self._nats.subscribe_eventually(self._wake_subject, self._hinted)
        self._nats.on_reconnect(self._reconnected)
        self._task = asyncio.create_task(self._run(), name=f"relay {self._config.name}")

    async def stop(self) -> None:
        """Publish what is committed, as far as NATS answers, and let another process take over."""
        self._stop.set()
        self._woken.set()
        if self._task is not None:
            await self._task

    def wake(self) -> None:
        """Rows were committed. Cheap; call it after every transaction that added some."""
        self._woken.set()

    async def _hinted(self, _message: Any) -> None:
        if self._active:
            self._woken.set()

    def _reconnected(self) -> None:
        # The server may have lost its streams together with its disk.
        self._stream_ready = False
        self._woken.set()

    async def _run(self) -> None:
        with untraced():
            await self._keep_working()

    async def _keep_working(self) -> None:
        pauses = _pauses()
        while not self._stop.is_set():
            connection = None
            try:
                connection = await self._database.connect()
                # What a lost DELETE would bring back is dropped as a duplicate, so nothing waits for the disk here.
                await connection.execute("SET synchronous_commit TO off")
                pauses = _pauses()
                await self._work(connection)
            except (psycopg.Error, OSError) as error:
                log.warning("relay lost its database connection", stream=self._config.name, error=str(error))
                await _wait(self._stop, next(pauses))
            finally:
                self._active = False
                if connection is not None:
                    await connection.close()

    async def _work(self, connection: psycopg.AsyncConnection[Any]) -> None:
        pauses = _pauses()
        while True:
            # Rows that were committed before the stop began are still taken: one more round after it.
            last = self._stop.is_set()
            self._woken.clear()
            if not self._active and not await self._become_active(connection):
                if last:
                    return
                await self._stand_by()
                continue
            try:
                published = await self._publish_batch(connection)
            except psycopg.Error:
                raise
            except Exception as error:
                expected = isinstance(error, nats.errors.Error | TimeoutError)
                self._stream_ready = False
                log.warning(
                    "relay can't publish, rows stay",
                    stream=self._config.name,
                    error=repr(error),
                    exc_info=None if expected else error,
                )
                if last:
                    return
                await _wait(self._stop, next(pauses))
                continue
            pauses = _pauses()
            if published < BATCH:
                if last:
                    return
                await _wait(self._woken, _SWEEP_SECONDS)

    async def _become_active(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        cursor = await connection.execute(
            "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", [f"outbox {self._database.schema}"]
        )
        self._active = (await cursor.fetchone()) == (True,)
        if self._active:
            log.info("relay is active", stream=self._config.name)
        return self._active

    async def _publish_batch(self, connection: psycopg.AsyncConnection[Any]) -> int:
        await connection.execute("BEGIN")
        try:
            cursor = connection.cursor(row_factory=class_row(_Message))
            await cursor.execute(_TAKE, {"batch": BATCH})
            messages = sorted(await cursor.fetchall(), key=lambda message: message.id)
            if messages:
                await self._publish(messages)
                await failpoints.point("outbox.published")
        except BaseException:
            with suppress(psycopg.Error):
                await connection.execute("ROLLBACK")
            raise
        await connection.execute("COMMIT")
        return len(messages)

    async def _publish(self, messages: list[_Message]) -> None:
        if not self._nats.connected:
            raise nats.errors.ConnectionClosedError
        jetstream = self._nats.jetstream(_PUBLISH_SECONDS)
        if not self._stream_ready:
            await self._ensure_stream(jetstream)
        # Tasks start in the order of their creation and write to the socket before they wait: the order is kept.
        outcomes = await asyncio.gather(
            *(
                jetstream.publish(
                    message.subject,
                    message.payload,
                    headers={**(message.headers or {}), "Nats-Msg-Id": message.message_id},
                )
                for message in messages
            ),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _ensure_stream(self, jetstream: JetStreamContext) -> None:
        name = self._config.name or ""
        try:
            found = await jetstream.stream_info(name)
        except NotFoundError:
            await jetstream.add_stream(self._config)
            log.info("stream created", stream=name, subjects=self._config.subjects)
        else:
            if set(found.config.subjects or []) != set(self._config.subjects or []):
                await jetstream.update_stream(self._config)
        self._stream_ready = True

    async def _stand_by(self) -> None:
        """Another process is the active one: pass it the hints of this one until it is time to ask again."""
        until = time.monotonic() + _SWEEP_SECONDS
        while not self._stop.is_set() and (seconds := until - time.monotonic()) > 0:
            if await _wait(self._woken, seconds) and not self._stop.is_set():
                self._woken.clear()
                await self._nats.publish(self._wake_subject, b"")


def _pauses() -> Iterator[float]:
    pause = 0.1
    while True:
        yield pause
        pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event came within this time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()

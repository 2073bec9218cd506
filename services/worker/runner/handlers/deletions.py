"""Deleted sessions: what they left on this host goes too.

The sessions service announces a deletion on the durable subject `sessions.log.<session_id>.deleted`. Runners that
share a data folder share one durable consumer, so each deletion is handled by one of them, also if it happened while
none of them ran. Removing is idempotent; a failure has the message delivered again. Each runner hears the same message
as a hint as well, and closes what it holds open of the session itself.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import nats.errors
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import Error as JetStreamError

from kit.nats import Nats
from kit.telemetry import log

STREAM, SUBJECTS = "SESSIONS", "sessions.log.*.deleted"
FETCH_SECONDS = 30.0
ACK_WAIT_SECONDS = 30.0
RETRY_SECONDS = 5.0


class Deletions:
    """Removes the sandboxes of deleted sessions below `root`."""

    def __init__(
        self, root: Path, remove: Callable[[str], Awaitable[None]], close: Callable[[str], Awaitable[None]]
    ) -> None:
        """`remove` deletes a session's files, `close` lets go of what this process has open of it."""
        self._name = f"runner-{hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:16]}"
        self._remove = remove
        self._close = close

    async def run(self, bus: Nats) -> None:
        """Handle deletions for ever. The stream comes with the first append, the server whenever it comes."""
        await bus.subscribe_eventually(SUBJECTS, self._hear)
        while True:
            try:
                await self._follow(bus)
            except (JetStreamError, nats.errors.Error, OSError) as failure:
                log.debug("deletions are not followed yet", error=repr(failure))
            _heed_cancellation()
            await asyncio.sleep(RETRY_SECONDS)

    async def _follow(self, bus: Nats) -> None:
        await bus.wait_connected()
        consumer = ConsumerConfig(
            durable_name=self._name,
            filter_subject=SUBJECTS,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ACK_WAIT_SECONDS,
        )
        subscription = await bus.jetstream().pull_subscribe(
            SUBJECTS, durable=self._name, stream=STREAM, config=consumer
        )
        try:
            while True:
                try:
                    (message,) = await subscription.fetch(1, timeout=FETCH_SECONDS)
                except TimeoutError:
                    continue
                await self._handle(message)
                _heed_cancellation()
        finally:
            # A server that was away makes the fetch fail; the next attempt subscribes anew.
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def _hear(self, message: Msg) -> None:
        await self._close(_session_of(message))

    async def _handle(self, message: Msg) -> None:
        session_id = _session_of(message)
        try:
            await self._remove(session_id)
        except Exception:
            log.exception("the sandbox of a deleted session could not be removed", session_id=session_id)
            await message.nak(delay=ACK_WAIT_SECONDS)
            return
        log.info("sandbox of a deleted session removed", session_id=session_id)
        await message.ack()


def _heed_cancellation() -> None:
    """End here where the NATS client turned a cancellation into a message or into an error of its own."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _session_of(message: Msg) -> str:
    return message.subject.split(".")[2]

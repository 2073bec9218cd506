"""A durable consumer of one JetStream stream, whose effects happen once.

    async def on_event(tx: Tx, message: Message) -> None: …

    consumer = Consumer(database, nats, stream="SESSIONS", name="webhooks", subjects=["sessions.log.>"],
                        handler=on_event)
    service.add("webhooks consumer", consumer.start, consumer.stop)

Delivery is at least once. The handler's transaction also records the message id in `processed_messages`
(PROCESSED_MESSAGES_DDL of `kit.outbox`), so a message that comes again has no second effect. A handler that fails gets
the message again, later each time; one that takes long keeps it by telling the server that it is at work. Processes
that use the same name share the messages. To stop it gives its interest back before it leaves, so no message is on its
way to nobody, which would hold it back for as long as the server waits for an acknowledgement.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import LiteralString

import nats.errors
import orjson
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, Header, StatusCode
from nats.js.errors import APIError
from nats.js.errors import Error as JetStreamError

from kit.errors import Unavailable
from kit.nats import Nats
from kit.postgres import Database, Tx
from kit.telemetry import continue_trace, log, request_id
from kit.waiting import within

_FETCH_SECONDS = 20.0
_LATE_SECONDS = 2.0
_NEXT = "$JS.API.CONSUMER.MSG.NEXT"
_PULL = orjson.dumps({"batch": 1, "expires": int(_FETCH_SECONDS * 1_000_000_000)})
_NOTHING_THERE = (StatusCode.NO_MESSAGES, StatusCode.REQUEST_TIMEOUT, StatusCode.CONFLICT)
_ACK_WAIT_SECONDS = 30.0
_PAUSES_SECONDS = (0.5, 2.0, 10.0, 30.0, 120.0)
_KEEP_DAYS = 8

_RECORD: LiteralString = """
INSERT INTO processed_messages (consumer, message_id) VALUES (%(consumer)s, %(message_id)s) ON CONFLICT DO NOTHING
"""
_FORGET: LiteralString = """
DELETE FROM processed_messages WHERE consumer = %(consumer)s AND processed_at < now() - make_interval(days => %(days)s)
"""


@dataclass(frozen=True, slots=True)
class Message:
    """What was published, and how often it was tried."""

    id: str
    subject: str
    payload: bytes
    headers: dict[str, str]
    attempt: int


Handler = Callable[[Tx, Message], Awaitable[None]]


class Consumer:
    """One loop that handles the messages of a stream one after another."""

    def __init__(
        self,
        database: Database,
        nats: Nats,
        *,
        stream: str,
        name: str,
        subjects: Sequence[str],
        handler: Handler,
        committed: Callable[[Message], None] | None = None,
    ) -> None:
        """`committed` hears of each message whose effects were just committed."""
        self._database = database
        self._nats = nats
        self._stream = stream
        self._name = name
        self._handler = handler
        self._committed = committed
        self._config = ConsumerConfig(
            durable_name=name,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=_ACK_WAIT_SECONDS,
            deliver_policy=DeliverPolicy.ALL,
            filter_subjects=list(subjects),
            max_ack_pending=1_000,
        )
        self._stopping = asyncio.Event()
        # Set where what waits for a message is to end: for good, or since the server may know nothing of it.
        self._interrupted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin in the background; neither NATS nor the stream need to exist yet."""
        # A server that lost its disk lost the consumer too, and a fetch would wait for ever.
        self._nats.on_reconnect(self._interrupted.set)
        self._task = asyncio.create_task(self._run(), name=f"consumer {self._name}")

    async def stop(self) -> None:
        """Finish the message in hand, and one that is on its way."""
        self._stopping.set()
        self._interrupted.set()
        if self._task is not None:
            await self._task

    async def forget_old(self) -> int:
        """Drop records that are older than the stream keeps messages; to be called now and then."""
        async with self._database.platform_transaction(relaxed=True) as tx:
            return await tx.execute(_FORGET, {"consumer": self._name, "days": _KEEP_DAYS})

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if await self._nats.wait_connected(1.0) and self._nats.connected:
                    await self._consume()
                else:
                    await self._pause(0.5)
            except (nats.errors.Error, JetStreamError, TimeoutError) as error:
                log.info("consumer waits for its stream", consumer=self._name, error=repr(error))
                await self._pause(1.0)

    async def _consume(self) -> None:
        self._interrupted.clear()
        await self._nats.jetstream().add_consumer(self._stream, self._config)
        client = self._nats.client
        inbox = await client.subscribe(client.new_inbox())
        leaving = asyncio.create_task(self._leave(inbox), name=f"end of consumer {self._name}")
        try:
            while not leaving.done() and not self._stopping.is_set():
                if (message := await self._next(inbox, leaving)) is not None:
                    await self._handle(message)
        finally:
            if not self._interrupted.is_set():
                leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            with suppress(nats.errors.Error):
                await inbox.unsubscribe()

    async def _next(self, inbox: Subscription, leaving: asyncio.Task[None]) -> Msg | None:
        """The next message; None where there is none for a while, or none is to come."""
        await self._nats.client.publish(f"{_NEXT}.{self._stream}.{self._name}", _PULL, reply=inbox.subject)
        waiting = asyncio.create_task(inbox.next_msg(timeout=_FETCH_SECONDS + _LATE_SECONDS))
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                return None
            message = waiting.result()
        except (TimeoutError, nats.errors.TimeoutError):
            return None
        finally:
            waiting.cancel()
        status = (message.headers or {}).get(Header.STATUS)
        if status is None:
            return message
        if status not in _NOTHING_THERE:
            raise APIError.from_msg(message)
        return None

    async def _leave(self, inbox: Subscription) -> None:
        """Give the interest back once this is to end: after that nothing is on its way here."""
        await self._interrupted.wait()
        with suppress(nats.errors.Error, TimeoutError):
            await within(inbox.drain(), _LATE_SECONDS)

    async def _handle(self, message: Msg) -> None:
        headers = dict(message.headers or {})
        metadata = message.metadata
        attempt = metadata.num_delivered or 1
        identity = headers.get("Nats-Msg-Id") or f"{self._stream}:{metadata.sequence.stream}"
        received = Message(identity, message.subject, message.data, headers, attempt)
        request_id.set(headers.get("request-id", ""))
        keeping = asyncio.create_task(_keep(message))
        try:
            with continue_trace(headers, f"consume {self._name}"):
                await self._process(received)
        except Exception as error:
            pause = _PAUSES_SECONDS[min(attempt, len(_PAUSES_SECONDS)) - 1]
            expected = isinstance(error, Unavailable)
            log.warning(
                "message not handled, will come again",
                consumer=self._name,
                message_id=identity,
                attempt=attempt,
                pause_seconds=pause,
                exc_info=None if expected else error,
            )
            await message.nak(delay=pause)
        else:
            await message.ack()
        finally:
            keeping.cancel()
            request_id.set("")

    async def _process(self, message: Message) -> None:
        async with self._database.platform_transaction() as tx:
            if await tx.execute(_RECORD, {"consumer": self._name, "message_id": message.id}):
                await self._handler(tx, message)
        if self._committed is not None:
            self._committed(message)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()


async def _keep(message: Msg) -> None:
    """Tell the server, well before it gives the message to another, that it is still being handled."""
    while True:
        await asyncio.sleep(_ACK_WAIT_SECONDS / 3)
        await message.in_progress()

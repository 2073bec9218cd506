"""A process with a durable consumer of the sessions' stream that counts what it handled; for tests that kill it."""

import asyncio
import sys

from kit.consumer import Consumer, Message
from kit.nats import connect
from kit.postgres import Database, Tx


async def _count(tx: Tx, message: Message) -> None:
    await tx.execute("INSERT INTO effects (message_id) VALUES (%(id)s)", {"id": message.id})


async def main(dsn: str, url: str) -> None:
    """Consume until killed."""
    database = Database(dsn, "faults")
    await database.open()
    nats = await connect(url, "faults")
    consumer = Consumer(database, nats, stream="SESSIONS", name="faults", subjects=["sessions.log.>"], handler=_count)
    await consumer.start()
    await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))

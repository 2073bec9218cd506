"""A process with a relay, for tests that kill it: writes nothing, publishes what is there."""

import asyncio
import sys

from kit.nats import connect
from kit.outbox import Relay
from kit.postgres import Database


async def main(dsn: str, url: str, stream: str) -> None:
    database = Database(dsn, "box")
    await database.open()
    relay = Relay(database, await connect(url, "child"), stream, [f"{stream}.>"])
    await relay.start()
    await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))

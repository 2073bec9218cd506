"""A durable consumer beside the platform, in a process of its own, that the nemesis kills as it does the others.

Its effects are rows without any constraint, so a message that was handled twice is there twice.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
from nats.aio.msg import Msg
from psycopg.conninfo import make_conninfo

from kit.embedded.nats import EmbeddedNats
from kit.embedded.postgres import EmbeddedPostgres
from kit.nats import connect
from kit.outbox import PROCESSED_MESSAGES_DDL

CHILD = Path(__file__).with_name("durable_child.py")


class DurableConsumer:
    """The consumer of one data folder."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Make its tables, in a schema of its own, and start it."""
        with psycopg.connect(self._dsn(), autocommit=True) as connection:
            connection.execute("CREATE SCHEMA faults")
            connection.execute("SET search_path TO faults")
            connection.execute(PROCESSED_MESSAGES_DDL)
            connection.execute("CREATE TABLE effects (message_id text NOT NULL)")
        self.start()

    def start(self) -> None:
        """Start it while the platform serves."""
        url = EmbeddedNats(self._data_dir / "nats").address()
        with open(self._data_dir / "durable.log", "ab") as log:
            self._process = subprocess.Popen([sys.executable, str(CHILD), self._dsn(), url], stderr=log)

    def kill(self) -> None:
        """Kill it where it stands."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def ended(self) -> bool:
        """Whether it gave up by itself, which it must not."""
        return self._process is not None and self._process.poll() is not None

    def effects(self) -> Counter[str]:
        """How often each message had its effect."""
        with psycopg.connect(self._dsn()) as connection:
            return Counter(name for (name,) in connection.execute("SELECT message_id FROM faults.effects"))

    def _dsn(self) -> str:
        return make_conninfo(EmbeddedPostgres(self._data_dir / "postgres").address(), dbname="managed_agents")


async def stream_of(data_dir: Path) -> AsyncIterator[Msg]:
    """Every message that the sessions' stream keeps, from the first on."""
    nats = await connect(EmbeddedNats(data_dir / "nats").address(), "reader")
    try:
        stream = nats.client.jetstream()
        last = (await stream.stream_info("SESSIONS")).state.messages
        subscription = await stream.subscribe("sessions.log.>", ordered_consumer=True)
        for _ in range(last):
            yield await subscription.next_msg(timeout=20)
        await subscription.unsubscribe()
    finally:
        await nats.close()

"""Hears which sessions have ended, from the sessions' own durable log, and stops their work."""

from __future__ import annotations

from kit.consumer import Consumer, Message
from kit.nats import Nats
from kit.postgres import Database, Tx
from managed_agents.sessions.v1.events_pb2 import EventsAppended
from services.worker.queue.operations.stopping import Stopping

STREAM, SUBJECTS = "SESSIONS", "sessions.log.*.ended"


def session_ends(database: Database, nats: Nats, stopping: Stopping, name: str) -> Consumer:
    """One consumer for all replicas of its name; an end that was heard twice stops nothing more."""

    async def ended(_tx: Tx, message: Message) -> None:
        told = EventsAppended.FromString(message.payload)
        await stopping.end_session(told.workspace_id, told.session_id)

    return Consumer(database, nats, stream=STREAM, name=name, subjects=[SUBJECTS], handler=ended)

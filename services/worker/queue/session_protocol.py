"""The session protocol as parts of the queue process."""

from __future__ import annotations

from typing import Any

from kit.consumer import Consumer
from kit.lifecycle import Service
from kit.nats import Nats
from kit.postgres import Database
from kit.rpc.server import Server
from managed_agents.worker.v1.session_work_pb2_grpc import add_SessionWorkServiceServicer_to_server
from services.worker.queue.handlers.session_work import SessionWorkHandler
from services.worker.queue.operations.polling import Polling
from services.worker.queue.operations.session_duties import SUBJECTS, SessionDuties
from services.worker.queue.operations.session_room import SessionRoom


class SessionProtocol:
    """What one replica needs to serve the session protocol; `duties` is the stub of the sessions service."""

    def __init__(
        self,
        database: Database,
        nats: Nats,
        duties: Any,
        *,
        ttl_seconds: int,
        consumer_name: str,
    ) -> None:
        self.room = SessionRoom()
        self.duties = SessionDuties(database, nats, duties, self.room)
        self.polling = Polling(database)
        self.handler = SessionWorkHandler(database, self.room, self.duties, self.polling, ttl_seconds=ttl_seconds)
        self.consumer = Consumer(
            database,
            nats,
            stream="SESSIONS",
            name=consumer_name,
            subjects=SUBJECTS,
            handler=self.duties.hear,
            committed=self.duties.heard,
        )

    def add_to(self, service: Service, server: Server) -> None:
        """Its rpcs, its consumer and its tasks; after the database and before the server starts."""
        server.add(add_SessionWorkServiceServicer_to_server, self.handler)
        service.add("hints of session work", self.duties.listen)
        service.add("session work", self.consumer.start, self.consumer.stop)
        service.add("polling workers", stop=self.polling.flush)
        service.add_task("session work follow-ups", self.duties.run)
        service.add_task("polling workers", self.polling.run)

"""The parts of the tool protocol, put together."""

from __future__ import annotations

from datetime import timedelta

from kit.ids import new_id
from kit.lifecycle import Service
from kit.nats import Nats
from kit.postgres import Database
from kit.rpc.client import Channel
from kit.rpc.server import Server
from managed_agents.worker.v1.queue_pb2_grpc import add_QueueServiceServicer_to_server
from services.worker.queue.handlers.queue import QueueHandler
from services.worker.queue.handlers.session_ends import session_ends
from services.worker.queue.operations.asking import EndedSessions
from services.worker.queue.operations.desk import Desk
from services.worker.queue.operations.hints import Hints
from services.worker.queue.operations.intake import Intake
from services.worker.queue.operations.matching import Matching
from services.worker.queue.operations.moments import DatabaseClock
from services.worker.queue.operations.pool import Pool
from services.worker.queue.operations.stopping import Stopping
from services.worker.queue.operations.sweeping import Sweeping
from services.worker.queue.operations.waiting_room import WaitingRoom
from services.worker.queue.operations.waits import Waits
from services.worker.queue.store.work_items import WorkItemStore


class ToolProtocol:
    """Leases of single executions, for one replica."""

    def __init__(
        self,
        database: Database,
        nats: Nats,
        sessions: Channel,
        *,
        lease_seconds: float,
        keep_seconds: float,
        sweep_seconds: float,
        silence_seconds: float,
    ) -> None:
        replica, ask_ended = new_id("queue"), EndedSessions(sessions).ask
        self._database = database
        self._clock = DatabaseClock()
        self._desk = Desk(database, self._clock)
        self._room, pool = WaitingRoom(), Pool(database)
        lease = timedelta(seconds=lease_seconds)
        self._matching = Matching(self._room, pool, self._desk, self._clock, ask_ended, lease)
        self._intake = Intake(database, self._clock, self._desk, self._matching, ask_ended)
        self._waits = Waits(self._intake, self._desk, self._clock, timedelta(seconds=silence_seconds))
        self._nats = nats
        self._stopping = stopping = Stopping(database, self._desk)
        self.sweeping = Sweeping(
            database,
            self._desk,
            self._room,
            pool,
            self._matching,
            self._intake,
            self._waits,
            stopping,
            keep_seconds=keep_seconds,
            look_seconds=sweep_seconds,
        )
        self._hints = Hints(nats, replica, pending=self._matching.pending, ended=self.sweeping.hear_ended)
        self._desk.on_saved.append(self._hints.tell)
        self._handler = QueueHandler(
            database, self._desk, self._matching, self._waits, stopping, replica=replica, lease=lease
        )

    def add_to(self, service: Service, server: Server) -> None:
        """Serves the protocol for as long as the process runs."""

        async def let_go_while_stopping() -> None:
            await server.stopping.wait()
            self._room.close()
            self._waits.close()

        server.add(add_QueueServiceServicer_to_server, self._handler)
        service.add("clock", self._read_the_clock)
        service.add("hints", self._hints.listen, self._hints.stop)
        service.add("desk", stop=self._desk.stop)
        service.add("intake", stop=self._intake.stop)
        service.add("matching", stop=self._matching.stop)
        service.add_task("rounds", self._matching.run)
        service.add_task("sweeping", self.sweeping.run)
        service.add_task("letting go", let_go_while_stopping)

    def hear_ends(self, service: Service, consumer_name: str) -> None:
        """Stops the work of sessions as their ends are told; replicas of one name share what is told."""
        consumer = session_ends(self._database, self._nats, self._stopping, consumer_name)
        self.sweeping.also.append(consumer.forget_old)
        service.add("session ends", consumer.start, consumer.stop)

    async def _read_the_clock(self) -> None:
        async with self._database.platform_read() as tx:
            self._clock.tell(await WorkItemStore(tx).now())

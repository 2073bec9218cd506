"""SchedulerService: how the ticker stands."""

from __future__ import annotations

from kit.clock import rfc3339
from kit.postgres import Database
from managed_agents.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.scheduler.store.leases import LeaseStore


class SchedulerHandler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Answers for the process that is called `holder` in the lease."""

    def __init__(self, database: Database, holder: str) -> None:
        self._database = database
        self._holder = holder

    async def GetTicker(self, request, context) -> scheduler_pb2.GetTickerResponse:
        """Reads the newest term; empty before the first one."""
        async with self._database.platform_read() as tx:
            lease = await LeaseStore(tx).load()
        if lease is None:
            return scheduler_pb2.GetTickerResponse()
        return scheduler_pb2.GetTickerResponse(
            holder=lease.holder,
            epoch=lease.epoch,
            expires_at=rfc3339(lease.expires_at),
            last_tick_at=rfc3339(lease.last_tick_at) if lease.last_tick_at else "",
            is_self=lease.holder == self._holder,
        )

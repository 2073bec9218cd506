"""QueueService: how full the queue of an environment is."""

from __future__ import annotations

from kit.postgres import Database
from kit.rpc.server import current_context
from managed_agents.worker.v1 import queue_pb2, queue_pb2_grpc
from services.worker.queue.store.work_items import WorkItemStore


class QueueHandler(queue_pb2_grpc.QueueServiceServicer):
    """Reads the queue of the caller's workspace."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def GetQueueStats(self, request, context) -> queue_pb2.GetQueueStatsResponse:
        """Counts the items of an environment by status."""
        async with self._database.read(current_context().workspace_id) as tx:
            counts = await WorkItemStore(tx).count_by_status(request.environment_id)
        return queue_pb2.GetQueueStatsResponse(**counts)

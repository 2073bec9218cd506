"""The queue's process over real gRPC and Postgres: counts are scoped to workspace and environment."""

from __future__ import annotations

from pathlib import Path

import psycopg

from kit.rpc.client import channel
from kit.rpc.context import CallContext
from managed_agents.worker.v1 import queue_pb2 as pb
from managed_agents.worker.v1.queue_pb2_grpc import QueueServiceStub
from services.worker.queue.app import MIGRATIONS, SCHEMA, compose
from services.worker.queue.config import QueueSettings


async def test_items_are_counted_by_status_within_workspace_and_environment(make_database, tmp_path: Path) -> None:
    dsn, listen = await make_database(SCHEMA, MIGRATIONS), f"unix:{tmp_path}/queue.sock"
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await connection.execute(
            """
            INSERT INTO work_items (id, workspace_id, environment_id, session_id, kind, payload, status, finished_at)
            SELECT 'work_' || n, CASE WHEN n <= 4 THEN 'a' ELSE 'b' END, CASE WHEN n = 4 THEN 'env_2' ELSE 'env_1' END,
                   'sess_1', 'exec', '{}', CASE WHEN n = 1 THEN 'completed' ELSE 'pending' END,
                   CASE WHEN n = 1 THEN now() END
              FROM generate_series(1, 7) n
            """
        )
    service = compose(QueueSettings(database_url=dsn, listen=listen))
    await service.start()
    client = channel(listen)
    stub = client.stub(QueueServiceStub)

    async def stats(workspace: str, environment: str) -> tuple[int, int]:
        request = pb.GetQueueStatsRequest(environment_id=environment)
        found = await stub.GetQueueStats(request, context=CallContext(workspace, "req_1", "anonymous"))
        return found.pending, found.completed

    try:
        assert await stats("a", "env_1") == (2, 1)
        assert await stats("a", "env_2") == (1, 0)
        assert await stats("b", "env_1") == (3, 0)
        assert await stats("c", "env_1") == (0, 0)
    finally:
        await client.close()
        await service.stop()

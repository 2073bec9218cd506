"""QueueService: the tool protocol, for the gateway and for runners."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Any

import orjson

from kit.errors import PermissionDenied
from kit.pages import decode_cursor, encode_cursor
from kit.postgres import Database
from kit.rpc.context import CallContext
from kit.rpc.server import current_context
from managed_agents.worker.v1 import queue_pb2, queue_pb2_grpc
from services.worker.queue.domain import item as rules
from services.worker.queue.domain.errors import MalformedItem, WorkEnvironmentRefused
from services.worker.queue.domain.item import Holder, Item, Status
from services.worker.queue.handlers.messages import item_message, moment
from services.worker.queue.operations.desk import Decide, Desk, Job, Settled
from services.worker.queue.operations.matching import Matching
from services.worker.queue.operations.stopping import Stopping
from services.worker.queue.operations.waits import Waits
from services.worker.queue.store.records import RecordStore
from services.worker.queue.store.work_items import NewItem

KINDS = frozenset({"exec", "read", "write", "list"})
MAX_CLAIM_SECONDS = 30.0
MAX_WAIT_SECONDS = 86_400.0
MAX_NAME = 256
DEFAULT_LIMIT = 20
MAX_LIMIT = 1_000


class QueueHandler(queue_pb2_grpc.QueueServiceServicer):
    """Checks what callers say and has it done."""

    def __init__(
        self,
        database: Database,
        desk: Desk,
        matching: Matching,
        waits: Waits,
        stopping: Stopping,
        *,
        replica: str,
        lease: timedelta,
    ) -> None:
        self._database = database
        self._desk = desk
        self._matching = matching
        self._waits = waits
        self._stopping = stopping
        self._replica = replica
        self._lease = lease

    async def RunWorkItem(self, request, context) -> queue_pb2.RunWorkItemResponse:
        """Puts an item in and waits for its end."""
        caller = current_context()
        _require_platform(caller)
        result, failed = await self._waits.run(_new_item(request, caller.workspace_id, self._replica))
        return queue_pb2.RunWorkItemResponse(result_json=result, failed=failed)

    async def StopSessionWork(self, request, context) -> queue_pb2.StopSessionWorkResponse:
        """Stops items of a session."""
        caller = current_context()
        _require_platform(caller)
        _named(request.session_id, "session_id")
        stopped = await self._stopping.stop_session(caller.workspace_id, request.session_id, request.item_ids)
        return queue_pb2.StopSessionWorkResponse(stopped=stopped)

    async def ClaimWorkItem(self, request, context) -> queue_pb2.ClaimWorkItemResponse:
        """Hands out an item, now or as soon as there is one."""
        caller = current_context()
        _named(request.worker_id, "worker_id")
        if not 0 <= request.wait_seconds <= MAX_CLAIM_SECONDS:
            raise MalformedItem(f"wait_seconds must be from 0 to {MAX_CLAIM_SECONDS:.0f}.", field="wait_seconds")
        environment_id = request.environment_id or caller.environment_id
        if caller.role == "worker" and environment_id != caller.environment_id:
            raise WorkEnvironmentRefused("This worker key belongs to another environment.", field="environment_id")
        scope = (environment_id, request.session_id)
        grant = await self._matching.claim(caller.workspace_id, scope, request.worker_id, request.wait_seconds)
        if grant is None:
            return queue_pb2.ClaimWorkItemResponse()
        item, payload = grant
        return queue_pb2.ClaimWorkItemResponse(item=item_message(item, payload.encode()))

    async def AcceptWorkItem(self, request, context) -> queue_pb2.AcceptWorkItemResponse:
        """Lets the holder run the item."""
        settled = await self._move(request, partial(rules.accept, lease=self._lease), must_be_live=True)
        return queue_pb2.AcceptWorkItemResponse(lease_expires_at=moment(settled.item.lease_expires_at))

    async def HeartbeatWorkItem(self, request, context) -> queue_pb2.HeartbeatWorkItemResponse:
        """Renews a lease."""
        settled = await self._move(request, partial(rules.renew, lease=self._lease))
        return queue_pb2.HeartbeatWorkItemResponse(lease_expires_at=moment(settled.item.lease_expires_at))

    async def CompleteWorkItem(self, request, context) -> queue_pb2.CompleteWorkItemResponse:
        """Takes a result."""
        result = request.result_json or b"null"
        _require_json(result, "result_json")
        await self._move(request, partial(rules.complete, failed=request.failed), result=result)
        return queue_pb2.CompleteWorkItemResponse()

    async def ListWorkItems(self, request, context) -> queue_pb2.ListWorkItemsResponse:
        """A page of an environment's items."""
        caller = current_context()
        _require_environment(caller, request.environment_id)
        if request.status and request.status not in {status.value for status in Status}:
            raise MalformedItem(f"status must be one of: {', '.join(Status)}.", field="status")
        limit = min(request.limit or DEFAULT_LIMIT, MAX_LIMIT)
        scope = f"work-items {request.environment_id} {request.status}"
        position = decode_cursor(request.cursor, scope) if request.cursor else None
        async with self._database.read(caller.workspace_id) as tx:
            found = await RecordStore(tx).newest(
                request.environment_id,
                before=datetime.fromisoformat(position["created_at"]) if position else None,
                before_id=position["id"] if position else "",
                status=request.status,
                limit=limit + 1,
            )
        cursor = ""
        if len(found) > limit:
            last = found[limit - 1][0]
            cursor = encode_cursor(scope, {"created_at": last.created_at.isoformat(), "id": last.id})
        items = [item_message(item, payload) for item, payload in found[:limit]]
        return queue_pb2.ListWorkItemsResponse(items=items, next_cursor=cursor)

    async def GetQueueStats(self, request, context) -> queue_pb2.GetQueueStatsResponse:
        """Counts the items of an environment by status."""
        caller = current_context()
        _require_environment(caller, request.environment_id)
        async with self._database.read(caller.workspace_id) as tx:
            counts = await RecordStore(tx).count_by_status(request.environment_id)
        return queue_pb2.GetQueueStatsResponse(**counts)

    async def _move(
        self, request: Any, decide: partial[Item], *, result: bytes | None = None, must_be_live: bool = False
    ) -> Settled:
        """Has the caller's move of an item done."""
        caller = current_context()
        by = Holder(_named(request.worker_id, "worker_id"), request.attempt)
        job = Job(
            _named(request.id, "id"),
            _by(decide, by),
            workspace_id=caller.workspace_id,
            environment_id=caller.environment_id,
            result=result,
            must_be_live=must_be_live,
        )
        return await self._desk.submit(job)


def _by(rule: partial[Item], by: Holder) -> Decide:
    return lambda item, now: rule(item, by, now)


def _new_item(request: queue_pb2.RunWorkItemRequest, workspace_id: str, replica: str) -> NewItem:
    if request.kind not in KINDS:
        raise MalformedItem(f"kind must be one of: {', '.join(sorted(KINDS))}.", field="kind")
    if not 0 < request.wait_seconds <= MAX_WAIT_SECONDS:
        raise MalformedItem(f"wait_seconds must be over 0, up to {MAX_WAIT_SECONDS:.0f}.", field="wait_seconds")
    if not 0 <= request.queue_seconds <= MAX_WAIT_SECONDS:
        raise MalformedItem(f"queue_seconds must be from 0 to {MAX_WAIT_SECONDS:.0f}.", field="queue_seconds")
    payload = request.payload_json or b"{}"
    _require_json(payload, "payload_json")
    return NewItem(
        id=_named(request.item_id, "item_id"),
        workspace_id=workspace_id,
        environment_id=_named(request.environment_id, "environment_id"),
        session_id=_named(request.session_id, "session_id"),
        kind=request.kind,
        payload=payload,
        queue_seconds=request.queue_seconds or request.wait_seconds,
        wait_seconds=request.wait_seconds,
        waiter=replica,
    )


def _named(value: str, field: str) -> str:
    if not 0 < len(value) <= MAX_NAME or "\x00" in value:
        raise MalformedItem(f"{field} must be 1 to {MAX_NAME} characters long, without NUL characters.", field=field)
    return value


def _require_json(text: bytes, field: str) -> None:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        raise MalformedItem(f"{field} must be JSON.", field=field) from None


def _require_platform(caller: CallContext) -> None:
    if caller.role == "worker":
        raise PermissionDenied("A worker does not put work in.")


def _require_environment(caller: CallContext, environment_id: str) -> None:
    if caller.role == "worker" and caller.environment_id != environment_id:
        raise PermissionDenied("This worker key belongs to another environment.")

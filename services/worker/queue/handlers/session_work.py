"""SessionWorkService: whole sessions for workers of the session protocol."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from kit.pages import decode_cursor, encode_cursor
from kit.postgres import Database
from kit.rpc.context import CallContext
from kit.rpc.server import current_context
from managed_agents.worker.v1 import session_work_pb2 as pb
from managed_agents.worker.v1 import session_work_pb2_grpc
from services.worker.queue.domain import session_item, work_metadata
from services.worker.queue.domain.errors import MalformedItem, WorkItemNotFound
from services.worker.queue.domain.session_item import Caller, SessionItem
from services.worker.queue.handlers.messages import moment
from services.worker.queue.operations.polling import Polling
from services.worker.queue.operations.session_duties import SessionDuties
from services.worker.queue.operations.session_room import SessionRoom
from services.worker.queue.store.session_items import SessionItemStore

TOKEN_PREFIX = "mast_"
MAX_BLOCK_SECONDS = 30.0
DEFAULT_PAGE, MAX_PAGE = 20, 1000
MAX_WORKER_ID = 256

# An item, and the database's clock → the item as it is to be.
Decide = Callable[[SessionItem, datetime], SessionItem]


class SessionWorkHandler(session_work_pb2_grpc.SessionWorkServiceServicer):
    """The rpcs of the gateway."""

    def __init__(
        self, database: Database, room: SessionRoom, duties: SessionDuties, polling: Polling, *, ttl_seconds: int
    ) -> None:
        self._database = database
        self._room = room
        self._duties = duties
        self._polling = polling
        self._ttl_seconds = ttl_seconds

    async def PollWork(self, request: pb.PollWorkRequest, context: Any) -> pb.PollWorkResponse:
        """Hands out an item, waiting for one."""
        caller = current_context()
        if len(request.worker_id) > MAX_WORKER_ID:
            raise MalformedItem(f"The worker's id must be at most {MAX_WORKER_ID} characters long.", field="worker_id")
        environment_id = _environment(caller, request.environment_id, "")
        self._polling.note(caller.workspace_id, environment_id, request.worker_id)
        deadline = time.monotonic() + min(max(request.block_seconds, 0.0), MAX_BLOCK_SECONDS)
        reclaim = max(request.reclaim_seconds, 0.0)
        while True:
            empty_for = self._room.empty_for(environment_id, reclaim)
            if empty_for == 0.0:
                self._room.look(environment_id, reclaim)
                token = TOKEN_PREFIX + secrets.token_urlsafe(32)
                item = await self._hand_out(caller.workspace_id, environment_id, token, reclaim)
                if item is not None:
                    self._room.found(environment_id)
                    return pb.PollWorkResponse(work=_message(item), sessions_token=token)
                empty_for = self._room.empty_for(environment_id, reclaim)
            left = deadline - time.monotonic()
            if left <= 0:
                return pb.PollWorkResponse()
            # Where nothing is known, a hint came while the database was looked into.
            if empty_for:
                await self._room.wait(environment_id, min(left, empty_for))

    async def _hand_out(self, workspace_id: str, environment_id: str, token: str, reclaim: float) -> SessionItem | None:
        """An item whose session needs a worker; what has nothing to do any more ends here."""
        while True:
            hints = self._room.hints(environment_id)
            async with self._database.statements(workspace_id) as tx:
                store = SessionItemStore(tx)
                item = await store.hand_out(environment_id, _digest(token), reclaim)
                if item is None:
                    due_in = await store.next_due(environment_id, reclaim)
                    self._room.note_empty(environment_id, reclaim, due_in, hints)
                    return None
            if await self._duties.needs_worker(item):
                return item
            # What is announced meanwhile finds this item live: so it is asked once more after its end.
            await self._move(workspace_id, environment_id, item.id, partial(_ended, revision=item.revision))
            self._duties.look()

    async def AckWork(self, request: pb.AckWorkRequest, context: Any) -> pb.AckWorkResponse:
        """Begins the lease of an item."""
        caller = current_context()
        by = _caller(caller)
        item = await self._move(
            caller.workspace_id,
            _environment(caller, request.environment_id, request.work_id),
            request.work_id,
            lambda found, now: session_item.acknowledge(found, by, now, self._ttl_seconds),
        )
        self._duties.look()
        return pb.AckWorkResponse(work=_message(item))

    async def HeartbeatWork(self, request: pb.HeartbeatWorkRequest, context: Any) -> pb.HeartbeatWorkResponse:
        """Renews the lease of an item."""
        caller = current_context()
        by = _caller(caller)
        expected = request.expected_last_heartbeat if request.HasField("expected_last_heartbeat") else None
        desired = None
        if request.HasField("desired_ttl_seconds"):
            desired = session_item.bounded_ttl(request.desired_ttl_seconds, self._ttl_seconds)
        extended = False

        def decide(found: SessionItem, now: datetime) -> SessionItem:
            nonlocal extended
            renewed, extended = session_item.beat(found, by, expected, now, desired)
            return renewed

        environment_id = _environment(caller, request.environment_id, request.work_id)
        item = await self._move(caller.workspace_id, environment_id, request.work_id, decide)
        lease = pb.WorkLease(
            state=item.state,
            last_heartbeat=item.last_heartbeat,
            lease_extended=extended,
            ttl_seconds=item.ttl_seconds or self._ttl_seconds,
        )
        return pb.HeartbeatWorkResponse(lease=lease)

    async def StopWork(self, request: pb.StopWorkRequest, context: Any) -> pb.StopWorkResponse:
        """Asks a holder to stop, or ends an item."""
        caller = current_context()
        by = _caller(caller)
        item = await self._move(
            caller.workspace_id,
            _environment(caller, request.environment_id, request.work_id),
            request.work_id,
            lambda found, now: session_item.stop(found, by, now, force=request.force),
        )
        self._duties.look()
        return pb.StopWorkResponse(work=_message(item))

    async def GetWork(self, request: pb.GetWorkRequest, context: Any) -> pb.GetWorkResponse:
        """One item."""
        caller = current_context()
        environment_id = _environment(caller, request.environment_id, request.work_id)
        async with self._database.read(caller.workspace_id) as tx:
            item = await SessionItemStore(tx).get(environment_id, request.work_id)
        if item is None:
            raise WorkItemNotFound(request.work_id)
        return pb.GetWorkResponse(work=_message(item))

    async def UpdateWork(self, request: pb.UpdateWorkRequest, context: Any) -> pb.UpdateWorkResponse:
        """Merges metadata."""
        caller = current_context()

        def decide(found: SessionItem, _now: datetime) -> SessionItem:
            return replace(found, metadata=work_metadata.merged(found.metadata, request.metadata_json))

        environment_id = _environment(caller, request.environment_id, request.work_id)
        item = await self._move(caller.workspace_id, environment_id, request.work_id, decide)
        return pb.UpdateWorkResponse(work=_message(item))

    async def ListWork(self, request: pb.ListWorkRequest, context: Any) -> pb.ListWorkResponse:
        """One page; one item more than asked for tells whether there are more."""
        caller = current_context()
        environment_id = _environment(caller, request.environment_id, "")
        limit = min(request.limit or DEFAULT_PAGE, MAX_PAGE)
        scope = f"work?environment={environment_id}"
        before = None
        if request.cursor:
            position = decode_cursor(request.cursor, scope)
            before = (datetime.fromisoformat(str(position["created_at"])), str(position["id"]))
        async with self._database.read(caller.workspace_id) as tx:
            found = await SessionItemStore(tx).page(environment_id, before, limit + 1)
        page, cursor = found[:limit], ""
        if len(found) > limit:
            cursor = encode_cursor(scope, {"created_at": page[-1].created_at.isoformat(), "id": page[-1].id})
        return pb.ListWorkResponse(work=[_message(item) for item in page], next_cursor=cursor)

    async def GetWorkStats(self, request: pb.GetWorkStatsRequest, context: Any) -> pb.GetWorkStatsResponse:
        """How full a queue is."""
        caller = current_context()
        environment_id = _environment(caller, request.environment_id, "")
        async with self._database.read(caller.workspace_id) as tx:
            depth, pending, oldest = await SessionItemStore(tx).stats(environment_id)
        return pb.GetWorkStatsResponse(
            depth=depth,
            pending=pending,
            oldest_queued_at=moment(oldest),
            workers_polling=await self._polling.count(caller.workspace_id, environment_id),
        )

    async def CheckSessionsToken(
        self, request: pb.CheckSessionsTokenRequest, context: Any
    ) -> pb.CheckSessionsTokenResponse:
        """Whose a token is."""
        async with self._database.platform_read() as tx:
            found = await SessionItemStore(tx).of_token(request.sha256)
        if found is None:
            return pb.CheckSessionsTokenResponse()
        item, live = found
        return pb.CheckSessionsTokenResponse(
            found=True,
            live=live,
            workspace_id=item.workspace_id,
            environment_id=item.environment_id,
            session_id=item.session_id,
            work_id=item.id,
        )

    async def CheckHeldSession(self, request: pb.CheckHeldSessionRequest, context: Any) -> pb.CheckHeldSessionResponse:
        """Whether a session is out with a worker of the caller's environment."""
        caller = current_context()
        async with self._database.read(caller.workspace_id) as tx:
            held = await SessionItemStore(tx).is_held(caller.environment_id, request.session_id)
        return pb.CheckHeldSessionResponse(held=held)

    async def _move(self, workspace_id: str, environment_id: str, work_id: str, decide: Decide) -> SessionItem:
        async with self._database.transaction(workspace_id) as tx:
            store = SessionItemStore(tx)
            found = await store.lock(environment_id, work_id)
            if found is None:
                raise WorkItemNotFound(work_id)
            moved = decide(*found)
            if moved != found[0]:
                await store.save(moved)
        return moved


def _ended(item: SessionItem, now: datetime, *, revision: int) -> SessionItem:
    return session_item.end(item, now) if item.revision == revision else item


def _environment(caller: CallContext, environment_id: str, work_id: str) -> str:
    """The environment that is asked for, where the caller reaches it and the item."""
    is_foreign = bool(caller.environment_id) and environment_id != caller.environment_id
    if is_foreign or (work_id and caller.work_id and work_id != caller.work_id):
        raise WorkItemNotFound(work_id)
    return environment_id


def _caller(caller: CallContext) -> Caller:
    return Caller(caller.sessions_token_sha256 or None, is_worker=caller.role == "worker")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _message(item: SessionItem) -> pb.SessionWork:
    return pb.SessionWork(
        id=item.id,
        environment_id=item.environment_id,
        session_id=item.session_id,
        state=item.state,
        metadata_json=item.metadata.encode(),
        created_at=moment(item.created_at),
        acknowledged_at=moment(item.acknowledged_at),
        started_at=moment(item.started_at),
        latest_heartbeat_at=moment(item.heartbeat_at),
        stop_requested_at=moment(item.stop_requested_at),
        stopped_at=moment(item.finished_at),
        attempt=item.attempt,
    )

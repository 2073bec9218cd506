"""ThreadsService: the threads of sessions, listed, read and archived."""

from datetime import datetime
from typing import Any

import orjson

from kit.postgres import Tx
from kit.rpc.context import current_context
from managed_agents.sessions.v1.common_pb2 import PageInfo
from managed_agents.sessions.v1.threads_pb2 import (
    ArchiveThreadRequest,
    ArchiveThreadResponse,
    GetThreadRequest,
    GetThreadResponse,
    ListThreadsRequest,
    ListThreadsResponse,
    SessionThread,
)
from managed_agents.sessions.v1.threads_pb2_grpc import ThreadsServiceServicer
from services.sessions.domain.session_errors import InvalidRequest
from services.sessions.domain.session_state import Status, TurnState
from services.sessions.domain.thread_state import load
from services.sessions.handlers.definitions import (
    can_be_session,
    can_exist,
    page_limit,
    position_after,
    read_position,
)
from services.sessions.handlers.session_messages import STATUS_NAMES, STATUSES, session_message, usage_message
from services.sessions.operations.core import Operations, not_found, thread_not_found
from services.sessions.store.sessions import SessionRecord, Sessions
from services.sessions.store.threads import ThreadStore


class ThreadsHandlers(ThreadsServiceServicer):
    """The rpcs of the gateway."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._database = operations.database

    async def ListThreads(self, request: ListThreadsRequest, context: Any) -> ListThreadsResponse:
        """One page; one more than asked for tells whether there are more."""
        statuses = {STATUS_NAMES[status] for status in request.statuses if status in STATUS_NAMES}
        if len(statuses) < len(set(request.statuses)):
            raise InvalidRequest("statuses[] holds a status that is not known.", field="statuses[]")
        now = self._operations.clock.now()
        scope = f"threads {request.session_id} {sorted(statuses)}"
        after, limit = read_position(request.page, scope), page_limit(request.page)
        async with self._database.read(current_context().workspace_id) as tx:
            root, primary = await _root(tx, request.session_id, now)
            found: list[SessionThread] = []
            if after is None and (not statuses or STATUS_NAMES[primary.status] in statuses):
                found.append(primary)
            records = await ThreadStore(tx).page(request.session_id, statuses, after, limit + 1)
        found += [_message(record, root, now) for record in records]
        page = found[:limit]
        next_cursor = ""
        if len(found) > limit:
            last = page[-1]
            # The primary thread comes before all: behind it, the page begins at the beginning.
            created_at = datetime.fromisoformat(last.created_at)
            next_cursor = position_after(scope, created_at, "sthr_" if last is primary else last.id)
        return ListThreadsResponse(threads=page, page_info=PageInfo(next_cursor=next_cursor))

    async def GetThread(self, request: GetThreadRequest, context: Any) -> GetThreadResponse:
        """One thread."""
        async with self._database.read(current_context().workspace_id) as tx:
            return GetThreadResponse(thread=await self._read(tx, request.session_id, request.thread_id))

    async def ArchiveThread(self, request: ArchiveThreadRequest, context: Any) -> ArchiveThreadResponse:
        """Closes a thread that doesn't run; repeating it changes nothing."""
        session_id, thread_id = request.session_id, request.thread_id
        async with self._operations.unit(current_context().workspace_id) as unit:
            if not can_be_session(session_id):
                raise not_found(session_id)
            state = await unit.lock(session_id)
            if thread_id == state.thread_id:
                raise InvalidRequest(
                    f"{thread_id} is the primary thread of session {session_id}; it is archived with its session.",
                    field="thread_id",
                )
            await self._read(unit.tx, session_id, thread_id)
            await self._operations.threads.archive(unit, state, thread_id)
            return ArchiveThreadResponse(thread=await self._read(unit.tx, session_id, thread_id))

    async def _read(self, tx: Tx, session_id: str, thread_id: str) -> SessionThread:
        now = self._operations.clock.now()
        root, primary = await _root(tx, session_id, now)
        if thread_id == primary.id:
            return primary
        record = await ThreadStore(tx).get(session_id, thread_id) if can_exist(thread_id) else None
        if record is None:
            raise thread_not_found(session_id, thread_id)
        return _message(record, root, now)


async def _root(tx: Tx, session_id: str, now: datetime) -> tuple[SessionRecord, SessionThread]:
    """A session, and its primary thread."""
    record = await Sessions(tx).get(session_id) if can_be_session(session_id) else None
    if record is None:
        raise not_found(session_id)
    threads_json, turn_state, waits = await ThreadStore(tx).standing(session_id)
    primary = _message(record, record, now)
    if (threads := load(threads_json)) is not None:
        primary.usage.CopyFrom(usage_message(threads.own_usage))
        primary.status = STATUSES[_primary_status(record.row.status, turn_state, waits=waits)]
    return record, primary


def _primary_status(status: str, turn_state: str, *, waits: bool) -> Status:
    """Where the primary thread stands, while its session goes by the others as well."""
    if turn_state == TurnState.NONE and not waits and status in (Status.RUNNING, Status.REQUIRES_ACTION):
        return Status.IDLE
    return Status(status)


def _message(record: SessionRecord, root: SessionRecord, now: datetime) -> SessionThread:
    shown, is_primary = session_message(record, now), record is root
    agent = shown.agent
    document = orjson.loads(agent.document_json)
    # The roster is the session's; a thread shows its agent without it.
    document.pop("multiagent", None)
    agent.document_json = orjson.dumps(document)
    return SessionThread(
        id=record.row.thread_id,
        session_id=root.row.id,
        parent_thread_id="" if is_primary else root.row.thread_id,
        agent=agent,
        status=shown.status,
        usage=shown.usage,
        active_seconds=shown.active_seconds,
        duration_seconds=shown.duration_seconds,
        created_at=shown.created_at,
        updated_at=shown.updated_at,
        archived_at=shown.archived_at,
        last_seq=shown.last_seq,
    )

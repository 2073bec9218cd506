"""Reading event logs: pages for listings, a stream of batches for replay.

This is half of EventsService; `handlers/events.py` appends. Nothing here decodes an
event. A cursor belongs to one session with its filters and order; within them it names
the seq after which to go on.
"""

from collections.abc import AsyncIterator
from typing import TypeVar

import orjson

from kit.pages import decode_cursor, encode_cursor
from kit.postgres import Database, Tx
from kit.rpc.context import current_context
from managed_agents.sessions.v1.common_pb2 import PageInfo
from managed_agents.sessions.v1.sessions_pb2 import (
    ListEventsRequest,
    ListEventsResponse,
    ReadEventsRequest,
    ReadEventsResponse,
)
from services.sessions.domain.session_errors import EventNotFound, InvalidRequest
from services.sessions.handlers.definitions import can_be_session, can_exist, page_limit
from services.sessions.handlers.moments import read_bounds
from services.sessions.handlers.session_messages import STATUSES, event_messages
from services.sessions.operations.core import not_found, thread_not_found
from services.sessions.store.event_pages import EventFilter
from services.sessions.store.event_reads import EventReads, JoinedPage, LateRead, LogEnd
from services.sessions.store.threads import ThreadStore

# Events in one message of a replay.
BATCH_EVENTS = 1000
FRAMED_BATCH_EVENTS = 5000
MAX_TYPES = 100

R = TypeVar("R", ListEventsRequest, ReadEventsRequest)


class EventReadsHandlers:
    """ListEvents and ReadEvents."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def ListEvents(self, request: ListEventsRequest, context: object) -> ListEventsResponse:
        """One page of a log, in either order."""
        _check_texts(request)
        if request.thread_id:
            request = await self._of_thread(request)
        scope = _scope(request)
        narrowed = EventFilter(types=tuple(request.types), **read_bounds(request))
        async with self._database.read(current_context().workspace_id) as tx:
            reads = EventReads(tx)
            after_seq = await _start(reads, request, scope)
            limit = page_limit(request.page)
            if request.joined:
                joined = await reads.joined_page(
                    request.session_id, narrowed, after_seq, descending=request.descending, limit=limit
                )
                return _joined_message(request.session_id, joined, scope)
            page = await reads.page(request.session_id, narrowed, after_seq, descending=request.descending, limit=limit)
        if page is None:
            raise not_found(request.session_id)
        next_cursor = encode_cursor(scope, {"seq": page.events[-1][0]}) if page.has_more else ""
        return ListEventsResponse(events=event_messages(page.events), page_info=PageInfo(next_cursor=next_cursor))

    async def ReadEvents(self, request: ReadEventsRequest, context: object) -> AsyncIterator[ReadEventsResponse]:
        """The log after a seq, up to its end when the call came; at least one message."""
        workspace_id = current_context().workspace_id
        if not can_be_session(request.session_id):
            raise not_found(request.session_id)
        if request.thread_id:
            request = await self._of_thread(request)
        async with self._database.read(workspace_id) as tx:
            end = await EventReads(tx).end_of(request.session_id)
            if end is None:
                raise not_found(request.session_id)
            late = await _read_late(tx, request, end)
            message, read_up_to = await _read(tx, request, request.after_seq, end, late)
            message.unread_seqs.extend(_waiting(request, end, late))
        yield message
        # Between batches no connection is held: the reader decides how fast this goes.
        while read_up_to < end.last_seq:
            async with self._database.read(workspace_id) as tx:
                message, read_up_to = await _read(tx, request, read_up_to, end, late)
            yield message

    async def _of_thread(self, request: R) -> R:
        """The same request for the log of the thread that it names; the primary thread's is the session's."""
        session_id, thread_id = request.session_id, request.thread_id
        async with self._database.read(current_context().workspace_id) as tx:
            store = ThreadStore(tx)
            primary_id = await store.primary_of(session_id)
            if primary_id is None:
                raise not_found(session_id)
            is_there = can_exist(thread_id) and await store.belongs(session_id, thread_id)
        if thread_id != primary_id and not is_there:
            raise thread_not_found(session_id, thread_id)
        changed = type(request)()
        changed.CopyFrom(request)
        changed.session_id = session_id if thread_id == primary_id else thread_id
        return changed


async def _read(
    tx: Tx, request: ReadEventsRequest, after_seq: int, end: LogEnd, late: list[LateRead]
) -> tuple[ReadEventsResponse, int]:
    """The next batch, and the seq up to which the log was read with it."""
    message = ReadEventsResponse(last_seq=end.last_seq, status=STATUSES[end.status])
    if after_seq >= end.last_seq:
        return message, after_seq
    message.updates.extend(event_messages([event for read_seq, event in late if read_seq == after_seq + 1]))
    # A batch ends where the next one has updates to begin with.
    up_to_seq = next((read_seq - 1 for read_seq, _ in late if read_seq > after_seq + 1), end.last_seq)
    reads = EventReads(tx)
    if request.framed:
        framed = await reads.framed_batch(request.session_id, after_seq, up_to_seq, FRAMED_BATCH_EVENTS)
        if framed is None:
            return message, up_to_seq
        if not framed.ends:
            message.frames = framed.frames.encode()
            message.unread_seqs.extend(framed.unread_seqs)
            return message, framed.last_seq
    batch = await reads.batch(request.session_id, after_seq, up_to_seq, BATCH_EVENTS)
    message.events.extend(event_messages(batch))
    return message, batch[-1][0] if batch else up_to_seq


async def _read_late(tx: Tx, request: ReadEventsRequest, end: LogEnd) -> list[LateRead]:
    """The inputs that a reader who stands at `after_seq` may know unread, although they were read since."""
    if not 0 < request.after_seq < end.last_seq:
        return []
    return await EventReads(tx).read_late(request.session_id, request.after_seq, end.last_seq)


def _waiting(request: ReadEventsRequest, end: LogEnd, late: list[LateRead]) -> list[int]:
    """The inputs that such a reader knows unread, and that are."""
    if end.unread == "[]":
        return []
    known = {event[0] for _, event in late}
    return [seq for seq, *_ in orjson.loads(end.unread) if seq <= request.after_seq and seq not in known]


async def _start(reads: EventReads, request: ListEventsRequest, scope: str) -> int | None:
    if request.page.cursor and request.after_event_id:
        raise InvalidRequest("page and after_id name a position each; send one of them.", field="after_id")
    if request.page.cursor:
        return decode_cursor(request.page.cursor, scope)["seq"]
    if not request.after_event_id:
        return None
    seq = await reads.seq_of(request.session_id, request.after_event_id)
    if seq is None:
        if await reads.end_of(request.session_id) is None:
            raise not_found(request.session_id)
        raise EventNotFound(
            f"after_id names {request.after_event_id}, which is not in the log of session {request.session_id}.",
            field="after_id",
            event_id=request.after_event_id,
        )
    return seq


def _check_texts(request: ListEventsRequest) -> None:
    """What can't be in the database must not be asked of it."""
    if not can_be_session(request.session_id):
        raise not_found(request.session_id)
    if len(request.types) > MAX_TYPES:
        raise InvalidRequest(f"types[] takes at most {MAX_TYPES} values.", field="types[]")
    for field, values in (("types[]", request.types), ("after_id", [request.after_event_id])):
        if any("\x00" in value for value in values):
            raise InvalidRequest(f"{field} must not contain NUL characters.", field=field)


def _scope(request: ListEventsRequest) -> str:
    narrowed = [
        request.session_id,
        request.descending,
        sorted(set(request.types)),
        request.created_at_gt,
        request.created_at_gte,
        request.created_at_lt,
        request.created_at_lte,
    ]
    return "events" + orjson.dumps(narrowed).decode()


def _joined_message(session_id: str, page: JoinedPage | None, scope: str) -> ListEventsResponse:
    if page is None:
        raise not_found(session_id)
    cursor = "" if page.next_after is None else encode_cursor(scope, {"seq": page.next_after})
    return ListEventsResponse(bodies=page.bodies.encode(), page_info=PageInfo(next_cursor=cursor))

"""The threads of a session: list, read, archive, and follow their logs."""

from __future__ import annotations

from managed_agents.sessions.v1 import threads_pb2 as pb
from managed_agents.sessions.v1.common_pb2 import Page

from ..operation import Call, Operation, limit, many, page
from ..render.splice import collection
from ..render.threads import render_thread
from ..schemas.sessions import EventPage
from ..schemas.threads import SessionThread, ThreadPage
from ..streams import EventStream, Hub
from ..streams.frames import Frame
from .events import DELTAS, LOG_QUERY, list_events, read_cursor
from .sessions import read_statuses

TAG = "Threads"
MAX_PAGE = 1000
PATH = "/v1/sessions/{session_id}/threads"
ONE = PATH + "/{thread_id}"


async def list_threads(call: Call) -> bytes:
    """GET /v1/sessions/{session_id}/threads."""
    request = pb.ListThreadsRequest(
        session_id=call.path["session_id"],
        page=Page(limit=call.query["limit"], cursor=call.query["page"]),
        statuses=read_statuses(call),
    )
    answer = await call.ask(call.clients.threads.ListThreads, request)
    return collection([render_thread(each, published=call.published) for each in answer.threads], answer.page_info)


async def get_thread(call: Call) -> bytes:
    """GET /v1/sessions/{session_id}/threads/{thread_id}."""
    return render_thread(await _thread(call), published=call.published)


async def archive_thread(call: Call) -> bytes:
    """POST /v1/sessions/{session_id}/threads/{thread_id}/archive."""
    request = pb.ArchiveThreadRequest(session_id=call.path["session_id"], thread_id=call.path["thread_id"])
    answer = await call.ask(call.clients.threads.ArchiveThread, request)
    return render_thread(answer.thread, published=call.published)


class ThreadRoutes:
    """Routes that need the stream hub beside the clients."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def stream_thread(self, call: Call) -> EventStream:
        """GET /v1/sessions/{session_id}/threads/{thread_id}/stream."""
        thread = await _thread(call)
        is_primary = not thread.parent_thread_id
        return EventStream(
            call,
            self._hub,
            thread.session_id,
            # The primary thread's log is the session's.
            thread_id="" if is_primary else thread.id,
            after_seq=read_cursor(call),
            delta_types=call.query["event_deltas[]"],
            stop_after=None if is_primary else _ends_thread,
        )

    def operations(self) -> tuple[Operation, ...]:
        """The table of these routes."""
        return (
            Operation(
                "GET",
                PATH,
                list_threads,
                tag=TAG,
                summary="List the threads of a session",
                description="The primary thread, and one for each agent that a coordinator put to work.",
                query=(
                    limit(default=MAX_PAGE, maximum=MAX_PAGE),
                    page(),
                    many("statuses[]", max_items=16, names=("statuses",), description="Only threads in one of these."),
                ),
                response=ThreadPage,
            ),
            Operation("GET", ONE, get_thread, tag=TAG, summary="Retrieve a thread", response=SessionThread),
            Operation(
                "POST",
                ONE + "/archive",
                archive_thread,
                tag=TAG,
                summary="Archive a thread for good",
                response=SessionThread,
            ),
            Operation(
                "GET",
                ONE + "/events",
                list_events,
                tag=TAG,
                summary="List the events of a thread",
                query=LOG_QUERY,
                response=EventPage,
            ),
            Operation(
                "GET",
                ONE + "/stream",
                self.stream_thread,
                tag=TAG,
                summary="Follow the events of a thread",
                description="With `Last-Event-ID: n` everything after seq n comes first; without it, from now on.",
                query=(DELTAS,),
                stream=True,
            ),
        )


async def _thread(call: Call) -> pb.SessionThread:
    request = pb.GetThreadRequest(session_id=call.path["session_id"], thread_id=call.path["thread_id"])
    return (await call.ask(call.clients.threads.GetThread, request)).thread


def _ends_thread(frame: Frame) -> bool:
    """Whether nothing can follow in the log of a thread."""
    return frame.type == "session.thread_status_terminated"

"""The event log of a session: send, list, follow."""

from __future__ import annotations

from typing import Any

import orjson

from managed_agents.sessions.v1 import sessions_pb2 as pb
from managed_agents.sessions.v1.common_pb2 import Page

from ..errors import InvalidRequest
from ..operation import Call, Operation, choice, limit, many, page, text, timestamp
from ..operation import body as request_body
from ..render.events import is_published, render_event
from ..render.splice import collection
from ..schemas.sessions import EventPage, EventsSend, MessageSend, SentEvents
from ..streams import CURSOR_HEADER, EventStream, Hub, ends_turn

TAG = "Events"
MAX_PAGE = 1000
MAX_SEND_BYTES = 16 * 1024 * 1024
REPLACEMENT = "\ufffd"
DELTAS = many(
    "event_deltas[]",
    max_items=100,
    values=("agent.message", "agent.thinking"),
    names=("event_deltas",),
    description="Types that this connection also gets previews of.",
)
LOG_QUERY = (
    limit(maximum=MAX_PAGE),
    page(),
    text("after_id", max_length=128, description="The event after which to start."),
    many("types[]", max_items=100, names=("types",), description="Only these types."),
    choice("order", ("asc", "desc"), default="asc", description="By seq."),
    timestamp("created_at[gt]", description="Created after."),
    timestamp("created_at[gte]", description="Created at or after."),
    timestamp("created_at[lt]", description="Created before."),
    timestamp("created_at[lte]", description="Created at or before."),
)


class EventRoutes:
    """Routes that need the stream hub beside the clients."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def send_events(self, call: Call) -> bytes:
        """POST /v1/sessions/{session_id}/events."""
        events = call.body.events
        if b"\\u0000" in call.raw_body:
            events = without_nul(events)
        answer = await _append(call, orjson.dumps(events))
        return _sent(answer, published=call.published)

    async def send_message(self, call: Call) -> bytes | EventStream:
        """POST /v1/sessions/{session_id}/messages."""
        answer = await _append(call, orjson.dumps([{"type": "user.message", "content": call.body.content}]))
        if not call.body.stream:
            return _sent(answer, published=call.published)
        # From the message itself on: whatever happened between the append and the stream is replayed.
        return EventStream(
            call,
            self._hub,
            call.path["session_id"],
            after_seq=answer.events[0].seq - 1,
            delta_types=call.query["event_deltas[]"],
            stop_after=lambda frame: frame.type == "session.status_idle" and ends_turn(frame),
        )

    async def stream_events(self, call: Call) -> EventStream:
        """GET /v1/sessions/{session_id}/events/stream."""
        return EventStream(
            call,
            self._hub,
            call.path["session_id"],
            after_seq=read_cursor(call),
            delta_types=call.query["event_deltas[]"],
        )

    async def stream_session(self, call: Call) -> EventStream:
        """GET /v1/sessions/{session_id}/stream: the older spelling."""
        return await self.stream_events(call)

    def operations(self) -> tuple[Operation, ...]:
        """The table of these routes."""
        return (
            Operation(
                "GET",
                "/v1/sessions/{session_id}/events",
                list_events,
                tag=TAG,
                summary="List the events of a session",
                holders="session",
                query=LOG_QUERY,
                response=EventPage,
            ),
            Operation(
                "POST",
                "/v1/sessions/{session_id}/events",
                self.send_events,
                tag=TAG,
                summary="Send events to a session",
                description="All are stored or none: messages, interrupts, confirmations, tool results.",
                holders="session",
                body=EventsSend,
                # Tools may say anything: what workers answer is made fit to be stored.
                nul_in_body=True,
                response=SentEvents,
                idempotent_write=True,
                max_body_bytes=MAX_SEND_BYTES,
            ),
            Operation(
                "POST",
                "/v1/sessions/{session_id}/messages",
                self.send_message,
                tag=TAG,
                summary="Send a user message, and follow its turn if asked to",
                query=(DELTAS,),
                body=MessageSend,
                response=SentEvents,
                idempotent_write=True,
                max_body_bytes=MAX_SEND_BYTES,
                may_stream=True,
            ),
            *(
                Operation(
                    "GET",
                    path,
                    handler,
                    tag=TAG,
                    summary="Follow the events of a session",
                    holders="session",
                    description="With `Last-Event-ID: n` everything after seq n comes first; without it, from now on.",
                    query=(DELTAS,),
                    stream=True,
                )
                for path, handler in (
                    ("/v1/sessions/{session_id}/events/stream", self.stream_events),
                    ("/v1/sessions/{session_id}/stream", self.stream_session),
                )
            ),
        )


async def list_events(call: Call) -> bytes:
    """GET /v1/sessions/{session_id}/events, and of a thread below it."""
    query = call.query
    is_worker = call.admitted.principal.role == "worker"
    request = pb.ListEventsRequest(
        session_id=call.path["session_id"],
        thread_id=call.path.get("thread_id", ""),
        page=Page(limit=query["limit"], cursor=query["page"]),
        after_event_id=query["after_id"],
        types=query["types[]"],
        descending=query["order"] == "desc",
        created_at_gt=query["created_at[gt]"],
        created_at_gte=query["created_at[gte]"],
        created_at_lt=query["created_at[lt]"],
        created_at_lte=query["created_at[lte]"],
        # The published projection looks at each event; the local one is what is stored.
        joined=not call.published and not is_worker,
    )
    answer = await call.ask(call.clients.events.ListEvents, request)
    if answer.bodies:
        return collection((answer.bodies,), answer.page_info)
    events = [event for event in answer.events if concerns_workers(event)] if is_worker else answer.events
    return collection(_rendered(events, published=call.published), answer.page_info)


def concerns_workers(event: Any) -> bool:
    """Whether a worker is to find an event in the history.

    A call that the platform runs is none of its business. The published worker would take one for open, since it looks
    for a `user.tool_result`, and never leave the session.
    """
    return event.type != "agent.tool_use" or b'"executor":"worker"' in event.body


async def _append(call: Call, events_json: bytes) -> pb.AppendEventsResponse:
    request = pb.AppendEventsRequest(
        session_id=call.path["session_id"], events_json=events_json, idempotency=call.idempotency()
    )
    return await call.ask(call.clients.events.AppendEvents, request)


def without_nul(events: list[Any]) -> list[Any]:
    """Results of workers with their NUL characters replaced; InvalidRequest where another event holds one."""
    fit = [_replaced(event) if _is_workers_result(event) else event for event in events]
    # Once for all of them, so that a refusal names the event by its place.
    request_body.parse(orjson.dumps({"events": fit}))
    return fit


def _is_workers_result(event: Any) -> bool:
    return isinstance(event, dict) and event.get("type") == "user.tool_result"


def _replaced(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\x00", REPLACEMENT)
    if isinstance(value, dict):
        return {_replaced(name): _replaced(member) for name, member in value.items()}
    return [_replaced(member) for member in value] if isinstance(value, list) else value


def _rendered(events: Any, *, published: bool) -> list[bytes]:
    if not published:
        return [event.body for event in events]
    return [render_event(event, published=True) for event in events if is_published(event.type)]


def _sent(answer: pb.AppendEventsResponse, *, published: bool) -> bytes:
    body = b'{"data":[%b]' % b",".join(_rendered(answer.events, published=published))
    if not answer.steer_receipts_json:
        return body + b"}"
    receipts = orjson.loads(answer.steer_receipts_json)
    accepted = all(receipt["state"] not in ("rejected", "conflict") for receipt in receipts)
    steer = receipts[0] if len(receipts) == 1 else receipts
    return body + b',"accepted":%b,"steer":%b}' % (b"true" if accepted else b"false", orjson.dumps(steer))


def read_cursor(call: Call) -> int | None:
    """The seq after which a stream begins; None starts live."""
    value = call.headers.get(CURSOR_HEADER)
    if value is None or value == "":
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 18):
        raise InvalidRequest("Last-Event-ID must be the seq of an event: a whole number from 0.", field=CURSOR_HEADER)
    return int(value)

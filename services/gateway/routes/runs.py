"""Runs: one turn of one session, in one call.

A run is a session that is made with its first message, so `run_id` is the session's id and
everything else about it is read under `/v1/sessions`. The turn belongs to the session: no
deadline and no client that hangs up ends it, and a failure is told by the turn itself in
the session's log.
"""

from __future__ import annotations

from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from kit.errors import DomainError
from managed_agents.sessions.v1 import sessions_pb2 as pb

from ..errors import InvalidAgentRef, InvalidRequest
from ..operation import Call, Operation
from ..operation.body import ClientGone
from ..operation.dispatch import send_json
from ..render.sessions import LOCAL_STATUS
from ..schemas.runs import Run, RunCreate
from ..streams import EventStream, Hub, TurnWait, ends_turn, while_there
from ..streams.line import Line

TAG = "Runs"
# Of a caller who sets no deadline of its own.
DEFAULT_WAIT_SECONDS = 600.0
MAX_SEND_BYTES = 16 * 1024 * 1024
_FAILED = ("retries_exhausted",)
_CONTENT = "initial_events.0.content"


class RunRoutes:
    """The route that needs the stream hub beside the clients."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def create_run(self, call: Call) -> Any:
        """POST /v1/runs."""
        session = await _start(call)
        mode = call.body.response_mode or "wait"
        if mode == "async":
            return _Handle(session.id, LOCAL_STATUS[session.status])
        if mode == "sse":
            return EventStream(
                call,
                self._hub,
                session.id,
                after_seq=0,
                stop_after=ends_turn,
                headers=((b"run-id", session.id.encode()),),
            )
        seconds = call.body.max_wait_seconds
        return _Wait(call, self._hub, session.id, DEFAULT_WAIT_SECONDS if seconds is None else seconds)

    def operations(self) -> tuple[Operation, ...]:
        """The table of this route."""
        return (
            Operation(
                "POST",
                "/v1/runs",
                self.create_run,
                tag=TAG,
                summary="Run one turn of a new session",
                description="`wait` answers with the result, `sse` with the events, `async` with where to read them.",
                body=RunCreate,
                response=Run,
                other_statuses=(202,),
                idempotent_write=True,
                max_body_bytes=MAX_SEND_BYTES,
                may_stream=True,
            ),
        )


class _Handle:
    """Where a run that goes on is to be read: 202."""

    def __init__(self, session_id: str, status: str, **more: Any) -> None:
        self._body = {
            "run_id": session_id,
            "session_id": session_id,
            "status": status,
            "events_url": f"/v1/sessions/{session_id}/events",
            "stream_url": f"/v1/sessions/{session_id}/events/stream",
            **more,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 202, orjson.dumps(self._body))


class _Wait:
    """Answers with the turn's result, or with the handle once the deadline has passed."""

    def __init__(self, call: Call, hub: Hub, session_id: str, seconds: float) -> None:
        self._call = call
        self._hub = hub
        self._session_id = session_id
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wait = TurnWait(self._session_id, self._seconds)
        line = Line.of(scope)
        if line is None:
            await while_there(receive, self._serve(scope, receive, send, wait))
            return
        line.watch(wait.abandon)
        try:
            await self._serve(scope, receive, send, wait)
        finally:
            line.release()

    async def _serve(self, scope: Scope, receive: Receive, send: Send, wait: TurnWait) -> None:
        await wait.until_over(self._call, self._hub)
        if wait.abandoned:
            raise ClientGone
        if wait.last is None:
            # The deadline, or a gateway that stops: the run itself goes on.
            session = await _read(self._call, self._session_id)
            handle = _Handle(session.id, LOCAL_STATUS[session.status], wait_deadline_reached=wait.deadline_reached)
            await handle(scope, receive, send)
            return
        await send_json(send, 200, orjson.dumps(_result(self._session_id, wait, wait.last)))


def _result(session_id: str, wait: TurnWait, last: dict[str, Any]) -> dict[str, Any]:
    stop_reason = last.get("stop_reason") or {}
    idle = last["type"] == "session.status_idle"
    status = "terminated" if not idle else "requires_action" if stop_reason["type"] == "requires_action" else "idle"
    result: dict[str, Any] = {
        "run_id": session_id,
        "session_id": session_id,
        "status": status,
        "output": wait.output,
        "usage": wait.usage,
    }
    if stop_reason:
        result["stop_reason"] = stop_reason
    if status == "requires_action":
        result["event_ids"] = stop_reason["event_ids"]
    if wait.error is not None and (not idle or stop_reason["type"] in _FAILED):
        result["error"] = wait.error
    return result


async def _start(call: Call) -> pb.Session:
    """The session at work, or the refusal of what it was asked to be made of."""
    body: RunCreate = call.body
    if body.input is None:
        raise InvalidRequest("input is required: a text, or an array of content blocks.", field="input")
    if isinstance(body.agent, dict) and body.agent.get("type") == "agent_with_overrides":
        raise InvalidAgentRef(
            "agent must be an agent id or an object of type agent; a run takes no overrides.", field="agent"
        )
    settings = body.session.model_dump(exclude_unset=True) if body.session is not None else {}
    definition = settings | {"initial_events": [{"type": "user.message", "content": body.input}]}
    if body.agent is not None:
        definition["agent"] = body.agent
    request = pb.CreateSessionRequest(definition_json=orjson.dumps(definition), idempotency=call.idempotency())
    try:
        answer = await call.ask(call.clients.sessions.CreateSession, request)
    except DomainError as refusal:
        raise _named_as_sent(refusal, settings) from None
    return answer.session


def _named_as_sent(refusal: DomainError, settings: dict[str, Any]) -> DomainError:
    """The refusal with the field where this caller put it; a service names a field at the start of its sentence."""
    field, _, rest = str(refusal.message).partition(" ")
    if field.startswith(_CONTENT):
        return InvalidRequest(f"{field.replace(_CONTENT, 'input', 1)} {rest}")
    if field.partition(".")[0] in settings:
        refusal.message = f"session.{field} {rest}"
    return refusal


async def _read(call: Call, session_id: str) -> pb.Session:
    answer = await call.ask(call.clients.sessions.GetSession, pb.GetSessionRequest(session_id=session_id))
    return answer.session

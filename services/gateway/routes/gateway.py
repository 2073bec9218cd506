"""The session gateway: plain HTTP and event streams over the same sessions as everything else.

A write answers with the stream of its run, from `started` to its end, or to where it waits for a person; a client that
hangs up changes nothing, and comes back by index. What is told is a projection of the log (`render/gateway.py`); who
may see a session is the sessions service's to say, on every request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from kit.telemetry import tracer
from managed_agents.sessions.v1 import gateway_pb2 as pb
from managed_agents.sessions.v1.sessions_pb2 import ReadEventsRequest

from ..errors import InvalidRequest
from ..operation import Call, Operation, integer
from ..render.engines import without_engine_secrets
from ..render.gateway import Projector
from ..schemas.gateway import Cancellation, GatewayCancel, GatewayRun, GatewaySend
from ..streams import CURSOR_HEADER, Hub
from ..streams.gateway_stream import GatewayStream, Places

TAG = "Session gateway"
MAX_SEND_BYTES = 16 * 1024 * 1024
MAX_INDEX = 2**31 - 1
BASES = {False: "/api/agents/{agent_id}/eve/v1", True: "/api/agents/{agent_id}/preview/eve/v1"}
ONE_OF = "Send exactly one of message, inputResponses and turnId."


class GatewayRoutes:
    """Both doors, the published and the preview one, over one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._places = Places()

    def operations(self) -> tuple[Operation, ...]:
        """The table of these routes."""
        return tuple(
            each for preview, base in BASES.items() for each in _Door(self._hub, self._places, preview).at(base)
        )


@dataclass(frozen=True, slots=True)
class _Door:
    hub: Hub
    places: Places
    preview: bool

    async def send(self, call: Call) -> Any:
        """POST …/session and …/session/{session_id}."""
        body: GatewaySend = call.body
        sent = [name for name in ("message", "inputResponses", "turnId") if getattr(body, name) is not None]
        if len(sent) != 1:
            raise InvalidRequest(
                f"{ONE_OF} Sent: {', '.join(sent) or 'none of them'}.", field=sent[0] if sent else None
            )
        session_id = self._session_id(call)
        if body.turnId is not None:
            return await self._cancel(call, session_id, body.turnId)
        if body.message is not None:
            return await self._start(call, session_id, body.message)
        return await self._answer(call, session_id)

    async def stream(self, call: Call) -> GatewayStream:
        """GET …/session/{session_id}/stream."""
        session_id = call.path["session_id"]
        index = _first_index(call)
        await call.ask(
            call.clients.gateway.OpenSession, pb.OpenSessionRequest(caller=self._caller(call), session_id=session_id)
        )
        return GatewayStream(call, self.hub, self.places, session_id, index=index)

    async def cancel(self, call: Call) -> bytes:
        """POST …/session/{session_id}/cancel."""
        return await self._cancel(call, call.path["session_id"], call.body.turnId or "")

    async def read_run(self, call: Call) -> bytes:
        """GET …/session/{session_id}/runs/{run_id}."""
        request = pb.GetRunRequest(
            caller=self._caller(call), session_id=call.path["session_id"], run_id=call.path["run_id"]
        )
        run = (await call.ask(call.clients.gateway.GetRun, request)).run
        projector = Projector(run.session_id)
        projector.seq = run.first_seq - 1
        events = call.follow(call.clients.events.ReadEvents, _after(run.session_id, projector.seq))
        async for batch in events:
            for event in batch.events:
                projector.take(event.seq, event.id, event.type, event.body)
                if projector.run is not None and projector.run.is_over:
                    return _rendered(call, run, projector)
        return _rendered(call, run, projector)

    async def _start(self, call: Call, session_id: str, message: Any) -> GatewayStream:
        request = pb.StartRunRequest(
            caller=self._caller(call),
            session_id=session_id,
            message_json=orjson.dumps(message),
            idempotency=call.idempotency(),
        )
        answer = await call.ask(call.clients.gateway.StartRun, request)
        headers = ((b"session-id", answer.session_id.encode()), (b"run-id", answer.run_id.encode()))
        return GatewayStream(call, self.hub, self.places, answer.session_id, seq=answer.first_seq, headers=headers)

    async def _answer(self, call: Call, session_id: str) -> GatewayStream:
        if not session_id:
            raise InvalidRequest("sessionId is required with inputResponses.", field="sessionId")
        answers = [
            pb.InputAnswer(request_id=each.requestId, option_id=each.optionId or "", text=each.text)
            for each in call.body.inputResponses
        ]
        request = pb.AnswerInputRequest(
            caller=self._caller(call), session_id=session_id, answers=answers, idempotency=call.idempotency()
        )
        answer = await call.ask(call.clients.gateway.AnswerInput, request)
        headers = ((b"session-id", session_id.encode()),)
        return GatewayStream(call, self.hub, self.places, session_id, seq=answer.first_seq, headers=headers)

    async def _cancel(self, call: Call, session_id: str, run_id: str) -> bytes:
        request = pb.CancelRunRequest(caller=self._caller(call), session_id=session_id, run_id=run_id)
        answer = await call.ask(call.clients.gateway.CancelRun, request)
        status = "cancelling" if answer.was_active else "over"
        return orjson.dumps({"sessionId": answer.session_id, "turnId": run_id or None, "status": status})

    def _caller(self, call: Call) -> pb.GatewayCaller:
        with tracer().start_as_current_span("gateway.access"):
            return pb.GatewayCaller(
                agent_id=call.path["agent_id"], preview=self.preview, owner=call.admitted.principal.id
            )

    def _session_id(self, call: Call) -> str:
        named, sent = call.path.get("session_id", ""), call.body.sessionId or ""
        if named and sent and named != sent:
            raise InvalidRequest("sessionId names another session than the path.", field="sessionId")
        return named or sent

    def at(self, base: str) -> tuple[Operation, ...]:
        """The table of one door."""
        of_session, which = f"{base}/session/{{session_id}}", "newest saved" if self.preview else "published"
        return (
            _write(f"{base}/session", self.send, f"Start a session with the {which} version of an agent"),
            _write(of_session, self.send, "Go on with a session: the next message, or what a person answered"),
            Operation(
                "GET",
                f"{of_session}/stream",
                self.stream,
                tag=TAG,
                summary="Replay the events of a session, and follow them",
                description="From `startIndex` on, or after `Last-Event-ID`; all of them where neither is sent.",
                query=(integer("startIndex", minimum=0, maximum=MAX_INDEX, description="The first index to send."),),
                stream=True,
            ),
            Operation(
                "POST",
                f"{of_session}/cancel",
                self.cancel,
                tag=TAG,
                summary="Cancel what a session does",
                description="Repeating it changes nothing. The stream of the run ends with `cancelled`.",
                body=GatewayCancel,
                optional_body=True,
                response=Cancellation,
            ),
            Operation(
                "GET",
                f"{of_session}/runs/{{run_id}}",
                self.read_run,
                tag=TAG,
                summary="Read a run and the configuration that was frozen onto it",
                response=GatewayRun,
            ),
        )


def _write(path: str, handler: Callable[[Call], Awaitable[Any]], summary: str) -> Operation:
    return Operation(
        "POST",
        path,
        handler,
        tag=TAG,
        summary=summary,
        description="Answers with the events of the run, up to its end or to where it waits for a person.",
        body=GatewaySend,
        response=Cancellation,
        idempotent_write=True,
        max_body_bytes=MAX_SEND_BYTES,
        may_stream=True,
    )


def _first_index(call: Call) -> int:
    """Where a client is: `Last-Event-ID` is newer than the URL that a browser opened once."""
    last = call.headers.get(CURSOR_HEADER, "")
    if not last:
        return call.query["startIndex"] or 0
    if not (last.isascii() and last.isdigit() and len(last) <= 10):
        raise InvalidRequest("Last-Event-ID must be the index of an event: a whole number from 0.", field=CURSOR_HEADER)
    return int(last) + 1


def _after(session_id: str, seq: int) -> ReadEventsRequest:
    return ReadEventsRequest(session_id=session_id, after_seq=seq)


def _rendered(call: Call, run: pb.GatewayRun, projector: Projector) -> bytes:
    state = projector.run
    body: dict[str, Any] = {
        "runId": run.id,
        "turnId": run.id,
        "sessionId": run.session_id,
        "agentId": call.path["agent_id"],
        "agentVersion": run.agent_version,
        "status": state.status if state is not None else "running",
        "startedAt": run.created_at,
        "configuration": orjson.loads(without_engine_secrets(run.configuration_json)),
        "traceId": run.trace_id or None,
        "eventsUrl": f"/v1/sessions/{run.session_id}/events",
    }
    if state is not None and state.waiting:
        body["pending"] = list(state.waiting)
    if state is not None and state.status == "completed":
        body["output"] = state.text
    if state is not None and state.status == "failed":
        body |= state.error or {}
    return orjson.dumps(body)

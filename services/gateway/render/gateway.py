"""The events of the session gateway: what they are, as a pure function of a session's log.

    projector = Projector(session_id)
    for event in log: told += projector.take(event.seq, event.id, event.type, event.body)

The same log gives the same events with the same indices, whether it comes at once or bit by bit, so nothing is stored
of them and a reconnect at any index gets what it missed. What the model says comes in the parts in which the log has
it: a session of the gateway has its text written while the model speaks (`agent.message_part`), and the rest of it
with the message itself.

An event starts a run where none is under way and names it (`run_…` for `sevt_…`). A run ends with `completed`,
`failed` or `cancelled`; while it waits for a person it is paused, and `started` comes again, as `resumed`, when it
goes on. Text of an answer that broke off, because the model or its runner failed, is asked for anew: the first delta
of the new text then tells with `replaces` from which index on the former text counts no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import orjson

STARTED, DELTA, INPUT = "started", "text-delta", "input-requested"
COMPLETED, FAILED, CANCELLED = "completed", "failed", "cancelled"
ENDS = (COMPLETED, FAILED, CANCELLED)
TYPES = (STARTED, DELTA, INPUT, *ENDS)
PART = "agent.message_part"
BLOCKED = "session.guardrail_blocked"
# Between two messages of one run.
BREAK = "\n\n"
OPTIONS = ({"id": "approve", "label": "Approve"}, {"id": "deny", "label": "Deny"})
_PROMPTS = ("question", "prompt", "message", "text")
_MESSAGES = {
    "refusal": "The model declined to answer.",
    "budget_reached": "The session has reached its budget.",
    "retries_exhausted": "The turn failed.",
    "session_ended": "The session was ended.",
}


@dataclass(frozen=True, slots=True)
class GatewayEvent:
    """One event with its place."""

    index: int
    type: str
    body: bytes

    def frame(self) -> bytes:
        """As a stream sends it."""
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (self.index, self.type.encode(), self.body)


@dataclass(slots=True)
class Run:
    """What is known of the run that is under way, or was the last one."""

    id: str
    # Index of its `started`.
    first_index: int
    first_seq: int
    status: str = "running"
    waiting: tuple[str, ...] = ()
    is_cancelled: bool = False
    # What it said in messages that are whole.
    output: tuple[str, ...] = ()
    error: dict[str, Any] | None = None
    # Calls that a person may have to decide on or answer: event id → what is shown of it.
    calls: dict[str, dict[str, Any]] = field(default_factory=dict)
    # The message that is being spoken, how much of it was told, and where that begins.
    message_id: str = ""
    told: int = 0
    told_from: int = -1
    # Where text begins that was given up for another try.
    replaces: int | None = None

    @property
    def text(self) -> str:
        """The visible answer."""
        return BREAK.join(self.output)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.status in ENDS


class Projector:
    """Takes a log event by event."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.index = 0
        self.seq = 0
        self.run: Run | None = None

    def fork(self) -> Projector:
        """The same place once more. Only where no run is under way: nothing is kept of those that were."""
        assert self._active is None
        fork = copy(self)
        fork.run = None
        return fork

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing comes before a person does something."""
        return self.run is None or self.run.is_over or self.run.status == "waiting"

    @property
    def is_between_runs(self) -> bool:
        """Whether no run is under way."""
        return self._active is None

    def take(self, seq: int, event_id: str, event_type: str, body: bytes) -> list[GatewayEvent]:
        """What one event of the log comes to. One that was seen already comes to nothing."""
        if seq <= self.seq:
            return []
        self.seq = seq
        handle = _HANDLERS.get(event_type)
        if handle is None:
            return []
        return list(handle(self, event_id, orjson.loads(body)))

    def _tell(self, kind: str, **fields: Any) -> GatewayEvent:
        event = GatewayEvent(self.index, kind, orjson.dumps({"index": self.index, "type": kind, **fields}))
        self.index += 1
        return event

    @property
    def _active(self) -> Run | None:
        return self.run if self.run is not None and not self.run.is_over else None

    def _start(self, event_id: str, message: Any) -> Iterator[GatewayEvent]:
        run = self.run = Run("run_" + event_id.removeprefix("sevt_"), self.index, self.seq)
        told = {"message": message} if message else {}
        yield self._tell(STARTED, sessionId=self.session_id, runId=run.id, turnId=run.id, **told)

    def _on_message(self, event_id: str, body: dict[str, Any]) -> Iterator[GatewayEvent]:
        # One that comes while a run is under way is read by it.
        if self._active is None:
            yield from self._start(event_id, [block for block in body["content"] if block.get("type") == "text"])

    def _on_running(self, event_id: str, _body: dict[str, Any]) -> Iterator[GatewayEvent]:
        run = self._active
        if run is None:
            # Something else than a message put the session to work.
            yield from self._start(event_id, None)
        elif run.status == "waiting":
            run.status, run.waiting = "running", ()
            yield self._tell(STARTED, sessionId=self.session_id, runId=run.id, turnId=run.id, resumed=True)

    def _on_part(self, event_id: str, body: dict[str, Any]) -> Iterator[GatewayEvent]:
        if self._active is not None and "session_thread_id" not in body:
            yield from self._say(self._active, body["message_id"], body["offset"], body["text"])

    def _on_agent_message(self, event_id: str, body: dict[str, Any]) -> Iterator[GatewayEvent]:
        run = self._active
        if run is None or "session_thread_id" in body:
            return
        text = "".join(block.get("text") or "" for block in body["content"] if block.get("type") == "text")
        yield from self._say(run, event_id, 0, text)
        if text:
            run.output = (*run.output, text)
        run.message_id, run.told, run.told_from = "", 0, -1

    def _say(self, run: Run, message_id: str, offset: int, text: str) -> Iterator[GatewayEvent]:
        """Tells what of a message was not told yet."""
        if offset > run.told and run.message_id == message_id:
            # A part is missing before it: the message brings both.
            return
        if run.message_id not in ("", message_id):
            if run.told_from >= 0 and run.replaces is None:
                run.replaces = run.told_from
            run.told, run.told_from = 0, -1
        run.message_id = message_id
        fresh = text[max(0, run.told - offset) :]
        if not fresh:
            return
        run.told = offset + len(text)
        told: dict[str, Any] = {"delta": fresh}
        if run.told_from < 0:
            run.told_from = self.index
            if run.output:
                told["delta"] = BREAK + fresh
            if run.replaces is not None:
                told["replaces"], run.replaces = run.replaces, None
        yield self._tell(DELTA, **told)

    def _on_call(self, event_id: str, body: dict[str, Any]) -> Iterator[GatewayEvent]:
        run = self._active
        if run is not None and body.get("evaluated_permission") != "allow":
            shown = {"type": "confirmation", "tool": body.get("name"), "arguments": body.get("input")}
            if server := body.get("mcp_server_name"):
                shown["server"] = server
            run.calls[event_id] = shown | {"options": OPTIONS}
        return iter(())

    def _on_question(self, event_id: str, body: dict[str, Any]) -> Iterator[GatewayEvent]:
        run = self._active
        if run is not None:
            arguments = body.get("input")
            said = arguments if isinstance(arguments, dict) else {}
            prompt = next((said[name] for name in _PROMPTS if isinstance(said.get(name), str)), "")
            run.calls[event_id] = {
                "type": "question",
                "tool": body.get("name"),
                "prompt": prompt,
                "arguments": arguments,
            }
        return iter(())

    def _on_result(self, _event_id: str, body: dict[str, Any]) -> Iterator[GatewayEvent]:
        run = self._active
        if run is not None:
            for name in ("tool_use_id", "mcp_tool_use_id", "custom_tool_use_id"):
                run.calls.pop(str(body.get(name) or ""), None)
        return iter(())

    def _on_interrupt(self, _event_id: str, body: dict[str, Any]) -> Iterator[GatewayEvent]:
        if self._active is not None and not body.get("session_thread_id"):
            self._active.is_cancelled = True
        return iter(())

    def _on_error(self, _event_id: str, body: dict[str, Any]) -> Iterator[GatewayEvent]:
        run, error = self._active, body.get("error") or {}
        if run is not None and not (run.error or {}).get("guardrail"):
            run.error = {"code": error.get("type") or "unknown_error", "message": error.get("message") or ""}
        return iter(())

    def _on_blocked(self, _event_id: str, body: dict[str, Any]) -> Iterator[GatewayEvent]:
        if self._active is not None:
            self._active.error = {"code": body["code"], "message": body["message"], "guardrail": body["side"]}
        return iter(())

    def _on_idle(self, _event_id: str, body: dict[str, Any]) -> Iterator[GatewayEvent]:
        run = self._active
        if run is None:
            return
        reason = body.get("stop_reason") or {}
        kind = reason.get("type")
        if kind == "requires_action":
            # Calls that wait for workers are nobody's to answer here.
            waiting = (body.get("metadata") or {}).get("client_event_ids", reason.get("event_ids") or ())
            if not waiting:
                # They are done by machines, so the run is under way.
                yield from self._on_running(_event_id, body)
                return
            run.status, run.waiting = "waiting", tuple(waiting)
            for request_id in run.waiting:
                shown = run.calls.get(request_id) or {"type": "question", "prompt": ""}
                yield self._tell(
                    INPUT, requestId=request_id, input=shown, runId=run.id, turnId=run.id, pending=list(run.waiting)
                )
        elif run.is_cancelled:
            yield self._end(run, CANCELLED)
        elif kind == "end_turn":
            yield self._end(run, COMPLETED, output=run.text)
        else:
            yield self._fail(run, str(kind or "unknown_error"), body.get("stop_details"))

    def _on_terminated(self, _event_id: str, _body: dict[str, Any]) -> Iterator[GatewayEvent]:
        if self._active is not None:
            yield self._fail(self._active, "session_ended", None)

    def _fail(self, run: Run, code: str, details: Any) -> GatewayEvent:
        explanation = details.get("explanation") if isinstance(details, dict) else None
        told = {"code": code, "message": explanation or _MESSAGES.get(code, "The turn failed.")}
        if code in ("retries_exhausted", "session_ended") and run.error is not None:
            told = run.error
        run.error = told
        return self._end(run, FAILED, **told)

    def _end(self, run: Run, kind: str, **fields: Any) -> GatewayEvent:
        run.status, run.waiting, run.calls = kind, (), {}
        return self._tell(kind, **fields, runId=run.id, turnId=run.id)


_HANDLERS = {
    "user.message": Projector._on_message,
    "user.interrupt": Projector._on_interrupt,
    "user.custom_tool_result": Projector._on_result,
    "user.tool_result": Projector._on_result,
    "session.status_running": Projector._on_running,
    "session.status_idle": Projector._on_idle,
    "session.status_terminated": Projector._on_terminated,
    "session.deleted": Projector._on_terminated,
    "session.error": Projector._on_error,
    BLOCKED: Projector._on_blocked,
    PART: Projector._on_part,
    "agent.message": Projector._on_agent_message,
    "agent.tool_use": Projector._on_call,
    "agent.mcp_tool_use": Projector._on_call,
    "agent.custom_tool_use": Projector._on_question,
    "agent.tool_result": Projector._on_result,
    "agent.mcp_tool_result": Projector._on_result,
}

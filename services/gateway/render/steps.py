"""The answer of a step of the HTTP agent protocol, as a function of its session's log.

A `Reading` is given the events from the step's first one on, in order. What ends it:

- The turn waits for results of the caller's own tools: `tool_calls`, in the order of the log.
- The turn ends: `reply`, everything that the agent said since the step began. An interrupt
  takes back what came before it; a turn that it ended has no answer.
- The turn fails, or ends with its session: a refusal that says why.

A turn that waits for workers goes on by itself. One that waits for confirmations, or for a
higher budget, is paused: the caller can't give them, so where nothing newer is known that is
what it is told, and the same step reads on from there once they were given. Events that were read once never change,
so the same step gets the same answer, whoever reads it and whenever.
"""

from __future__ import annotations

from typing import Any

import orjson

from kit.errors import Aborted, DomainError, FailedPrecondition, Unavailable

_PARAGRAPH = "\n\n"
_GO_ON = "The conversation goes on with another message, or the same one under another Idempotency-Key."


class StepRequiresConfirmation(Aborted):
    """The turn waits for a confirmation, which a step has no way to give."""

    reason = "STEP_REQUIRES_CONFIRMATION"


class StepInterrupted(Aborted):
    """The turn was interrupted before it had an answer."""

    reason = "STEP_INTERRUPTED"


class StepTurnFailed(Unavailable):
    """The turn ended without an answer; the message says why."""

    reason = "STEP_TURN_FAILED"


class BudgetReached(FailedPrecondition):
    """The budget of the session ended the turn."""

    reason = "BUDGET_REACHED"


class SessionEnded(FailedPrecondition):
    """The session ended before the step had an answer."""

    reason = "SESSION_ENDED"


class Reading:
    """What a step's part of the log says so far."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        # The body of the answer, once there is one.
        self.answer: dict[str, Any] | None = None
        # What the step is refused with instead.
        self.refusal: DomainError | None = None
        self._texts: list[str] = []
        # The caller's own calls, by the id that it answers them by.
        self._calls: dict[str, dict[str, Any]] = {}
        # Other calls that nobody has to confirm, or that were.
        self._settled: set[str] = set()
        self._paused_for: list[str] = []
        self._is_at_budget = False
        # Threads that were interrupted since the last message; None stands for all of them.
        self._interrupted: set[str | None] = set()
        self._idle_thread: str | None = None
        self._error: dict[str, Any] = {}

    @property
    def is_paused(self) -> bool:
        """Whether the turn waits for confirmations or a higher budget, as far as is known."""
        return self._is_at_budget or bool(self._paused_for)

    def take(self, event_type: str, event: dict[str, Any]) -> bool:
        """One more event; True where the step is answered."""
        handle = _HANDLERS.get(event_type)
        if handle is not None:
            handle(self, event)
        return self.answer is not None or self.refusal is not None

    def body(self) -> bytes:
        """The answer; raises what the step is refused with."""
        if self.answer is not None:
            return orjson.dumps(self.answer)
        if self.refusal is not None:
            raise self.refusal
        if self._is_at_budget:
            raise BudgetReached(
                f"Session {self._session_id} reached its budget before the step had an answer. Raise or remove it, and"
                " then send the same step again.",
                details=self._details(),
            )
        raise StepRequiresConfirmation(
            f"The turn waits for the confirmation of {', '.join(self._paused_for)}, which the HTTP agent protocol can't"
            f" give. Send a user.tool_confirmation to session {self._session_id}, and then the same step again.",
            details=self._details(event_ids=self._paused_for),
        )

    def _message(self, event: dict[str, Any]) -> None:
        text = "".join(block.get("text", "") for block in event["content"] if block["type"] == "text")
        if text.strip():
            self._texts.append(text)

    def _custom_call(self, event: dict[str, Any]) -> None:
        self._calls[event["id"]] = {"id": event["id"], "name": event["name"], "arguments": event["input"]}

    def _own_call(self, event: dict[str, Any]) -> None:
        if event.get("evaluated_permission") != "ask":
            self._settled.add(event["id"])

    def _confirmation(self, event: dict[str, Any]) -> None:
        self._settled.add(event["tool_use_id"])
        self._paused_for = []

    def _interrupt(self, event: dict[str, Any]) -> None:
        self._paused_for = []
        self._interrupted.add(event.get("session_thread_id"))
        if event.get("session_thread_id") is None:
            self._texts.clear()

    def _said(self, event: dict[str, Any]) -> None:
        self._interrupted.clear()

    def _running(self, event: dict[str, Any]) -> None:
        self._paused_for = []
        self._is_at_budget = False

    def _failure(self, event: dict[str, Any]) -> None:
        self._error = event["error"]

    def _thread_idle(self, event: dict[str, Any]) -> None:
        # The one whose end the session's own idle follows is the primary one.
        self._idle_thread = event.get("session_thread_id")

    def _idle(self, event: dict[str, Any]) -> None:
        stop_reason = event["stop_reason"]
        kind = stop_reason["type"]
        if kind == "requires_action":
            self._wait_for(stop_reason["event_ids"])
        elif kind == "retries_exhausted":
            self._fail(self._error.get("message", "It failed."), type=self._error.get("type"))
        elif kind == "budget_reached":
            self._is_at_budget = True
        elif self._interrupted & {None, self._idle_thread}:
            self.refusal = StepInterrupted(
                f"The turn was interrupted before it had an answer. {_GO_ON}",
                details=self._details(),
            )
        elif kind == "refusal" and not self._texts:
            self._fail("The model refused to answer.", type="refusal")
        else:
            self.answer = {"reply": _PARAGRAPH.join(self._texts)}

    def _wait_for(self, event_ids: list[str]) -> None:
        others = [event_id for event_id in event_ids if event_id not in self._calls]
        self._paused_for = [event_id for event_id in others if event_id not in self._settled]
        # Where it names none, threads are about to go on.
        if event_ids and not others:
            wanted = set(event_ids)
            self.answer = {"tool_calls": [call for event_id, call in self._calls.items() if event_id in wanted]}

    def _end(self, event: dict[str, Any]) -> None:
        self.refusal = SessionEnded(
            f"Session {self._session_id} ended before the step had an answer, and its conversation with it.",
            details=self._details(error=self._error or None),
        )

    def _fail(self, message: str, **error: Any) -> None:
        self.refusal = StepTurnFailed(
            f"The turn failed: {message.rstrip('.')}. {_GO_ON}",
            details=self._details(error={**error, "message": message}),
        )

    def _details(self, **more: Any) -> str:
        return orjson.dumps({"session_id": self._session_id, **more}).decode()


_HANDLERS = {
    "agent.message": Reading._message,
    "agent.custom_tool_use": Reading._custom_call,
    "agent.tool_use": Reading._own_call,
    "agent.mcp_tool_use": Reading._own_call,
    "user.message": Reading._said,
    "user.interrupt": Reading._interrupt,
    "user.tool_confirmation": Reading._confirmation,
    "session.error": Reading._failure,
    "session.status_running": Reading._running,
    "session.thread_status_idle": Reading._thread_idle,
    "session.status_idle": Reading._idle,
    "session.status_terminated": Reading._end,
    "session.deleted": Reading._end,
}
# The events that a reading has to be given.
LOOKED_AT = frozenset(_HANDLERS)

"""Which tool calls of a session may be run now. Pure: it is told the events of the log, in order, and asked.

A call is run once, here, and only if nothing speaks against it: it is one of our tools, has no result yet, was not
denied, was confirmed where it must be, and its thread still lives. What is not understood is not run.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

TOOL_USE = "agent.tool_use"
ANSWERS = {"user.tool_result": "tool_use_id", "agent.tool_result": "tool_use_id"}
CONFIRMATION = "user.tool_confirmation"
INTERRUPT = "user.interrupt"
IDLE = "session.status_idle"
ENDS = frozenset({"session.status_terminated", "session.deleted"})
THREAD_ENDS = "session.thread_status_terminated"
_THREAD_STATUS = "session.thread_status_"
# These say neither that the session works nor that it rests.
_NEUTRAL = frozenset({CONFIRMATION, THREAD_ENDS, "session.updated", "session.usage"})


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call, as the log has it."""

    id: str
    name: str
    input: Any
    permission: str | None
    thread_id: str | None


class Calls:
    """The calls of one session."""

    def __init__(self, tools: Collection[str]) -> None:
        self._tools = frozenset(tools)
        self._open: dict[str, ToolCall] = {}
        self._verdicts: dict[str, str] = {}
        self._ended_threads: set[str] = set()
        # The session's turn is over and nothing has happened since.
        self.resting = False
        # The session takes nothing any more.
        self.ended = False
        # The thread of calls that name none: only it exists when the first status of a thread is told.
        self._primary_thread: str | None = None

    def take(self, event: Mapping[str, Any]) -> None:
        """The next event of the log. One that was told before changes nothing."""
        kind = event.get("type")
        if kind == TOOL_USE:
            self._note_call(event)
        elif kind in ANSWERS:
            self._open.pop(str(event.get(ANSWERS[str(kind)])), None)
        elif kind == CONFIRMATION:
            self._note_verdict(event)
        elif kind == THREAD_ENDS:
            self._ended_threads.add(str(event.get("session_thread_id")))
        elif kind == INTERRUPT:
            self._interrupt(event.get("session_thread_id"))
        elif kind in ENDS:
            self.ended = True
        if self._primary_thread is None and str(kind).startswith(_THREAD_STATUS) and event.get("session_thread_id"):
            self._primary_thread = str(event["session_thread_id"])
        if kind == IDLE:
            reason = event.get("stop_reason")
            self.resting = not (isinstance(reason, Mapping) and reason.get("type") == "requires_action")
        elif kind not in _NEUTRAL:
            self.resting = False

    def next(self) -> ToolCall | None:
        """The call to be run now; None where there is none. Asked again it is the same one, until it is settled."""
        return next((call for call in self._open.values() if self._may_run(call)), None)

    def settle(self, call_id: str) -> None:
        """The call is over for us, whatever became of it."""
        self._open.pop(call_id, None)

    def is_wanted(self, call_id: str) -> bool:
        """Whether somebody waits for the call: nobody does once it was interrupted, or has a result from elsewhere."""
        call = self._open.get(call_id)
        return call is not None and call.thread_id not in self._ended_threads

    @property
    def waiting(self) -> bool:
        """Whether calls of ours are held until somebody confirms them."""
        return any(self._is_held(call) for call in self._open.values())

    def _interrupt(self, thread: Any) -> None:
        """What was called for before, in one thread or in all, is called for no more."""
        for call in list(self._open.values()):
            if thread is None or (call.thread_id or self._primary_thread) == thread:
                del self._open[call.id]

    def _note_call(self, event: Mapping[str, Any]) -> None:
        call_id, name = event.get("id"), event.get("name")
        if not isinstance(call_id, str) or name not in self._tools:
            return
        permission = event.get("evaluated_permission")
        thread_id = event.get("session_thread_id")
        call = ToolCall(
            call_id,
            str(name),
            event.get("input"),
            None if permission is None else str(permission),
            None if thread_id is None else str(thread_id),
        )
        if permission != "deny" and self._verdicts.get(call_id, "allow") == "allow":
            self._open[call_id] = call

    def _note_verdict(self, event: Mapping[str, Any]) -> None:
        call_id = str(event.get("tool_use_id"))
        verdict = str(event.get("result"))
        # A denial stands, whatever is said later.
        if self._verdicts.get(call_id, "allow") == "allow":
            self._verdicts[call_id] = verdict
        if self._verdicts[call_id] != "allow":
            self._open.pop(call_id, None)

    def _may_run(self, call: ToolCall) -> bool:
        if call.thread_id in self._ended_threads or self._verdicts.get(call.id, "allow") != "allow":
            return False
        return call.permission in (None, "allow") or self._verdicts.get(call.id) == "allow"

    def _is_held(self, call: ToolCall) -> bool:
        return call.thread_id not in self._ended_threads and not self._may_run(call)

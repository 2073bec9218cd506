"""What a turn finds when it begins, and what it does about it. Pure.

A fresh turn finds nothing open, or calls that a client has just decided on. A turn that a crashed attempt left behind
may find more. The rules:

- A model request without an end gets one with `is_error`, and is asked again.
- A built-in call that may have begun is never run again: its result says `work_outcome_unknown`, and the model decides.
  But one that was handed to a worker of the environment is asked for again, which joins what was begun; unless that is
  so long ago that the queue may have forgotten it, and would begin it anew; or two runners were lost meanwhile, as the
  answer may be what they are lost by, and nobody stops what is left to a worker when the service ends the turn.
- A call that a thread or a worker answers is waited for: nothing that happens to a runner concerns those.
- A call that a client approved runs, if nothing can have begun it: this is the first attempt, and the session went
  from waiting for that approval straight into this turn.
- A call that a client denied gets the denial as its result.
- A call that nobody has decided on parks the turn, if a crashed attempt was about to park it. In a fresh turn it was
  given up with the turn that made it, and gets a result that says so.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from services.worker.runner.loop.context import Call, Conversation
from services.worker.tools import ToolOutcome

OUTCOME_UNKNOWN = (
    "work_outcome_unknown: the platform stopped while this call ran, so whether it took effect is not known. It was "
    "not run again. Check the state of things before you repeat it."
)
NEVER_ANSWERED = "This call was given up: nobody answered it before its turn ended."
INTERRUPTED = "Interrupted by the user. The call was stopped, or never began; it may have taken effect in part."
NOT_BEGUN = "This call was not run: the platform stopped before it began."
# The attempts of a turn that ask again for what was begun: the last one has still to stop it.
_MOST_JOINING_ATTEMPTS = 2


@dataclass(slots=True)
class Plan:
    """What to append first, which calls to run then, and which calls to wait for."""

    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    run: list[Call] = field(default_factory=list)
    park: list[Call] = field(default_factory=list)


def plan(
    conversation: Conversation, *, attempt: int, resumed: bool, joins: Callable[[Call], bool] | None = None
) -> Plan:
    """Look at what is open in the log. `resumed` says that the session's last idle waited for answers, and `joins`
    tells calls that may be made again, since that begins nothing twice."""
    result = Plan()
    if conversation.open_request:
        result.events.append(request_end(conversation.open_request))
    for call in conversation.open_calls():
        if call.is_of_thread or (call.runs_on_worker and attempt > 1):
            result.park.append(call)
        elif call.custom or (call.permission == "ask" and call.decision is None):
            if attempt > 1:
                result.park.append(call)
            else:
                result.events.append(tool_result(call, NEVER_ANSWERED))
        elif call.decision == "deny":
            result.events.append(tool_result(call, denial(call)))
        elif _may_run(call, attempt=attempt, resumed=resumed, joins=joins):
            result.run.append(call)
        else:
            result.events.append(tool_result(call, OUTCOME_UNKNOWN))
    return result


def _may_run(call: Call, *, attempt: int, resumed: bool, joins: Callable[[Call], bool] | None) -> bool:
    # An approval belongs to the turn that it began.
    approved = call.decision == "allow" and resumed
    if attempt > 1:
        may_join = joins is not None and attempt <= _MOST_JOINING_ATTEMPTS and joins(call)
        return may_join and (approved or call.permission == "allow")
    return approved and not call.by_worker


def denial(call: Call) -> str:
    """What the model reads where the client said no."""
    if call.deny_message:
        return f"The user denied this call: {call.deny_message}"
    return "The user denied this call. It was not run."


def request_end(start_id: str) -> tuple[str, dict[str, Any]]:
    """The end of a model request that nobody will finish."""
    usage = {
        "input_tokens": 0,
        "output_tokens": 0,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
    }
    fields = {"model_request_start_id": start_id, "model_usage": usage, "is_error": True}
    return "span.model_request_end", fields


def tool_result(call: Call, text: str) -> tuple[str, dict[str, Any]]:
    """A result that the platform writes in a tool's place, as an event."""
    return outcome_result(call, ToolOutcome(text, is_error=True))


def outcome_result(call: Call, outcome: ToolOutcome) -> tuple[str, dict[str, Any]]:
    """What a tool came to, as an event."""
    metadata: dict[str, Any] = {"tool_use_id": call.block_id}
    if outcome.overflow is not None:
        metadata["tool_output_overflow"] = outcome.overflow
    if outcome.server_tool_use:
        metadata["server_tool_use"] = dict(outcome.server_tool_use)
    is_of_server = bool(call.server_name)
    fields: dict[str, Any] = {
        "mcp_tool_use_id" if is_of_server else "tool_use_id": call.event_id,
        **({"mcp_server_name": call.server_name} if is_of_server else {}),
        "content": [{"type": "text", "text": outcome.text}, *outcome.pictures],
        "is_error": outcome.is_error,
        "metadata": metadata,
    }
    if call.by_worker:
        # What the worker would have written: by that alone workers know that nothing is left to do.
        return "user.tool_result", fields
    return "agent.mcp_tool_result" if is_of_server else "agent.tool_result", fields

"""Steps of the HTTP agent protocol: what a request says, whether it is a repeat, and which events it brings.

A caller's conversation is one session. A step brings a message, which starts a turn, or the
results of all custom calls that wait. Its answer is a function of the log from its first
event on, so a repeat needs nothing but the place of that event.

Which step repeats another one:

- The results of calls: the step that brought the same results, whenever that was. The ids of
  calls are ours and never used twice.
- A message that its caller has named, by `Idempotency-Key` or else by `step`: the step of that
  name, whenever that was. Another content under the name is a mistake and refused.
- A message without a name: the newest step of the conversation, if it brought the same
  message. So a user may say the same again once anything else came in between; right after
  the answer, only a name tells a second saying from a repeat.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import orjson

from kit.errors import AlreadyExists
from services.sessions.domain import shape
from services.sessions.domain.content import MAX_TEXT_CHARACTERS, check_text
from services.sessions.domain.inbound import USER_CUSTOM_TOOL_RESULT, USER_INTERRUPT, USER_MESSAGE, ClientEvent
from services.sessions.domain.session_errors import InvalidRequest, SessionEnded
from services.sessions.domain.session_state import CallKind, Phase, SessionState, phase_of
from services.sessions.domain.step_errors import (
    StepRequiresConfirmation,
    StepResultsMismatch,
    StepSystemChanged,
    StepToolsChanged,
)
from services.sessions.domain.thread_state import posted_calls
from services.sessions.domain.tools import validate_tools
from services.sessions.domain.turn import is_at_work

# The conversation's name is the title of its session.
MAX_NAME_CHARACTERS = 1000
MAX_SYSTEM_CHARACTERS = 100_000
MAX_RESULTS = 1000
MAX_ID_CHARACTERS = 256
MAX_KEY_CHARACTERS = 255
MAX_STEP = 2**53

_FIELDS = ("session_id", "system", "tools", "message", "tool_results", "step")
_RESULT_FIELDS = ("id", "ok", "result", "error")
_TOOL_FIELDS = ("name", "description", "input_schema")


class StepKeyReused(AlreadyExists):
    """The caller's name of a step was used for another one."""

    reason = "IDEMPOTENCY_KEY_REUSED"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one call at the caller's."""

    call_id: str
    ok: bool
    # The result as the model reads it: a text as it is, anything else as JSON.
    text: str


@dataclass(frozen=True, slots=True)
class Step:
    """A step that is sound by its form; exactly one of `message` and `results` is there."""

    conversation: str
    message: str | None
    results: tuple[Result, ...]
    # Flat custom tools in their stored form; None where the step names none at all.
    tools: list[dict[str, Any]] | None
    # None where the step brings none.
    system: str | None
    # SHA-256 of the message or the results.
    fingerprint: bytes
    # SHA-256 of the caller's name for the step.
    key: bytes | None

    @property
    def digest(self) -> bytes:
        """What its conversation is found by."""
        return hashlib.sha256(self.conversation.encode()).digest()


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation as its first step left it."""

    session_id: str
    # Canonical tools of the first step.
    tools: str
    # The system prompt that the caller gave, empty for none; None where the agent's own is in use.
    system: str | None


@dataclass(frozen=True, slots=True)
class TakenStep:
    """A step that stands in the log."""

    number: int
    fingerprint: bytes
    first_seq: int


def read_step(body: dict[str, Any], key: str = "") -> Step:
    """Reads a request, or refuses it by the first thing that is wrong. `key` is its `Idempotency-Key`."""
    shape.known_only(body, "", _FIELDS)
    name = shape.text(body.get("session_id"), "session_id", minimum=1, maximum=MAX_NAME_CHARACTERS)
    message, results = body.get("message"), body.get("tool_results")
    if (message is None) == (results is None):
        raise InvalidRequest(
            "A step carries either message or tool_results, never both and never neither.",
            field="message" if message is None else "tool_results",
        )
    if message is not None:
        check_text(message, "message")
    system = body.get("system")
    if system is not None:
        shape.text(system, "system", maximum=MAX_SYSTEM_CHARACTERS)
    read = _read_results(results) if results is not None else ()
    return Step(
        conversation=name,
        message=message,
        results=read,
        tools=_read_tools(body.get("tools")),
        system=system if system and system.strip() else None,
        fingerprint=_fingerprint(message, read),
        key=_read_key(body.get("step"), key),
    )


def canonical(tools: list[dict[str, Any]]) -> str:
    """The tools of a conversation, whatever the order of tools and keys."""
    ordered = sorted(tools, key=lambda tool: tool["name"])
    return orjson.dumps(ordered, option=orjson.OPT_SORT_KEYS).decode()


def refuse_changes(step: Step, conversation: Conversation) -> None:
    """Refuses a later step that contradicts what the first one fixed."""
    if step.tools is not None and canonical(step.tools) != conversation.tools:
        raise StepToolsChanged(
            "tools must be the same in every step of a conversation: they became the tools of its session with the"
            " first step. Begin another session_id for other tools.",
            field="tools",
            session_id=conversation.session_id,
        )
    if step.system is not None and conversation.system is not None and step.system != conversation.system:
        raise StepSystemChanged(
            "system must be the same in every step of a conversation: its session runs by what the first step brought."
            " Begin another session_id for another prompt.",
            field="system",
            session_id=conversation.session_id,
        )


def repeated(
    step: Step, *, newest: TakenStep | None, named: TakenStep | None, same: TakenStep | None
) -> TakenStep | None:
    """The step that this one repeats; see the module.

    `newest` is the newest of the conversation, `named` the one of the caller's name, `same`
    the newest with the same content.
    """
    if named is not None:
        if named.fingerprint != step.fingerprint:
            raise StepKeyReused(
                "This Idempotency-Key or step number was used for another step of the conversation. Use a new one for"
                " a new step.",
                field="Idempotency-Key",
            )
        return named
    if step.results:
        return same
    if step.key is None and newest is not None and newest.fingerprint == step.fingerprint:
        return newest
    return None


def events_of(step: Step, state: SessionState) -> list[ClientEvent] | None:
    """What a step that is no repeat appends; None where a turn runs that has to end first."""
    if phase_of(state) is Phase.ENDED:
        raise SessionEnded(f"Session {state.id} has ended and takes no further step.", session_id=state.id)
    waiting = _waiting(state)
    custom = [call_id for call_id, kind in waiting.items() if kind is CallKind.CUSTOM]
    if step.message is None:
        _check_answers(step, state, custom)
    asking = [call_id for call_id, kind in waiting.items() if kind is CallKind.CONFIRMATION]
    if asking and not is_at_work(state):
        raise StepRequiresConfirmation(state.id, asking)
    # Until workers are done too, the step before has no answer yet.
    if is_at_work(state) or len(custom) < len(waiting):
        return None
    if step.message is None:
        return [_answer(result) for result in step.results]
    said = ClientEvent(USER_MESSAGE, {"content": [{"type": "text", "text": step.message}]})
    # Who speaks instead of answering has ended the turn on its side, as a caller at its budget of rounds does.
    return [ClientEvent(USER_INTERRUPT, {}), said] if custom else [said]


def require_message(step: Step) -> None:
    """Refuses a first step that answers calls."""
    if step.message is None:
        raise StepResultsMismatch("answers calls of a conversation that has not begun.", ())


def _waiting(state: SessionState) -> dict[str, CallKind]:
    """The calls that wait for somebody outside, by their ids in the session's log, in order."""
    own = [call for call in state.pending if not call.answered and call.kind is not CallKind.THREAD]
    waiting = {call.event_id: call.kind for call in own}
    return waiting | {call.posted_id: call.kind for _, call in posted_calls(state)}


def _check_answers(step: Step, state: SessionState, custom: list[str]) -> None:
    given = [result.call_id for result in step.results]
    unknown = [call_id for call_id in given if call_id not in custom]
    if unknown:
        raise StepResultsMismatch(
            f"names {shape.shown(unknown[0])}, which is no call that waits for a result.", custom, state.id
        )
    missing = [call_id for call_id in custom if call_id not in given]
    if missing:
        raise StepResultsMismatch(f"lacks {', '.join(missing)}; all results are sent in one step.", custom, state.id)


def _answer(result: Result) -> ClientEvent:
    fields: dict[str, Any] = {
        "custom_tool_use_id": result.call_id,
        "content": [{"type": "text", "text": result.text}],
        "is_error": not result.ok,
    }
    return ClientEvent(USER_CUSTOM_TOOL_RESULT, fields)


def _read_results(value: Any) -> tuple[Result, ...]:
    entries = shape.entries(value, "tool_results", maximum=MAX_RESULTS)
    if not entries:
        raise InvalidRequest("tool_results must hold a result for each of the calls.", field="tool_results")
    results: dict[str, Result] = {}
    for index, entry in enumerate(entries):
        path = f"tool_results.{index}"
        result = _read_result(entry, path)
        if result.call_id in results:
            raise InvalidRequest(f"{path}.id repeats {shape.shown(result.call_id)}.", field=f"{path}.id")
        results[result.call_id] = result
    return tuple(results.values())


def _read_result(entry: Any, path: str) -> Result:
    shape.mapping(entry, path, _RESULT_FIELDS)
    call_id = shape.text(entry.get("id"), f"{path}.id", minimum=1, maximum=MAX_ID_CHARACTERS)
    ok = shape.flag(entry.get("ok"), f"{path}.ok")
    error, value = entry.get("error"), entry.get("result")
    if ok and error is not None:
        raise InvalidRequest(f"{path}.error is only accepted where ok is false.", field=f"{path}.error")
    if not ok and value is not None:
        raise InvalidRequest(f"{path}.result is only accepted where ok is true.", field=f"{path}.result")
    if not ok:
        return Result(call_id, False, shape.text(error, f"{path}.error", maximum=MAX_TEXT_CHARACTERS))
    shape.free_form(value, f"{path}.result")
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    if len(text) > MAX_TEXT_CHARACTERS:
        raise InvalidRequest(
            f"{path}.result has {len(text)} characters; at most {MAX_TEXT_CHARACTERS} are accepted.",
            field=f"{path}.result",
        )
    return Result(call_id, True, text)


def _read_tools(value: Any) -> list[dict[str, Any]] | None:
    if value is None:
        return None
    entries = shape.entries(value, "tools", maximum=MAX_RESULTS)
    for index, entry in enumerate(entries):
        shape.mapping(entry, f"tools.{index}", _TOOL_FIELDS)
    return validate_tools([{"type": "custom", **entry} for entry in entries])


def _read_key(number: Any, key: str) -> bytes | None:
    if number is not None:
        shape.whole(number, "step", minimum=0, maximum=MAX_STEP)
    if key:
        name = f"key:{shape.text(key, 'Idempotency-Key', minimum=1, maximum=MAX_KEY_CHARACTERS)}"
    elif number is not None:
        name = f"step:{number}"
    else:
        return None
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()


def _fingerprint(message: str | None, results: tuple[Result, ...]) -> bytes:
    if message is not None:
        return hashlib.sha256(b"message\n" + message.encode()).digest()
    ordered = sorted((result.call_id, result.ok, result.text) for result in results)
    return hashlib.sha256(b"results\n" + orjson.dumps(ordered)).digest()

"""Events that clients send: which types, which fields, which order.

`validate_events` judges a request by its form alone and answers with normalised
events; what depends on where the session stands (is a call pending, is a turn
running, has the session ended) is judged under the session's lock at append. A
request with one bad event is refused whole.

Limits: 50 initial events, 1,000 events per later request; 1,000 blocks per event.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kit.errors import InvalidArgument
from services.sessions.domain.content import (
    MESSAGE_BLOCKS,
    RESULT_BLOCKS,
    TEXT_BLOCKS,
    check_keys,
    check_text,
    normalise_content,
)
from services.sessions.domain.session_errors import (
    InvalidDefineOutcome,
    InvalidEventType,
    InvalidInitialEvents,
    InvalidInitialEventType,
    InvalidRequest,
    InvalidSystemMessage,
    OutcomeGraderUnavailable,
    TooManyInitialEvents,
    UnknownField,
    WorkerEventRefused,
)

MAX_INITIAL_EVENTS = 50
MAX_EVENTS = 1000
MAX_OUTCOME_ITERATIONS = 20
DEFAULT_OUTCOME_ITERATIONS = 3
MAX_DESCRIPTION_CHARACTERS = 100_000
MAX_ID_CHARACTERS = 256

USER_MESSAGE = "user.message"
USER_INTERRUPT = "user.interrupt"
USER_TOOL_CONFIRMATION = "user.tool_confirmation"
USER_CUSTOM_TOOL_RESULT = "user.custom_tool_result"
USER_TOOL_RESULT = "user.tool_result"
USER_DEFINE_OUTCOME = "user.define_outcome"
USER_STEER = "user.steer"
SYSTEM_MESSAGE = "system.message"
# What a thread gets from the one that made it. No client can send it.
THREAD_MESSAGE = "agent.thread_message_received"

INITIAL_TYPES = (USER_MESSAGE, USER_DEFINE_OUTCOME)
# What a system.message may accompany where the caller follows the published contract.
_ACCOMPANIED_TYPES = frozenset({USER_MESSAGE, USER_TOOL_RESULT, USER_CUSTOM_TOOL_RESULT})


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """One sound event of a client.

    `fields` are the public fields of the type in their public order, without id,
    type, seq, times and metadata; content is always a list of blocks.
    """

    type: str
    fields: dict[str, Any]
    # The thread beside the primary one that it goes to, or empty.
    thread_id: str = ""
    # Whether the published contract rules when it may come.
    published: bool = False


def validate_events(events: Any, *, initial: bool, published: bool) -> list[ClientEvent]:
    """Checks the form of a whole request and returns its events, normalised.

    `initial` applies the rules and the refusal codes of `initial_events` at session
    creation, where an empty list is fine. `published` says that the caller follows the
    published contract, which wants a system.message to accompany an input and to be
    text alone.
    """
    if initial:
        return _validate_initial(events)
    if not isinstance(events, list):
        raise InvalidRequest("events must be an array of event objects.", field="events")
    if not events:
        raise InvalidRequest("events must hold at least one event.", field="events")
    if len(events) > MAX_EVENTS:
        raise InvalidRequest(
            f"events holds {len(events)} events; at most {MAX_EVENTS} are accepted in one request.", field="events"
        )
    accepted = [_validate_live(event, f"events.{index}") for index, event in enumerate(events)]
    _check_system_message_place(accepted, published)
    _refuse_second_outcome(accepted, "events", InvalidDefineOutcome)
    return accepted


def _validate_initial(events: Any) -> list[ClientEvent]:
    if not isinstance(events, list):
        raise InvalidInitialEvents("initial_events must be an array of event objects.", field="initial_events")
    if len(events) > MAX_INITIAL_EVENTS:
        raise TooManyInitialEvents(
            f"initial_events holds {len(events)} events; at most {MAX_INITIAL_EVENTS} are accepted.",
            field="initial_events",
        )
    accepted: list[ClientEvent] = []
    for index, event in enumerate(events):
        field = f"initial_events.{index}"
        if not isinstance(event, dict):
            raise InvalidInitialEvents(f"{field} must be an event object.", field=field)
        if event.get("type") not in INITIAL_TYPES:
            raise InvalidInitialEventType(
                f"{field}.type must be one of {', '.join(INITIAL_TYPES)}.", field=f"{field}.type"
            )
        try:
            accepted.append(ClientEvent(event["type"], _FIELDS[event["type"]](event, field)))
        except (InvalidRequest, UnknownField) as refusal:
            raise InvalidInitialEvents(refusal.message, field=refusal.field) from None
    _refuse_second_outcome(accepted, "initial_events", InvalidInitialEvents)
    return accepted


def _validate_live(event: Any, field: str) -> ClientEvent:
    if not isinstance(event, dict):
        raise InvalidRequest(f"{field} must be an event object.", field=field)
    kind = event.get("type")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise InvalidEventType(f"{field}.type must be one of {', '.join(_FIELDS)}.", field=f"{field}.type")
    read_fields = _FIELDS[kind]
    if kind != USER_DEFINE_OUTCOME:
        return ClientEvent(kind, read_fields(event, field))
    try:
        return ClientEvent(kind, read_fields(event, field))
    except (InvalidRequest, UnknownField) as refusal:
        raise InvalidDefineOutcome(refusal.message, field=refusal.field) from None


def _check_system_message_place(events: list[ClientEvent], published: bool) -> None:
    places = [index for index, event in enumerate(events) if event.type == SYSTEM_MESSAGE]
    if not places:
        return
    if len(places) > 1:
        raise InvalidSystemMessage("events may hold at most one system.message.", field=f"events.{places[1]}.type")
    place = places[0]
    if place != len(events) - 1:
        raise InvalidSystemMessage("system.message must be the last event of its request.", field=f"events.{place}")
    if not published:
        return
    if place == 0 or events[place - 1].type not in _ACCOMPANIED_TYPES:
        raise InvalidSystemMessage(
            "system.message must directly follow a user.message or user.custom_tool_result in the same request.",
            field=f"events.{place}",
        )
    # The published type of this event has text blocks alone.
    normalise_content(events[place].fields["content"], f"events.{place}.content", allowed=TEXT_BLOCKS)
    events[place] = replace(events[place], published=True)


def taken_from_worker(events: Any) -> Any:
    """A worker's events, with an error in the place of each result whose form is unsound.

    The tool has run, and the worker will not send another result: a refusal would leave the call waiting for ever.
    """
    if not isinstance(events, list):
        return events
    return [_sound_result(event, f"events.{index}") for index, event in enumerate(events)]


def _sound_result(event: Any, field: str) -> Any:
    if not isinstance(event, dict) or event.get("type") != USER_TOOL_RESULT:
        return event
    try:
        _tool_result_fields(event, field)
    except (InvalidRequest, UnknownField) as refusal:
        if not isinstance(event.get("tool_use_id"), str):
            return event
        text = f"The tool ran, but the result that its worker sent could not be taken: {refusal.message}"
        content = [{"type": "text", "text": text}]
        return {"type": USER_TOOL_RESULT, "tool_use_id": event["tool_use_id"], "content": content, "is_error": True}
    return event


def refuse_for_worker(events: list[ClientEvent]) -> None:
    """Refuses what a worker may not send: it answers calls, and neither speaks for people nor gives leave."""
    for index, event in enumerate(events):
        if event.type not in (USER_TOOL_RESULT, USER_CUSTOM_TOOL_RESULT):
            raise WorkerEventRefused(
                f"events.{index}.type: a worker sends {USER_TOOL_RESULT} and {USER_CUSTOM_TOOL_RESULT} alone.",
                field=f"events.{index}.type",
            )


def refuse_ungraded(events: list[ClientEvent], field: str) -> None:
    """Refuses outcomes where the platform runs without a grader."""
    for index, event in enumerate(events):
        if event.type == USER_DEFINE_OUTCOME:
            raise OutcomeGraderUnavailable(
                f"{field}.{index} declares an outcome, and no grader is configured that could measure it.",
                field=f"{field}.{index}",
            )


def _refuse_second_outcome(events: list[ClientEvent], field: str, refusal: type[InvalidArgument]) -> None:
    places = [index for index, event in enumerate(events) if event.type == USER_DEFINE_OUTCOME]
    if len(places) > 1:
        path = f"{field}.{places[1]}"
        raise refusal(f"{path} declares a second outcome; a session works towards one outcome at a time.", field=path)


def _message_fields(event: dict[str, Any], field: str) -> dict[str, Any]:
    check_keys(event, field, _MESSAGE_KEYS)
    return {"content": normalise_content(event.get("content"), f"{field}.content", allowed=MESSAGE_BLOCKS)}


def _system_message_fields(event: dict[str, Any], field: str) -> dict[str, Any]:
    check_keys(event, field, _MESSAGE_KEYS)
    content = normalise_content(event.get("content"), f"{field}.content", allowed=MESSAGE_BLOCKS, bare_string=False)
    return {"content": content}


def _interrupt_fields(event: dict[str, Any], field: str) -> dict[str, Any]:
    check_keys(event, field, _INTERRUPT_KEYS)
    thread_id = event.get("session_thread_id")
    if thread_id is None:
        return {}
    _check_id(thread_id, f"{field}.session_thread_id")
    return {"session_thread_id": thread_id}


def _confirmation_fields(event: dict[str, Any], field: str) -> dict[str, Any]:
    check_keys(event, field, _CONFIRMATION_KEYS)
    _check_id(event.get("tool_use_id"), f"{field}.tool_use_id")
    result = event.get("result")
    if result not in ("allow", "deny"):
        raise InvalidRequest(f"{field}.result must be allow or deny.", field=f"{field}.result")
    fields = {"tool_use_id": event["tool_use_id"], "result": result}
    message = event.get("deny_message")
    if message is not None:
        path = f"{field}.deny_message"
        check_text(message, path, blank=True, limit=MAX_DESCRIPTION_CHARACTERS)
        if result != "deny":
            raise InvalidRequest(f"{path} is only accepted where result is deny.", field=path)
        fields["deny_message"] = message
    return fields


def _custom_tool_result_fields(event: dict[str, Any], field: str) -> dict[str, Any]:
    return _result_fields(event, field, "custom_tool_use_id", _CUSTOM_TOOL_RESULT_KEYS)


def _tool_result_fields(event: dict[str, Any], field: str) -> dict[str, Any]:
    return _result_fields(event, field, "tool_use_id", _TOOL_RESULT_KEYS)


def _result_fields(event: dict[str, Any], field: str, names_call: str, keys: frozenset[str]) -> dict[str, Any]:
    check_keys(event, field, keys)
    _check_id(event.get(names_call), f"{field}.{names_call}")
    fields = {names_call: event[names_call]}
    if event.get("content") is not None:
        fields["content"] = normalise_content(
            event["content"], f"{field}.content", allowed=RESULT_BLOCKS, blank_text=True
        )
    if event.get("is_error") is not None:
        if not isinstance(event["is_error"], bool):
            raise InvalidRequest(f"{field}.is_error must be true or false.", field=f"{field}.is_error")
        fields["is_error"] = event["is_error"]
    return fields


def _outcome_fields(event: dict[str, Any], field: str) -> dict[str, Any]:
    check_keys(event, field, _OUTCOME_KEYS)
    check_text(event.get("description"), f"{field}.description", limit=MAX_DESCRIPTION_CHARACTERS)
    rubric = event.get("rubric")
    kind = rubric.get("type") if isinstance(rubric, dict) else None
    if not isinstance(rubric, dict) or kind not in ("text", "file"):
        path = f"{field}.rubric"
        raise InvalidRequest(f"{path} must be an object of type text (content) or file (file_id).", field=path)
    value_name = "content" if kind == "text" else "file_id"
    check_keys(rubric, f"{field}.rubric", frozenset({"type", value_name}))
    check_text(rubric.get(value_name), f"{field}.rubric.{value_name}", limit=MAX_DESCRIPTION_CHARACTERS)
    iterations = event.get("max_iterations")
    if iterations is None:
        iterations = DEFAULT_OUTCOME_ITERATIONS
    if type(iterations) is not int or not 1 <= iterations <= MAX_OUTCOME_ITERATIONS:
        path = f"{field}.max_iterations"
        raise InvalidRequest(f"{path} must be a whole number from 1 to {MAX_OUTCOME_ITERATIONS}.", field=path)
    return {"description": event["description"], "rubric": rubric, "max_iterations": iterations}


def _steer_fields(event: dict[str, Any], field: str) -> dict[str, Any]:
    check_keys(event, field, _STEER_KEYS)
    _check_id(event.get("input_id"), f"{field}.input_id")
    check_text(event.get("text"), f"{field}.text")
    fields = {"input_id": event["input_id"], "text": event["text"]}
    if event.get("expected_turn_id") is not None:
        _check_id(event["expected_turn_id"], f"{field}.expected_turn_id")
        fields["expected_turn_id"] = event["expected_turn_id"]
    return fields


def _check_id(value: Any, field: str) -> None:
    check_text(value, field, limit=MAX_ID_CHARACTERS)


_MESSAGE_KEYS = frozenset({"type", "content"})
_INTERRUPT_KEYS = frozenset({"type", "session_thread_id"})
_CONFIRMATION_KEYS = frozenset({"type", "tool_use_id", "result", "deny_message"})
_CUSTOM_TOOL_RESULT_KEYS = frozenset({"type", "custom_tool_use_id", "content", "is_error"})
_TOOL_RESULT_KEYS = frozenset({"type", "tool_use_id", "content", "is_error"})
_OUTCOME_KEYS = frozenset({"type", "description", "rubric", "max_iterations"})
_STEER_KEYS = frozenset({"type", "input_id", "text", "expected_turn_id"})
_FIELDS: dict[str, Callable[[dict[str, Any], str], dict[str, Any]]] = {
    USER_MESSAGE: _message_fields,
    USER_INTERRUPT: _interrupt_fields,
    USER_TOOL_CONFIRMATION: _confirmation_fields,
    USER_CUSTOM_TOOL_RESULT: _custom_tool_result_fields,
    USER_TOOL_RESULT: _tool_result_fields,
    USER_DEFINE_OUTCOME: _outcome_fields,
    USER_STEER: _steer_fields,
    SYSTEM_MESSAGE: _system_message_fields,
}

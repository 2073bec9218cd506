"""Sessions of the session gateway: what they are begun with, how their runs are named, how people's answers read.

A run is named by its first event, the message that started it, so that the log alone tells which run an event belongs
to. What an agent's gateway sessions are begun with (`gateway_session`) is part of its definition.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from kit.errors import AlreadyExists, InvalidArgument, NotFound, Unauthenticated
from services.sessions.domain import shape
from services.sessions.domain.inbound import (
    USER_CUSTOM_TOOL_RESULT,
    USER_MESSAGE,
    USER_TOOL_CONFIRMATION,
    ClientEvent,
    validate_events,
)
from services.sessions.domain.resources import read_resources
from services.sessions.domain.session_errors import InvalidRequest, UnknownField

SESSION_FIELDS = ("environment_id", "vault_ids", "resources")
RESOURCE_TYPES = ("memory_store", "file")
MAX_ID_CHARACTERS = 256
MAX_VAULT_IDS = 50
MAX_ANSWERS = 100
APPROVE, DENY = "approve", "deny"
_RUN, _EVENT = "run_", "sevt_"
_MESSAGE_PATH = "events.0.content"


class InputRequestNotPending(AlreadyExists):
    """Nothing waits under this id: it was never asked, or it is answered."""

    reason = "INPUT_REQUEST_NOT_PENDING"


class TurnActive(AlreadyExists):
    """A turn of the session runs, or waits for an answer."""

    reason = "TURN_ACTIVE"


class RunNotFound(NotFound):
    """The session has no such run."""

    reason = "RUN_NOT_FOUND"


class InvalidTicket(Unauthenticated):
    """The ticket was spent before."""

    reason = "INVALID_TICKET"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a person said to one request."""

    request_id: str
    option_id: str
    text: str | None


def run_id_of(event_id: str) -> str:
    """The run that an event starts."""
    return _RUN + event_id.removeprefix(_EVENT)


def event_id_of(run_id: str) -> str:
    """The event that starts a run."""
    return _EVENT + run_id.removeprefix(_RUN)


def read_message(message: Any) -> list[ClientEvent]:
    """A message, a text or an array of parts, as the events that start a run."""
    try:
        return validate_events([{"type": USER_MESSAGE, "content": message}], initial=False, published=False)
    except (InvalidRequest, UnknownField) as refusal:
        told = str(refusal.message).replace(_MESSAGE_PATH, "message")
        raise InvalidRequest(told, field=(refusal.field or "").replace(_MESSAGE_PATH, "message")) from None


def answering_events(answers: Sequence[Answer], kinds: dict[str, str], waiting: Sequence[str]) -> list[ClientEvent]:
    """The answers of people as events. `kinds` has the type of each event that they name, `waiting` what waits."""
    events: list[ClientEvent] = []
    seen: set[str] = set()
    for index, answer in enumerate(answers):
        field = f"inputResponses.{index}"
        if answer.request_id in seen:
            raise InvalidRequest(f"{field}.requestId is answered twice in one request.", field=f"{field}.requestId")
        seen.add(answer.request_id)
        if answer.request_id not in waiting:
            pending = ", ".join(waiting) or "nothing"
            raise InputRequestNotPending(
                f"{field}.requestId names nothing that waits for an answer. Waiting: {pending}.",
                field=f"{field}.requestId",
                details=orjson.dumps({"pending": list(waiting)}).decode(),
            )
        is_question = kinds.get(answer.request_id) == "agent.custom_tool_use"
        events.append(_answer_to_question(answer, field) if is_question else _decision(answer, field))
    return events


def _answer_to_question(answer: Answer, field: str) -> ClientEvent:
    if answer.option_id or answer.text is None:
        raise InvalidRequest(f"{field} answers a question: send text, and no optionId.", field=field)
    content = [{"type": "text", "text": answer.text}]
    return ClientEvent(USER_CUSTOM_TOOL_RESULT, {"custom_tool_use_id": answer.request_id, "content": content})


def _decision(answer: Answer, field: str) -> ClientEvent:
    if answer.option_id not in (APPROVE, DENY):
        path = f"{field}.optionId"
        raise InvalidRequest(f"{path} must be {APPROVE} or {DENY}: the request asks for a decision.", field=path)
    fields = {"tool_use_id": answer.request_id, "result": "allow" if answer.option_id == APPROVE else "deny"}
    if answer.text is not None:
        if answer.option_id == APPROVE:
            raise InvalidRequest(f"{field}.text is taken as the reason of a denial only.", field=f"{field}.text")
        fields["deny_message"] = answer.text
    return ClientEvent(USER_TOOL_CONFIRMATION, fields)


def validate_gateway_session(value: Any, field: str = "gateway_session") -> dict[str, Any] | None:
    """What the gateway's sessions of an agent are begun with; None where that is nothing."""
    if value is None:
        return None
    shape.mapping(value, field, SESSION_FIELDS)
    if value.get("environment_id") is not None:
        shape.label(value["environment_id"], f"{field}.environment_id", maximum=MAX_ID_CHARACTERS)
    for index, vault_id in enumerate(
        shape.entries(value.get("vault_ids"), f"{field}.vault_ids", maximum=MAX_VAULT_IDS)
    ):
        shape.label(vault_id, f"{field}.vault_ids.{index}", maximum=MAX_ID_CHARACTERS)
    for index, resource in enumerate(shape.entries(value.get("resources"), f"{field}.resources", maximum=50)):
        kind = resource.get("type") if isinstance(resource, dict) else None
        # A repository may bring a token, which has no place in a definition that everyone reads.
        shape.one_of(kind, f"{field}.resources.{index}.type", RESOURCE_TYPES)
    try:
        read_resources(value.get("resources"), published=False)
    except InvalidArgument as refusal:
        refusal.message = f"{field}.{refusal.message}"
        refusal.field = f"{field}.{refusal.field}" if refusal.field else field
        raise
    return {name: value[name] for name in SESSION_FIELDS if value.get(name)} or None

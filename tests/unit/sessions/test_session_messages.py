"""What a read shows of a session: its own agent where it has one, no effort, durations that never run backwards."""

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from kit.errors import DomainError
from managed_agents.sessions.v1.sessions_pb2 import ListSessionsRequest, Session, SessionStatus
from services.sessions.domain.session_state import Status
from services.sessions.handlers.moments import read_bounds
from services.sessions.handlers.session_messages import STATUSES, session_message
from services.sessions.store.session_row import SESSION_COLUMNS, SessionRow
from services.sessions.store.sessions import SavedAgent, SessionRecord

CREATED = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
SAVED = SavedAgent('{"name":"saved"}', '{"id":"default","speed":"standard"}', "default")


def row(**fields: Any) -> SessionRow:
    texts = dict.fromkeys(SessionRow._fields, "")
    counters = {name: 0 for name in SessionRow._fields if name.endswith(("_tokens", "_requests"))}
    plain: dict[str, Any] = {
        "created_at": CREATED,
        "updated_at": CREATED,
        "revision": 1,
        "agent_version": 1,
        "agent_document": None,
        "agent_model": None,
        "title": None,
        "metadata": "{}",
        "resources": "[]",
        "vault_ids": "[]",
        "budget": None,
        "outcome_evaluations": "[]",
        "archived_at": None,
        "deleted_at": None,
        "status": "idle",
        "last_seq": 0,
        "active_seconds": 0.0,
        "running_since": None,
        "spend": "[]",
    }
    return SessionRow(**(texts | counters | plain | SessionRow._field_defaults | fields))


def shown(*, saved: SavedAgent = SAVED, after_seconds: float = 0.0, **fields: Any) -> Session:
    return session_message(SessionRecord(row(**fields), saved), CREATED + timedelta(seconds=after_seconds))


def test_the_columns_are_the_fields_of_the_row() -> None:
    assert tuple(SESSION_COLUMNS.split(", ")) == SessionRow._fields


def test_every_status_has_its_value() -> None:
    assert STATUSES.keys() == {status.value for status in Status}
    assert len(set(STATUSES.values())) == len(SessionStatus.values()) - 1


def test_the_saved_agent_passes_through() -> None:
    agent = shown().agent
    assert (agent.document_json, agent.model_json) == (SAVED.document.encode(), SAVED.model.encode())
    assert agent.model_id == "default"


def test_the_sessions_own_agent_comes_first() -> None:
    agent = shown(agent_document='{"name":"own"}', agent_model='{"id":"other"}').agent
    assert (agent.document_json, orjson.loads(agent.model_json)) == (b'{"name":"own"}', {"id": "other"})
    assert agent.model_id == "other"


def test_effort_is_not_shown() -> None:
    saved = SavedAgent("{}", '{"id":"default","speed":"fast","effort":{"type":"high"}}', "default")
    assert orjson.loads(shown(saved=saved).agent.model_json) == {"id": "default", "speed": "fast"}


def test_a_model_named_effort_is_still_a_model() -> None:
    saved = SavedAgent("{}", '{"id":"\\"effort\\"","speed":"fast"}', '"effort"')
    assert orjson.loads(shown(saved=saved).agent.model_json) == {"id": '"effort"', "speed": "fast"}


@pytest.mark.parametrize(
    ("fields", "after_seconds", "active", "duration"),
    [
        pytest.param({}, 60, 0, 0, id="never ran"),
        pytest.param({"active_seconds": 4, "updated_at": CREATED + timedelta(seconds=9)}, 60, 4, 9, id="idle again"),
        pytest.param({"active_seconds": 4, "running_since": CREATED + timedelta(seconds=50)}, 60, 14, 60, id="running"),
        pytest.param({"running_since": CREATED + timedelta(seconds=5)}, 0, 0, 0, id="clocks differ"),
    ],
)
def test_durations(fields: dict[str, Any], after_seconds: float, active: float, duration: float) -> None:
    session = shown(after_seconds=after_seconds, **fields)
    assert (session.active_seconds, session.duration_seconds) == (active, duration)


def test_budgets_tell_never_from_removed() -> None:
    assert shown().budget_json == b""
    assert shown(budget="null").budget_json == b"null"


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        ("2026-11-29T12:00:00Z", CREATED),
        ("2026-11-29T14:00:00.000+02:00", CREATED),
        ("", None),
    ],
)
def test_times_are_read_with_their_zone(value: str, moment: datetime | None) -> None:
    assert read_bounds(ListSessionsRequest(created_at_lt=value))["created_at_lt"] == moment


@pytest.mark.parametrize(
    "value", ["now", "2026-11-29", "2026-11-29T12:00:00", "2026-13-01T00:00:00Z", "9999-12-31T23:59:59-23:00", "\x00"]
)
def test_anything_else_is_refused_by_name(value: str) -> None:
    with pytest.raises(DomainError) as caught:
        read_bounds(ListSessionsRequest(created_at_gte=value))
    assert caught.value.field == "created_at[gte]"

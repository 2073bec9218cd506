"""Sessions and events as the contract shows them. Pure: rows in, messages out.

Stored JSON is handed on as it is; nothing here takes it apart, but for the model of an
agent with an effort, which a session doesn't show.
"""

from datetime import datetime

import orjson

from kit.clock import rfc3339
from managed_agents.sessions.v1.agents_pb2 import Agent
from managed_agents.sessions.v1.events_pb2 import Event
from managed_agents.sessions.v1.sessions_pb2 import ModelSpend, Session, SessionStatus, Usage
from services.sessions.domain.cost import read_spend, to_usd
from services.sessions.domain.overrides import without_effort
from services.sessions.domain.session_state import TokenUsage
from services.sessions.store.event_reads import EventTuple
from services.sessions.store.session_row import SessionRow
from services.sessions.store.sessions import SessionRecord

STATUSES: dict[str, SessionStatus.ValueType] = {
    "idle": SessionStatus.SESSION_STATUS_IDLE,
    "running": SessionStatus.SESSION_STATUS_RUNNING,
    "rescheduling": SessionStatus.SESSION_STATUS_RESCHEDULING,
    "requires_action": SessionStatus.SESSION_STATUS_REQUIRES_ACTION,
    "terminated": SessionStatus.SESSION_STATUS_TERMINATED,
    "timed_out": SessionStatus.SESSION_STATUS_TIMED_OUT,
}
STATUS_NAMES = {status: name for name, status in STATUSES.items()}


def session_message(record: SessionRecord, now: datetime) -> Session:
    """A session with the agent that it runs."""
    row = record.row
    model_id, model_json = _model(record)
    spend = read_spend(row.spend)
    return Session(
        id=row.id,
        agent=Agent(
            id=row.agent_id,
            version=row.agent_version,
            document_json=record.agent_document.encode(),
            model_json=model_json.encode(),
            model_id=model_id,
        ),
        environment_id=row.environment_id,
        title=row.title,
        metadata_json=row.metadata.encode(),
        resources_json=row.resources.encode(),
        vault_ids=() if row.vault_ids == "[]" else orjson.loads(row.vault_ids),
        loop_engine=row.loop_engine,
        loop_engine_options_json=(row.loop_engine_options or "").encode(),
        text_parts=row.text_parts,
        status=STATUSES[row.status],
        stop_reason_json=row.stop_reason.encode(),
        usage=Usage(
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            cache_read_input_tokens=row.cache_read_input_tokens,
            cache_creation_5m_input_tokens=row.cache_creation_5m_input_tokens,
            cache_creation_1h_input_tokens=row.cache_creation_1h_input_tokens,
            web_search_requests=row.web_search_requests,
            web_fetch_requests=row.web_fetch_requests,
        ),
        active_seconds=_active_seconds(row, now),
        duration_seconds=_seconds(row.created_at, now if row.running_since else row.updated_at),
        budget_json=row.budget.encode() if row.budget else b"",
        outcome_evaluations_json=row.outcome_evaluations.encode(),
        created_at=rfc3339(row.created_at),
        updated_at=rfc3339(row.updated_at),
        archived_at=rfc3339(row.archived_at) if row.archived_at else "",
        deployment_id=row.deployment_id,
        last_seq=row.last_seq,
        list_cost_cents=spend.cents,
        spend=[
            ModelSpend(
                model_id=entry.model_id,
                usage=usage_message(entry.usage),
                list_cost_usd="" if entry.cost is None else to_usd(entry.cost),
            )
            for entry in spend.models
        ],
    )


def usage_message(usage: TokenUsage) -> Usage:
    """Tokens as the contract shows them."""
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_input_tokens=usage.cache_read_input_tokens,
        cache_creation_5m_input_tokens=usage.cache_creation_5m_input_tokens,
        cache_creation_1h_input_tokens=usage.cache_creation_1h_input_tokens,
        web_search_requests=usage.web_search_requests,
        web_fetch_requests=usage.web_fetch_requests,
    )


def event_messages(rows: list[EventTuple]) -> list[Event]:
    """Events of a log, their bodies untouched."""
    return [Event(id=event_id, seq=seq, type=kind, body=body.encode()) for seq, event_id, kind, body in rows]


def _model(record: SessionRecord) -> tuple[str, str]:
    model = record.agent_model
    if record.row.agent_model is None and '"effort"' not in model:
        return record.saved.model_id, model
    shown = without_effort(orjson.loads(model))
    return shown["id"], orjson.dumps(shown).decode()


def _active_seconds(row: SessionRow, now: datetime) -> float:
    running = _seconds(row.running_since, now) if row.running_since else 0.0
    return row.active_seconds + running


def _seconds(start: datetime, end: datetime) -> float:
    # The clocks of two processes may differ by a little; a duration never is negative.
    return max(0.0, (end - start).total_seconds())

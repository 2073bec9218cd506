"""Public JSON of a session: `status` and `agent.model` differ between the projections."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import orjson

from managed_agents.sessions.v1.sessions_pb2 import ModelSpend, Session, SessionStatus

from .agents import render_session_agent
from .engines import render_engine_options
from .resources import render_resource_array
from .splice import object_of, raw, text, text_or_null

LOCAL_STATUS = {
    SessionStatus.SESSION_STATUS_IDLE: "idle",
    SessionStatus.SESSION_STATUS_RUNNING: "running",
    SessionStatus.SESSION_STATUS_RESCHEDULING: "rescheduling",
    SessionStatus.SESSION_STATUS_REQUIRES_ACTION: "requires_action",
    SessionStatus.SESSION_STATUS_TERMINATED: "terminated",
    SessionStatus.SESSION_STATUS_TIMED_OUT: "timed_out",
}
PUBLISHED_STATUS = {**LOCAL_STATUS} | {
    SessionStatus.SESSION_STATUS_REQUIRES_ACTION: "idle",
    SessionStatus.SESSION_STATUS_TIMED_OUT: "terminated",
}
# Bounds what is kept to some megabytes.
_LARGEST_KEPT = 16 * 1024


def statuses_named(name: str, *, published: bool) -> list[SessionStatus.ValueType]:
    """The statuses that a filter value stands for in a projection; empty for an unknown word."""
    vocabulary = PUBLISHED_STATUS if published else LOCAL_STATUS
    return [status for status, word in vocabulary.items() if word == name]


def render_session(session: Session, *, published: bool) -> bytes:
    """One session. Who lists sessions again and again mostly meets those that didn't change in between."""
    return render_encoded(session.SerializeToString(), published=published)


def render_encoded(session: bytes, *, published: bool) -> bytes:
    """The same of an encoded one, which is decoded only if it was not met before."""
    return (_kept if len(session) <= _LARGEST_KEPT else _rendered)(session, published)


def _rendered(encoded: bytes, published: bool) -> bytes:
    session = Session.FromString(encoded)
    status = (PUBLISHED_STATUS if published else LOCAL_STATUS)[session.status]
    return object_of(
        (
            b'"id":%b,"type":"session"' % text(session.id),
            b'"agent":' + render_session_agent(session.agent, published=published),
            b'"environment_id":' + text(session.environment_id),
            b'"title":' + (text(session.title) if session.HasField("title") else b"null"),
            b'"status":' + text(status),
            b'"stop_reason":' + session.stop_reason_json if session.stop_reason_json else b"",
            b'"metadata":' + raw(session.metadata_json, b"{}"),
            b'"resources":' + render_resource_array(session.resources_json, published=published),
            b'"vault_ids":' + orjson.dumps(list(session.vault_ids)),
            b'"loop_engine":' + text(session.loop_engine),
            render_engine_options(session.loop_engine_options_json),
            b'"usage":' + _usage(session, published=published),
            b'"stats":{"active_seconds":%.3f,"duration_seconds":%.3f}'
            % (session.active_seconds, session.duration_seconds),
            b'"budget":' + session.budget_json if session.budget_json else b"",
            b'"outcome_evaluations":' + raw(session.outcome_evaluations_json, b"[]"),
            b'"deployment_id":' + text_or_null(session.deployment_id),
            b'"last_seq":%d' % session.last_seq,
            b'"created_at":%b,"updated_at":%b' % (text(session.created_at), text(session.updated_at)),
            b'"archived_at":' + text_or_null(session.archived_at),
        )
    )


# Keyed by all that goes into it, so what is kept is never out of date.
_kept = lru_cache(maxsize=512)(_rendered)


def _usage(session: Session, *, published: bool) -> bytes:
    usage = session.usage
    totals = (
        b'"input_tokens":%d,"output_tokens":%d,"cache_read_input_tokens":%d,'
        b'"cache_creation":{"ephemeral_5m_input_tokens":%d,"ephemeral_1h_input_tokens":%d},'
        b'"server_tool_use":{"web_search_requests":%d,"web_fetch_requests":%d},"active_seconds":%.3f'
        % (
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_input_tokens,
            usage.cache_creation_5m_input_tokens,
            usage.cache_creation_1h_input_tokens,
            usage.web_search_requests,
            usage.web_fetch_requests,
            session.active_seconds,
        )
    )
    cost = b""
    if session.HasField("list_cost_cents"):
        cost = b'"list_cost":' + orjson.dumps(list_cost(session.list_cost_cents, published=published))
    return object_of((totals, cost, b'"models":' + orjson.dumps([_spend(entry) for entry in session.spend])))


def list_cost(cents: int, *, published: bool) -> int | dict[str, str]:
    """What models cost at list price: whole cents locally, an amount with its currency in the published shape."""
    return {"amount": str(cents), "currency": "USD"} if published else cents


def _spend(entry: ModelSpend) -> dict[str, Any]:
    """What went to one model; without `list_cost_usd` where it has no list price. A superset in both shapes."""
    usage = entry.usage
    shown: dict[str, Any] = {
        "model": entry.model_id,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": usage.cache_read_input_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_creation_5m_input_tokens,
            "ephemeral_1h_input_tokens": usage.cache_creation_1h_input_tokens,
        },
    }
    if entry.list_cost_usd:
        shown["list_cost_usd"] = entry.list_cost_usd
    return shown

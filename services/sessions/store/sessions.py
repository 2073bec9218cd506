"""SQL on what a session is made of: insert, read, list, change. Its turn is `store/turns.py`.

A session is read with the agent that it runs in one statement: the saved version, or the
session's own copy where it has one. Deleted sessions are invisible here.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString

from kit.postgres import Tx
from services.sessions.store.session_row import SessionRow

_SELECT: LiteralString = """
SELECT s.workspace_id, s.id, s.created_at, s.revision, s.agent_id, s.agent_version, s.agent_document, s.agent_model,
       s.agent_name, s.environment_id, s.environment, s.title, s.metadata, s.resources, s.vault_ids, s.loop_engine,
       s.deployment_id, s.budget, s.outcome_evaluations, s.thread_id, s.archived_at, s.deleted_at, s.updated_at,
       s.status, s.last_seq, s.stop_reason, s.input_tokens, s.output_tokens, s.cache_read_input_tokens,
       s.cache_creation_5m_input_tokens, s.cache_creation_1h_input_tokens, s.active_seconds, s.running_since,
       v.document, v.model, v.model_id
FROM sessions s
LEFT JOIN agent_versions v
  ON v.workspace_id = %(workspace_id)s AND v.agent_id = s.agent_id AND v.version = s.agent_version
"""
_ROW_WIDTH = 33


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session's row with the JSON of the agent that it runs."""

    row: SessionRow
    agent_document: str
    agent_model: str
    # The model's id of the saved version, whatever the session makes of it.
    saved_model_id: str


@dataclass(frozen=True, slots=True)
class NewSessionRow:
    """What is stored of a session at its creation; the rest has defaults."""

    id: str
    created_at: datetime
    agent_id: str
    agent_version: int
    agent_document: str | None
    agent_model: str | None
    agent_name: str
    environment_id: str
    environment: str
    title: str | None
    metadata: str
    loop_engine: str
    thread_id: str


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """What a listing is narrowed to; None, empty or false stands for no limit."""

    agent_id: str = ""
    agent_version: int = 0
    deployment_id: str = ""
    memory_store_id: str = ""
    statuses: tuple[str, ...] = ()
    include_archived: bool = False
    created_at_gt: datetime | None = None
    created_at_gte: datetime | None = None
    created_at_lt: datetime | None = None
    created_at_lte: datetime | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two sessions of a listing: right after this one, in reading order."""

    created_at: datetime
    id: str


class Sessions:
    """Statements on `sessions`, for handlers."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def insert(self, session: NewSessionRow) -> None:
        """Stores a new, idle session."""
        await self._tx.execute(
            """
            INSERT INTO sessions (
                workspace_id, id, created_at, updated_at, agent_id, agent_version, agent_document, agent_model,
                agent_name, environment_id, environment, title, metadata, loop_engine, thread_id
            ) VALUES (
                %(workspace_id)s, %(id)s, %(created_at)s, %(created_at)s, %(agent_id)s, %(agent_version)s,
                %(agent_document)s, %(agent_model)s, %(agent_name)s, %(environment_id)s, %(environment)s, %(title)s,
                %(metadata)s, %(loop_engine)s, %(thread_id)s
            )
            """,
            {name: getattr(session, name) for name in NewSessionRow.__slots__},
        )

    async def get(self, session_id: str) -> SessionRecord | None:
        """One session with its agent."""
        found = await self._tx.maybe_one(
            _SELECT + "WHERE s.workspace_id = %(workspace_id)s AND s.id = %(id)s AND s.deleted_at IS NULL",
            {"id": session_id},
        )
        return _record(found) if found else None

    async def page(
        self, narrowed: SessionFilter, after: Position | None, *, ascending: bool, limit: int
    ) -> list[SessionRecord]:
        """Up to `limit` sessions in order of creation, from a position on."""
        params = {
            "limit": limit,
            "agent_id": narrowed.agent_id,
            "agent_version": narrowed.agent_version,
            "deployment_id": narrowed.deployment_id,
            "memory_store_id": narrowed.memory_store_id,
            "statuses": list(narrowed.statuses),
            "created_at_gt": narrowed.created_at_gt,
            "created_at_gte": narrowed.created_at_gte,
            "created_at_lt": narrowed.created_at_lt,
            "created_at_lte": narrowed.created_at_lte,
            "after_created_at": after.created_at if after else None,
            "after_id": after.id if after else None,
        }
        rows = await self._tx.all(_SELECT + _conditions(narrowed) + _order(after, ascending), params)
        return [_record(row) for row in rows]

    async def change(
        self,
        session_id: str,
        *,
        title: str | None,
        metadata: str,
        agent_document: str | None,
        agent_model: str | None,
    ) -> None:
        """Saves what an update may change; the caller holds the row's lock."""
        await self._tx.execute(
            """
            UPDATE sessions
            SET title = %(title)s, metadata = %(metadata)s, agent_document = %(agent_document)s,
                agent_model = %(agent_model)s
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s
            """,
            {
                "id": session_id,
                "title": title,
                "metadata": metadata,
                "agent_document": agent_document,
                "agent_model": agent_model,
            },
        )


def _conditions(narrowed: SessionFilter) -> LiteralString:
    """Only what is asked for becomes part of the statement, so that each mix gets a plan of its own."""
    sql: LiteralString = "WHERE s.workspace_id = %(workspace_id)s AND s.deleted_at IS NULL"
    if not narrowed.include_archived:
        sql += " AND s.archived_at IS NULL"
    if narrowed.agent_id:
        sql += " AND s.agent_id = %(agent_id)s"
    if narrowed.agent_version:
        sql += " AND s.agent_version = %(agent_version)s"
    if narrowed.deployment_id:
        sql += " AND s.deployment_id = %(deployment_id)s"
    if narrowed.memory_store_id:
        sql += (
            " AND EXISTS (SELECT FROM jsonb_array_elements(s.resources::jsonb) resource"
            " WHERE resource ->> 'memory_store_id' = %(memory_store_id)s)"
        )
    if narrowed.statuses:
        sql += " AND s.status = ANY(%(statuses)s)"
    if narrowed.created_at_gt:
        sql += " AND s.created_at > %(created_at_gt)s"
    if narrowed.created_at_gte:
        sql += " AND s.created_at >= %(created_at_gte)s"
    if narrowed.created_at_lt:
        sql += " AND s.created_at < %(created_at_lt)s"
    if narrowed.created_at_lte:
        sql += " AND s.created_at <= %(created_at_lte)s"
    return sql


def _order(after: Position | None, ascending: bool) -> LiteralString:
    if ascending:
        start: LiteralString = " AND (s.created_at, s.id) > (%(after_created_at)s, %(after_id)s)" if after else ""
        return start + " ORDER BY s.created_at, s.id LIMIT %(limit)s"
    start = " AND (s.created_at, s.id) < (%(after_created_at)s, %(after_id)s)" if after else ""
    return start + " ORDER BY s.created_at DESC, s.id DESC LIMIT %(limit)s"


def _record(found: tuple[object, ...]) -> SessionRecord:
    row = SessionRow(*found[:_ROW_WIDTH])  # type: ignore[arg-type]
    document, model, model_id = found[_ROW_WIDTH:]
    return SessionRecord(row, row.agent_document or str(document), row.agent_model or str(model), str(model_id))

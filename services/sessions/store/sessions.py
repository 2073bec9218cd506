"""SQL on what a session is made of: insert, read, list, change. Its turn is `store/turns.py`.

A session runs its agent's saved version, or its own copy where it has one. One session is
read with its version in one statement; a listing is read without, since a few versions
serve many sessions and never change. Deleted sessions are invisible here.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

from kit.postgres import Tx
from services.sessions.store.session_row import SESSION_COLUMNS, SessionRow

_WIDTH = len(SessionRow._fields)

# A row as it was at some moment: its id, the transaction that wrote it, and its time of change as text. The transaction
# alone tells two versions of a row apart, whatever was written; the time does so too where a server that took over
# from a lost one gives the lost numbers again.
Version = tuple[str, str, str]
_VERSION_COLUMNS = "id, xmin, updated_at::text"
_VERSION_WIDTH = 3
_VERSIONED_COLUMNS: LiteralString = f"{_VERSION_COLUMNS}, {SESSION_COLUMNS}"


@dataclass(frozen=True, slots=True)
class SavedAgent:
    """A version of an agent as it was saved; it never changes."""

    document: str
    model: str
    model_id: str


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session's row with the version of the agent that it was made from."""

    row: SessionRow
    saved: SavedAgent

    @property
    def agent_document(self) -> str:
        """The agent as this session runs it."""
        return self.row.agent_document or self.saved.document

    @property
    def agent_model(self) -> str:
        """The model that this session runs."""
        return self.row.agent_model or self.saved.model


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
    budget: str | None = None
    loop_engine_options: str | None = None
    vault_ids: str = "[]"
    on_worker: bool = False
    resources: str = "[]"


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
                agent_name, environment_id, environment, title, metadata, loop_engine,
                loop_engine_options, thread_id, budget, vault_ids, resources, on_worker
            ) VALUES (
                %(workspace_id)s, %(id)s, %(created_at)s, %(created_at)s, %(agent_id)s, %(agent_version)s,
                %(agent_document)s, %(agent_model)s, %(agent_name)s, %(environment_id)s, %(environment)s, %(title)s,
                %(metadata)s, %(loop_engine)s, %(loop_engine_options)s, %(thread_id)s, %(budget)s, %(vault_ids)s,
                %(resources)s, %(on_worker)s
            )
            """,
            {name: getattr(session, name) for name in NewSessionRow.__slots__},
        )

    async def get_some(self, session_ids: list[str]) -> dict[str, SessionRecord]:
        """Those of the sessions that there are, each with its agent."""
        found = await self._tx.all(
            "".join(
                (
                    "SELECT ",
                    SESSION_COLUMNS,
                    ", document, model, model_id FROM sessions LEFT JOIN ("
                    " SELECT agent_id AS saved_id, version AS saved_version, document, model, model_id"
                    " FROM agent_versions WHERE workspace_id = %(workspace_id)s"
                    ") v ON saved_id = agent_id AND saved_version = agent_version"
                    " WHERE workspace_id = %(workspace_id)s AND id = ANY(%(ids)s) AND deleted_at IS NULL"
                    " LIMIT %(limit)s",
                )
            ),
            {"ids": session_ids, "limit": len(session_ids)},
        )
        rows = ((SessionRow._make(row[:_WIDTH]), row[_WIDTH:]) for row in found)
        return {row.id: SessionRecord(row, SavedAgent(*saved)) for row, saved in rows}

    async def get(self, session_id: str) -> SessionRecord | None:
        """One session with its agent."""
        return (await self.get_some([session_id])).get(session_id)

    async def versions(self, narrowed: SessionFilter, *, ascending: bool, limit: int) -> list[Version]:
        """The first `limit` sessions in order of creation, by no more than their rows' versions."""
        return await self._page(_VERSION_COLUMNS, narrowed, None, ascending, limit)

    async def page(
        self, narrowed: SessionFilter, after: Position | None, *, ascending: bool, limit: int
    ) -> list[tuple[Version, SessionRow]]:
        """Up to `limit` sessions from a position on, with their rows; see `saved_agents` for their agents."""
        return _versioned(await self._page(_VERSIONED_COLUMNS, narrowed, after, ascending, limit))

    async def with_versions(self, session_ids: list[str]) -> list[tuple[Version, SessionRow]]:
        """Those of the sessions that there still are, as they are now."""
        return _versioned(
            await self._tx.all(
                "".join(
                    (
                        "SELECT ",
                        _VERSIONED_COLUMNS,
                        " FROM sessions WHERE workspace_id = %(workspace_id)s AND id = ANY(%(ids)s)"
                        " AND deleted_at IS NULL LIMIT %(limit)s",
                    )
                ),
                {"ids": session_ids, "limit": len(session_ids)},
            )
        )

    async def saved_agents(self, keys: Collection[tuple[str, int]]) -> dict[tuple[str, int], SavedAgent]:
        """The versions, by agent and version, that sessions were made from."""
        found = await self._tx.all(
            """
            SELECT agent_id, version, document, model, model_id FROM agent_versions
            WHERE workspace_id = %(workspace_id)s
              AND (agent_id, version) IN (SELECT * FROM unnest(%(ids)s::text[], %(versions)s::integer[]))
            ORDER BY agent_id, version LIMIT %(limit)s
            """,
            {"ids": [key[0] for key in keys], "versions": [key[1] for key in keys], "limit": len(keys)},
        )
        return {(agent_id, version): SavedAgent(*saved) for agent_id, version, *saved in found}

    async def _page(
        self, columns: LiteralString, narrowed: SessionFilter, after: Position | None, ascending: bool, limit: int
    ) -> list[Any]:
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
        statement = "".join(("SELECT ", columns, " FROM sessions ", _conditions(narrowed), _order(after, ascending)))
        return await self._tx.all(statement, params)

    async def change(
        self,
        session_id: str,
        *,
        title: str | None,
        metadata: str,
        agent_document: str | None,
        agent_model: str | None,
        budget: str | None,
    ) -> None:
        """Saves what an update may change; the caller holds the row's lock."""
        await self._tx.execute(
            """
            UPDATE sessions
            SET title = %(title)s, metadata = %(metadata)s, agent_document = %(agent_document)s,
                agent_model = %(agent_model)s, budget = %(budget)s
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s
            """,
            {
                "id": session_id,
                "title": title,
                "metadata": metadata,
                "agent_document": agent_document,
                "agent_model": agent_model,
                "budget": budget,
            },
        )


def _versioned(found: list[tuple[Any, ...]]) -> list[tuple[Version, SessionRow]]:
    return [(row[:_VERSION_WIDTH], SessionRow._make(row[_VERSION_WIDTH:])) for row in found]


def _conditions(narrowed: SessionFilter) -> LiteralString:
    """Only what is asked for becomes part of the statement, so that each mix gets a plan of its own."""
    sql: LiteralString = "WHERE workspace_id = %(workspace_id)s AND deleted_at IS NULL AND root_id IS NULL"
    if not narrowed.include_archived:
        sql += " AND archived_at IS NULL"
    if narrowed.agent_id:
        sql += " AND agent_id = %(agent_id)s"
    if narrowed.agent_version:
        sql += " AND agent_version = %(agent_version)s"
    if narrowed.deployment_id:
        sql += " AND deployment_id = %(deployment_id)s"
    if narrowed.memory_store_id:
        sql += (
            " AND resources <> '[]' AND resources::jsonb @>"
            " jsonb_build_array(jsonb_build_object('memory_store_id', %(memory_store_id)s::text))"
        )
    if narrowed.statuses:
        sql += " AND status = ANY(%(statuses)s)"
    if narrowed.created_at_gt:
        sql += " AND created_at > %(created_at_gt)s"
    if narrowed.created_at_gte:
        sql += " AND created_at >= %(created_at_gte)s"
    if narrowed.created_at_lt:
        sql += " AND created_at < %(created_at_lt)s"
    if narrowed.created_at_lte:
        sql += " AND created_at <= %(created_at_lte)s"
    return sql


def _order(after: Position | None, ascending: bool) -> LiteralString:
    if ascending:
        start: LiteralString = " AND (created_at, id) > (%(after_created_at)s, %(after_id)s)" if after else ""
        return start + " ORDER BY created_at, id LIMIT %(limit)s"
    start = " AND (created_at, id) < (%(after_created_at)s, %(after_id)s)" if after else ""
    return start + " ORDER BY created_at DESC, id DESC LIMIT %(limit)s"

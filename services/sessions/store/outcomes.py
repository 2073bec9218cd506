"""The tables `outcomes` and `session_outcomes`, and the text of a log that the evaluator reads."""

from dataclasses import dataclass
from datetime import datetime

import orjson

from kit.postgres import Tx
from services.sessions.domain.errors import OutcomeNotFound
from services.sessions.domain.outcome_definition import OutcomeDefinition, StoredOutcome

# What the evaluator reads of a log: what was said, and what was done.
_TRANSCRIPT_TYPES = [
    "user.message",
    "user.custom_tool_result",
    "user.tool_result",
    "agent.message",
    "agent.tool_use",
    "agent.tool_result",
    "agent.mcp_tool_use",
    "agent.mcp_tool_result",
    "agent.custom_tool_use",
]


@dataclass(frozen=True, slots=True)
class SessionOutcome:
    """One stored finding about a session."""

    id: str
    session_id: str
    outcome_id: str
    status: str
    score: float | None
    summary: str | None
    evaluator: str
    # JSON array of {criterion, matched}.
    criteria: str
    # JSON object of string pairs.
    metadata: str
    created_at: datetime


class OutcomeStore:
    """Outcomes of the workspace that the transaction belongs to."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def insert(self, outcome_id: str, content: OutcomeDefinition, now: datetime) -> StoredOutcome:
        """Saves a new definition."""
        return await self._tx.one(
            """
            INSERT INTO outcomes (
                workspace_id, id, name, description, objective, criteria, pass_threshold, metadata, created_at,
                updated_at
            )
            VALUES (
                %(workspace_id)s, %(id)s, %(name)s, %(description)s, %(objective)s, %(criteria)s, %(pass_threshold)s,
                %(metadata)s, %(now)s, %(now)s
            )
            RETURNING id, name, description, objective, criteria, pass_threshold, metadata, created_at, updated_at,
                archived_at
            """,
            {"id": outcome_id, "now": now} | _columns(content),
            row=StoredOutcome,
        )

    async def load(self, outcome_id: str) -> StoredOutcome:
        """The definition."""
        found = await self._tx.maybe_one(
            """
            SELECT id, name, description, objective, criteria, pass_threshold, metadata, created_at, updated_at,
                archived_at
            FROM outcomes WHERE workspace_id = %(workspace_id)s AND id = %(id)s
            """,
            {"id": outcome_id},
            row=StoredOutcome,
        )
        return _present(found, outcome_id)

    async def load_for_update(self, outcome_id: str) -> StoredOutcome:
        """The definition, locked until the transaction ends."""
        found = await self._tx.maybe_one(
            """
            SELECT id, name, description, objective, criteria, pass_threshold, metadata, created_at, updated_at,
                archived_at
            FROM outcomes WHERE workspace_id = %(workspace_id)s AND id = %(id)s
            FOR NO KEY UPDATE
            """,
            {"id": outcome_id},
            row=StoredOutcome,
        )
        return _present(found, outcome_id)

    async def save(self, outcome_id: str, content: OutcomeDefinition, now: datetime) -> StoredOutcome:
        """Replaces the content of a locked definition."""
        return await self._tx.one(
            """
            UPDATE outcomes
            SET name = %(name)s, description = %(description)s, objective = %(objective)s, criteria = %(criteria)s,
                pass_threshold = %(pass_threshold)s, metadata = %(metadata)s, updated_at = %(now)s
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s
            RETURNING id, name, description, objective, criteria, pass_threshold, metadata, created_at, updated_at,
                archived_at
            """,
            {"id": outcome_id, "now": now} | _columns(content),
            row=StoredOutcome,
        )

    async def archive(self, outcome_id: str, now: datetime) -> StoredOutcome:
        """Archives the definition; one that is archived keeps the time at which it was."""
        found = await self._tx.maybe_one(
            """
            UPDATE outcomes SET archived_at = coalesce(archived_at, %(now)s)
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s
            RETURNING id, name, description, objective, criteria, pass_threshold, metadata, created_at, updated_at,
                archived_at
            """,
            {"id": outcome_id, "now": now},
            row=StoredOutcome,
        )
        return _present(found, outcome_id)

    async def page(
        self, *, limit: int, before: tuple[datetime, str] | None, include_archived: bool
    ) -> list[StoredOutcome]:
        """Definitions from newest to oldest, beginning behind `before`."""
        created_at, outcome_id = before or (None, "")
        return await self._tx.all(
            """
            SELECT id, name, description, objective, criteria, pass_threshold, metadata, created_at, updated_at,
                archived_at
            FROM outcomes
            WHERE workspace_id = %(workspace_id)s
              AND (%(include_archived)s OR archived_at IS NULL)
              AND (created_at, id) < (coalesce(%(before_created_at)s::timestamptz, 'infinity'), %(before_id)s)
            ORDER BY created_at DESC, id DESC
            LIMIT %(limit)s
            """,
            {
                "limit": limit,
                "include_archived": include_archived,
                "before_created_at": created_at,
                "before_id": outcome_id,
            },
            row=StoredOutcome,
        )

    async def record(self, found: SessionOutcome) -> None:
        """Saves what was found about a session."""
        await self._tx.execute(
            """
            INSERT INTO session_outcomes (
                workspace_id, id, session_id, outcome_id, status, score, summary, evaluator, criteria, metadata,
                created_at
            )
            VALUES (
                %(workspace_id)s, %(id)s, %(session_id)s, %(outcome_id)s, %(status)s, %(score)s, %(summary)s,
                %(evaluator)s, %(criteria)s, %(metadata)s, %(created_at)s
            )
            """,
            {name: getattr(found, name) for name in SessionOutcome.__slots__},
        )

    async def records(
        self, session_id: str, *, limit: int, before: tuple[datetime, str] | None
    ) -> list[SessionOutcome]:
        """What was found about a session, from newest to oldest, beginning behind `before`."""
        created_at, record_id = before or (None, "")
        return await self._tx.all(
            """
            SELECT id, session_id, outcome_id, status, score, summary, evaluator, criteria, metadata, created_at
            FROM session_outcomes
            WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s
              AND (created_at, id) < (coalesce(%(before_created_at)s::timestamptz, 'infinity'), %(before_id)s)
            ORDER BY created_at DESC, id DESC
            LIMIT %(limit)s
            """,
            {"session_id": session_id, "limit": limit, "before_created_at": created_at, "before_id": record_id},
            row=SessionOutcome,
        )

    async def has_session(self, session_id: str) -> bool:
        """Whether the workspace has the session, in whatever state."""
        found = await self._tx.maybe_one(
            "SELECT 1 FROM sessions WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND deleted_at IS NULL",
            {"id": session_id},
        )
        return found is not None

    async def transcript(self, session_id: str, after_seq: int, limit: int) -> list[tuple[int, str]]:
        """(seq, body) of what was said and done in a session, after a seq."""
        return await self._tx.all(  # type: ignore[return-value]
            """
            SELECT seq, body FROM events
            WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND seq > %(after_seq)s
              AND type = ANY(%(types)s)
            ORDER BY seq LIMIT %(limit)s
            """,
            {"session_id": session_id, "after_seq": after_seq, "types": _TRANSCRIPT_TYPES, "limit": limit},
        )


def _columns(content: OutcomeDefinition) -> dict[str, str | float | None]:
    return {
        "name": content.name,
        "description": content.description,
        "objective": content.objective,
        "criteria": orjson.dumps(content.criteria).decode(),
        "pass_threshold": content.pass_threshold,
        "metadata": orjson.dumps(content.metadata).decode(),
    }


def _present(found: StoredOutcome | None, outcome_id: str) -> StoredOutcome:
    if found is None:
        raise OutcomeNotFound(f"Outcome not found: {outcome_id}", outcome_id=outcome_id)
    return found

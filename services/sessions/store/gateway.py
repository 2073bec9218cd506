"""SQL of the session gateway: publications, who made which session, runs, spent tickets."""

from dataclasses import dataclass
from datetime import datetime

from kit.postgres import Tx


@dataclass(frozen=True, slots=True)
class PublicationRow:
    """Which version of an agent is published."""

    version: int
    published_at: datetime
    published_by: str


@dataclass(frozen=True, slots=True)
class GatewaySessionRow:
    """Who made a session, and for what."""

    agent_id: str
    preview: bool
    owner: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class GatewayRunRow:
    """One run."""

    run_id: str
    session_id: str
    first_seq: int
    agent_version: int
    configuration: str
    trace_id: str
    created_at: datetime


class GatewayStore:
    """Statements of one transaction."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def publication(self, agent_id: str) -> PublicationRow | None:
        """What was published last; None where nothing ever was."""
        return await self._tx.maybe_one(
            """
            SELECT version, published_at, published_by FROM agent_publications
            WHERE workspace_id = %(workspace_id)s AND agent_id = %(agent_id)s
            """,
            {"agent_id": agent_id},
            row=PublicationRow,
        )

    async def publish(self, agent_id: str, row: PublicationRow) -> None:
        """Makes a version the published one."""
        await self._tx.execute(
            """
            INSERT INTO agent_publications (workspace_id, agent_id, version, published_at, published_by)
            VALUES (%(workspace_id)s, %(agent_id)s, %(version)s, %(published_at)s, %(published_by)s)
            ON CONFLICT (workspace_id, agent_id) DO UPDATE
            SET version = excluded.version, published_at = excluded.published_at, published_by = excluded.published_by
            """,
            {
                "agent_id": agent_id,
                "version": row.version,
                "published_at": row.published_at,
                "published_by": row.published_by,
            },
        )

    async def insert_session(self, session_id: str, row: GatewaySessionRow) -> None:
        """Says whose a new session is; what its model says goes into the log in parts from here on."""
        await self._tx.execute(
            """
            WITH marked AS (
                UPDATE sessions SET text_parts = true WHERE workspace_id = %(workspace_id)s AND id = %(session_id)s
            )
            INSERT INTO gateway_sessions (workspace_id, session_id, agent_id, preview, owner, created_at)
            VALUES (%(workspace_id)s, %(session_id)s, %(agent_id)s, %(preview)s, %(owner)s, %(created_at)s)
            """,
            {
                "session_id": session_id,
                "agent_id": row.agent_id,
                "preview": row.preview,
                "owner": row.owner,
                "created_at": row.created_at,
            },
        )

    async def session(self, session_id: str) -> GatewaySessionRow | None:
        """Whose a session is; None where it was not begun here, or was deleted."""
        return await self._tx.maybe_one(
            """
            SELECT g.agent_id, g.preview, g.owner, g.created_at
            FROM gateway_sessions AS g
            JOIN sessions AS s ON s.workspace_id = g.workspace_id AND s.id = g.session_id
            WHERE g.workspace_id = %(workspace_id)s AND g.session_id = %(session_id)s AND s.deleted_at IS NULL
            """,
            {"session_id": session_id},
            row=GatewaySessionRow,
        )

    async def change_agent(self, session_id: str, version: int, document: str | None, name: str) -> None:
        """Has a locked session run another version of its agent."""
        await self._tx.execute(
            """
            UPDATE sessions
            SET agent_version = %(version)s, agent_document = %(document)s, agent_model = NULL, agent_name = %(name)s
            WHERE workspace_id = %(workspace_id)s AND id = %(session_id)s
            """,
            {"session_id": session_id, "version": version, "document": document, "name": name},
        )

    async def insert_run(self, row: GatewayRunRow) -> None:
        """Stores a run."""
        await self._tx.execute(
            """
            INSERT INTO gateway_runs (
                workspace_id, run_id, session_id, first_seq, agent_version, configuration, trace_id, created_at
            ) VALUES (
                %(workspace_id)s, %(run_id)s, %(session_id)s, %(first_seq)s, %(agent_version)s, %(configuration)s,
                %(trace_id)s, %(created_at)s
            )
            """,
            {name: getattr(row, name) for name in GatewayRunRow.__slots__},
        )

    async def run(self, run_id: str) -> GatewayRunRow | None:
        """One run."""
        return await self._tx.maybe_one(
            """
            SELECT run_id, session_id, first_seq, agent_version, configuration, trace_id, created_at
            FROM gateway_runs WHERE workspace_id = %(workspace_id)s AND run_id = %(run_id)s
            """,
            {"run_id": run_id},
            row=GatewayRunRow,
        )

    async def ends_after(self, session_id: str, seq: int) -> bool:
        """Whether a turn of the session has come to its end, and not to a pause, after a seq."""
        found = await self._tx.maybe_one(
            """
            SELECT 1 FROM events
            WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND seq > %(seq)s
              AND (type = 'session.status_terminated' OR (
                  type = 'session.status_idle' AND body::jsonb #>> '{stop_reason,type}' <> 'requires_action'))
            ORDER BY seq LIMIT 1
            """,
            {"session_id": session_id, "seq": seq},
        )
        return found is not None

    async def spend_ticket(self, ticket_id: str, keep_seconds: int) -> bool:
        """Whether the ticket was not spent before; forgets those that are too old anyway."""
        await self._tx.execute(
            """
            DELETE FROM gateway_tickets
            WHERE workspace_id = %(workspace_id)s AND expires_at < clock_timestamp()
            """
        )
        spent = await self._tx.execute(
            """
            INSERT INTO gateway_tickets (workspace_id, ticket_id, expires_at)
            VALUES (%(workspace_id)s, %(ticket_id)s, clock_timestamp() + make_interval(secs => %(keep_seconds)s))
            ON CONFLICT (workspace_id, ticket_id) DO NOTHING
            """,
            {"ticket_id": ticket_id, "keep_seconds": keep_seconds},
        )
        return spent == 1

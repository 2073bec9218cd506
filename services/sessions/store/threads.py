"""SQL on threads: rows of `sessions` that belong to a session, and the news that they have for it.

Their logs and turns are written as any session's; what is here is how they come to be, how
they are listed, and what their session reads of them. Whoever moves a thread on behalf of its
session holds the session's lock first.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from kit.postgres import Tx
from services.sessions.domain.budget import is_spent
from services.sessions.domain.log import LoggedEvent
from services.sessions.domain.session_state import TokenUsage
from services.sessions.domain.thread_news import IDLE, MESSAGE_SENT, TERMINATED, News
from services.sessions.domain.threads import Member
from services.sessions.store.session_row import SESSION_COLUMNS, SessionRow
from services.sessions.store.sessions import SavedAgent, SessionRecord

_WIDTH = len(SessionRow._fields)
# What a thread's log says about how its last message was answered, newest first.
_OUTCOME_TYPES = (MESSAGE_SENT, "user.interrupt", "session.error", "agent.thread_message_received")
_NO_ANSWER = "The thread ended its turn without a message."
_INTERRUPTED = "The thread was interrupted by the user before it answered."


@dataclass(frozen=True, slots=True)
class NewsRow:
    """An event of a thread that its session has not taken note of."""

    thread_id: str
    seq: int
    type: str
    body: str


class ThreadStore:
    """Statements of one transaction."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def insert(
        self, root_id: str, thread_id: str, member: Member, now: datetime, document: str | None = None
    ) -> None:
        """Stores a new, idle thread: it shares what the session has, and runs a saved agent of its own.

        `document` is that agent where the session has it otherwise than saved.
        """
        await self._tx.execute(
            """
            INSERT INTO sessions (
                workspace_id, id, root_id, created_at, updated_at, agent_id, agent_version, agent_document, agent_name,
                environment_id, environment, environment_now, resources, vault_ids, loop_engine,
                loop_engine_options, deployment_id, thread_id, turn_holder, budget, on_worker
            )
            SELECT workspace_id, %(thread_id)s, id, %(now)s, %(now)s, %(agent_id)s, %(version)s, %(document)s, %(name)s,
                   environment_id, environment, environment_now, resources, vault_ids, loop_engine,
                   loop_engine_options, deployment_id, %(thread_id)s, turn_holder, budget, on_worker
            FROM sessions WHERE workspace_id = %(workspace_id)s AND id = %(root_id)s
            """,
            {
                "root_id": root_id,
                "thread_id": thread_id,
                "now": now,
                "agent_id": member.agent_id,
                "version": member.version,
                "document": document,
                "name": member.name,
            },
        )

    async def add_news(self, root_id: str, thread_id: str, events: Sequence[LoggedEvent]) -> None:
        """Notes that a session has to hear of these events of a thread, with the events themselves."""
        await self._tx.execute(
            """
            INSERT INTO thread_news (workspace_id, root_id, thread_id, seq)
            SELECT %(workspace_id)s, %(root_id)s, %(thread_id)s, unnest(%(seqs)s::bigint[])
            """,
            {"root_id": root_id, "thread_id": thread_id, "seqs": [event.seq for event in events]},
        )

    async def take_news(self, root_id: str) -> list[NewsRow]:
        """What a session has to hear, in the order of its happening; told once, if this transaction commits."""
        rows = await self._tx.all(
            """
            WITH taken AS (
                DELETE FROM thread_news WHERE workspace_id = %(workspace_id)s AND root_id = %(root_id)s
                RETURNING thread_id, seq
            )
            SELECT e.session_id, e.seq, e.type, e.body
            FROM taken JOIN events e ON e.session_id = taken.thread_id AND e.seq = taken.seq
            WHERE e.workspace_id = %(workspace_id)s
            ORDER BY e.created_at, e.session_id, e.seq
            """,
            {"root_id": root_id},
        )
        return [NewsRow(*row) for row in rows]

    async def roots_with_news(self, limit: int) -> list[tuple[str, str]]:
        """Sessions that have something to hear, as (workspace, session)."""
        return await self._tx.all(  # type: ignore[return-value]
            """
            SELECT DISTINCT workspace_id, root_id FROM thread_news -- platform-wide: sweep
            ORDER BY workspace_id, root_id LIMIT %(limit)s
            """,
            {"limit": limit},
        )

    async def understand(self, rows: Sequence[NewsRow]) -> list[News]:
        """The news with what the threads' logs and rows say around them."""
        totals = await self._totals({row.thread_id for row in rows})
        news: list[News] = []
        for row in rows:
            usage, spend = totals[row.thread_id]
            told = News(row.thread_id, row.type, orjson.loads(row.body), usage=usage, spend=spend)
            news.append(await self._with_end(told, row.seq) if row.type in (IDLE, TERMINATED) else told)
        return news

    async def _with_end(self, news: News, seq: int) -> News:
        reason = news.fields.get("stop_reason") or {}
        if reason.get("type") == "requires_action":
            calls = await self._calls(news.thread_id, reason.get("event_ids") or [])
            return News(news.thread_id, news.type, news.fields, calls=calls, usage=news.usage, spend=news.spend)
        answer, is_error = await self._answer(news.thread_id, seq, news.fields)
        return News(
            news.thread_id, news.type, news.fields, answer, is_error=is_error, usage=news.usage, spend=news.spend
        )

    async def _answer(self, thread_id: str, seq: int, fields: dict[str, Any]) -> tuple[str, bool]:
        found = await self._tx.maybe_one(
            """
            SELECT type, body FROM events
            WHERE workspace_id = %(workspace_id)s AND session_id = %(thread_id)s AND seq < %(seq)s
              AND type = ANY(%(types)s)
            ORDER BY seq DESC LIMIT 1
            """,
            {"thread_id": thread_id, "seq": seq, "types": list(_OUTCOME_TYPES)},
        )
        kind, body = (found[0], orjson.loads(found[1])) if found else ("", {})
        reason = fields["stop_reason"]["type"] if "stop_reason" in fields else ""
        if kind == "user.interrupt":
            return _INTERRUPTED, True
        if kind == "session.error":
            return f"The thread failed: {body['error']['message']}", True
        if reason == "refusal":
            told = (fields.get("stop_details") or {}).get("explanation") or "it did not say why"
            return f"The agent refused: {told}", True
        if kind == MESSAGE_SENT:
            return "\n".join(block["text"] for block in body["content"] if block.get("type") == "text"), False
        return _NO_ANSWER, reason not in ("", "end_turn")

    async def _calls(self, thread_id: str, event_ids: list[str]) -> tuple[tuple[str, str, dict[str, Any]], ...]:
        rows = await self._tx.all(
            """
            SELECT id, type, body FROM events
            WHERE workspace_id = %(workspace_id)s AND session_id = %(thread_id)s AND id = ANY(%(ids)s)
            ORDER BY seq LIMIT 1000
            """,
            {"thread_id": thread_id, "ids": event_ids},
        )
        return tuple((event_id, kind, orjson.loads(body)) for event_id, kind, body in rows)

    async def _totals(self, thread_ids: Collection[str]) -> dict[str, tuple[TokenUsage, str]]:
        rows = await self._tx.all(
            """
            SELECT id, input_tokens, output_tokens, cache_read_input_tokens, cache_creation_5m_input_tokens,
                   cache_creation_1h_input_tokens, web_search_requests, web_fetch_requests, spend
            FROM sessions WHERE workspace_id = %(workspace_id)s AND id = ANY(%(ids)s) LIMIT 1000
            """,
            {"ids": list(thread_ids)},
        )
        return {thread_id: (TokenUsage(*tokens), spend) for thread_id, *tokens, spend in rows}

    async def is_budget_spent(self, root_id: str) -> bool:
        """Whether a session is at its ceiling."""
        found = await self._tx.maybe_one(
            "SELECT budget, spend FROM sessions WHERE workspace_id = %(workspace_id)s AND id = %(root_id)s",
            {"root_id": root_id},
        )
        return found is not None and is_spent(*found)

    async def standing(self, root_id: str) -> tuple[str, str, bool]:
        """Of a session that is there: what it knows of its threads, its own turn, and whether it waits for answers."""
        return await self._tx.one(  # type: ignore[return-value]
            """
            SELECT threads, turn_state, pending <> '[]' FROM sessions
            WHERE workspace_id = %(workspace_id)s AND id = %(root_id)s
            """,
            {"root_id": root_id},
        )

    async def get(self, root_id: str, thread_id: str) -> SessionRecord | None:
        """One thread of a session with its agent."""
        found = await self._page("AND id = %(thread_id)s ORDER BY id LIMIT 1", root_id, {"thread_id": thread_id})
        return found[0] if found else None

    async def page(
        self, root_id: str, statuses: Collection[str], after: tuple[datetime, str] | None, limit: int
    ) -> list[SessionRecord]:
        """Threads of a session beside the primary one, the oldest first."""
        created_at, thread_id = after or (None, "")
        return await self._page(
            """
            AND (cardinality(%(statuses)s::text[]) = 0 OR status = ANY(%(statuses)s))
            AND (created_at, id) > (coalesce(%(created_at)s::timestamptz, '-infinity'), %(after_id)s)
            ORDER BY created_at, id LIMIT %(limit)s
            """,
            root_id,
            {"statuses": list(statuses), "created_at": created_at, "after_id": thread_id, "limit": limit},
        )

    async def _page(self, rest: Any, root_id: str, params: dict[str, Any]) -> list[SessionRecord]:
        rows = await self._tx.all(
            "".join(
                (
                    "SELECT ",
                    SESSION_COLUMNS,
                    ", document, model, model_id FROM sessions LEFT JOIN ("
                    " SELECT agent_id AS saved_id, version AS saved_version, document, model, model_id"
                    " FROM agent_versions WHERE workspace_id = %(workspace_id)s"
                    ") v ON saved_id = agent_id AND saved_version = agent_version"
                    " WHERE workspace_id = %(workspace_id)s AND root_id = %(root_id)s AND deleted_at IS NULL ",
                    rest,
                )
            ),
            {"root_id": root_id} | params,
        )
        return [SessionRecord(SessionRow._make(row[:_WIDTH]), SavedAgent(*row[_WIDTH:])) for row in rows]

    async def primary_of(self, root_id: str) -> str | None:
        """The primary thread of a session; None where there is no such session."""
        found = await self._tx.maybe_one(
            """
            SELECT thread_id FROM sessions
            WHERE workspace_id = %(workspace_id)s AND id = %(root_id)s AND root_id IS NULL AND deleted_at IS NULL
            """,
            {"root_id": root_id},
        )
        return found[0] if found else None

    async def belongs(self, root_id: str, thread_id: str) -> bool:
        """Whether a session that is there has this thread beside its primary one."""
        found = await self._tx.maybe_one(
            """
            SELECT t.id FROM sessions t JOIN sessions r ON r.id = t.root_id
            WHERE t.workspace_id = %(workspace_id)s AND t.id = %(thread_id)s AND t.deleted_at IS NULL
              AND r.id = %(root_id)s AND r.deleted_at IS NULL
            """,
            {"root_id": root_id, "thread_id": thread_id},
        )
        return found is not None

    async def delete_closed(self, root_id: str, now: datetime) -> None:
        """Threads that take no messages any more go with their session."""
        await self._tx.execute(
            """
            UPDATE sessions SET deleted_at = %(now)s, version = version + 1
            WHERE workspace_id = %(workspace_id)s AND root_id = %(root_id)s AND deleted_at IS NULL
            """,
            {"root_id": root_id, "now": now},
        )

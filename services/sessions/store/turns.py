"""Where sessions stand, under their locks, and the turns that wait or are held.

The lock of a session's row guards its log and its turn. It is always taken before a row
of `turns`, and several are taken in the order of their ids, so writers never wait in a
circle. A renewal touches `turns` alone and skips what a writer holds.
"""

from collections.abc import Collection, Sequence
from typing import Any

import orjson

from kit.postgres import Tx
from services.sessions.domain.outcome import Outcome, Stage
from services.sessions.domain.session_state import (
    CallKind,
    PendingCall,
    SessionState,
    Status,
    TokenUsage,
    TurnState,
    UnreadInput,
)
from services.sessions.domain.thread_state import dump, load

_TOKEN_COLUMNS = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_5m_input_tokens",
    "cache_creation_1h_input_tokens",
    "web_search_requests",
    "web_fetch_requests",
)
# In the order in which both locks read them.
_STATE_COLUMNS = (
    *("workspace_id", "id", "thread_id", "agent_name", "environment_id", "environment_now", "on_worker"),
    *("loop_engine", "updated_at", "created_at", "revision", "budget"),
    *("archived_at", "deleted_at", "status", "last_seq", "input_seq", "turn_epoch", "turn_state", "turn_attempt"),
    *("turn_holder", "interrupt_seq", "unread", "pending", "stop_reason"),
    *_TOKEN_COLUMNS,
    "spend",
    *("active_seconds", "running_since", "parked_at", "outcome", "traceparent", "version", "root_id"),
    "threads",
)


class TurnStore:
    """Reads and locks of one transaction."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def lock(self, session_id: str) -> SessionState | None:
        """Locks one session of the transaction's workspace, waiting for it."""
        row = await self._tx.maybe_one(
            """
            SELECT workspace_id, id, thread_id, agent_name, environment_id, environment_now, on_worker, loop_engine,
                   updated_at, created_at, revision, budget, archived_at, deleted_at, status, last_seq, input_seq,
                   turn_epoch, turn_state, turn_attempt, turn_holder, interrupt_seq, unread, pending, stop_reason,
                   input_tokens, output_tokens, cache_read_input_tokens, cache_creation_5m_input_tokens,
                   cache_creation_1h_input_tokens, web_search_requests, web_fetch_requests, spend, active_seconds,
                   running_since, parked_at, outcome, traceparent, version, root_id, threads
            FROM sessions WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND deleted_at IS NULL
            FOR NO KEY UPDATE
            """,
            {"id": session_id},
        )
        return _state(row) if row else None

    async def lock_free(self, session_ids: Sequence[str]) -> list[SessionState]:
        """Locks those of the sessions that nobody else holds, of any workspace."""
        rows = await self._tx.all(
            """
            SELECT workspace_id, id, thread_id, agent_name, environment_id, environment_now, on_worker, loop_engine,
                   updated_at, created_at, revision, budget, archived_at, deleted_at, status, last_seq, input_seq,
                   turn_epoch, turn_state, turn_attempt, turn_holder, interrupt_seq, unread, pending, stop_reason,
                   input_tokens, output_tokens, cache_read_input_tokens, cache_creation_5m_input_tokens,
                   cache_creation_1h_input_tokens, web_search_requests, web_fetch_requests, spend, active_seconds,
                   running_since, parked_at, outcome, traceparent, version, root_id, threads
            -- platform-wide: one commit serves many workspaces; the caller compares each one's own
            FROM sessions WHERE id = ANY(%(ids)s) AND deleted_at IS NULL
            ORDER BY id
            FOR NO KEY UPDATE SKIP LOCKED
            """,
            {"ids": list(session_ids)},
        )
        return [_state(row) for row in rows]

    async def waiting(self, limit: int, engines: Collection[str] | None = None) -> list[str]:
        """Sessions whose turn waits for a runner, the longest wait first; only of these engines, if any are named."""
        if engines is not None:
            return await self._waiting_for(engines, limit)
        rows = await self._tx.all(
            """
            SELECT session_id FROM turns WHERE holder = '' -- platform-wide: runners serve every workspace
            ORDER BY ready_at, session_id LIMIT %(limit)s
            """,
            {"limit": limit},
        )
        return [row[0] for row in rows]

    async def _waiting_for(self, engines: Collection[str], limit: int) -> list[str]:
        rows = await self._tx.all(
            """
            SELECT t.session_id FROM turns t -- platform-wide: runners serve every workspace
            JOIN sessions s ON s.id = t.session_id
            WHERE t.holder = '' AND s.loop_engine = ANY(%(engines)s)
            ORDER BY t.ready_at, t.session_id LIMIT %(limit)s
            """,
            {"engines": sorted(engines), "limit": limit},
        )
        return [row[0] for row in rows]

    async def expired(self, limit: int) -> list[str]:
        """Sessions whose lease ran out, by the database's clock."""
        rows = await self._tx.all(
            """
            SELECT session_id FROM turns WHERE holder <> '' AND expires_at < clock_timestamp() -- platform-wide: sweep
            ORDER BY expires_at, session_id LIMIT %(limit)s
            """,
            {"limit": limit},
        )
        return [row[0] for row in rows]

    async def still_expired(self, session_ids: Sequence[str]) -> set[str]:
        """Locks the leases that ran out and were not renewed in the meantime."""
        rows = await self._tx.all(
            """
            SELECT session_id FROM turns -- platform-wide: sweep
            WHERE session_id = ANY(%(ids)s) AND holder <> '' AND expires_at < clock_timestamp()
            ORDER BY session_id FOR UPDATE SKIP LOCKED
            """,
            {"ids": list(session_ids)},
        )
        return {row[0] for row in rows}

    async def renew(self, runner_id: str, held: Sequence[tuple[str, int]], lease_seconds: float) -> None:
        """Extends the leases that the runner still holds under these epochs."""
        await self._tx.execute(
            """
            UPDATE turns SET expires_at = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
            WHERE session_id IN (
                SELECT t.session_id
                FROM turns t -- platform-wide: a runner renews all its leases at once
                JOIN json_to_recordset(%(held)s::json) AS h(session_id text, epoch bigint)
                  ON h.session_id = t.session_id AND h.epoch = t.epoch
                WHERE t.holder = %(runner_id)s
                ORDER BY t.session_id FOR UPDATE OF t SKIP LOCKED
            )
            """,
            {"runner_id": runner_id, "held": _held(held), "lease_seconds": lease_seconds},
        )

    async def standing(self, runner_id: str, held: Sequence[tuple[str, int]]) -> list[tuple[str, int, bool, int]]:
        """For each turn that a runner believes to hold: session, epoch, whether it does, and an open interrupt."""
        return await self._tx.all(  # type: ignore[return-value]
            """
            SELECT h.session_id, h.epoch, t.session_id IS NOT NULL, coalesce(s.interrupt_seq, 0)
            FROM json_to_recordset(%(held)s::json) AS h(session_id text, epoch bigint)
            -- platform-wide: a runner asks after all its leases at once
            LEFT JOIN turns t ON t.session_id = h.session_id AND t.epoch = h.epoch AND t.holder = %(runner_id)s
            LEFT JOIN sessions s ON s.id = t.session_id AND s.turn_epoch = h.epoch
            ORDER BY h.session_id LIMIT 10000
            """,
            {"runner_id": runner_id, "held": _held(held)},
        )


def session_values(state: SessionState) -> dict[str, Any]:
    """The moving columns of a session's row, as JSON values."""
    usage = state.usage
    return {
        "workspace_id": state.workspace_id,
        "id": state.id,
        "revision": state.revision,
        "archived_at": state.archived_at,
        "deleted_at": state.deleted_at,
        "updated_at": state.updated_at,
        "status": state.status,
        "last_seq": state.last_seq,
        "input_seq": state.input_seq,
        "turn_epoch": state.turn_epoch,
        "turn_state": state.turn_state,
        "turn_attempt": state.turn_attempt,
        "turn_holder": state.turn_holder,
        "interrupt_seq": state.interrupt_seq,
        "unread": _dump([[entry.seq, entry.starts_turn] for entry in state.unread]),
        "pending": _dump([_call_values(call) for call in state.pending]),
        "stop_reason": state.stop_reason,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": usage.cache_read_input_tokens,
        "cache_creation_5m_input_tokens": usage.cache_creation_5m_input_tokens,
        "cache_creation_1h_input_tokens": usage.cache_creation_1h_input_tokens,
        "web_search_requests": usage.web_search_requests,
        "web_fetch_requests": usage.web_fetch_requests,
        "spend": state.spend,
        "active_seconds": state.active_seconds,
        "running_since": state.running_since,
        "parked_at": state.parked_at,
        "outcome": _dump(_outcome_values(state.outcome)) if state.outcome else "",
        "traceparent": state.traceparent,
        "version": state.version,
        "threads": dump(state.threads),
    }


def _state(row: tuple[Any, ...]) -> SessionState:
    values: dict[str, Any] = dict(zip(_STATE_COLUMNS, row, strict=True))
    unread, pending = values["unread"], values["pending"]
    values["status"] = Status(values["status"])
    values["turn_state"] = TurnState(values["turn_state"])
    values["root_id"] = values["root_id"] or ""
    values["threads"] = load(values["threads"])
    values["unread"] = () if unread == "[]" else tuple(UnreadInput(*entry) for entry in orjson.loads(unread))
    values["pending"] = () if pending == "[]" else tuple(_call(*entry) for entry in orjson.loads(pending))
    values["outcome"] = _outcome(*orjson.loads(values["outcome"])) if values["outcome"] else None
    values["usage"] = TokenUsage(*(values.pop(name) for name in _TOKEN_COLUMNS))
    return SessionState(**values)


def _outcome(outcome_id: str, seq: int, number: int, iteration: int, stage: str) -> Outcome:
    return Outcome(outcome_id, seq, number, iteration, Stage(stage))


def _outcome_values(outcome: Outcome) -> list[Any]:
    return [outcome.id, outcome.seq, outcome.number, outcome.iteration, outcome.stage]


def _call(
    event_id: str, block_id: str, kind: str, answered: bool, server_name: str = "", by_worker: bool = False
) -> PendingCall:
    return PendingCall(event_id, block_id, CallKind(kind), answered, server_name, by_worker)


def _call_values(call: PendingCall) -> list[Any]:
    values = [call.event_id, call.block_id, call.kind, call.answered]
    # Most calls are of no server, and a former build reads them as it wrote them.
    if call.by_worker:
        return [*values, call.server_name, True]
    return [*values, call.server_name] if call.server_name else values


def _dump(values: list[Any]) -> str:
    return orjson.dumps(values).decode() if values else "[]"


def _held(held: Sequence[tuple[str, int]]) -> str:
    return orjson.dumps([{"session_id": session_id, "epoch": epoch} for session_id, epoch in held]).decode()

"""First answers to writes that may come twice, kept in the transaction of their effect."""

from dataclasses import dataclass

from kit.postgres import Tx
from services.sessions.domain.turn_errors import IdempotencyKeyReused


@dataclass(frozen=True, slots=True)
class _Entry:
    fingerprint: bytes
    response: bytes | None
    expired: bool


class IdempotencyStore:
    """The entries of one transaction's workspace."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def begin(self, key: str, fingerprint: bytes, keep_seconds: int, *, first_try: bool) -> bytes | None:
        """Claims the key, or answers with what the first use of it was answered.

        While another transaction makes the first answer this one waits for it. A
        `first_try` takes the place of a former answer.
        """
        values = {"key": key, "fingerprint": fingerprint, "keep_seconds": keep_seconds}
        claimed = await self._tx.execute(
            """
            INSERT INTO idempotency (workspace_id, key, fingerprint, expires_at)
            VALUES (%(workspace_id)s, %(key)s, %(fingerprint)s,
                    clock_timestamp() + make_interval(secs => %(keep_seconds)s))
            ON CONFLICT (workspace_id, key) DO NOTHING
            """,
            values,
        )
        if claimed:
            return None
        entry = await self._tx.maybe_one(
            """
            SELECT fingerprint, response, expires_at < clock_timestamp() AS expired FROM idempotency
            WHERE workspace_id = %(workspace_id)s AND key = %(key)s
            FOR UPDATE
            """,
            values,
            row=_Entry,
        )
        if entry and not entry.expired and not first_try:
            if bytes(entry.fingerprint) != fingerprint:
                raise IdempotencyKeyReused(
                    "This idempotency key was used for another request. Use a new key for a new request.",
                    field="Idempotency-Key",
                )
            if entry.response is not None:
                return bytes(entry.response)
        await self._tx.execute(
            """
            INSERT INTO idempotency (workspace_id, key, fingerprint, expires_at)
            VALUES (%(workspace_id)s, %(key)s, %(fingerprint)s,
                    clock_timestamp() + make_interval(secs => %(keep_seconds)s))
            ON CONFLICT (workspace_id, key) DO UPDATE
            SET fingerprint = excluded.fingerprint, expires_at = excluded.expires_at, response = NULL
            """,
            values,
        )
        return None

    async def finish(self, key: str, response: bytes) -> None:
        """Keeps the answer that `begin` claimed the key for."""
        await self._tx.execute(
            """
            UPDATE idempotency SET response = %(response)s
            WHERE workspace_id = %(workspace_id)s AND key = %(key)s
            """,
            {"key": key, "response": response},
        )

    async def forget_expired(self) -> int:
        """Drops entries of all workspaces whose time is over; for the sweep."""
        return await self._tx.execute(
            "DELETE FROM idempotency WHERE expires_at < clock_timestamp() -- platform-wide: sweep"
        )

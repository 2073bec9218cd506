"""First answers to writes that may come twice, kept in the transaction of their effect."""

from dataclasses import dataclass

from kit.postgres import Tx
from services.sessions.domain.turn_errors import IdempotencyKeyReused


@dataclass(frozen=True, slots=True)
class Claim:
    """What a request says about itself and its repeats; see `managed_agents.sessions.v1.Idempotency`."""

    key: str
    fingerprint: bytes
    keep_seconds: int
    first_try: bool = False
    try_id: str = ""
    not_before: str = ""


@dataclass(frozen=True, slots=True)
class _Entry:
    fingerprint: bytes
    response: bytes | None
    expired: bool
    try_id: str

    def answers(self, claim: Claim) -> bool:
        """Whether it is about the message that the request brings."""
        return not (self.expired or claim.first_try or self.try_id < claim.not_before)


class IdempotencyStore:
    """The entries of one transaction's workspace."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def begin(self, claim: Claim) -> bytes | None:
        """Claims the key, or answers with what the first use of it was answered.

        While another transaction makes the first answer this one waits for it. A
        `first_try` takes the place of a former answer.
        """
        values = {
            "key": claim.key,
            "fingerprint": claim.fingerprint,
            "keep_seconds": claim.keep_seconds,
            "try_id": claim.try_id,
        }
        claimed = await self._tx.execute(
            """
            INSERT INTO idempotency (workspace_id, key, fingerprint, try_id, expires_at)
            VALUES (%(workspace_id)s, %(key)s, %(fingerprint)s, %(try_id)s,
                    clock_timestamp() + make_interval(secs => %(keep_seconds)s))
            ON CONFLICT (workspace_id, key) DO NOTHING
            """,
            values,
        )
        if claimed:
            return None
        entry = await self._tx.maybe_one(
            """
            SELECT fingerprint, response, expires_at < clock_timestamp() AS expired, try_id FROM idempotency
            WHERE workspace_id = %(workspace_id)s AND key = %(key)s
            FOR UPDATE
            """,
            values,
            row=_Entry,
        )
        if entry and entry.answers(claim):
            if bytes(entry.fingerprint) != claim.fingerprint:
                raise IdempotencyKeyReused(
                    "This idempotency key was used for another request. Use a new key for a new request.",
                    field="Idempotency-Key",
                )
            if entry.response is not None:
                return bytes(entry.response)
        await self._tx.execute(
            """
            INSERT INTO idempotency (workspace_id, key, fingerprint, try_id, expires_at)
            VALUES (%(workspace_id)s, %(key)s, %(fingerprint)s, %(try_id)s,
                    clock_timestamp() + make_interval(secs => %(keep_seconds)s))
            ON CONFLICT (workspace_id, key) DO UPDATE
            SET fingerprint = excluded.fingerprint, try_id = excluded.try_id, expires_at = excluded.expires_at,
                response = NULL
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

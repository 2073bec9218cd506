"""First answers to writes that may come twice, kept in the transaction of their effect.

    async with database.transaction(workspace_id) as tx:
        return await once(tx, request.idempotency, CreateAgentResponse, create)

A service copies IDEMPOTENCY_DDL into a migration of its own, and its sweep calls `forget_expired`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, LiteralString, TypeVar

from google.protobuf.message import Message

from kit.errors import AlreadyExists
from kit.postgres import Tx

M = TypeVar("M", bound=Message)

IDEMPOTENCY_DDL: LiteralString = """
CREATE TABLE idempotency (
    workspace_id text NOT NULL,
    key text NOT NULL,
    fingerprint bytea NOT NULL,
    -- Null only inside the transaction that makes the answer.
    response bytea,
    expires_at timestamptz NOT NULL,
    -- Which request made the answer, by an id that grows with time.
    try_id text NOT NULL DEFAULT '',
    CONSTRAINT idempotency_pk PRIMARY KEY (workspace_id, key)
);
CREATE INDEX idempotency_by_expiry ON idempotency (expires_at);
"""


class IdempotencyKeyReused(AlreadyExists):
    """The idempotency key was used for a different request."""

    reason = "IDEMPOTENCY_KEY_REUSED"


async def once(tx: Tx, idempotency: Any, response: type[M], effect: Callable[[], Awaitable[M]]) -> M:
    """The answer of the effect, or of its first time where this is a repeat; all in one transaction.

    `idempotency` is a message of the contracts: `managed_agents.sessions.v1.Idempotency`.
    """
    if not idempotency.key:
        return await effect()
    store = IdempotencyStore(tx)
    former = await store.begin(
        Claim(
            idempotency.key,
            idempotency.fingerprint,
            idempotency.keep_seconds,
            idempotency.first_try,
            idempotency.try_id,
            idempotency.not_before,
        )
    )
    if former is not None:
        return response.FromString(former)
    answer = await effect()
    await store.finish(idempotency.key, answer.SerializeToString())
    return answer


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

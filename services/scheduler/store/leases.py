"""Rows of `ticker_leases`. All times are the database's."""

from __future__ import annotations

from kit.postgres import Tx
from services.scheduler.domain.lease import Lease

TICKER = "ticker"


class LeaseStore:
    """The ticker's lease."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def load(self) -> Lease | None:
        """The newest term, live or not."""
        return await self._tx.maybe_one(
            "SELECT holder, epoch, expires_at, last_tick_at FROM ticker_leases WHERE name = %(name)s",
            {"name": TICKER},
            row=Lease,
        )

    async def grant(self, holder: str, lease_seconds: float) -> int | None:
        """Begins a new term for `holder` and returns its epoch; None while a term lives."""
        found = await self._tx.maybe_one(
            """
            INSERT INTO ticker_leases AS lease (name, holder, epoch, expires_at)
            VALUES (%(name)s, %(holder)s, 1, now() + make_interval(secs => %(lease_seconds)s))
            ON CONFLICT (name) DO UPDATE
               SET holder = excluded.holder, epoch = lease.epoch + 1, expires_at = excluded.expires_at
             WHERE lease.expires_at <= now()
            RETURNING epoch
            """,
            {"name": TICKER, "holder": holder, "lease_seconds": lease_seconds},
        )
        return found[0] if found else None

    async def renew(self, holder: str, epoch: int, lease_seconds: float, *, ticked: bool) -> bool:
        """Extends a term that is still the newest and still lives; False where it is over."""
        return (
            await self._tx.execute(
                """
            UPDATE ticker_leases
               SET expires_at = now() + make_interval(secs => %(lease_seconds)s),
                   last_tick_at = CASE WHEN %(ticked)s THEN now() ELSE last_tick_at END
             WHERE name = %(name)s AND holder = %(holder)s AND epoch = %(epoch)s AND expires_at > now()
            """,
                {"name": TICKER, "holder": holder, "epoch": epoch, "lease_seconds": lease_seconds, "ticked": ticked},
            )
            == 1
        )

    async def resign(self, holder: str, epoch: int) -> None:
        """Ends a term at once, so that another process need not wait; a no-op for an old term."""
        await self._tx.execute(
            """
            UPDATE ticker_leases SET expires_at = now()
             WHERE name = %(name)s AND holder = %(holder)s AND epoch = %(epoch)s AND expires_at > now()
            """,
            {"name": TICKER, "holder": holder, "epoch": epoch},
        )

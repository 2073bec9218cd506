"""What the vault tells others.

Events of vaults and credentials leave through the outbox on `vault.events.<workspace_id>`,
at least once and with their id. That a secret was replaced is besides a hint on
`vault.rotated.<workspace_id>`: runners that hold a connection with it connect anew.
"""

from __future__ import annotations

from datetime import datetime

import orjson

from kit import outbox
from kit.clock import rfc3339
from kit.ids import new_id
from kit.nats import Nats
from kit.outbox import Relay
from kit.postgres import Tx

STREAM = "VAULT"
SUBJECTS = "vault.events.>"


class Announcements:
    """The way to the bus; without one, events wait in their table."""

    def __init__(self, nats: Nats | None = None, relay: Relay | None = None) -> None:
        self._nats = nats
        self._relay = relay

    async def event(self, tx: Tx, kind: str, resource_id: str, now: datetime, *, vault_id: str = "") -> None:
        """Writes an event that leaves with the transaction; call `sent` after the commit."""
        event_id = new_id("vevt")
        data = {"type": kind, "id": resource_id, "workspace_id": tx.workspace_id}
        if vault_id:
            data["vault_id"] = vault_id
        await outbox.add(
            tx,
            message_id=event_id,
            subject=f"vault.events.{tx.workspace_id}",
            payload=orjson.dumps({"type": "event", "id": event_id, "created_at": rfc3339(now), "data": data}),
        )

    def sent(self) -> None:
        """Events were committed."""
        if self._relay is not None:
            self._relay.wake()

    async def rotated(self, workspace_id: str, vault_id: str, credential_id: str = "") -> None:
        """Tells runners that connections with this vault's secrets are to be made anew. A hint: it may be lost."""
        if self._nats is not None:
            told = {"vault_id": vault_id, "credential_id": credential_id}
            await self._nats.publish(f"vault.rotated.{workspace_id}", orjson.dumps(told))

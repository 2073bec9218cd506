"""What the handlers of vaults and credentials work with."""

from __future__ import annotations

from dataclasses import dataclass

from kit.clock import Clock
from kit.postgres import Database
from services.vault.domain.credential import Credential, Secrets, identity
from services.vault.domain.sealing import Sealer
from services.vault.operations.announcements import Announcements
from services.vault.operations.outward import Outward
from services.vault.operations.refreshing import Refresher
from services.vault.operations.repeats import Repeats


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one process, wired."""

    database: Database
    sealer: Sealer
    clock: Clock
    announcements: Announcements
    outward: Outward
    refresher: Refresher
    repeats: Repeats

    async def seal(self, workspace_id: str, credential: Credential, secrets: Secrets) -> bytes:
        """Seals a credential's secrets for its row."""
        return await self.sealer.seal(secrets.encode(), associated=_row(workspace_id, credential))

    async def open(self, workspace_id: str, credential: Credential, sealed: bytes) -> Secrets:
        """Opens them. SealBroken where they are another row's, or the key is another."""
        return Secrets.decode(await self.sealer.open(sealed, associated=_row(workspace_id, credential)))


def _row(workspace_id: str, credential: Credential) -> str:
    return identity(workspace_id, credential.vault_id, credential.id, credential.type, credential.key)

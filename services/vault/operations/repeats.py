"""How the vault keeps answers to repeated writes.

What tells a repeat is a hash of the request, and a request may hold a short secret that its
hash alone would give away. So the hash is keyed once more, with a key that is sealed.
"""

from __future__ import annotations

import hashlib
import hmac
import os

from kit.postgres import Database
from managed_agents.sessions.v1.common_pb2 import Idempotency
from services.vault.domain.sealing import Sealer
from services.vault.store.sealed import SealedKeyStore

KEY_NAME = "repeats"
KEY_BYTES = 32


class Repeats:
    """Hides what requests are recognised by; `load` it before the first one."""

    def __init__(self, database: Database, sealer: Sealer) -> None:
        self._database = database
        self._sealer = sealer
        self._key = b""

    async def load(self) -> None:
        """Makes the key the first time, and opens it from then on."""
        row = f"sealed_keys:{KEY_NAME}"
        fresh = await self._sealer.seal(os.urandom(KEY_BYTES), associated=row)
        async with self._database.platform_transaction() as tx:
            stored = await SealedKeyStore(tx).load_or_insert(KEY_NAME, fresh)
        self._key = await self._sealer.open(stored, associated=row)

    def hidden(self, told: Idempotency) -> Idempotency:
        """The same, with nothing in it that the request could be guessed from."""
        if not told.key:
            return told
        hidden = Idempotency()
        hidden.CopyFrom(told)
        hidden.key = f"hidden:{self._digest(told.key.encode()).hex()}"
        hidden.fingerprint = self._digest(told.fingerprint)
        return hidden

    def _digest(self, value: bytes) -> bytes:
        return hmac.digest(self._key, value, hashlib.sha256)

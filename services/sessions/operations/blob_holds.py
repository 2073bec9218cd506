"""How a row comes to name a blob, and how a blob that no row names goes away.

    blob = await store.put(chunks)
    async with database.transaction(workspace_id) as tx:
        await hold(tx, store, blob)
        …insert the row that names blob.sha256…

Both sides lock the hash: a row is written only while the bytes are seen to lie there, and bytes are removed only while
no row is seen to name them. So neither a crash nor a sweep at the same moment makes a row without its bytes.
"""

import asyncio
from datetime import datetime, timedelta

from kit import failpoints
from kit.clock import Clock
from kit.errors import DomainError, Unavailable
from kit.postgres import Database, Tx
from kit.telemetry import log
from services.sessions.blobs import Blob, BlobStore
from services.sessions.blobs.choice import Blobs
from services.sessions.store.blob_references import BlobReferences
from services.sessions.store.files import FileStore

MAX_LOOKED_UP = 500
MAX_EXPIRED = 1_000


async def hold(tx: Tx, store: BlobStore, blob: Blob) -> None:
    """Makes sure that the bytes lie there until the transaction ends."""
    await BlobReferences(tx).hold(blob.sha256)
    if await store.size(blob.sha256) is None:
        # It lay there unnamed for the whole grace, and the sweep came just before this.
        raise Unavailable("The stored bytes were being cleaned up at this very moment. Send them again.")


class BlobSweep:
    """Removes bytes that no row names, a while after they were put."""

    def __init__(self, database: Database, clock: Clock, blobs: Blobs, grace: timedelta) -> None:
        self._database = database
        self._clock = clock
        self._blobs = blobs
        self._grace = grace

    async def run(self, pause_seconds: float) -> None:
        """Sweeps until cancelled; what fails now is tried again at the next look."""
        while True:
            await asyncio.sleep(pause_seconds)
            try:
                await self.sweep()
            except DomainError as error:
                log.warning("the sweep of files failed", reason=error.reason, error=error.message)

    async def sweep(self) -> int:
        """One look at every store; how many blobs went."""
        now = self._clock.now()
        while await self._let_go(now) == MAX_EXPIRED:
            pass
        async with self._database.platform_read() as tx:
            workspace_ids = await FileStore(tx).workspaces()
        removed = 0
        for store in await self._stores(workspace_ids):
            try:
                removed += await self._sweep_store(store)
            except DomainError as error:
                log.warning("a store of files was not swept", reason=error.reason, error=error.message)
        await self._blobs.local.remove_leftovers(now - self._grace)
        return removed

    async def _let_go(self, now: datetime) -> int:
        async with self._database.platform_transaction() as tx:
            store = FileStore(tx)
            expired = await store.let_go_of_expired(now, MAX_EXPIRED)
            return max(expired, await store.let_go_of_deleted(now, MAX_EXPIRED))

    async def _stores(self, workspace_ids: list[str]) -> list[BlobStore]:
        try:
            return await self._blobs.all(workspace_ids)
        except DomainError as error:
            # Where the others are isn't known now; what lies in the folder can be judged all the same.
            log.warning("vault can't be asked where files are", reason=error.reason)
            return [self._blobs.local]

    async def _sweep_store(self, store: BlobStore) -> int:
        old, removed = [], 0
        before = self._clock.now() - self._grace
        async for stored in store.list():
            if stored.put_at < before:
                old.append(stored.sha256)
            if len(old) == MAX_LOOKED_UP:
                removed += await self._remove_unnamed(store, old)
                old.clear()
        return removed + await self._remove_unnamed(store, old)

    async def _remove_unnamed(self, store: BlobStore, sha256: list[str]) -> int:
        if not sha256:
            return 0
        async with self._database.platform_read() as tx:
            named = await BlobReferences(tx).named(sha256)
        removed = 0
        for each in sha256:
            if each not in named and await self._remove(store, each):
                removed += 1
        return removed

    async def _remove(self, store: BlobStore, sha256: str) -> bool:
        async with self._database.platform_transaction() as tx:
            references = BlobReferences(tx)
            if not await references.claim(sha256) or await references.named([sha256]):
                return False
            await failpoints.point("blobs.orphan_claimed")
            await store.delete(sha256)
        log.info("removed bytes that no file names", sha256=sha256)
        return True

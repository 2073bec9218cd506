"""Which store a workspace's settings choose, and the stores that are open.

    blobs = Blobs(folder, vault)                       # vault None: the folder, for everyone
    store = await blobs.of(workspace_id)

What vault says is believed for REFRESH_SECONDS, or until `forget` hears of a save; where vault can't be asked then, the
former answer still serves. Stores live as long as the process: few are ever chosen, and reads of one may be under way
when the settings change.
"""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from kit.errors import DomainError
from kit.rpc.client import Channel
from kit.rpc.context import CallContext
from kit.telemetry import log, register_secret
from managed_agents.vault.v1.vault_pb2 import GetStorageAccessRequest, GetStorageAccessResponse
from managed_agents.vault.v1.vault_pb2_grpc import SettingsServiceStub
from services.sessions.blobs.base import BlobMissing, BlobStore
from services.sessions.blobs.local import LocalBlobs
from services.sessions.blobs.s3 import S3Blobs, S3Options

REFRESH_SECONDS = 15.0
# What vault knows this service by.
PRINCIPAL = "sessions"

# What the settings of a workspace say; None for the folder.
ReadChoice = Callable[[str], Awaitable[S3Options | None]]


def choice_reader(vault: Channel) -> ReadChoice:
    """Reads the choice from the settings of a workspace."""
    settings = vault.stub(SettingsServiceStub)

    async def read(workspace_id: str) -> S3Options | None:
        context = CallContext(workspace_id=workspace_id, principal_id=PRINCIPAL)
        return _options(await settings.GetStorageAccess(GetStorageAccessRequest(), context=context, retry=True))

    return read


@dataclass(slots=True)
class _Known:
    options: S3Options | None
    read_at: float


class Blobs:
    """The stores of all workspaces."""

    def __init__(self, folder: Path, read_choice: ReadChoice | None = None) -> None:
        """`folder` holds what is kept locally, and what is on its way to a bucket."""
        self._folder = folder
        self._read_choice = read_choice
        self._known: dict[str, _Known] = {}
        self._buckets: dict[S3Options, BucketOverFolder] = {}
        self.local = LocalBlobs(folder)

    async def of(self, workspace_id: str) -> BlobStore:
        """The store that the workspace's files are in."""
        if self._read_choice is None:
            return self.local
        known = self._known.get(workspace_id)
        if known is None or time.monotonic() - known.read_at >= REFRESH_SECONDS:
            known = await self._ask(workspace_id, known, self._read_choice)
        return self.local if known.options is None else self._bucket(known.options)

    async def all(self, workspace_ids: Iterable[str]) -> list[BlobStore]:
        """Every store that one of the workspaces uses, once, and the folder."""
        found: dict[int, BlobStore] = {id(self.local): self.local}
        for workspace_id in workspace_ids:
            store = await self.of(workspace_id)
            found[id(store)] = store
        return list(found.values())

    def forget(self, workspace_id: str) -> None:
        """Ask vault before the next use: the settings of the workspace were saved."""
        if known := self._known.get(workspace_id):
            known.read_at = -REFRESH_SECONDS

    async def close(self) -> None:
        """Let go of what the stores hold."""
        await self.local.close()

    async def _ask(self, workspace_id: str, former: _Known | None, read: ReadChoice) -> _Known:
        asked_at = time.monotonic()
        try:
            known = _Known(await read(workspace_id), asked_at)
        except DomainError as error:
            if former is None:
                raise
            log.warning("vault can't be asked where files are, going on with the former answer", reason=error.reason)
            known = _Known(former.options, asked_at)
        self._known[workspace_id] = known
        return known

    def _bucket(self, options: S3Options) -> "BucketOverFolder":
        store = self._buckets.get(options)
        if store is None:
            bucket = S3Blobs(options, self._folder / "outgoing")
            store = self._buckets[options] = BucketOverFolder(bucket, self.local)
        return store


class BucketOverFolder:
    """A bucket; what was kept in the folder before the bucket was chosen is still read from there."""

    def __init__(self, bucket: S3Blobs, folder: LocalBlobs) -> None:
        self._bucket = bucket
        self._folder = folder
        self.put = bucket.put
        self.delete = bucket.delete
        self.list = bucket.list

    async def size(self, sha256: str) -> int | None:
        """Of either."""
        found = await self._bucket.size(sha256)
        return await self._folder.size(sha256) if found is None else found

    async def open(self, sha256: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """From the bucket where it has them."""
        chunks = self._bucket.open(sha256, start, end)
        try:
            first = await anext(chunks, b"")
        except BlobMissing:
            if await self._folder.size(sha256) is None:
                raise
            chunks, first = self._folder.open(sha256, start, end), b""
        async with aclosing(chunks):
            if first:
                yield first
            async for chunk in chunks:
                yield chunk


def _options(answer: GetStorageAccessResponse) -> S3Options | None:
    if answer.provider != "s3":
        return None
    register_secret(answer.secret_access_key)
    return S3Options(
        bucket=answer.bucket,
        region=answer.region,
        endpoint=answer.endpoint,
        prefix=answer.prefix,
        access_key_id=answer.access_key_id,
        secret_access_key=answer.secret_access_key,
    )

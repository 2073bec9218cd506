"""What every store of bytes can do, and how it fails."""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from kit.errors import Internal, Unavailable

CHUNK_BYTES = 1024 * 1024
FULL_RETRY_SECONDS = 10.0


class FileDamaged(Internal):
    """What lies under a hash has another one, or nothing lies there."""

    reason = "FILE_DAMAGED"


class BlobMissing(FileDamaged):
    """Nothing lies under the hash."""


class StorageFull(Unavailable):
    """There is no room for more bytes now."""

    reason = "STORAGE_FULL"


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes that are safe: their hex SHA-256, and how many they are."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Stored:
    """One blob as a listing finds it."""

    sha256: str
    # When these bytes were last put.
    put_at: datetime


class BlobStore(Protocol):
    """A place for bytes. Anything may be called at any time, by any number of replicas."""

    async def put(self, chunks: AsyncIterator[bytes]) -> Blob:
        """Store the bytes; they survive any crash once this returns. All or nothing, and safe to repeat."""
        ...

    def open(self, sha256: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """The bytes from `start` up to `end`, in chunks of at most CHUNK_BYTES.

        BlobMissing where there are none, FileDamaged before the last chunk where they have another hash. Close it
        (`aclose`) where it is not read to its end.
        """
        ...

    async def size(self, sha256: str) -> int | None:
        """How many bytes lie there; None for nothing."""

    async def delete(self, sha256: str) -> None:
        """Remove the bytes; nothing happens where there are none."""

    def list(self) -> AsyncIterator[Stored]:
        """Every blob, in no order."""
        ...

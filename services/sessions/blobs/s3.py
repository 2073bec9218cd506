"""Blobs in a bucket that speaks the S3 protocol: `<prefix>/<first two digits>/<sha256>`.

The hash is known when the last byte has come, so a put gathers in a file without a name on the local disk, and moves
that in one go: memory stays flat and the bucket never shows half a blob. Each request carries the SHA-256 of what it
sends, and the server refuses what arrives otherwise. Putting bytes again renews the time at which they were put.
"""

import asyncio
import contextlib
import hashlib
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit import failpoints
from kit.errors import Unavailable
from kit.telemetry import log
from services.sessions.blobs.base import CHUNK_BYTES, Blob, BlobMissing, FileDamaged, Stored
from services.sessions.blobs.local import translated

if TYPE_CHECKING:
    from obstore.store import S3Store

PART_BYTES = 8 * 1024 * 1024
REQUEST_SECONDS = 60
_RETRIES: Any = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}


@dataclass(frozen=True, slots=True)
class S3Options:
    """Which bucket, and who asks."""

    bucket: str
    region: str = "us-east-1"
    # Empty for the provider's own.
    endpoint: str = ""
    prefix: str = ""
    # Both empty: whatever the process environment or the machine gives.
    access_key_id: str = field(default="", repr=False)
    secret_access_key: str = field(default="", repr=False)


class S3Blobs:
    """The blobs of one bucket, or of one prefix in it."""

    def __init__(self, options: S3Options, spool: Path) -> None:
        """`spool` is a folder for what is on its way to the bucket."""
        self._options = options
        self._spool = spool
        self._prefix = f"{options.prefix.strip('/')}/" if options.prefix.strip("/") else ""
        self._store: S3Store | None = None

    async def put(self, chunks: AsyncIterator[bytes]) -> Blob:
        """Store the bytes; the bucket has all of them once this returns."""
        digest, size = hashlib.sha256(), 0
        spooled = await self._on_disk(self._make_spool)
        try:
            async for chunk in chunks:
                await self._on_disk(_write, spooled, digest, chunk)
                size += len(chunk)
            await self._on_disk(spooled.seek, 0)
            sha256 = digest.hexdigest()
            await failpoints.point("blobs.written")
            import obstore

            store = await self._open_store()
            await self._ask(obstore.put_async(store, self._key(sha256), spooled, chunk_size=PART_BYTES))
            await failpoints.point("blobs.kept")
        finally:
            await asyncio.to_thread(spooled.close)
        return Blob(sha256, size)

    async def open(self, sha256: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """The bytes, or a part of them.

        Read from their beginning either way: they are not many, some servers know no ranges, and what is read to its
        end is checked by its hash.
        """
        import obstore

        answer = await self._ask(obstore.get_async(await self._open_store(), self._key(sha256)), sha256=sha256)
        size: int = answer.meta["size"]
        stop = size if end is None else min(end, size)
        if start >= stop:
            return
        stream, digest, at = answer.stream(min_chunk_size=CHUNK_BYTES).__aiter__(), hashlib.sha256(), 0
        while at < stop:
            piece = bytes(await self._next(stream, sha256))
            begin, at = at, at + len(piece)
            await asyncio.to_thread(digest.update, piece)
            if at > size or (at == size and digest.hexdigest() != sha256):
                raise FileDamaged("A stored file is not what it was when it was stored.", sha256=sha256)
            wanted = piece[max(0, start - begin) : stop - begin]
            for cut in range(0, len(wanted), CHUNK_BYTES):
                yield wanted[cut : cut + CHUNK_BYTES]

    async def size(self, sha256: str) -> int | None:
        """How many bytes lie there."""
        import obstore

        try:
            found = await self._ask(obstore.head_async(await self._open_store(), self._key(sha256)), sha256=sha256)
        except BlobMissing:
            return None
        return found["size"]

    async def delete(self, sha256: str) -> None:
        """Remove the object."""
        import obstore

        with contextlib.suppress(BlobMissing):
            await self._ask(obstore.delete_async(await self._open_store(), self._key(sha256)), sha256=sha256)

    async def list(self) -> AsyncIterator[Stored]:
        """Every object whose name is a hash."""
        import obstore

        pages = obstore.list(await self._open_store(), self._prefix or None, chunk_size=500)
        while page := await self._page(pages):
            for found in page:
                name = found["path"].rpartition("/")[2]
                if len(name) == hashlib.sha256().digest_size * 2:
                    yield Stored(name, found["last_modified"])

    def _key(self, sha256: str) -> str:
        return f"{self._prefix}{sha256[:2]}/{sha256}"

    async def _open_store(self) -> "S3Store":
        if self._store is None:
            # Off the loop: the library takes a while to load, and only those who use a bucket pay for it.
            self._store = await asyncio.to_thread(self._make_store)
        return self._store

    def _make_store(self) -> "S3Store":
        from obstore.store import S3Store

        options = self._options
        config: Any = {"region": options.region, "checksum_algorithm": "SHA256"}
        if options.endpoint:
            config |= {"endpoint": options.endpoint, "virtual_hosted_style_request": False}
        if options.access_key_id:
            config |= {"access_key_id": options.access_key_id, "secret_access_key": options.secret_access_key}
        client: Any = {
            "allow_http": options.endpoint.startswith("http://"),
            "timeout": timedelta(seconds=REQUEST_SECONDS),
            "connect_timeout": timedelta(seconds=5),
        }
        return S3Store(options.bucket, config=config, client_options=client, retry_config=_RETRIES)

    def _make_spool(self) -> Any:
        self._spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=self._spool)

    async def _on_disk(self, function: Any, *arguments: Any) -> Any:
        try:
            return await asyncio.to_thread(function, *arguments)
        except OSError as error:
            raise translated(error) from error

    async def _next(self, stream: AsyncIterator[Any], sha256: str) -> Any:
        try:
            return await self._ask(anext(stream), sha256=sha256)
        except StopAsyncIteration:
            raise FileDamaged("A stored file is shorter than it was.", sha256=sha256) from None

    async def _page(self, pages: Any) -> Any:
        try:
            return await self._ask(anext(pages))
        except StopAsyncIteration:
            return None

    async def _ask(self, answer: Any, sha256: str = "") -> Any:
        """What the server answers; its refusals and absence as faults of the storage."""
        from obstore.exceptions import BaseError, NotFoundError

        try:
            return await answer
        except (NotFoundError, FileNotFoundError) as error:
            if sha256:
                raise BlobMissing("A stored file is missing.", sha256=sha256) from error
            raise self._away(error) from error
        except (BaseError, OSError) as error:
            raise self._away(error) from error

    def _away(self, error: Exception) -> Unavailable:
        text = str(error)
        for secret in (self._options.secret_access_key, self._options.access_key_id):
            text = text.replace(secret, "…") if secret else text
        # The library's texts name headers and addresses: for the log, not for callers.
        cause = f"{type(error).__name__}: {text[:400]}"
        log.warning("the object storage refused", bucket=self._options.bucket, cause=cause)
        return Unavailable("The object storage that keeps files can't be used now. Try again shortly.")


def _write(spooled: Any, digest: Any, chunk: bytes) -> None:
    spooled.write(chunk)
    digest.update(chunk)

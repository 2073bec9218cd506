"""Files in a bucket: a real server that speaks the S3 protocol, chosen by what vault says of the workspace."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kit.errors import DomainError, Unavailable
from kit.nats import Nats
from kit.testing import await_until
from services.sessions.blobs import Blob, BlobMissing, FileDamaged
from services.sessions.blobs.base import CHUNK_BYTES
from services.sessions.blobs.s3 import PART_BYTES, S3Blobs, S3Options
from services.vault import app as vault_app
from services.vault.config import VaultSettings
from tests.integration.sessions.file_driver import (
    Bucket,
    Files,
    address_in,
    blobs_in,
    files_of,
    rows,
    served,
    sessions_process,
    until_listening,
)
from tests.integration.sessions.turn_driver import replica

pytestmark = pytest.mark.asyncio(loop_scope="package")

SIZES = [0, 1, CHUNK_BYTES + 1, PART_BYTES - 1, 2 * PART_BYTES + 3]


@pytest_asyncio.fixture(loop_scope="package")
async def bucket(folder: Path) -> AsyncIterator[Bucket]:
    server = Bucket(folder / "storage")
    server.start()
    try:
        await until_listening(server)
        yield server
    finally:
        server.stop()


def options_of(server: Bucket, **other: Any) -> S3Options:
    found = {
        "bucket": server.name,
        "endpoint": server.endpoint,
        "access_key_id": server.access_key_id,
        "secret_access_key": server.secret_access_key,
    }
    return S3Options(**(found | other))


@pytest.fixture
def store(bucket: Bucket, folder: Path) -> S3Blobs:
    return S3Blobs(options_of(bucket, prefix="kept/here/"), folder / "spool")


async def pieces(content: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(content), CHUNK_BYTES):
        yield content[at : at + CHUNK_BYTES]


async def read(store: S3Blobs, sha256: str, *part: int) -> bytes:
    return b"".join([chunk async for chunk in store.open(sha256, *part)])


def objects(bucket: Bucket) -> set[str]:
    return {str(path.relative_to(bucket.folder)) for path in bucket.folder.rglob("*") if path.is_file()}


async def test_what_is_put_is_read_back(store: S3Blobs, bucket: Bucket, folder: Path) -> None:
    for size in SIZES:
        content = os.urandom(size)
        blob = await store.put(pieces(content))
        assert blob == Blob(hashlib.sha256(content).hexdigest(), size) and await store.size(blob.sha256) == size
        chunks = [chunk async for chunk in store.open(blob.sha256)]
        assert b"".join(chunks) == content and all(0 < len(each) <= CHUNK_BYTES for each in chunks)
        assert f"kept/here/{blob.sha256[:2]}/{blob.sha256}" in objects(bucket)
        for start, end in ((0, 1), (size // 2, size // 2 + 10), (size // 3, None), (size, None), (5, 5)):
            part = (start,) if end is None else (start, end)
            assert await read(store, blob.sha256, *part) == content[start:end]
    assert len([each async for each in store.list()]) == len(SIZES)
    assert not any((folder / "spool").iterdir()), "nothing stays on the way"


async def test_the_same_bytes_are_put_anew(store: S3Blobs, bucket: Bucket) -> None:
    first = await store.put(pieces(b"hello"))
    path = bucket.folder / "kept/here" / first.sha256[:2] / first.sha256
    os.utime(path, (1_000_000_000, 1_000_000_000))
    assert await store.put(pieces(b"hello")) == first
    assert path.stat().st_mtime > 1_000_000_000 and len(objects(bucket)) == 1
    await store.delete(first.sha256)
    await store.delete(first.sha256)
    assert objects(bucket) == set() and await store.size(first.sha256) is None
    with pytest.raises(BlobMissing):
        await read(store, first.sha256)


async def test_damaged_objects_never_look_complete(store: S3Blobs, bucket: Bucket) -> None:
    content = os.urandom(3 * CHUNK_BYTES)
    blob = await store.put(pieces(content))
    path = bucket.folder / "kept/here" / blob.sha256[:2] / blob.sha256
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    got = b""
    with pytest.raises(FileDamaged):
        async for chunk in store.open(blob.sha256):
            got += chunk
    assert len(got) < len(content)


async def test_a_put_that_is_cut_off_leaves_no_object(store: S3Blobs, bucket: Bucket, folder: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 100
        raise LookupError("gone")

    with pytest.raises(LookupError):
        await store.put(broken())
    assert objects(bucket) == set() and not any((folder / "spool").iterdir())


@pytest.mark.parametrize(
    "wrong",
    [{"secret_access_key": "wrong-secret-0123456789"}, {"bucket": "elsewhere"}, {"endpoint": "http://127.0.0.1:1"}],
)
async def test_a_storage_that_refuses_is_told_without_its_secrets(
    bucket: Bucket, folder: Path, wrong: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    store = S3Blobs(options_of(bucket, **wrong), folder / "spool")
    for call in (store.put(pieces(b"hello")), _listed(store), read(store, "0" * 64)):
        with pytest.raises((Unavailable, BlobMissing)) as told:
            await call
        assert bucket.endpoint not in str(told.value.metadata) + told.value.message
    out, err = capfd.readouterr()
    for secret in (bucket.secret_access_key, wrong.get("secret_access_key", bucket.secret_access_key)):
        assert secret not in out + err


async def _listed(store: S3Blobs) -> list[Any]:
    return [each async for each in store.list()]


@asynccontextmanager
async def vault_of(make_database: Any, folder: Path, environment: dict[str, str]) -> AsyncIterator[str]:
    """The address of a vault that the environment tells of a bucket."""
    address = f"unix:{folder}/vault.socket"
    vault_dsn = await make_database(vault_app.SCHEMA, vault_app.MIGRATIONS)
    settings = VaultSettings(listen=address, database_url=vault_dsn, secret_key="a secret of enough length")
    vault = vault_app.compose(settings, environment)
    await vault.start()
    try:
        yield address
    finally:
        await vault.stop()


@asynccontextmanager
async def platform(
    dsn: str, make_database: Any, nats_url: str, folder: Path, environment: dict[str, str]
) -> AsyncIterator[Files]:
    """A sessions service beside it."""
    async with vault_of(make_database, folder, environment) as address:
        more = {"vault_address": address, "data_dir": folder / "data", "blob_grace_seconds": 0}
        async with (
            replica(dsn, nats_url, folder, blob_sweep_seconds=0.1, **more),
            files_of(address_in(folder)) as files,
        ):
            yield files


def environment_of(bucket: Bucket) -> dict[str, str]:
    return {
        "MANAGED_AGENTS_S3_BUCKET": bucket.name,
        "MANAGED_AGENTS_S3_ENDPOINT": bucket.endpoint,
        "MANAGED_AGENTS_S3_ACCESS_KEY_ID": bucket.access_key_id,
        "MANAGED_AGENTS_S3_SECRET_ACCESS_KEY": bucket.secret_access_key,
    }


async def test_files_of_a_workspace_lie_in_the_bucket_that_its_settings_name(
    bucket: Bucket, dsn: str, make_database: Any, nats_url: str, folder: Path
) -> None:
    async with platform(dsn, make_database, nats_url, folder, environment_of(bucket)) as files:
        content = os.urandom(9_000_000)
        file, archived = await files.upload(content), await files.upload(b"short")
        assert await files.download(file.id) == content
        assert await files.download(file.id, offset=8_999_990) == content[8_999_990:]
        assert f"{file.sha256[:2]}/{file.sha256}" in objects(bucket) and blobs_in(folder) == set()
        await files.archive(archived.id)
        await await_until(lambda: objects(bucket) == {f"{file.sha256[:2]}/{file.sha256}"})
        assert await files.download(file.id) == content


async def test_a_bucket_that_goes_away_is_told_and_comes_back(
    bucket: Bucket, dsn: str, make_database: Any, nats_url: str, folder: Path
) -> None:
    async with platform(dsn, make_database, nats_url, folder, environment_of(bucket)) as files:
        kept = await files.upload(b"kept")
        bucket.stop()
        with pytest.raises(DomainError) as told:
            await files.upload(b"more")
        assert told.value.code == "UNAVAILABLE"
        with pytest.raises(DomainError) as told:
            await files.download(kept.id)
        assert told.value.code == "UNAVAILABLE"
        bucket.start()
        await until_listening(bucket)
        assert [each.id for each in await files.list()] == [kept.id], "no row without its bytes"
        assert await files.download(kept.id) == b"kept"


@pytest.mark.parametrize("point", ["blobs.written", "blobs.kept", "files.saved"])
async def test_a_kill_in_an_upload_leaves_no_row_and_in_the_end_no_object(
    bucket: Bucket, dsn: str, make_database: Any, nats_url: str, folder: Path, point: str
) -> None:
    content = os.urandom(PART_BYTES + 1)
    async with vault_of(make_database, folder, environment_of(bucket)) as address:
        more = {"vault_address": address}
        async with sessions_process(dsn, nats_url, folder, f"{point}=kill@2", **more) as service:
            async with files_of(service.listen) as files:
                first = await files.upload(b"first")
                with pytest.raises(DomainError):
                    await files.upload(content)
            await service.killed()
        assert await rows(dsn, "SELECT id FROM files") == [(first.id,)], "what wasn't acknowledged isn't there"
        more |= {"blob_grace_seconds": "0", "blob_sweep_seconds": "0.05"}
        async with served(dsn, nats_url, folder, **more) as listen, files_of(listen) as files:
            await await_until(lambda: objects(bucket) == {f"{first.sha256[:2]}/{first.sha256}"})
            assert await files.download(first.id) == b"first"


async def test_a_saved_choice_is_in_effect_at_once(
    bucket: Bucket, dsn: str, make_database: Any, nats: Nats, nats_url: str, folder: Path
) -> None:
    environment: dict[str, str] = {}
    async with platform(dsn, make_database, nats_url, folder, environment) as files:
        local = await files.upload(b"local")
        assert blobs_in(folder) == {local.sha256}
        environment |= environment_of(bucket)

        async def chosen() -> bool:
            await nats.publish(f"settings.saved.{files.context.workspace_id}", b"")
            await asyncio.sleep(0)
            file = await files.upload(b"remote")
            return f"{file.sha256[:2]}/{file.sha256}" in objects(bucket)

        await await_until(chosen)
        assert await files.download(local.id) == b"local", "what lay in the folder before is still read"
        assert await files.download(local.id, offset=2, length=2) == b"ca"

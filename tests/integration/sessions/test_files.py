"""Files in the sessions service: rows and bytes together, under tenants, kills and sweeps."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kit.clock import SystemClock
from kit.errors import DomainError, Unavailable
from kit.ids import new_id
from kit.postgres import Database
from kit.testing import await_until
from managed_agents.sessions.v1 import files_pb2 as pb
from managed_agents.sessions.v1 import sessions_pb2
from managed_agents.sessions.v1.common_pb2 import Page
from services.sessions.blobs.choice import Blobs
from services.sessions.blobs.local import _Reading
from services.sessions.operations.blob_holds import BlobSweep, hold
from services.sessions.store.blob_references import BlobReferences
from tests.integration.sessions.file_driver import (
    WORKSPACE,
    Files,
    address_in,
    blobs_in,
    files_of,
    incoming_in,
    rows,
    served,
    sessions_process,
)
from tests.integration.sessions.turn_driver import Replica, replica

pytestmark = pytest.mark.asyncio(loop_scope="package")

OUTPUT = {"purpose": pb.FILE_PURPOSE_OUTPUT}


@pytest_asyncio.fixture(loop_scope="package")
async def here(dsn: str, nats_url: str, folder: Path) -> AsyncIterator[tuple[Replica, Files, Files]]:
    """A replica, its files, and the files of a workspace beside."""
    async with replica(dsn, nats_url, folder, data_dir=folder / "data") as clients:
        listen = address_in(folder)
        async with files_of(listen) as ours, files_of(listen, "wrkspc_other") as others:
            yield clients, ours, others


@pytest_asyncio.fixture(loop_scope="package")
async def files(here: tuple[Replica, Files, Files]) -> Files:
    return here[1]


@pytest_asyncio.fixture(loop_scope="package")
async def database(dsn: str) -> AsyncIterator[Database]:
    opened = Database(dsn, "sessions")
    await opened.open()
    yield opened
    await opened.close()


def sweep_of(database: Database, folder: Path, grace: float = 0.0) -> tuple[Blobs, BlobSweep]:
    blobs = Blobs(folder / "data" / "files")
    return blobs, BlobSweep(database, SystemClock(), blobs, timedelta(seconds=grace))


async def refused(call: Any) -> DomainError:
    with pytest.raises(DomainError) as told:
        await call
    return told.value


async def test_a_file_is_its_bytes_and_its_row(files: Files, dsn: str, folder: Path) -> None:
    content = os.urandom(2_500_000)
    file = await files.upload(content, "data.bin")
    assert file.id.startswith("file_") and file.sha256 == hashlib.sha256(content).hexdigest()
    assert await files.download(file.id) == content
    assert await files.download(file.id, offset=5, length=10) == content[5:15]
    assert await files.download(file.id, last_bytes=7) == content[-7:]
    assert blobs_in(folder) == {file.sha256} and incoming_in(folder) == []
    assert await rows(dsn, "SELECT sha256, size_bytes FROM files") == [(file.sha256, len(content))]


async def test_workspaces_share_bytes_and_nothing_else(here: Any, folder: Path) -> None:
    _, ours, others = here
    mine, theirs = await ours.upload(b"same"), await others.upload(b"same")
    assert mine.id != theirs.id and blobs_in(folder) == {mine.sha256}
    for call in (
        others.download(mine.id),
        others.archive(mine.id),
        others.stub.GetFile(pb.GetFileRequest(file_id=mine.id), context=others.context),
    ):
        assert (await refused(call)).reason == "FILE_NOT_FOUND"
    assert [each.id for each in await ours.list()] == [mine.id]
    assert await others.list(ids=[mine.id]) == []
    await ours.archive(mine.id)
    assert await others.download(theirs.id) == b"same"


async def test_an_output_keeps_its_id_and_its_path(here: Any, folder: Path) -> None:
    clients, files, _ = here
    session_id = await clients.create_session()
    path = "/mnt/session/outputs/a/report.md"
    first = await files.upload(b"one", "", session_id=session_id, path=path, **OUTPUT)
    same = await files.upload(b"one", "", session_id=session_id, path=path, **OUTPUT)
    assert first == same and (first.name, first.media_type, first.path) == ("report.md", "text/markdown", path)
    second = await files.upload(b"two", "", session_id=session_id, path=path, **OUTPUT)
    assert (second.id, second.created_at) == (first.id, first.created_at) and second.updated_at > first.updated_at
    assert await files.download(first.id) == b"two"
    other = await files.upload(b"one", "", session_id=session_id, path=path + "x", **OUTPUT)
    assert other.id != first.id
    assert [each.id for each in await files.list(scope_id=session_id)] == [other.id, first.id]
    assert len(await files.list(page=Page(limit=5))) == 2
    await files.archive(first.id)
    anew = await files.upload(b"two", "", session_id=session_id, path=path, **OUTPUT)
    assert anew.id != first.id


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        ({"purpose": pb.FILE_PURPOSE_UNSPECIFIED}, "INVALID_FILE"),
        ({"purpose": pb.FILE_PURPOSE_MOUNT}, "INVALID_FILE"),
        ({"session_id": "sess_x"}, "INVALID_FILE"),
        ({"path": "/artifacts/a"}, "INVALID_FILE"),
        ({"media_type": "nothing"}, "INVALID_FILE"),
        ({"max_bytes": 2}, "FILE_TOO_LARGE"),
        ({**OUTPUT, "session_id": "sess_x", "path": "/mnt/session/outputs/a"}, "SESSION_NOT_FOUND"),
        ({**OUTPUT, "session_id": "sess_x", "path": "/mnt/session/outputs/../a"}, "INVALID_FILE"),
        ({**OUTPUT, "session_id": "sess_x", "path": "/etc/passwd"}, "INVALID_FILE"),
        ({"purpose": pb.FILE_PURPOSE_ARTIFACT, "path": "/x"}, "INVALID_ARTIFACT_PATH"),
    ],
)
async def test_a_faulty_upload_leaves_nothing(
    files: Files, dsn: str, folder: Path, start: dict[str, Any], reason: str
) -> None:
    assert (await refused(files.upload(b"hello", **start))).reason == reason
    assert blobs_in(folder) == set() and incoming_in(folder) == [] and await rows(dsn, "SELECT id FROM files") == []


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (pb.UploadFileEnd(expires_in_seconds=5), "INVALID_FILE"),
        (pb.UploadFileEnd(sha256="0" * 64), "INVALID_FILE"),
    ],
)
async def test_a_faulty_end_leaves_no_row(files: Files, dsn: str, last: pb.UploadFileEnd, reason: str) -> None:
    assert (await refused(files.upload(b"hello", last=last))).reason == reason
    assert await rows(dsn, "SELECT id FROM files") == []


async def test_a_stream_without_its_end_leaves_nothing(files: Files, dsn: str, folder: Path) -> None:
    async def cut() -> AsyncIterator[pb.UploadFileRequest]:
        yield pb.UploadFileRequest(start=pb.UploadFileStart(purpose=pb.FILE_PURPOSE_UPLOAD, name="a"))
        yield pb.UploadFileRequest(chunk=b"x" * 100_000)

    async def headless() -> AsyncIterator[pb.UploadFileRequest]:
        yield pb.UploadFileRequest(chunk=b"x")

    for messages in (cut(), headless()):
        assert (await refused(files.stub.UploadFile(messages, context=files.context))).reason == "INVALID_FILE"
    assert blobs_in(folder) == set() and incoming_in(folder) == []
    assert await rows(dsn, "SELECT id FROM files") == []


async def test_slow_readers_have_little_read_ahead_for_them(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    content, readers, ahead = os.urandom(10_000_000), 8, 0
    file = await files.upload(content)
    read = _Reading.read

    def counted(reading: _Reading, *arguments: Any) -> bytes:
        nonlocal ahead
        chunk = read(reading, *arguments)
        ahead += len(chunk)
        return chunk

    monkeypatch.setattr(_Reading, "read", counted)
    request = pb.DownloadFileRequest(file_id=file.id)
    streams = [aiter(files.stub.DownloadFile(request, context=files.context)) for _ in range(readers)]
    for stream in streams:
        await anext(stream)
    before = -1
    while before != ahead:
        before = ahead
        await asyncio.sleep(0.3)
    assert 0 < ahead <= readers * 3_000_000, "bytes wait in the disk's file, not in memory"
    for stream in streams:
        assert b"".join([part.chunk async for part in stream]) == content


async def test_damaged_and_missing_bytes_are_told_before_the_end(files: Files, folder: Path) -> None:
    content = os.urandom(3_000_000)
    file = await files.upload(content)
    path = folder / "data" / "files" / file.sha256[:2] / file.sha256
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    got = b""
    with pytest.raises(DomainError) as told:
        async for part in files.stub.DownloadFile(pb.DownloadFileRequest(file_id=file.id), context=files.context):
            got += part.chunk
    assert told.value.reason == "FILE_DAMAGED" and len(got) < len(content) and content.startswith(got)
    path.unlink()
    assert (await refused(files.download(file.id))).reason == "FILE_DAMAGED"


async def test_an_expired_file_is_told_and_lets_go_of_its_bytes(
    files: Files, dsn: str, folder: Path, database: Database
) -> None:
    file = await files.upload(b"short-lived", last=pb.UploadFileEnd(expires_in_seconds=3_600))
    kept = await files.upload(b"kept")
    async with database.platform_transaction() as tx:
        await tx.execute("UPDATE files SET expires_at = now() WHERE expires_at IS NOT NULL -- platform-wide: test")
    expired = await refused(files.download(file.id))
    assert expired.reason == "FILE_EXPIRED" and expired.code == "NOT_FOUND"
    assert expired.metadata["details"] == '{"error_code": "file_expired"}'
    told = await files.stub.GetFile(pb.GetFileRequest(file_id=file.id), context=files.context)
    assert told.file.expires_at
    assert [each.id for each in await files.list()] == [kept.id]
    blobs, sweep = sweep_of(database, folder)
    assert await sweep.sweep() == 1 and blobs_in(folder) == {kept.sha256}
    await blobs.close()


async def test_a_file_for_sessions_alone_is_not_downloadable(files: Files, database: Database) -> None:
    file = await files.upload(b"mine")
    async with database.platform_transaction() as tx:
        await tx.execute("UPDATE files SET downloadable = false -- platform-wide: test")
    assert (await refused(files.download(file.id))).reason == "FILE_NOT_DOWNLOADABLE"
    assert await files.download(file.id, for_session=True) == b"mine"


async def test_a_quota_bounds_what_a_workspace_keeps(dsn: str, nats_url: str, folder: Path) -> None:
    async with replica(dsn, nats_url, folder, data_dir=folder / "data", storage_quota_bytes=10):
        listen = address_in(folder)
        async with files_of(listen) as ours, files_of(listen, "wrkspc_other") as others:
            first = await ours.upload(b"123456")
            over = await refused(ours.upload(b"12345"))
            assert (over.reason, over.code) == ("STORAGE_QUOTA_EXCEEDED", "FAILED_PRECONDITION")
            await others.upload(b"12345")
            await ours.upload(b"1234")
            assert (await refused(ours.upload(b""))).reason == "STORAGE_QUOTA_EXCEEDED"
            await ours.archive(first.id)
            await ours.upload(b"12345")


async def test_the_sweep_removes_what_no_row_names_and_nothing_else(
    files: Files, dsn: str, folder: Path, database: Database
) -> None:
    kept, archived, twice = await files.upload(b"kept"), await files.upload(b"archived"), await files.upload(b"twice")
    await files.upload(b"twice")
    await files.archive(archived.id)
    await files.archive(twice.id)
    blobs, sweep = sweep_of(database, folder)

    async def some(content: bytes) -> AsyncIterator[bytes]:
        yield content

    skill = await blobs.local.put(some(b"package of a skill"))
    async with database.transaction(WORKSPACE) as tx:
        names = {"sha256": skill.sha256}
        await tx.execute("INSERT INTO skills VALUES (%(workspace_id)s, 'skill_1', now(), now(), 's', 's')", names)
        await tx.execute(
            "INSERT INTO skill_versions VALUES (%(workspace_id)s, 'skver_1', 'skill_1', now(), 1, '', %(sha256)s, 1)",
            names,
        )
    orphan = await blobs.local.put(some(b"orphan"))
    patient, careful = sweep_of(database, folder, grace=3_600)
    assert await careful.sweep() == 0 and orphan.sha256 in blobs_in(folder)
    assert await sweep.sweep() == 2
    assert blobs_in(folder) == {kept.sha256, twice.sha256, skill.sha256}
    assert await files.download(kept.id) == b"kept"
    for each in (blobs, patient):
        await each.close()


async def test_a_deleted_session_leaves_its_outputs_and_nothing_else(
    here: Any, folder: Path, database: Database
) -> None:
    clients, files, _ = here
    session_id, other = await clients.create_session(), await clients.create_session()
    output = await files.upload(b"output", session_id=session_id, path="/mnt/session/outputs/a", **OUTPUT)
    kept = await files.upload(b"kept", session_id=other, path="/artifacts/a", purpose=pb.FILE_PURPOSE_ARTIFACT)
    await files.upload(b"gone", session_id=session_id, path="/artifacts/a", purpose=pb.FILE_PURPOSE_ARTIFACT)
    await clients.sessions.DeleteSession(sessions_pb2.DeleteSessionRequest(session_id=session_id))
    blobs, sweep = sweep_of(database, folder)
    assert await sweep.sweep() == 1 and blobs_in(folder) == {output.sha256, kept.sha256}
    assert await files.download(output.id) == b"output" and await files.list(scope_id=session_id) == []
    await blobs.close()


async def test_a_row_and_a_sweep_of_its_bytes_never_pass_each_other(
    here: Any, folder: Path, database: Database
) -> None:
    blobs, sweep = sweep_of(database, folder)

    async def some() -> AsyncIterator[bytes]:
        yield b"contested"

    blob = await blobs.local.put(some())
    async with database.transaction(WORKSPACE) as tx:
        await hold(tx, blobs.local, blob)
        assert await sweep.sweep() == 0, "held by a transaction that may name it"
    async with database.platform_transaction() as tx:
        assert await BlobReferences(tx).claim(blob.sha256)
        waiting = asyncio.create_task(_held(database, blobs, blob))
        await blobs.local.delete(blob.sha256)
        assert not waiting.done()
    with pytest.raises(Unavailable):
        await waiting
    await blobs.close()


async def _held(database: Database, blobs: Blobs, blob: Any) -> None:
    async with database.transaction(WORKSPACE) as tx:
        await hold(tx, blobs.local, blob)


async def test_uploads_beside_a_sweep_without_grace_lose_nothing(
    here: Any, dsn: str, folder: Path, database: Database
) -> None:
    _, files, _ = here
    blobs, sweep = sweep_of(database, folder)
    done = asyncio.Event()

    async def sweeping() -> None:
        while not done.is_set():
            await sweep.sweep()

    async def uploading(number: int) -> None:
        for turn in range(6):
            content = f"{turn % 3}".encode() * 1_000
            while True:
                try:
                    file = await files.upload(content)
                    break
                except Unavailable:
                    continue
            assert await files.download(file.id) == content
            if turn % 2 == number % 2:
                await files.archive(file.id)

    task = asyncio.create_task(sweeping())
    await asyncio.gather(*(uploading(number) for number in range(6)))
    done.set()
    await task
    named = await rows(dsn, "SELECT DISTINCT sha256 FROM files WHERE bytes_removed_at IS NULL")
    assert {sha256 for (sha256,) in named} <= blobs_in(folder)
    await blobs.close()


@pytest.mark.parametrize("point", ["blobs.written", "blobs.flushed", "blobs.kept", "files.saved"])
async def test_a_kill_in_an_upload_leaves_all_or_nothing(dsn: str, nats_url: str, folder: Path, point: str) -> None:
    content = os.urandom(1_500_000)
    async with sessions_process(dsn, nats_url, folder, f"{point}=kill@2") as service:
        async with files_of(service.listen) as files:
            first = await files.upload(b"first")
            await refused(files.upload(content))
        await service.killed()
    assert await rows(dsn, "SELECT id FROM files") == [(first.id,)], "what wasn't acknowledged isn't there"
    fast = {"blob_grace_seconds": 0, "blob_sweep_seconds": 0.05}
    async with served(dsn, nats_url, folder, **fast) as listen, files_of(listen) as files:
        assert await files.download(first.id) == b"first"
        await await_until(lambda: blobs_in(folder) == {first.sha256} and not incoming_in(folder))
    async with served(dsn, nats_url, folder) as listen, files_of(listen) as files:
        # Without a grace the sweep may come between the bytes and their row.
        again = await files.upload(content)
        assert await files.download(again.id) == content


async def test_a_kill_in_a_sweep_leaves_the_bytes_or_takes_them_later(dsn: str, nats_url: str, folder: Path) -> None:
    fast = {"blob_grace_seconds": 0, "blob_sweep_seconds": 0.05}
    async with served(dsn, nats_url, folder) as listen, files_of(listen) as files:
        kept, gone = await files.upload(b"kept"), await files.upload(b"gone")
        await files.archive(gone.id)
    async with sessions_process(
        dsn, nats_url, folder, "blobs.orphan_claimed=kill", will_listen=False, **fast
    ) as service:
        await service.killed()
    assert blobs_in(folder) == {kept.sha256, gone.sha256}
    async with served(dsn, nats_url, folder, **fast) as listen, files_of(listen) as files:
        await await_until(lambda: blobs_in(folder) == {kept.sha256})
        assert await files.download(kept.id) == b"kept"


async def test_uploads_and_downloads_keep_memory_flat(dsn: str, nats_url: str, folder: Path) -> None:
    async with sessions_process(dsn, nats_url, folder) as service, files_of(service.listen) as files:
        content = os.urandom(10 * 1024 * 1024)

        async def both() -> None:
            file = await files.upload(content)
            assert await files.download(file.id) == content

        for _ in range(2):
            await both()
        before = _resident(service.process.pid)
        await asyncio.gather(*(both() for _ in range(8)))
        assert _resident(service.process.pid) - before < 80_000_000, "less than the files themselves"


def _resident(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_unknown_ids_of_every_form_are_not_found(files: Files) -> None:
    for file_id in ("", "x" * 300, "file_\x00", new_id("file"), "../../etc/passwd"):
        for call in (files.download(file_id), files.archive(file_id)):
            assert (await refused(call)).reason == "FILE_NOT_FOUND"

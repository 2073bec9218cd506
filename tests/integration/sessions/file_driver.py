"""Files of a sessions service: uploads, downloads, and the rows and bytes behind them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from kit.ids import new_id
from kit.rpc.client import Channel, channel
from kit.rpc.context import CallContext
from kit.testing import await_until, free_port
from managed_agents.sessions.v1 import files_pb2 as pb
from managed_agents.sessions.v1.files_pb2_grpc import FilesServiceStub
from tests.integration.sessions.turn_driver import replica

WORKSPACE = "wrkspc_default"
PIECE = 300_000


class Files:
    """Clients of the files of one workspace."""

    def __init__(self, connection: Channel, workspace_id: str = WORKSPACE) -> None:
        self.stub = connection.stub(FilesServiceStub)
        self.context = CallContext(workspace_id=workspace_id, principal_id="test")

    async def upload(self, content: bytes, name: str = "a.txt", *, last: Any = None, **start: Any) -> pb.File:
        """One file."""

        async def messages() -> AsyncIterator[pb.UploadFileRequest]:
            head = {"purpose": pb.FILE_PURPOSE_UPLOAD, "name": name} | start
            yield pb.UploadFileRequest(start=pb.UploadFileStart(**head))
            for at in range(0, len(content), PIECE):
                yield pb.UploadFileRequest(chunk=content[at : at + PIECE])
            yield pb.UploadFileRequest(end=last or pb.UploadFileEnd())

        return (await self.stub.UploadFile(messages(), context=self.context)).file

    async def download(self, file_id: str, **more: Any) -> bytes:
        """Its bytes."""
        request = pb.DownloadFileRequest(file_id=file_id, **more)
        parts = [part async for part in self.stub.DownloadFile(request, context=self.context)]
        assert parts[0].HasField("start") and not parts[0].start.file.HasField("preview")
        content = b"".join(part.chunk for part in parts[1:])
        assert len(content) == parts[0].start.length
        return content

    async def archive(self, file_id: str) -> None:
        """Delete it."""
        await self.stub.ArchiveFile(pb.ArchiveFileRequest(file_id=file_id), context=self.context)

    async def list(self, **request: Any) -> list[pb.File]:
        """One page."""
        return list((await self.stub.ListFiles(pb.ListFilesRequest(**request), context=self.context)).files)


@asynccontextmanager
async def files_of(listen: str, workspace_id: str = WORKSPACE) -> AsyncIterator[Files]:
    """Clients of the service at this address."""
    connection = channel(listen)
    try:
        yield Files(connection, workspace_id)
    finally:
        await connection.close()


@asynccontextmanager
async def served(dsn: str, nats_url: str, folder: Path, **settings: Any) -> AsyncIterator[str]:
    """The address of a service over the same data: in this process, where nobody kills it."""
    # Killed ones leave their sockets behind.
    place = folder / new_id("p")[-4:]
    place.mkdir()
    async with replica(dsn, nats_url, place, data_dir=folder / "data", **settings):
        yield address_in(place)


@dataclass(slots=True)
class ServiceProcess:
    """A sessions service that may be killed."""

    listen: str
    process: asyncio.subprocess.Process

    async def killed(self) -> None:
        """Wait until it has killed itself."""
        async with asyncio.timeout(30):
            assert await self.process.wait() == -9


@asynccontextmanager
async def sessions_process(
    dsn: str, nats_url: str, folder: Path, failpoints: str = "", *, will_listen: bool = True, **environment: Any
) -> AsyncIterator[ServiceProcess]:
    """The service as a process of its own; killed afterwards if it still lives."""
    listen = f"unix:{folder}/{new_id('s')[-8:]}.sock"
    variables = {
        "DATABASE_URL": dsn,
        "NATS_URL": nats_url,
        "LISTEN": listen,
        "DATA_DIR": str(folder / "data"),
        "FAILPOINTS": failpoints,
        **{name.upper(): str(value) for name, value in environment.items()},
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.sessions",
        env=os.environ | {f"MANAGED_AGENTS_{name}": value for name, value in variables.items()},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        if will_listen:
            connection = channel(listen)
            assert await connection.ready(30)
            await connection.close()
        yield ServiceProcess(listen, process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    """What the database says, whatever the workspace."""
    options = "-c search_path=sessions -c managed_agents.workspace=*"
    async with await psycopg.AsyncConnection.connect(dsn, options=options) as connection:
        return await (await connection.execute(query)).fetchall()  # type: ignore[arg-type]


def address_in(folder: Path) -> str:
    """Where the one replica of a folder listens."""
    return f"unix:{next(iter(folder.glob('*.sock')))}"


def blobs_in(folder: Path) -> set[str]:
    """Names of all blobs that lie in a data folder."""
    return {path.name for path in (folder / "data" / "files").glob("??/*")}


def incoming_in(folder: Path) -> list[Path]:
    """What is on its way there."""
    return list((folder / "data" / "files" / "incoming").glob("*"))


class Bucket:
    """A bucket of a server of our own that speaks the S3 protocol."""

    access_key_id = "AKTEST0123456789ABCD"
    secret_access_key = "canary-of-object-storage-0123456789"
    name = "bucket"

    def __init__(self, folder: Path) -> None:
        self._root = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self.folder = folder / self.name
        self.folder.mkdir(parents=True)

    def start(self) -> None:
        """Serve what is there."""
        program = Path(sys.executable).parent / "rclone"
        key = f"{self.access_key_id},{self.secret_access_key}"
        arguments = ["serve", "s3", "--auth-key", key, "--addr", f"127.0.0.1:{self._port}", str(self._root)]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self._root), "RCLONE_CONFIG": str(self._root / "none")}
        with (self._root / "log").open("ab") as log:
            self._process = subprocess.Popen([str(program), *arguments], env=environment, stdout=log, stderr=log)

    def stop(self) -> None:
        """Serve no more."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)
            self._process = None


async def until_listening(bucket: Bucket) -> None:
    """Wait for its port."""

    async def listens() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", int(bucket.endpoint.rpartition(":")[2]))
        except OSError:
            return False
        writer.close()
        await writer.wait_closed()
        return True

    await await_until(listens, timeout=15)

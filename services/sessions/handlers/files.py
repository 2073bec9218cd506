"""FilesService: uploads and downloads as streams, and the rows of files and artifacts."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from kit import failpoints
from kit.clock import Clock
from kit.ids import new_id
from kit.pages import InvalidCursor
from kit.postgres import Database, Tx
from kit.rpc.server import current_context
from managed_agents.sessions.v1 import files_pb2 as pb
from managed_agents.sessions.v1 import files_pb2_grpc
from managed_agents.sessions.v1.common_pb2 import PageInfo
from services.sessions.blobs import Blob, BlobStore
from services.sessions.blobs.choice import Blobs
from services.sessions.domain.file import Purpose, StoredFile
from services.sessions.domain.file_errors import (
    ArtifactNotFound,
    FileNotFound,
    FileRangeNotSatisfiable,
    InvalidFile,
    StorageQuotaExceeded,
)
from services.sessions.domain.session_errors import SessionNotFound
from services.sessions.handlers.definitions import (
    can_be_session,
    can_exist,
    once,
    page_limit,
    position_after,
    read_position,
)
from services.sessions.handlers.file_messages import Upload, file_message
from services.sessions.operations.blob_holds import hold
from services.sessions.store.files import FileStore, Position

MAX_IDS = 100


class FilesHandler(files_pb2_grpc.FilesServiceServicer):
    """Serves files out of this service's database and the blob stores."""

    def __init__(self, database: Database, clock: Clock, blobs: Blobs, *, quota_bytes: int | None = None) -> None:
        """`quota_bytes` bounds what one workspace keeps; uploads under way at the same time may pass it together."""
        self._database = database
        self._clock = clock
        self._blobs = blobs
        self._quota_bytes = quota_bytes

    async def UploadFile(self, request_iterator: Any, context: Any) -> pb.UploadFileResponse:
        """Stores the bytes, then the row that names them."""
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        if first is None or first.WhichOneof("part") != "start":
            raise InvalidFile("An upload begins with its start.", field="file")
        upload = Upload(first.start)
        workspace_id = current_context().workspace_id
        await self._check_before(upload, workspace_id)
        store = await self._blobs.of(workspace_id)
        blob = await store.put(upload.chunks(requests, self._clock.now()))
        end = upload.end
        if end is None or end.sha256 not in ("", blob.sha256):
            raise InvalidFile("The bytes that came have another SHA-256 than the caller counted.", field="sha256")
        async with self._database.transaction(workspace_id) as tx:

            async def save() -> pb.UploadFileResponse:
                return await self._save(tx, store, blob, upload)

            return await once(tx, end.idempotency, pb.UploadFileResponse, save)

    async def DownloadFile(self, request: Any, context: Any) -> AsyncIterator[pb.DownloadFileResponse]:
        """Tells what comes, then sends it."""
        workspace_id = current_context().workspace_id
        async with self._database.read(workspace_id) as tx:
            file = await _load(FileStore(tx), request)
        file.require_readable(self._clock.now(), for_session=request.for_session)
        start, end = _part(request, file)
        told = file_message(file)
        told.ClearField("preview")
        told.ClearField("preview_truncated")
        yield pb.DownloadFileResponse(start=pb.DownloadFileStart(file=told, offset=start, length=end - start))
        if request.describe_only or start == end:
            return
        store = await self._blobs.of(workspace_id)
        chunks = store.open(file.sha256, start, end)
        try:
            async for chunk in chunks:
                yield pb.DownloadFileResponse(chunk=chunk)
        finally:
            # A reader who goes early leaves the generator open, and a file with it.
            await chunks.aclose()

    async def GetFile(self, request: Any, context: Any) -> pb.GetFileResponse:
        """Reads one row."""
        async with self._database.read(current_context().workspace_id) as tx:
            return pb.GetFileResponse(file=file_message(await FileStore(tx).load(_known(request.file_id))))

    async def ListFiles(self, request: Any, context: Any) -> pb.ListFilesResponse:
        """Pages what is there."""
        now = self._clock.now()
        async with self._database.read(current_context().workspace_id) as tx:
            store = FileStore(tx)
            if request.HasField("scope_id") and not await _has_session(store, request.scope_id):
                return pb.ListFilesResponse()
            if request.ids:
                found = await store.named([each for each in request.ids[:MAX_IDS] if can_exist(each)], now)
                if request.HasField("scope_id"):
                    found = [each for each in found if each.session_id == request.scope_id]
                return pb.ListFilesResponse(files=[file_message(each) for each in found])
            return await _page(store, request, now)

    async def ArchiveFile(self, request: Any, context: Any) -> pb.ArchiveFileResponse:
        """Archives for good."""
        async with self._database.transaction(current_context().workspace_id) as tx:
            archived = await FileStore(tx).archive(_known(request.file_id), self._clock.now())
        return pb.ArchiveFileResponse(file=file_message(archived))

    async def ListArtifacts(self, request: Any, context: Any) -> pb.ListArtifactsResponse:
        """Pages the artifacts of a session."""
        limit = page_limit(request.page)
        scope = f"artifacts?session={request.session_id}"
        before = read_position(request.page, scope)
        async with self._database.read(current_context().workspace_id) as tx:
            store = FileStore(tx)
            await _require_session(store, request.session_id)
            found = await store.artifacts(request.session_id, limit + 1, before)
        page = found[:limit]
        cursor = position_after(scope, page[-1].created_at, page[-1].id) if len(found) > limit else ""
        return pb.ListArtifactsResponse(
            artifacts=[file_message(each) for each in page], page_info=PageInfo(next_cursor=cursor)
        )

    async def _check_before(self, upload: Upload, workspace_id: str) -> None:
        """What can be told before the first byte is."""
        if upload.purpose is Purpose.UPLOAD and self._quota_bytes is None:
            return
        async with self._database.read(workspace_id) as tx:
            store = FileStore(tx)
            if upload.purpose is not Purpose.UPLOAD:
                await _require_session(store, upload.session_id)
            await self._check_quota(store, 1)

    async def _check_quota(self, store: FileStore, more: int) -> None:
        if self._quota_bytes is not None and await store.kept_bytes() + more > self._quota_bytes:
            raise StorageQuotaExceeded(
                f"The workspace may keep {self._quota_bytes} bytes of files; this would be more. Delete some first.",
                quota_bytes=self._quota_bytes,
            )

    async def _save(self, tx: Tx, store: BlobStore, blob: Blob, upload: Upload) -> pb.UploadFileResponse:
        await hold(tx, store, blob)
        files = FileStore(tx)
        await self._check_quota(files, blob.size)
        if upload.purpose is not Purpose.UPLOAD:
            await _require_session(files, upload.session_id)
        file_id = new_id("art" if upload.purpose is Purpose.ARTIFACT else "file")
        saved, created = await files.save(upload.file(file_id, blob.sha256, self._clock.now()))
        await failpoints.point("files.saved")
        return pb.UploadFileResponse(file=file_message(saved), created=created)


async def _load(store: FileStore, request: Any) -> StoredFile:
    if not request.artifact_of:
        return await store.load(_known(request.file_id))
    await _require_session(store, request.artifact_of)
    if not can_exist(request.file_id):
        raise ArtifactNotFound(f"Artifact not found: {request.file_id[:80]}")
    return await store.load_artifact(request.artifact_of, request.file_id)


def _part(request: Any, file: StoredFile) -> tuple[int, int]:
    """From which byte to which one the answer goes."""
    size = file.size_bytes
    if request.last_bytes > 0:
        return max(0, size - request.last_bytes), size
    start = max(0, request.offset)
    if start > size or (start == size and start > 0):
        raise FileRangeNotSatisfiable(f"The file has {size} bytes, and the range begins behind them.", size=size)
    if request.HasField("length"):
        return start, min(size, start + max(0, request.length))
    return start, size


async def _page(store: FileStore, request: Any, now: datetime) -> pb.ListFilesResponse:
    limit = page_limit(request.page)
    session_id = request.scope_id if request.HasField("scope_id") else ""
    scope = f"files?scope={session_id}&order={'asc' if request.ascending else 'desc'}"
    backwards = bool(request.before_id)
    begin = await _begin(store, request, scope)
    ascending = request.ascending is not backwards
    if session_id:
        read = store.newer_of if ascending else store.older_of
        found = await read(session_id, now, limit + 1, begin)
    else:
        found = await (store.newer if ascending else store.older)(now, limit + 1, begin)
    page, has_more = found[:limit], len(found) > limit
    if backwards:
        page.reverse()
    # Behind a page that was reached from its end there is at least the file that it was reached from.
    goes_on = bool(page) and (has_more or backwards)
    cursor = position_after(scope, page[-1].created_at, page[-1].id) if goes_on else ""
    return pb.ListFilesResponse(
        files=[file_message(each) for each in page], page_info=PageInfo(next_cursor=cursor), has_more=has_more
    )


async def _begin(store: FileStore, request: Any, scope: str) -> Position | None:
    """Behind which file the page begins, in the order in which it is read."""
    neighbour = request.after_id or request.before_id
    if not neighbour:
        return read_position(request.page, scope)
    name = "after_id" if request.after_id else "before_id"
    try:
        file = await store.load(_known(neighbour))
    except FileNotFound:
        raise InvalidCursor(f"{name} names no file of this workspace.", field=name) from None
    return file.created_at, file.id


async def _has_session(store: FileStore, session_id: str) -> bool:
    return can_be_session(session_id) and await store.has_session(session_id)


async def _require_session(store: FileStore, session_id: str) -> None:
    if not await _has_session(store, session_id):
        raise SessionNotFound(f"Session not found: {session_id[:80]}", session_id=session_id[:80])


def _known(file_id: str) -> str:
    if not can_exist(file_id):
        raise FileNotFound(f"File not found: {file_id[:80]}", file_id=file_id[:80])
    return file_id

"""Files: uploads in two forms, metadata, content. Artifacts of sessions, which share both."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from managed_agents.sessions.v1 import files_pb2 as pb
from managed_agents.sessions.v1.common_pb2 import Page

from ..errors import InvalidRequest, UnsupportedMediaType
from ..operation import Call, Operation, choice, integer, limit, many, page, text
from ..operation.content import Content, NotModified, etag_of, is_known, read_range
from ..operation.multipart import is_multipart
from ..render.files import render_archived, render_artifact, render_file, render_files
from ..render.splice import collection
from ..schemas.files import Artifact, ArtifactCreate, ArtifactPage, File, FileCreate, FilePage
from .file_uploads import upload_json, upload_multipart

TAG = "Files"
ARTIFACTS = "Artifacts"
MAX_IDS = 100
DEFAULT_LIMIT = 20
FORM = {
    "type": "object",
    "required": ["file"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "expires_in_seconds": {"type": "integer", "minimum": 3_600, "maximum": 7_776_000},
    },
}


async def upload_file(call: Call) -> bytes:
    """POST /v1/files."""
    if is_multipart(call):
        answer = await upload_multipart(call)
    elif call.headers.get("content-type", "application/json").partition(";")[0].strip().lower() == "application/json":
        answer = await upload_json(call, FileCreate, pb.UploadFileStart(purpose=pb.FILE_PURPOSE_UPLOAD))
    else:
        raise UnsupportedMediaType("A file comes as multipart/form-data in the part `file`, or as application/json.")
    return render_file(answer.file)


async def list_files(call: Call) -> bytes:
    """GET /v1/files."""
    query = call.query
    request = pb.ListFilesRequest(
        page=Page(limit=query["limit"] or DEFAULT_LIMIT, cursor=query["page"]),
        ids=query["ids"],
        ascending=query["order"] == "asc",
        after_id=query["after_id"],
        before_id=query["before_id"],
    )
    starts = [name for name in ("page", "after_id", "before_id") if query[name]]
    if len(starts) > 1:
        raise InvalidRequest(f"{' and '.join(starts)} each say where the page begins; send one.", field=starts[1])
    if request.ids and (starts or query["limit"]):
        raise InvalidRequest("ids excludes limit and page: the answer holds all of them.", field="ids")
    if len(request.ids) > MAX_IDS:
        raise InvalidRequest(f"ids accepts at most {MAX_IDS} ids.", field="ids")
    if query["scope_id"]:
        request.scope_id = query["scope_id"]
    answer = await call.ask(call.clients.files.ListFiles, request)
    return render_files(answer.files, answer.page_info, has_more=answer.has_more)


async def get_file(call: Call) -> bytes:
    """GET /v1/files/{file_id}."""
    answer = await call.ask(call.clients.files.GetFile, pb.GetFileRequest(file_id=call.path["file_id"]))
    return render_file(answer.file)


async def archive_file(call: Call) -> bytes:
    """DELETE /v1/files/{file_id}."""
    request = pb.ArchiveFileRequest(file_id=call.path["file_id"])
    answer = await call.ask(call.clients.files.ArchiveFile, request)
    return render_archived(answer.file, published=call.published)


async def download_file(call: Call) -> Any:
    """GET /v1/files/{file_id}/content."""
    return await _content(call, pb.DownloadFileRequest(file_id=call.path["file_id"]))


async def list_artifacts(call: Call) -> bytes:
    """GET /v1/sessions/{session_id}/artifacts."""
    request = pb.ListArtifactsRequest(
        session_id=call.path["session_id"], page=Page(limit=call.query["limit"], cursor=call.query["page"])
    )
    answer = await call.ask(call.clients.files.ListArtifacts, request)
    return collection([render_artifact(each) for each in answer.artifacts], answer.page_info)


async def record_artifact(call: Call) -> bytes:
    """POST /v1/sessions/{session_id}/artifacts."""
    start = pb.UploadFileStart(purpose=pb.FILE_PURPOSE_ARTIFACT, session_id=call.path["session_id"])
    answer = await upload_json(call, ArtifactCreate, start)
    return render_artifact(answer.file)


async def download_artifact(call: Call) -> Any:
    """GET /v1/sessions/{session_id}/artifacts/{artifact_id}/content."""
    request = pb.DownloadFileRequest(file_id=call.path["artifact_id"], artifact_of=call.path["session_id"])
    return await _content(call, request)


async def _content(call: Call, request: pb.DownloadFileRequest) -> Any:
    """The bytes, a part of them, or nothing where the caller has them already."""
    etag = ""
    if "if-none-match" in call.headers or "if-range" in call.headers:
        # The conditions are on the whole, so they are looked at before the range is.
        known = pb.DownloadFileRequest(file_id=request.file_id, artifact_of=request.artifact_of, describe_only=True)
        async with aclosing(aiter(call.follow(call.clients.files.DownloadFile, known))) as told:
            described = await anext(told)
        etag = etag_of(described.start.file)
        if is_known(call.headers, etag):
            return NotModified(described.start.file)
    asked = read_range(call.headers, etag)
    if asked is not None:
        request.offset, request.last_bytes = asked.offset, asked.last_bytes
        if asked.length is not None:
            request.length = asked.length
    request.describe_only = call.scope["method"] == "HEAD"
    answers = aiter(call.follow(call.clients.files.DownloadFile, request))
    first = await anext(answers)
    return Content(call, first.start, answers, partial=asked is not None)


OPERATIONS = (
    Operation(
        "GET",
        "/v1/files",
        list_files,
        tag=TAG,
        summary="List files, newest first",
        description="Uploads, and what sessions delivered. Expired and archived ones are left out.",
        query=(
            integer("limit", minimum=1, maximum=1000, description="Page size, 20 where it is left out."),
            page(),
            text("scope_id", description="Only the files of this session; none where there is no such session."),
            many("ids", max_items=256, names=("ids[]",), description="Only these; excludes limit and page."),
            choice("order", ("asc", "desc"), default="desc", description="By time of creation."),
            text("after_id", description="The page that begins behind this file, in place of `page`."),
            text("before_id", description="The page that ends before this file, in place of `page`."),
        ),
        response=FilePage,
    ),
    Operation(
        "POST",
        "/v1/files",
        upload_file,
        tag=TAG,
        summary="Upload a file",
        description="As multipart/form-data in the part `file`, or as JSON. At most 10,485,760 bytes.",
        upload=FileCreate,
        form=FORM,
        response=File,
        idempotent_write=True,
    ),
    Operation("GET", "/v1/files/{file_id}", get_file, tag=TAG, summary="Retrieve metadata and preview", response=File),
    Operation(
        "DELETE",
        "/v1/files/{file_id}",
        archive_file,
        tag=TAG,
        summary="Archive a file for good",
        description="A caller of the published contract reads `{id, type: file_deleted}`.",
        response=File,
    ),
    Operation(
        "GET",
        "/v1/files/{file_id}/content",
        download_file,
        tag=TAG,
        summary="Download the content",
        description="Takes one range, If-Range and If-None-Match.",
        content=True,
    ),
    Operation(
        "GET",
        "/v1/sessions/{session_id}/artifacts",
        list_artifacts,
        tag=ARTIFACTS,
        summary="List generated artifacts of a session, newest first",
        query=(limit(), page()),
        response=ArtifactPage,
    ),
    Operation(
        "POST",
        "/v1/sessions/{session_id}/artifacts",
        record_artifact,
        tag=ARTIFACTS,
        summary="Record a generated artifact",
        description="The path begins with /artifacts/. Recording it again replaces what it held, and keeps its id.",
        upload=ArtifactCreate,
        response=Artifact,
        idempotent_write=True,
    ),
    Operation(
        "GET",
        "/v1/sessions/{session_id}/artifacts/{artifact_id}/content",
        download_artifact,
        tag=ARTIFACTS,
        summary="Download the content of an artifact",
        description="Takes one range, If-Range and If-None-Match.",
        content=True,
    ),
)

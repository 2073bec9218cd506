"""Uploads on their way: from a body that arrives in pieces into a stream of messages.

A multipart file is passed on while it arrives, so memory stays flat whatever its size. A JSON body may name its
encoding behind its content, so its content waits in a file until all of the body has come.
"""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError

from managed_agents.sessions.v1 import files_pb2 as pb

from ..errors import InvalidFile, InvalidRequest, UnknownField
from ..operation import Call
from ..operation.call import KEY_HEADER, RETRY_HEADER
from ..operation.json_upload import JsonUpload
from ..operation.multipart import FRAMING_BYTES, Part, read_parts
from ..operation.sending import send_all
from ..operation.validation import refusal

MAX_FILE_BYTES = 10 * 1024 * 1024
MESSAGE_BYTES = 1024 * 1024
MAX_FIELD_BYTES = 1024
# A multiple of four characters, which is a multiple of three bytes.
BASE64_BYTES = 4 * (MESSAGE_BYTES // 4)
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}", re.ASCII)
_UNDECLARED = "application/octet-stream"


async def upload_multipart(call: Call) -> Any:
    """The part `file`, passed on while it comes; `expires_in_seconds` may stand before or behind it."""
    body = _MultipartBody(call)
    try:
        return await send_all(call, call.clients.files.UploadFile, body.messages())
    finally:
        await body.close()


async def upload_json(call: Call, shape: type[BaseModel], start: pb.UploadFileStart) -> Any:
    """The member `content`, in either encoding."""
    async with JsonUpload(call, long="content", max_bytes=4 * -(-MAX_FILE_BYTES // 3)) as upload:
        document = await upload.read()
        try:
            given: Any = shape.model_validate(document)
        except ValidationError as error:
            raise refusal(shape, error) from None
        start.name, start.media_type = given.given_name(), given.given_media_type()
        start.path = getattr(given, "path", "")
        start.max_bytes = MAX_FILE_BYTES
        described = {name: value for name, value in document.items() if name != "content"}
        expires = getattr(given, "expires_in_seconds", None) or 0
        chunks = _base64_chunks(upload) if given.encoding == "base64" else _chunks(upload)
        return await send_all(call, call.clients.files.UploadFile, _messages(call, start, chunks, described, expires))


class _Counted:
    """Bytes on their way, hashed only where a repeat has to be recognised by them."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._hash = hashlib.sha256() if KEY_HEADER in call.headers or RETRY_HEADER in call.headers else None

    async def add(self, chunk: bytes) -> None:
        if self._hash is not None:
            await asyncio.to_thread(self._hash.update, chunk)

    def end(self, described: dict[str, Any], expires_in_seconds: int) -> pb.UploadFileEnd:
        """The last message; a repeat is known by what was said and sent, however it was framed."""
        end = pb.UploadFileEnd(expires_in_seconds=expires_in_seconds)
        if self._hash is not None:
            end.sha256 = self._hash.hexdigest()
            self._call.raw_body = orjson.dumps([described, end.sha256], option=orjson.OPT_SORT_KEYS)
            end.idempotency.CopyFrom(self._call.idempotency())
        return end


class _MultipartBody:
    """The body of one multipart upload."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._parts = read_parts(call, max_bytes=MAX_FILE_BYTES + FRAMING_BYTES)
        self._field: str | None = None
        self._fields: dict[str, bytearray] = {}
        self._file: Part | None = None

    async def messages(self) -> AsyncIterator[pb.UploadFileRequest]:
        """The stream that the service reads."""
        counted, waiting, size = _Counted(self._call), [], 0
        async for piece in self._parts:
            if isinstance(piece, Part):
                is_file = self._begin(piece)
                if is_file:
                    yield pb.UploadFileRequest(start=_start(piece))
            elif self._field is not None:
                self._add_to_field(piece)
            else:
                waiting.append(piece)
                size += len(piece)
                if size >= MESSAGE_BYTES:
                    chunk = b"".join(waiting)
                    waiting, size = [], 0
                    await counted.add(chunk)
                    for at in range(0, len(chunk), MESSAGE_BYTES):
                        yield pb.UploadFileRequest(chunk=chunk[at : at + MESSAGE_BYTES])
        if self._file is None:
            raise InvalidRequest("file is required: the body has no part of that name.", field="file")
        if size:
            chunk = b"".join(waiting)
            await counted.add(chunk)
            yield pb.UploadFileRequest(chunk=chunk)
        expires = self._expires()
        described = {"filename": self._file.filename, "media_type": self._file.media_type, "expires": expires}
        yield pb.UploadFileRequest(end=counted.end(described, expires))

    async def close(self) -> None:
        """Let the parser go where the service gave up first."""
        # Where the call that read it is just being cancelled, that closes it.
        with contextlib.suppress(RuntimeError):
            await self._parts.aclose()  # type: ignore[attr-defined]

    def _begin(self, part: Part) -> bool:
        if part.name == "file":
            if self._file is not None:
                raise InvalidRequest("file must be given once.", field="file")
            self._file, self._field = part, None
            return True
        if part.name != "expires_in_seconds":
            raise UnknownField(
                f"{part.name[:64]} is not known. Parts that are: file, expires_in_seconds.", field=part.name[:64]
            )
        if part.name in self._fields:
            raise InvalidRequest(f"{part.name} must be given once.", field=part.name)
        self._field = part.name
        self._fields[part.name] = bytearray()
        return False

    def _add_to_field(self, piece: bytes) -> None:
        assert self._field is not None
        value = self._fields[self._field]
        value += piece
        if len(value) > MAX_FIELD_BYTES:
            raise InvalidRequest(f"{self._field} is too long.", field=self._field)

    def _expires(self) -> int:
        given = self._fields.get("expires_in_seconds")
        if given is None:
            return 0
        text = given.decode("latin-1").strip()
        if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 9 and int(text)):
            raise InvalidRequest("expires_in_seconds must be a whole number of seconds.", field="expires_in_seconds")
        return int(text)


def _start(part: Part) -> pb.UploadFileStart:
    """A type that says nothing, or is none, is told from the name instead."""
    declared = part.media_type.partition(";")[0].strip()
    known = declared.lower() != _UNDECLARED and _MEDIA_TYPE.fullmatch(declared)
    return pb.UploadFileStart(
        purpose=pb.FILE_PURPOSE_UPLOAD,
        name=part.filename or "",
        media_type=declared if known else "",
        max_bytes=MAX_FILE_BYTES,
    )


async def _messages(
    call: Call, start: pb.UploadFileStart, chunks: AsyncIterator[bytes], described: dict[str, Any], expires: int
) -> AsyncIterator[pb.UploadFileRequest]:
    counted = _Counted(call)
    yield pb.UploadFileRequest(start=start)
    async for chunk in chunks:
        await counted.add(chunk)
        yield pb.UploadFileRequest(chunk=chunk)
    yield pb.UploadFileRequest(end=counted.end(described, expires))


async def _chunks(upload: JsonUpload) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(upload.spool.read, MESSAGE_BYTES):
        yield chunk


async def _base64_chunks(upload: JsonUpload) -> AsyncIterator[bytes]:
    ended = False
    while encoded := await asyncio.to_thread(upload.spool.read, BASE64_BYTES):
        try:
            if ended:
                raise ValueError("padding in the middle")
            chunk = binascii.a2b_base64(encoded, strict_mode=True)
        except ValueError:
            raise InvalidFile(
                "content is not base64: send the standard alphabet, with padding.", field="content"
            ) from None
        ended = encoded.endswith(b"=")
        yield chunk

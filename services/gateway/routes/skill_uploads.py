"""Packages of skills on their way to the service: from multipart forms, passed on while they arrive, or from JSON.

A form has the files in parts named `files[]` or `files`, each with its folder in its filename. What the service makes
of names and bytes is its own; here only what a name said before the form's reader took a part of it is looked at.
"""

from __future__ import annotations

import asyncio
import binascii
import hashlib
from collections.abc import AsyncIterator
from typing import Any

from pydantic import ValidationError

from managed_agents.sessions.v1.skills_pb2 import SkillUpload

from ..errors import InvalidRequest, InvalidSkillPackage, UnknownField, UnsupportedMediaType
from ..operation import Call
from ..operation import body as request_body
from ..operation.multipart import FRAMING_BYTES, Part, is_multipart, read_parts
from ..operation.sending import send_all
from ..operation.validation import refusal
from ..schemas.skills import SkillCreate, SkillVersionCreate

MAX_PACKAGE_BYTES = 30 * 1024 * 1024
# Heads of up to a thousand parts.
MAX_FORM_BYTES = MAX_PACKAGE_BYTES + 8 * FRAMING_BYTES
MAX_JSON_BYTES = 42 * 1024 * 1024
MAX_LABEL_BYTES = 2_048
MESSAGE_BYTES = 1024 * 1024
FILE_PARTS = frozenset({"files", "files[]", "file"})
LABELS = ("display_name", "display_title")


async def upload(call: Call, rpc: Any, head: Any, *, takes_label: bool) -> Any:
    """Send the package of a request; the service's answer. `head` is the first message, of the rpc's own type."""
    upload = _Upload(call, head, LABELS if takes_label else ())
    if is_multipart(call):
        return await send_all(call, rpc, upload.of_form())
    media_type = call.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise UnsupportedMediaType("A skill comes as multipart/form-data in parts `files[]`, or as application/json.")
    request_body.check_headers(call.headers, MAX_JSON_BYTES)
    raw = await request_body.read(call.receive, MAX_JSON_BYTES)
    shape: type[SkillVersionCreate] = SkillCreate if takes_label else SkillVersionCreate
    parsed = await asyncio.to_thread(request_body.parse, raw)
    try:
        given = shape.model_validate(parsed)
    except ValidationError as error:
        raise refusal(shape, error) from None
    return await send_all(call, rpc, upload.of_json(given))


class _Upload:
    """One upload as a stream of messages, hashed on its way: a repeat is known by what it brings."""

    def __init__(self, call: Call, head: Any, labels: tuple[str, ...]) -> None:
        self._call = call
        self._head = head
        self._kind = type(head)
        self._labels = labels
        self._hash = hashlib.sha256()
        self._label: bytearray | None = None

    async def of_form(self) -> AsyncIterator[Any]:
        """The messages of a multipart body."""
        yield self._head
        in_label = False
        async for piece in read_parts(self._call, max_bytes=MAX_FORM_BYTES):
            if isinstance(piece, Part):
                in_label = self._begin(piece)
                if not in_label:
                    yield self._begins(piece.filename or "")
            elif in_label:
                assert self._label is not None
                self._label += piece
                if len(self._label) > MAX_LABEL_BYTES:
                    raise InvalidRequest("display_name is too long.", field="display_name")
            else:
                for message in self._data(piece):
                    yield message
        label = "" if self._label is None else self._label.decode("utf-8", "replace")
        yield self._end(label)

    async def of_json(self, given: SkillVersionCreate) -> AsyncIterator[Any]:
        """The messages of a JSON body."""
        yield self._head
        for at, file in enumerate(given.files):
            yield self._begins(file.name)
            for message in self._data(_decoded(file.content, file.encoding, f"files.{at}.content")):
                yield message
        yield self._end(given.given_name() if isinstance(given, SkillCreate) else "")

    def _begin(self, part: Part) -> bool:
        """Whether the part is the label; refuses what is neither that nor a file."""
        if part.name in self._labels and part.filename is None:
            if self._label is not None:
                raise InvalidRequest(f"{part.name} must be given once.", field=part.name)
            self._label = bytearray()
            return True
        if part.name not in FILE_PARTS:
            known = ", ".join(("files[]", *self._labels))
            raise UnknownField(f"{part.name[:64]} is not known. Parts that are: {known}.", field=part.name[:64])
        if part.filename is None:
            raise InvalidRequest(f"{part.name} must be a file, with its name.", field=part.name)
        if "\\" in part.disposition:
            raise InvalidSkillPackage(
                f"The file {part.filename[:200]!r} has a backslash in its name; folders are separated by /.",
                field="files",
            )
        return False

    def _begins(self, name: str) -> Any:
        encoded = name.encode("utf-8", "replace")
        self._hash.update(b"%d:%b" % (len(encoded), encoded))
        return self._kind(upload=SkillUpload(begins=encoded.decode()))

    def _data(self, data: bytes) -> list[Any]:
        self._hash.update(data)
        return [
            self._kind(upload=SkillUpload(data=data[at : at + MESSAGE_BYTES]))
            for at in range(0, len(data), MESSAGE_BYTES)
        ]

    def _end(self, label: str) -> Any:
        self._hash.update(b"label:" + label.encode("utf-8", "replace"))
        self._call.raw_body = self._hash.digest()
        message = self._kind(idempotency=self._call.idempotency())
        if label:
            message.display_name = label
        return message


def _decoded(content: str, encoding: str, field: str) -> bytes:
    if encoding == "utf8":
        return content.encode("utf-8", "replace")
    try:
        return binascii.a2b_base64(content.encode("ascii"), strict_mode=True)
    except ValueError:
        raise InvalidSkillPackage(
            f"{field} is not base64: send the standard alphabet, with padding.", field=field
        ) from None

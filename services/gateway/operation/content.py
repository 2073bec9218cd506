"""Answers that are the bytes of a file: whole or a part, and what browsers must not make of them.

A file is whatever its owner uploaded, HTML included, and this origin serves the console too. So it is always an
attachment, its type is not guessed, and should a browser show it all the same, it runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from starlette.types import Receive, Scope, Send

from kit.errors import Internal

from .call import Call

MAX_DIGITS = 18
_RANGE = re.compile(rf"bytes=(\d{{1,{MAX_DIGITS}}})?-(\d{{1,{MAX_DIGITS}}})?", re.ASCII)
_TAGS = re.compile(r'\*|(?:W/)?"[^"]*"')
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 !#$&+-.^_`|~()[]{}@,=")


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The one range that a caller asked for, before the size is known."""

    offset: int = 0
    length: int | None = None
    last_bytes: int = 0


def read_range(headers: Mapping[str, str], etag: str = "") -> ByteRange | None:
    """The range of a request; None for the whole, with which more than one range may be answered too."""
    condition = headers.get("if-range")
    if condition is not None and condition != etag:
        return None
    found = _RANGE.fullmatch(headers.get("range", "").replace(" ", ""))
    if found is None or found.group(1) is found.group(2) is None:
        return None
    first, last = found.groups()
    if first is None:
        return ByteRange(last_bytes=int(last)) if int(last) else ByteRange(offset=10**MAX_DIGITS)
    if last is None:
        return ByteRange(offset=int(first))
    return ByteRange(offset=int(first), length=int(last) - int(first) + 1) if int(last) >= int(first) else None


def is_known(headers: Mapping[str, str], etag: str) -> bool:
    """Whether the caller has these bytes already."""
    return any(
        each == "*" or each.removeprefix("W/") == etag for each in _TAGS.findall(headers.get("if-none-match", ""))
    )


def disposition(name: str) -> str:
    """`attachment` under this name, for those who read UTF-8 there and for those who don't."""
    plain = "".join(each if each in _PLAIN else "_" for each in name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


class Content:
    """An answer in bytes; an ASGI response."""

    def __init__(self, call: Call, start: Any, answers: Any, *, partial: bool) -> None:
        """`start` is what the service told first, `answers` what follows it."""
        self._call = call
        self._start = start
        self._answers = answers
        # Of an empty file there is no part.
        self._partial = partial and start.length > 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head, and unless only that is asked for, the bytes as they come."""
        file, start = self._start.file, self._start
        headers = [
            *content_headers(file),
            ("content-length", str(start.length)),
        ]
        if self._partial:
            last = start.offset + start.length - 1
            headers.append(("content-range", f"bytes {start.offset}-{last}/{file.size_bytes}"))
        await send({"type": "http.response.start", "status": 206 if self._partial else 200, "headers": _raw(headers)})
        left = 0 if scope["method"] == "HEAD" else start.length
        if not left:
            await self._answers.aclose()
            await send({"type": "http.response.body", "body": b""})
            return
        async with aclosing(self._answers):
            async for answer in self._answers:
                left -= len(answer.chunk)
                await send({"type": "http.response.body", "body": answer.chunk, "more_body": left > 0})
        if left:
            raise Internal("A file ended before its last byte.", file_id=file.id)


class NotModified:
    """The answer to a caller who has the bytes already; an ASGI response."""

    def __init__(self, file: Any) -> None:
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head alone."""
        headers = [header for header in content_headers(self._file) if header[0] != "content-type"]
        await send({"type": "http.response.start", "status": 304, "headers": _raw(headers)})
        await send({"type": "http.response.body", "body": b""})


def etag_of(file: Any) -> str:
    """The bytes are named by their hash, so it is a strong one."""
    return f'"{file.sha256}"'


def content_headers(file: Any) -> list[tuple[str, str]]:
    """What every answer about the bytes carries."""
    return [
        ("content-type", file.media_type),
        ("content-disposition", disposition(file.name)),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "sandbox; default-src 'none'"),
        ("accept-ranges", "bytes"),
        ("cache-control", "private, no-cache"),
        ("etag", etag_of(file)),
    ]


def _raw(headers: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]

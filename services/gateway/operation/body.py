"""Request bodies: bounded while they arrive, JSON of bounded depth, then the shape.

The caller's own bytes go on to the service, so everything that a service could choke
on is refused here: other encodings, NUL characters, endless nesting, numbers that
are no numbers. The size is told from `content-length` before a byte is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.types import Receive

from ..errors import InvalidJson, InvalidRequest, RequestTooLarge, UnsupportedMediaType

MAX_DEPTH = 48
DEFAULT_MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_READ_SECONDS = 30.0
MAX_DISCARDED_BYTES = 64 * 1024 * 1024


class ClientGone(Exception):
    """The caller hung up before the body was complete; nobody reads an answer."""


def check_headers(headers: Mapping[str, str], max_bytes: int) -> None:
    """Refuse what the headers alone give away."""
    declared = headers.get("content-length")
    if declared is not None and declared.isdigit() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    content_type = headers.get("content-type", "application/json").lower()
    media_type, _, parameters = content_type.partition(";")
    charset_ok = "charset" not in parameters or "utf-8" in parameters or "utf8" in parameters
    if media_type.strip() != "application/json" or not charset_ok:
        raise UnsupportedMediaType("The body must be JSON: send content-type: application/json, in UTF-8.")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("Compressed bodies are not read; send the JSON as it is.")


def will_be_discarded(headers: Mapping[str, str]) -> bool:
    """Whether the rest of a refused body may come and be dropped.

    A connection that is closed under a caller who still sends loses the refusal with it, and such a caller tries again.
    """
    declared = headers.get("content-length", "")
    return declared.isdigit() and int(declared[:20]) <= MAX_DISCARDED_BYTES and "expect" not in headers


async def read(receive: Receive, max_bytes: int) -> bytes:
    """Collect the body, giving up as soon as it is too large or takes too long to arrive."""
    try:
        async with asyncio.timeout(MAX_READ_SECONDS):
            return await _read(receive, max_bytes)
    except TimeoutError:
        raise InvalidRequest(f"The body did not arrive within {MAX_READ_SECONDS:.0f} seconds.") from None


async def _read(receive: Receive, max_bytes: int) -> bytes:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    first: bytes = message.get("body", b"")
    if len(first) > max_bytes:
        raise _too_large(max_bytes)
    if not message.get("more_body", False):
        return first
    chunks, size = [first], len(first)
    while message.get("more_body", False):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


def parse(raw: bytes, *, nul: bool = False) -> Any:
    """Decode JSON that every part behind the gateway can store; with `nul`, strings that only some can."""
    if not raw.strip():
        raise InvalidJson("The body is empty; send a JSON object.")
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidJson(
            f"The body is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})."
        ) from None
    may_be_deep = raw.count(b"{") + raw.count(b"[") > MAX_DEPTH
    if may_be_deep or (not nul and b"\\u0000" in raw):
        _walk(value, nul=nul)
    return value


def _walk(root: Any, *, nul: bool) -> None:
    """Check depth and characters without recursion."""
    stack: list[tuple[Any, int, tuple[Any, ...]]] = [(root, 1, ())]
    while stack:
        value, depth, path = stack.pop()
        if isinstance(value, str):
            if "\x00" in value and not nul:
                raise InvalidRequest(f"{_dotted(path)} must not hold NUL characters.", field=_dotted(path))
            continue
        if not isinstance(value, dict | list):
            continue
        if depth > MAX_DEPTH:
            raise InvalidJson(f"The body is nested deeper than {MAX_DEPTH} levels.")
        if isinstance(value, dict):
            for name, member in value.items():
                if "\x00" in name and not nul:
                    raise InvalidRequest("Field names must not hold NUL characters.")
                stack.append((member, depth + 1, (*path, name)))
        else:
            stack.extend((member, depth + 1, (*path, index)) for index, member in enumerate(value))


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in path)[:256] or "The body"


def _too_large(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"The body is larger than {max_bytes} bytes, the most that this route takes.")

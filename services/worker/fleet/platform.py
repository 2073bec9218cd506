"""The gateway over HTTP: one connection pool, one way to tell what an answer means.

    async with Platform(url, Access(key="mawk_…")) as platform:
        item = await platform.call("POST", "/v1/x/worker/claim", {"worker_id": "…"}, seconds=40)

An answer is JSON or nothing; a refusal raises `Refused`; whatever may be otherwise in a moment raises `Unreachable`.
Nothing is repeated here: whoever calls knows what may be. Redirects are not followed, since the key would follow too.
"""

import asyncio
import io
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson

from services.worker.fleet.errors import Refused, Unreachable

SECONDS = 30.0
_CONNECT_SECONDS = 10.0
# Later means another answer: a time-out on the way, too many requests, a platform or proxy that is not well.
_PASSING = frozenset({408, 425, 429})
_LONGEST_ANSWER_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Access:
    """How the platform is reached. The key is in no text that is made of this."""

    key: str | None = None
    proxy: str | None = None
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return "Access(…)"


class Platform:
    """One platform. Use it inside a running event loop."""

    def __init__(self, url: str, access: Access) -> None:
        self.url = url.rstrip("/")
        self._access = access
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Platform":
        # As many connections as are asked for: a claim that waits must hold up no renewal.
        connector = aiohttp.TCPConnector(limit=0, ssl=self._access.tls or True, keepalive_timeout=25.0)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"user-agent": "managed-agents-worker", "accept": "application/json"},
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        seconds: float = SECONDS,
        token: str | None = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Ask once. The JSON of the answer; None where it has no body."""
        data = await self.bytes(method, path, body, seconds=seconds, token=token, query=query, headers=headers)
        if not data:
            return None
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            raise Unreachable(f"what answers at {self.url} is no managed-agents platform") from None

    async def bytes(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        seconds: float = SECONDS,
        token: str | None = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        most_bytes: int = _LONGEST_ANSWER_BYTES,
    ) -> bytes:
        """Ask once, and return the answer's bytes as they are."""
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, _CONNECT_SECONDS))
        async with self._request(method, path, body, timeout, token, query, headers) as answer:
            return await _read(answer, most_bytes)

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        silence_seconds: float = 60.0,
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """An event stream, to be read line by line; silence for that long is a lost connection."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=silence_seconds)
        merged = {"accept": "text/event-stream", **(headers or {})}
        async with self._request("GET", path, None, timeout, token, None, merged) as answer:
            yield answer.content

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        timeout: aiohttp.ClientTimeout,
        token: str | None,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None
        sent = dict(headers or {})
        if credential := token or self._access.key:
            sent["authorization"] = f"Bearer {credential}"
        data = None
        if body is not None:
            # In pieces, so that a large result holds up no heartbeat.
            data = io.BytesIO(orjson.dumps(body))
            sent["content-type"] = "application/json"
        try:
            async with self._session.request(
                method,
                f"{self.url}{path}",
                params=query,
                data=data,
                headers=sent,
                timeout=timeout,
                proxy=self._access.proxy,
                allow_redirects=False,
            ) as answer:
                if answer.status >= 300:
                    raise await _refusal(answer)
                yield answer
        except TimeoutError as error:
            raise Unreachable(f"{self.url} did not answer in time") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(_reason(self.url, error)) from error


def segment(value: str) -> str:
    """An id as a part of a path: whatever was sent, it stays one part."""
    return quote(value, safe="") if value not in (".", "..") else "%2E" * len(value)


async def _read(answer: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    data = bytearray()
    async for piece in answer.content.iter_chunked(1 << 18):
        data += piece
        if len(data) > most_bytes:
            raise Refused(answer.status, "answer_too_large", f"The answer is larger than {most_bytes} bytes.")
    return bytes(data)


async def _refusal(answer: aiohttp.ClientResponse) -> Exception:
    """What an answer that is none of 2xx means."""
    status = answer.status
    body = await answer.content.read(1 << 16)
    error: Mapping[str, Any] = {}
    try:
        found = orjson.loads(body)["error"]
        error = found if isinstance(found, dict) else {}
    except (orjson.JSONDecodeError, LookupError, TypeError):
        pass
    message = str(error.get("message") or f"{answer.method} {answer.url.path} was answered with {status}").rstrip(".")
    if status >= 500 or status in _PASSING:
        return Unreachable(message, retry_after_seconds=_retry_after(answer.headers.get("retry-after", "")))
    if status < 400:
        return Refused(status, "redirected", f"The platform is not at this address: it answers with {status}.")
    if not error:
        # A proxy or another program at this address; its 404 says nothing about what was asked for.
        return Unreachable(f"what answers at this address is no managed-agents platform ({status})")
    details = error.get("details")
    return Refused(status, str(error.get("code") or ""), message, details if isinstance(details, dict) else None)


def _retry_after(value: str) -> float:
    return min(float(value), 60.0) if value.replace(".", "", 1).isdigit() else 0.0


def _reason(url: str, error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy refuses the way to {url} ({error.status})"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"the certificate of {url} is not trusted: {error.certificate_error}; --ca-file names one that is"
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error is not None:
        return f"{url} cannot be reached: {error.os_error.strerror or error.os_error}"
    return f"the connection to {url} was lost: {str(error) or type(error).__name__}"


def tls_context(ca_file: str | os.PathLike[str] | None) -> ssl.SSLContext | None:
    """The usual trust, and beside it that of a file; None where the usual one is enough. Raises OSError, SSLError."""
    if ca_file is None:
        return None
    context = ssl.create_default_context()
    context.load_verify_locations(cafile=ca_file)
    return context


async def settled(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait until it is gone, whatever it came to."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()

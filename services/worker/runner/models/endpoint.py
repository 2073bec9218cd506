"""Where a vendor answers requests for a streamed answer.

The SDKs spend four times what the request itself costs: they validate options, build URLs, headers and bodies anew,
and wrap the transport twice. So a provider takes address and headers from its SDK once, and posts here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import orjson

from services.worker.runner.models.base import ModelError, ModelErrorKind
from services.worker.runner.models.wire import error_message, json_frames

CONNECT_SECONDS, SILENCE_SECONDS = 10.0, 300.0
MAX_CONNECTIONS = 1000
MAX_ERROR_BYTES = 64 * 1024

# (status, what the vendor says, its whole error body, headers) -> what the loop is told
Refused = Callable[[int, str, Any, Mapping[str, str]], ModelError]


class Endpoint:
    """One address of one vendor, with its connections."""

    def __init__(self, url: str, headers: Mapping[str, object], refused: Refused) -> None:
        """`headers` may hold the SDK's marks for headers that are left out; only texts are sent."""
        self._url = url
        self._headers = {name: value for name, value in headers.items() if isinstance(value, str)}
        self._headers |= {"Content-Type": "application/json", "Accept": "text/event-stream"}
        self._refused = refused
        self._session: aiohttp.ClientSession | None = None

    async def frames(
        self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[dict[str, Any]]:
        """Asks, and yields the JSON frames of the answer. Raises ModelError; closing it early ends the request."""
        encoded = orjson.dumps(body)
        # Nothing follows a redirect: it would carry the key to wherever it points.
        request = self._http().post(self._url, data=encoded, headers=headers, allow_redirects=False)
        answering = False
        try:
            async with request as response:
                if response.status != 200:
                    raise await self._refusal(response)
                answering = True
                async with aclosing(json_frames(response.content.iter_any())) as frames:
                    async for frame in frames:
                        yield frame
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _failure(error, answering) from error

    async def close(self) -> None:
        """Gives the connections back."""
        if self._session is not None:
            await self._session.close()

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS),
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS),
                # aiohttp's own look into the environment reads files, and does so at each request.
                proxy=_proxy(self._url),
            )
        return self._session

    async def _refusal(self, response: aiohttp.ClientResponse) -> ModelError:
        raw = await response.content.read(MAX_ERROR_BYTES)
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError:
            body = None
        told = error_message(body, f"The model vendor answered with status {response.status}.")
        return self._refused(response.status, told, body, response.headers)


def _proxy(url: str) -> str | None:
    """The proxy that the process environment names for an address."""
    address = urlsplit(url)
    proxies = getproxies()
    if proxy_bypass(address.hostname or ""):
        return None
    return proxies.get(address.scheme) or proxies.get("all")


def _failure(error: Exception, answering: bool) -> ModelError:
    if answering:
        return ModelError(ModelErrorKind.CONNECTION, "The connection to the model vendor was lost.")
    slow_to_connect = isinstance(error, aiohttp.ConnectionTimeoutError)
    if isinstance(error, asyncio.TimeoutError) and not slow_to_connect:
        return ModelError(ModelErrorKind.TIMEOUT, "The model vendor did not answer in time.")
    return ModelError(ModelErrorKind.CONNECTION, "The model vendor can't be reached.")

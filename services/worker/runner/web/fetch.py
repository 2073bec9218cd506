"""Fetches one URL for a model, behind a chain of guards.

In this order, and from the beginning for each redirect: the shape of the URL; names of internal hosts, before any
resolver is asked; the domain list of the agent; the addresses, all of which must be public, and to which alone the
connection then goes, under the name that was asked for; the number of redirects; the size, packed and unpacked, and the
time; the kind of content. What is not taken is told as text, and costs no more than what was read until then.

Everything that could widen this is a parameter of the constructor, which no agent and no request reaches.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp
from yarl import URL

from kit.addresses import AddressRefused, AddressUnresolved, checked_address
from kit.pinned import Pinned
from services.worker.runner.web.body import BoundedBody, MediaType, decode, read_media_type
from services.worker.runner.web.pages import PageReader
from services.worker.runner.web.policy import (
    DomainPolicy,
    FetchFailed,
    Page,
    Wanted,
    WebRefused,
    check_internal,
    next_url,
    read_url,
)

MAX_BYTES = 5 * 1024 * 1024
MAX_REDIRECTS = 5
TOTAL_SECONDS = 30.0
_REDIRECTS = (301, 302, 303, 307, 308)
_HEADERS = {
    "user-agent": "managed-agents web_fetch",
    "accept": "text/markdown,text/html;q=0.9,text/plain;q=0.9,*/*;q=0.5",
    "accept-encoding": "gzip, deflate",
}

# The addresses that may be connected to for a host and port; AddressRefused and AddressUnresolved otherwise.
Guard = Callable[[str, int], Awaitable[list[str]]]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a fetch may take."""

    size_bytes: int = MAX_BYTES
    redirects: int = MAX_REDIRECTS
    seconds: float = TOTAL_SECONDS


class Fetcher:
    """Fetches pages as text."""

    def __init__(
        self,
        pages: PageReader,
        *,
        guard: Guard = checked_address,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._pages = pages
        self._guard = guard
        self._limits = limits or Limits()
        self._tls = tls

    async def fetch(self, url: str, policy: DomainPolicy) -> Page:
        """The page. FetchFailed says what was wrong, for the model."""
        trip = _Trip()
        try:
            async with asyncio.timeout(self._limits.seconds):
                return await self._follow(url, policy, trip)
        except WebRefused as refused:
            message = str(refused)
        except TimeoutError:
            message = f"it took longer than {self._limits.seconds:g} seconds."
        except (aiohttp.ClientError, OSError, ssl.SSLError) as failed:
            message = _reason(failed)
        raise FetchFailed(message, was_sent=trip.was_sent)

    async def _follow(self, url: str, policy: DomainPolicy, trip: "_Trip") -> Page:
        for _ in range(self._limits.redirects + 1):
            wanted = read_url(url)
            check_internal(wanted.host)
            policy.check(wanted.host)
            addresses = await self._addresses(wanted)
            answer = await self._request(wanted, addresses, trip)
            if isinstance(answer, Page):
                return answer
            url = answer
        raise WebRefused(f"the server redirects more than {self._limits.redirects} times.")

    async def _addresses(self, wanted: Wanted) -> list[str]:
        try:
            return await self._guard(wanted.host, wanted.port)
        except (AddressRefused, AddressUnresolved) as refused:
            raise WebRefused(refused.message) from None

    async def _request(self, wanted: Wanted, addresses: list[str], trip: "_Trip") -> Page | str:
        """The page, or where it is instead."""
        connector = aiohttp.TCPConnector(
            resolver=Pinned(addresses), use_dns_cache=False, force_close=True, ssl=self._tls or True
        )
        address = URL(wanted.url, encoded=True)
        if address.raw_host != wanted.host or address.port != wanted.port:
            raise WebRefused("this URL can be read in two ways.")
        async with (
            aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
            ) as session,
            session.get(address, headers=_HEADERS, allow_redirects=False) as response,
        ):
            trip.was_sent = True
            if response.status in _REDIRECTS and (location := response.headers.get("location")):
                return next_url(wanted, location)
            return await self._read(wanted, response)

    async def _read(self, wanted: Wanted, response: aiohttp.ClientResponse) -> Page:
        if not 200 <= response.status < 300:
            raise WebRefused(f"the server answered with status {response.status}.")
        media_type = read_media_type(response.headers.get("content-type"))
        if not media_type.is_text:
            return Page(wanted.url, await self._describe(media_type, response))
        body = BoundedBody(response.headers.get("content-encoding"), self._limits.size_bytes)
        declared = response.content_length
        if declared is not None and declared > self._limits.size_bytes:
            raise WebRefused(f"the answer is larger than {self._limits.size_bytes} bytes, the most that is read.")
        async for chunk in response.content.iter_any():
            body.feed(chunk)
        # Decoding is cheap, and reading a page is done by another process.
        text = decode(body.finish(), media_type)
        return Page(wanted.url, await self._pages.read(text) if media_type.is_html else text)

    async def _describe(self, media_type: MediaType, response: aiohttp.ClientResponse) -> str:
        """What is told of content that is no text."""
        size = response.content_length
        told = f"{size} bytes" if size is not None else await self._count(response)
        return f"[binary content, not shown]\nmedia type: {media_type.name}\nsize: {told}"

    async def _count(self, response: aiohttp.ClientResponse) -> str:
        size = 0
        async for chunk in response.content.iter_any():
            size += len(chunk)
            if size > self._limits.size_bytes:
                return f"more than {self._limits.size_bytes} bytes"
        return f"{size} bytes"


@dataclass(slots=True)
class _Trip:
    was_sent: bool = False


def _reason(failed: BaseException) -> str:
    """What a failed connection is told as; what servers send stays out of it."""
    if isinstance(failed, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError | ssl.SSLError):
        return "the server can't be reached: its certificate or encryption is not accepted."
    if isinstance(failed, aiohttp.ClientConnectorError):
        return f"the server can't be reached: {failed.strerror or 'the connection failed'}."
    if isinstance(failed, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError | OSError):
        return "the server broke the connection off."
    return "the server's answer can't be read."

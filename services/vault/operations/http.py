"""One POST over aiohttp, to addresses that were checked. Loaded only when a foreign server is asked."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp

from kit.addresses import Target
from kit.pinned import Pinned, as_judged

FAILURES = (aiohttp.ClientError,)


async def post(
    url: str, target: Target, headers: Mapping[str, str], data: Mapping[str, str] | bytes | None, max_bytes: int
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers by lower-case name, and the beginning of the body. A redirect is an answer."""
    address = as_judged(url, target)
    connector = aiohttp.TCPConnector(resolver=Pinned(target.addresses), use_dns_cache=False, force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session,
        session.post(address, data=data, headers=headers, allow_redirects=False) as answer,
    ):
        found = {name.lower(): value for name, value in answer.headers.items()}
        is_stream = found.get("content-type", "").startswith("text/event-stream")
        body = bytearray()
        async for chunk in answer.content.iter_any():
            body += chunk
            # A server may keep a stream of events open for ever: its first event is the answer.
            if len(body) >= max_bytes or (is_stream and _has_event(body)):
                break
        return answer.status, found, bytes(body[:max_bytes])


def _has_event(body: bytearray) -> bool:
    start = body.find(b"data:")
    return start >= 0 and any(body.find(end, start) >= 0 for end in (b"\n\n", b"\r\n\r\n"))

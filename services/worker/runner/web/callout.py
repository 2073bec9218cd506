"""Asks an endpoint that an agent's definition names: one POST of JSON, answered with JSON.

The URL is a stranger's word, so its host is resolved once, checked, and connected to at the addresses that were
checked. Redirects are not followed, answers are bounded, and the whole call has a time limit.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from kit.addresses import PrivateHosts, checked_url
from kit.errors import DomainError

MAX_ANSWER_BYTES = 64 * 1024
_HEADERS = {"content-type": "application/json", "accept": "application/json", "user-agent": "managed-agents"}


class NoAnswer(Exception):
    """Why there is no answer that can be used; names neither the endpoint nor what it said."""


async def post_json(url: str, body: Mapping[str, Any], seconds: float, private: PrivateHosts) -> Any:
    """What the endpoint answers. NoAnswer for everything but JSON with status 200 in time."""
    try:
        async with asyncio.timeout(seconds):
            return await _post(url, orjson.dumps(body), private)
    except TimeoutError:
        raise NoAnswer(f"it took longer than {seconds:g} seconds") from None
    except DomainError as refused:
        raise NoAnswer(refused.message) from None


async def _post(url: str, body: bytes, private: PrivateHosts) -> Any:
    target = await checked_url(url, allowed=private)
    # Few sessions need it, and it takes its time to load.
    import aiohttp

    from kit.pinned import Pinned, as_judged

    address = as_judged(url, target)
    connector = aiohttp.TCPConnector(resolver=Pinned(target.addresses), use_dns_cache=False, force_close=True)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.post(address, data=body, headers=_HEADERS, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise NoAnswer(f"it answered with status {response.status}")
            read = await response.content.read(MAX_ANSWER_BYTES + 1)
            while len(read) <= MAX_ANSWER_BYTES and (more := await response.content.read(MAX_ANSWER_BYTES)):
                read += more
    except (aiohttp.ClientError, OSError) as failed:
        raise NoAnswer(f"it can't be reached ({type(failed).__name__})") from None
    if len(read) > MAX_ANSWER_BYTES:
        raise NoAnswer("its answer is too large")
    try:
        return orjson.loads(read)
    except orjson.JSONDecodeError:
        raise NoAnswer("its answer is no JSON") from None

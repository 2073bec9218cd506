"""A request head that never ends costs the gateway a bounded piece of memory, and the caller its connection."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from services.gateway.operation.protocol import MAX_HEAD_BYTES
from tests.integration.gateway.conftest import Gateway

MOST_BYTES = 64 * 1024 * 1024


async def test_an_endless_head_is_cut_off(gateway: Gateway) -> None:
    port = urlsplit(gateway.url).port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /v1/agents HTTP/1.1\r\nhost: 127.0.0.1\r\nx-endless: ")
    sent = 0
    try:
        while sent < MOST_BYTES and not reader.at_eof():
            writer.write(b"a" * 65_536)
            sent += 65_536
            await writer.drain()
    except ConnectionError:
        sent = min(sent, MOST_BYTES - 1)
    writer.close()
    assert MAX_HEAD_BYTES < sent < MOST_BYTES


async def test_bodies_and_kept_connections_do_not_count_as_heads(gateway: Gateway) -> None:
    port = urlsplit(gateway.url).port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b'{"name":"n","model":"m","system":"' + b"s" * 90_000 + b'"}'
    head = (
        b"POST /v1/agents HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    for _ in range(5):
        writer.write(head % len(body) + body)
        answered = await reader.readuntil(b"\r\n\r\n")
        assert answered.startswith(b"HTTP/1.1 200")
        length = next(int(line[16:]) for line in answered.lower().split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(length)
    writer.close()

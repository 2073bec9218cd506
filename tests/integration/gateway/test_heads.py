"""Heads of requests: an endless one is cut, one without a host is refused, one with an upgrade is just answered."""

from __future__ import annotations

import asyncio
import json
import logging
from urllib.parse import urlsplit

import pytest

from kit.waiting import within
from services.gateway.operation.protocol import MAX_HEAD_BYTES
from tests.integration.gateway.conftest import Gateway

pytestmark = pytest.mark.asyncio(loop_scope="package")

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


Answer = tuple[bytes, bytes]


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Head, in lower case, and body of the next answer."""
    head = (await within(reader.readuntil(b"\r\n\r\n"), 30)).lower()
    lengths = [int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"content-length")]
    return head, await within(reader.readexactly(lengths[0] if lengths else 0), 30)


async def asked(gateway: Gateway, request: bytes) -> Answer:
    """The answer to one request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(gateway.url).port)
    try:
        writer.write(request)
        return await read_answer(reader)
    finally:
        writer.close()


@pytest.mark.parametrize(
    "hosts",
    [b"", b"host: 127.0.0.1\r\nhost: 127.0.0.1\r\n", b"host: 127.0.0.1, 127.0.0.1\r\n", b"host: a@127.0.0.1\r\n"],
    ids=["none", "two", "list", "user"],
)
@pytest.mark.parametrize("path", [b"/v1/agents", b"/v1/x/health", b"/docs", b"/nowhere"])
async def test_a_request_that_does_not_say_once_whom_it_is_for_is_refused(
    gateway: Gateway, hosts: bytes, path: bytes
) -> None:
    head, body = await asked(gateway, b"GET %b HTTP/1.1\r\n%b\r\n" % (path, hosts))
    assert head.startswith(b"http/1.1 400")
    error = json.loads(body)["error"]
    assert error["type"] == "invalid_request_error" and "Host" in error["message"]


async def test_http_1_0_needs_no_host_but_without_a_key_it_shows_no_loopback_name_either(gateway: Gateway) -> None:
    head, _ = await asked(gateway, b"GET /v1/agents HTTP/1.0\r\n\r\n")
    assert head.startswith(b"http/1.1 403")
    head, _ = await asked(gateway, b"GET /v1/agents HTTP/1.0\r\nhost: localhost\r\n\r\n")
    assert head.startswith(b"http/1.1 200")


@pytest.mark.parametrize("offered", [b"websocket", b"h2c", b"WebSocket, h2c"])
@pytest.mark.parametrize("framing", ["none", "length", "chunked"])
async def test_an_offer_of_another_protocol_is_passed_over_in_silence(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, offered: bytes, framing: str
) -> None:
    content = b'{"name":"n","model":"m","system":"s"}'
    fields, body = {
        "none": (b"", b""),
        "length": (b"content-length: %d\r\n" % len(content), content),
        "chunked": (b"transfer-encoding: chunked\r\n", b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)),
    }[framing]
    method = b"POST" if body else b"GET"
    head = (
        b"%b /v1/agents HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: %b\r\n%b"
    ) % (method, offered, b"content-type: application/json\r\n" + fields)
    plain = b"GET /v1/agents HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(gateway.url).port)
    answers: list[Answer] = []
    with caplog.at_level(logging.INFO):
        writer.write(head + b"\r\n" + body)
        answers.append(await read_answer(reader))
        writer.write(plain)
        answers.append(await read_answer(reader))
        if body:
            # The body comes on its own, after the gateway has asked for it.
            writer.write(head + b"expect: 100-continue\r\n\r\n")
            assert (await read_answer(reader))[0].startswith(b"http/1.1 100")
            writer.write(body)
            answers.append(await read_answer(reader))
        writer.write((head + b"\r\n" + body + plain) * 200)
        answers += [await read_answer(reader) for _ in range(400)]
    writer.close()
    assert {answer[:12] for answer, _ in answers} == {b"http/1.1 200"}
    if body:
        assert json.loads(answers[0][1])["name"] == json.loads(answers[2][1])["name"] == "n"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]

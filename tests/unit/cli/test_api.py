"""Proves that the event stream is read whole over broken connections, and that refusals are told in words."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cli.api import Api
from cli.errors import CommandFailed


@asynccontextmanager
async def _server(*answers: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """One prepared answer for each connection, and what was asked."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answers[len(asked) - 1])
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


def _sse(*chunks: str) -> bytes:
    body = "".join(chunks)
    return f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{body}".encode()


async def test_a_broken_stream_is_taken_up_after_the_last_event() -> None:
    first = _sse(": ping\n\n", 'id: 1\nevent: a\ndata: {"seq": 1}\n\n', 'id: 2\ndata: {"se')
    second = _sse('id: 2\ndata: {"seq":\ndata: 2}\n\n')
    async with _server(first, second) as (url, asked), Api(url) as api:
        events = api.events("sess_1", silence_seconds=5)
        assert [(await anext(events))["seq"] for _ in range(2)] == [1, 2]
        await events.aclose()
    assert b"last-event-id: 0\r\n" in asked[0].lower() and b"last-event-id: 1\r\n" in asked[1].lower()


async def test_a_refusal_is_told_in_the_platform_s_words() -> None:
    body = b'{"type":"error","error":{"type":"not_found","message":"No such agent."}}'
    answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
    async with _server(answer) as (url, _), Api(url) as api:
        with pytest.raises(CommandFailed, match="refused with 404: No such agent"):
            await api.get("/v1/agents/agent_1")


async def test_who_is_refused_for_a_key_is_told_where_commands_take_it_from() -> None:
    body = b'{"type":"error","error":{"type":"authentication_error","message":"An API key is needed."}}'
    answer = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
    async with _server(answer) as (url, _), Api(url) as api:
        with pytest.raises(CommandFailed, match=r"needed\. Commands take the key from MANAGED_AGENTS_API_KEY"):
            await api.get("/v1/agents/agent_1")


async def test_the_key_is_sent() -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"
    async with _server(answer) as (url, asked), Api(url, "ma_1") as api:
        await api.get("/v1/agents")
    assert b"authorization: Bearer ma_1" in asked[0]


async def test_nobody_there_is_told() -> None:
    async with Api("http://127.0.0.1:9") as api:
        with pytest.raises(CommandFailed, match=r"GET /v1/agents at http://127\.0\.0\.1:9/? failed: "):
            await api.get("/v1/agents")


async def test_a_stream_that_never_brings_anything_is_given_up() -> None:
    async with _server(*[_sse(": ping\n\n")] * 4) as (url, asked), Api(url) as api:
        with pytest.raises(CommandFailed, match="was lost"):
            await anext(api.events("sess_1", silence_seconds=5))
    assert len(asked) == 4


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b'"x"'])
async def test_another_program_at_the_port_is_told(body: bytes) -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
    async with _server(answer) as (url, _), Api(url) as api:
        with pytest.raises(CommandFailed, match="no managed-agents platform"):
            await api.get("/v1/x/runtime")

"""A write whose answer is lost on the way is repeated by the published client, and has one effect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anthropic
import pytest

from tests.support.api import api
from tests.support.platform import Platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


class LossyProxy:
    """Passes requests on and drops the first answer to each of the next `losses` POSTs."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.losses = 0
        self.posts = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.split(b"\r\n")
            length = next((int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length")), 0)
            kept = [line for line in lines if not line.lower().startswith(b"connection:")]
            upstream.write(b"\r\n".join([kept[0], b"Connection: close", *kept[1:]]) + await reader.readexactly(length))
            answer = await upstream_reader.read()
            is_post = head.startswith(b"POST")
            self.posts += is_post
            if is_post and self.losses:
                self.losses -= 1
                writer.transport.abort()
                return
            writer.write(answer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            for one in (upstream, writer):
                one.close()
                with suppress(ConnectionError):
                    await one.wait_closed()


@asynccontextmanager
async def _proxied(platform: Platform) -> AsyncIterator[tuple[LossyProxy, anthropic.AsyncAnthropic]]:
    proxy = LossyProxy(platform.port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = anthropic.AsyncAnthropic(api_key="k", base_url=f"http://127.0.0.1:{port}", max_retries=4)
    try:
        async with client:
            yield proxy, client
    finally:
        server.close()
        await server.wait_closed()


async def test_a_lost_answer_doubles_nothing(platform: Platform) -> None:
    async with _proxied(platform) as (proxy, client), api(platform.url) as plain:
        proxy.losses = 1
        agent = await client.beta.agents.create(name="retried", model="demo", system="s")
        environment = await client.beta.environments.create(name="retried", config={"type": "cloud"})
        proxy.losses = 2
        session = await client.beta.sessions.create(agent=agent.id, environment_id=environment.id)
        proxy.losses = 1
        event = {"type": "user.message", "content": [{"type": "text", "text": "only once"}]}
        await client.beta.sessions.events.send(session.id, events=[event])
        assert proxy.losses == 0 and proxy.posts == 8

        agents = (await plain.call("GET", "/v1/agents?limit=100"))["data"]
        assert [one["id"] for one in agents if one["name"] == "retried"] == [agent.id]
        sessions = (await plain.call("GET", f"/v1/sessions?agent_id={agent.id}"))["data"]
        assert [one["id"] for one in sessions] == [session.id]
        log = await plain.log(session.id)
        assert [one["type"] for one in log].count("user.message") == 1


async def test_the_same_key_with_another_body_is_a_conflict_for_good(platform: Platform) -> None:
    async with _proxied(platform) as (proxy, client):
        key = {"Idempotency-Key": "one-key-two-bodies"}
        await client.beta.agents.create(name="one", model="demo", system="s", extra_headers=key)
        before = proxy.posts
        with pytest.raises(anthropic.ConflictError) as refused:
            await client.beta.agents.create(name="two", model="demo", system="s", extra_headers=key)
        assert refused.value.response.headers["x-should-retry"] == "false"
        assert proxy.posts == before + 1

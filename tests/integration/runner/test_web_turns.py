"""Turns that use the web: an agent's entry bounds its tools, policies hold, results and usage tell what was done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from kit.waiting import within
from managed_agents.sessions.v1 import agents_pb2, sessions_pb2
from services.worker.runner.app import Runner, compose
from services.worker.runner.config import RunnerSettings
from services.worker.runner.models.base import ModelAccess
from services.worker.runner.models.demo import DemoModel
from services.worker.runner.web.fetch import Fetcher
from services.worker.sandbox import SandboxManager
from tests.integration.runner.harness import World, of, text_of, types
from tests.integration.web.web_server import Names, WebServer, fetcher, web_server

TOOLSET = "agent_toolset_20260401"
NO_REQUESTS = {"web_search_requests": 0, "web_fetch_requests": 0}


@pytest.fixture
def sessions_settings() -> dict:
    return {"web_search_url": "http://search.example"}


@pytest.fixture
async def web() -> AsyncIterator[WebServer]:
    async with web_server() as server:
        server.page("/", b"<title>Hello</title><p>from the web", "text/html")
        server.page("/search", orjson.dumps({"results": [{"url": "https://a.com/", "title": "A"}]}), "application/json")
        yield server


@asynccontextmanager
async def runner(platform: World, reader: Fetcher, **options: Any) -> AsyncIterator[Runner]:
    """A runner whose way to the web leads to loopback; nothing but its constructor can say so."""
    settings = RunnerSettings(
        sessions_address=platform.sessions_address,
        vault_address=platform.vault_address,
        nats_url=platform.nats_url,
        listen=f"unix:{platform.folder}/web-runner.sock",
        data_dir=platform.folder,
        **options,
    )
    made = Runner(
        settings,
        lambda _access: DemoModel(ModelAccess("demo", default_model="demo")),
        SandboxManager(platform.folder / "sandboxes"),
        fetcher=reader,
    )
    service = compose(settings, made)
    await service.start()
    try:
        yield made
    finally:
        await service.stop()


async def _session(platform: World, *configs: dict[str, Any], **default: Any) -> str:
    toolset = {"type": TOOLSET, "configs": list(configs)} | ({"default_config": default} if default else {})
    return await platform.session(toolset)


async def _fetch(platform: World, session: str, url: str, *statuses: str) -> list[dict[str, Any]]:
    await platform.say(session, f"TOOL:web_fetch:{orjson.dumps({'url': url}).decode()}")
    return await platform.until(session, *statuses, seconds=30)


def _requests(log: list[dict[str, Any]]) -> dict[str, int]:
    return of(log, "session.usage")[-1]["usage"]["server_tool_use"]


async def test_a_fetch_is_a_tool_call_as_any_other_and_is_counted(platform: World, web: WebServer) -> None:
    session = await _session(platform)
    url = f"http://web.example:{web.port}/"
    async with fetcher(Names()) as reader, runner(platform, reader):
        log = await _fetch(platform, session, url)
        call, result = of(log, "agent.tool_use")[0], of(log, "agent.tool_result")[0]
        assert (call["name"], call["evaluated_permission"]) == ("web_fetch", "allow")
        assert result["tool_use_id"] == call["id"] and not result["is_error"]
        assert text_of(result) == f"{url}\n\nHello\n\nfrom the web"
        assert result["metadata"]["server_tool_use"] == {"web_fetch_requests": 1}
        assert _requests(log) == NO_REQUESTS | {"web_fetch_requests": 1}
        log = await _fetch(platform, session, "http://169.254.169.254/latest/meta-data/")
        refused = of(log, "agent.tool_result")[-1]
        assert refused["is_error"] and text_of(refused).startswith("Error: ")
        assert _requests(log) == NO_REQUESTS | {"web_fetch_requests": 1}
    got = await platform.clients.sessions.GetSession(sessions_pb2.GetSessionRequest(session_id=session))
    assert (got.session.usage.web_fetch_requests, got.session.usage.web_search_requests) == (1, 0)
    # No sandbox was made for it.
    assert not (platform.folder / "sandboxes").exists()


async def test_the_domain_list_of_the_agent_holds(platform: World, web: WebServer) -> None:
    session = await _session(platform, {"name": "web_fetch", "allowed_domains": ["example.com"]})
    async with fetcher(Names()) as reader, runner(platform, reader):
        log = await _fetch(platform, session, f"http://web.example:{web.port}/")
    assert "allowed domains" in text_of(of(log, "agent.tool_result")[0]) and not web.requests


async def test_the_cap_of_the_agent_holds(platform: World, web: WebServer) -> None:
    web.page("/long", b"x" * 10_000)
    session = await _session(platform, {"name": "web_fetch", "max_content_tokens": 100})
    async with fetcher(Names()) as reader, runner(platform, reader):
        log = await _fetch(platform, session, f"http://web.example:{web.port}/long")
    assert "[cut: the first 300 of 10000 characters" in text_of(of(log, "agent.tool_result")[0])


async def test_a_long_page_spills_into_the_sandbox(platform: World, web: WebServer) -> None:
    web.page("/long", b"line\n" * 20_000)
    session = await _session(platform)
    async with fetcher(Names()) as reader, runner(platform, reader):
        log = await _fetch(platform, session, f"http://web.example:{web.port}/long")
        result = of(log, "agent.tool_result")[0]
        spill = result["metadata"]["tool_output_overflow"]["path"]
        assert text_of(result).startswith("[tool output overflow]") and f"file: {spill}" in text_of(result)
        await platform.say(session, f"TOOL:bash:{orjson.dumps({'command': f'grep -c line {spill}'}).decode()}")
        log = await platform.until(session, seconds=30)
    assert text_of(of(log, "agent.tool_result")[-1]).strip() == "20000"


async def test_a_fetch_that_needs_a_person_waits_for_one(platform: World, web: WebServer) -> None:
    session = await _session(platform, {"name": "web_fetch", "permission_policy": {"type": "always_ask"}})
    async with fetcher(Names()) as reader, runner(platform, reader):
        log = await _fetch(platform, session, f"http://web.example:{web.port}/", "requires_action")
        assert not web.requests and _requests(log) == NO_REQUESTS
        allowed = {"tool_use_id": of(log, "agent.tool_use")[0]["id"], "result": "allow"}
        await platform.clients.send(session, {"type": "user.tool_confirmation"} | allowed)
        log = await platform.until(session, seconds=30)
    assert "from the web" in text_of(of(log, "agent.tool_result")[0]) and web.requests == ["/"]


async def test_a_disabled_fetch_is_not_there(platform: World, web: WebServer) -> None:
    session = await _session(platform, {"name": "web_fetch", "enabled": False})
    async with fetcher(Names()) as reader, runner(platform, reader):
        log = await _fetch(platform, session, f"http://web.example:{web.port}/")
    assert "There is no tool 'web_fetch'" in text_of(of(log, "agent.tool_result")[0]) and not web.requests


async def test_a_search_runs_where_a_provider_is_named(platform: World, web: WebServer) -> None:
    session = await _session(platform, {"name": "web_search", "enabled": True})
    async with fetcher(Names()) as reader:
        async with runner(platform, reader, web_search_url=f"http://127.0.0.1:{web.port}") as made:
            assert (await made._describe()).tools[-2:] == ("web_fetch", "web_search")
            await platform.say(session, 'TOOL:web_search:{"query": "a"}')
            log = await platform.until(session, seconds=30)
            assert text_of(of(log, "agent.tool_result")[0]) == "1. A\nhttps://a.com/"
            assert _requests(log) == NO_REQUESTS | {"web_search_requests": 1}
        async with runner(platform, reader) as made:
            assert "web_search" not in (await made._describe()).tools
            await platform.say(session, 'TOOL:web_search:{"query": "a"}')
            log = await platform.until(session, seconds=30)
            assert "There is no tool 'web_search'" in text_of(of(log, "agent.tool_result")[-1])
            assert _requests(log) == NO_REQUESTS | {"web_search_requests": 1}


async def test_an_interrupt_ends_a_fetch(platform: World, web: WebServer) -> None:
    reached = asyncio.Event()

    async def silent(_path: str, _write: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    web.answers["/slow"] = silent
    session = await _session(platform)
    async with fetcher(Names()) as reader, runner(platform, reader):
        url = f"http://web.example:{web.port}/slow"
        await platform.say(session, f"TOOL:web_fetch:{orjson.dumps({'url': url}).decode()}")
        await within(reached.wait(), 30)
        await platform.clients.send(session, {"type": "user.interrupt"})
        log = await platform.until(session, seconds=30)
    assert types(log)[-1] == "session.status_idle" and of(log, "agent.tool_result")[0]["is_error"]


async def test_what_a_thread_fetches_is_counted_for_its_session(platform: World, web: WebServer) -> None:
    async def agent(**fields: Any) -> str:
        body = {"model": "default", "system": "Be brief.", "tools": [{"type": TOOLSET}]} | fields
        request = agents_pb2.CreateAgentRequest(definition_json=orjson.dumps(body))
        return (await platform.clients.agents.CreateAgent(request)).agent.id

    writer = await agent(name="writer", description="Writes.")
    lead = await agent(name="lead", multiagent={"type": "coordinator", "agents": [writer]})
    request = sessions_pb2.CreateSessionRequest(definition_json=orjson.dumps({"agent": lead}))
    session = (await platform.clients.sessions.CreateSession(request)).session.id
    async with fetcher(Names()) as reader, runner(platform, reader):
        inner = orjson.dumps({"url": f"http://web.example:{web.port}/"}).decode()
        call = orjson.dumps({"agent": "writer", "message": f"TOOL:web_fetch:{inner}"}).decode()
        await platform.say(session, f"TOOL:start_thread:{call}")
        log = await platform.until(session, seconds=30)
        assert _requests(log) == NO_REQUESTS | {"web_fetch_requests": 1}
        log = await _fetch(platform, session, f"http://web.example:{web.port}/")
        assert _requests(log) == NO_REQUESTS | {"web_fetch_requests": 2}

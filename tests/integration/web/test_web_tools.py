"""The web tools as a turn runs them: input, results, caps, overflow, counts, and the sandbox beneath."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from services.worker.runner.web import WebTools
from services.worker.runner.web.search import Searcher
from services.worker.tools import ToolOutcome
from services.worker.tools.overflow import limit_text
from tests.integration.web.web_server import Names, WebServer, fetcher, web_server


class Sandbox:
    """The sandbox beneath, which remembers what reached it."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.limited: list[int] = []

    async def run_tool(self, name: str, value: object) -> ToolOutcome:
        self.ran.append(name)
        return ToolOutcome("of the sandbox")

    def limit_output(self, text: str, *, is_error: bool = False) -> ToolOutcome:
        self.limited.append(len(text))
        return limit_text(text, None, is_error=is_error)

    def interrupt(self) -> bool:
        return True


@pytest.fixture
async def web() -> AsyncIterator[WebServer]:
    async with web_server() as server:
        yield server


@pytest.fixture
async def tools(web: WebServer) -> AsyncIterator[WebTools]:
    async with fetcher(Names()) as reader:
        yield WebTools(lambda: reader, lambda: Searcher(f"http://127.0.0.1:{web.port}"))


async def _run(tools: WebTools, name: str, value: Any, **configs: Any) -> ToolOutcome:
    return await tools.over(Sandbox(), configs).run_tool(name, value)


async def test_a_fetch_tells_its_url_and_counts(web: WebServer, tools: WebTools) -> None:
    web.page("/", b"hello")
    url = f"http://web.example:{web.port}/"
    outcome = await _run(tools, "web_fetch", {"url": f" {url} "})
    assert outcome == ToolOutcome(f"{url}\n\nhello", server_tool_use={"web_fetch_requests": 1})


async def test_a_failure_is_an_error_in_words_and_counts_where_a_server_was_asked(
    web: WebServer, tools: WebTools
) -> None:
    asked = await _run(tools, "web_fetch", {"url": f"http://web.example:{web.port}/gone"})
    assert asked == ToolOutcome(
        "Error: the server answered with status 404.", True, server_tool_use={"web_fetch_requests": 1}
    )
    refused = await _run(tools, "web_fetch", {"url": "http://127.0.0.1/"})
    assert refused.text.startswith("Error: ") and refused.is_error and refused.server_tool_use is None


@pytest.mark.parametrize(
    "value", [{}, {"url": 1}, {"url": ""}, {"url": "http://a.com", "depth": 2}, [], None, {"url": None}]
)
async def test_input_that_does_not_fit_is_an_error(tools: WebTools, value: Any) -> None:
    outcome = await _run(tools, "web_fetch", value)
    assert outcome.is_error and outcome.text.startswith("Error: web_fetch")


async def test_the_entry_of_the_agent_bounds_its_tool(web: WebServer, tools: WebTools) -> None:
    web.page("/", b"0123456789" * 100)
    url = f"http://web.example:{web.port}/"
    blocked = await _run(tools, "web_fetch", {"url": url}, web_fetch={"blocked_domains": ["web.example"]})
    assert blocked.is_error and not web.requests
    capped = await _run(tools, "web_fetch", {"url": url}, web_fetch={"max_content_tokens": 10})
    assert "012345678901234567890123456789\n\n[cut: the first 30 of 1000 characters" in capped.text


async def test_long_text_spills_as_every_tools_does_and_short_text_opens_no_sandbox(
    web: WebServer, tools: WebTools
) -> None:
    web.page("/", b"x" * 60_000)
    web.page("/short", b"x" * 40_000)
    sandbox = Sandbox()
    over = tools.over(sandbox, {})
    outcome = await over.run_tool("web_fetch", {"url": f"http://web.example:{web.port}/"})
    assert outcome.text.startswith("[tool output overflow]") and "file: none" in outcome.text
    assert outcome.server_tool_use == {"web_fetch_requests": 1} and len(sandbox.limited) == 1
    await over.run_tool("web_fetch", {"url": f"http://web.example:{web.port}/short"})
    assert len(sandbox.limited) == 1


async def test_a_search_counts(web: WebServer, tools: WebTools) -> None:
    web.page("/search", orjson.dumps({"results": [{"url": "https://a.com/", "title": "A"}]}), "application/json")
    outcome = await _run(tools, "web_search", {"query": "a"}, web_search={"user_location": {"country": "FR"}})
    assert outcome == ToolOutcome("1. A\nhttps://a.com/", server_tool_use={"web_search_requests": 1})
    assert "language=fr-FR" in web.requests[0]


async def test_without_a_provider_there_is_no_search() -> None:
    async with fetcher(Names()) as reader:
        tools = WebTools(lambda: reader)
        assert set(tools.specs) == {"web_fetch"}
        sandbox = Sandbox()
        await tools.over(sandbox, {}).run_tool("web_search", {"query": "a"})
        assert sandbox.ran == ["web_search"]


async def test_other_tools_and_interrupts_reach_the_sandbox(tools: WebTools) -> None:
    sandbox = Sandbox()
    over = tools.over(sandbox, {})
    assert (await over.run_tool("bash", {"command": "ls"})).text == "of the sandbox"
    assert over.interrupt() and sandbox.ran == ["bash"]

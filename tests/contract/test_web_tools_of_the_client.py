"""The published client's agents with web tools: definitions read back, calls and usage under strict validation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from kit.testing import await_until
from tests.contract.client_flow import TOOLSET


@pytest.fixture
async def client(platform_url: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=platform_url, api_key="unused", max_retries=0, _strict_response_validation=True
    ) as made:
        yield made


async def test_a_fetch_is_declared_called_and_told(client: anthropic.AsyncAnthropic) -> None:
    fetch: Any = {
        "name": "web_fetch",
        "enabled": True,
        "blocked_domains": ["ads.example.com"],
        "max_content_tokens": 500,
    }
    search: Any = {"name": "web_search", "enabled": False, "user_location": {"type": "approximate", "country": "DE"}}
    agent = await client.beta.agents.create(
        name="reader", model="default", system="Be brief.", tools=[TOOLSET | {"configs": [fetch, search]}]
    )
    toolset: Any = agent.tools[0]
    assert [(each.name, each.enabled) for each in toolset.configs] == [("web_fetch", True), ("web_search", False)]
    session = await client.beta.sessions.create(agent=agent.id, environment_id="env_default")
    text = 'TOOL:web_fetch:{"url": "http://metadata.google.internal/"}'
    await client.beta.sessions.events.send(
        session.id, events=[{"type": "user.message", "content": [{"type": "text", "text": text}]}]
    )

    async def idle() -> bool:
        return (await client.beta.sessions.retrieve(session.id)).status == "idle"

    await await_until(idle, timeout=30)
    events = [each async for each in client.beta.sessions.events.list(session.id)]
    (call,) = [each for each in events if each.type == "agent.tool_use"]
    (result,) = [each for each in events if each.type == "agent.tool_result"]
    assert (call.name, result.tool_use_id, result.is_error) == ("web_fetch", call.id, True)
    assert result.content is not None and "internal host" in str(result.content[0])
    usage = [each for each in events if each.type == "session.usage"][-1].usage
    assert usage.server_tool_use is not None and usage.server_tool_use.web_fetch_requests == 0


async def test_a_search_without_a_provider_is_refused(client: anthropic.AsyncAnthropic) -> None:
    search: Any = {"name": "web_search", "enabled": True}
    with pytest.raises(anthropic.BadRequestError) as refused:
        await client.beta.agents.create(
            name="reader", model="default", system="Be brief.", tools=[TOOLSET | {"configs": [search]}]
        )
    assert "unsupported_capability" in str(refused.value.body)

"""The published client, unchanged, with strict validation of every answer: agents, environments, models."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
import pytest_asyncio

from tests.integration.gateway.conftest import Gateway

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest_asyncio.fixture(loop_scope="package")
async def published(gateway: Gateway) -> AsyncIterator[Any]:
    async with anthropic.AsyncAnthropic(
        base_url=gateway.url, api_key="any", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


async def test_life_of_an_agent(published: Any) -> None:
    agents = published.beta.agents
    created = await agents.create(
        name="coder",
        model="default",
        system="You write code.",
        description="Writes code.",
        tools=[
            {"type": "agent_toolset_20260401"},
            {"type": "custom", "name": "ask", "description": "Asks.", "input_schema": {"type": "object"}},
        ],
        metadata={"team": "a"},
    )
    assert (created.version, created.model.id, created.metadata) == (1, "default", {"team": "a"})
    updated = await agents.update(created.id, version=1, description=None, metadata={"team": None, "tier": "1"})
    assert (updated.version, updated.description, updated.metadata) == (2, None, {"tier": "1"})
    assert (await agents.retrieve(created.id, version=1)).description == "Writes code."
    assert [each.version async for each in agents.versions.list(created.id, limit=1)] == [2, 1]
    archived = await agents.archive(created.id)
    assert archived.archived_at is not None
    assert [each.id async for each in agents.list()] == []
    assert [each.id async for each in agents.list(include_archived=True)] == [created.id]


async def test_an_agent_without_a_system_prompt(published: Any) -> None:
    created = await published.beta.agents.create(name="plain", model={"id": "default", "speed": "fast"})
    assert (created.system, created.model.speed) == (None, "fast")


async def test_pages_of_agents(published: Any) -> None:
    made = [(await published.beta.agents.create(name=f"a{number}", model="default")).id for number in range(7)]
    first = await published.beta.agents.list(limit=3)
    assert len(first.data) == 3 and first.next_page
    seen = [each.id async for each in published.beta.agents.list(limit=3)]
    assert seen == made[::-1]
    after = [each.id async for each in published.beta.agents.list(created_at_gte=first.data[0].created_at)]
    assert after == made[-1:]


async def test_refusals_have_the_published_types(published: Any) -> None:
    agent = await published.beta.agents.create(name="a", model="default")
    with pytest.raises(anthropic.NotFoundError) as missing:
        await published.beta.agents.retrieve("agent_none")
    assert missing.value.body["error"]["type"] == "not_found_error"
    assert missing.value.request_id.startswith("req_")
    with pytest.raises(anthropic.ConflictError) as conflict:
        await published.beta.agents.update(agent.id, version=9, name="b")
    assert conflict.value.response.headers["x-should-retry"] == "false"
    assert conflict.value.body["error"] | {"message": ""} == {
        "type": "invalid_request_error",
        "message": "",
        "code": "agent_version_conflict",
    }
    with pytest.raises(anthropic.BadRequestError):
        await published.beta.agents.create(name="", model="default")


async def test_life_of_an_environment(published: Any) -> None:
    environments = published.beta.environments
    created = await environments.create(
        name="box",
        config={"type": "cloud", "networking": {"type": "unrestricted"}},
        description="d",
        metadata={"k": "v"},
    )
    assert (created.config.type, created.metadata) == ("cloud", {"k": "v"})
    updated = await environments.update(created.id, description=None, metadata={"k": None})
    assert (updated.description, updated.metadata) == (None, {})
    assert (await environments.retrieve(created.id)).name == "box"
    assert created.id in [each.id async for each in environments.list(limit=1)]
    archived = await environments.archive(created.id)
    assert archived.archived_at is not None
    deleted = await environments.delete(created.id)
    assert (deleted.id, deleted.type) == (created.id, "environment_deleted")
    with pytest.raises(anthropic.NotFoundError):
        await environments.retrieve(created.id)


async def test_models(published: Any) -> None:
    assert [each.id async for each in published.models.list(limit=1)] == ["vendor/new:1b", "old"]
    assert [each.id async for each in published.beta.models.list()] == ["vendor/new:1b", "old"]
    assert (await published.models.retrieve("vendor/new:1b")).display_name == "New"
    with pytest.raises(anthropic.NotFoundError):
        await published.models.retrieve("unknown")

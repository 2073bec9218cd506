"""Every method that the published client has for memory stores, with every parameter, under strict validation.

A method or a parameter that a new version of the client brings fails here until it has a case.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from tests.contract.client_flow import TOOLSET, WORKSPACE, Watched, methods_of
from tests.support.platform import Platform

pytestmark = [pytest.mark.timeout(120)]
METHODS = methods_of(anthropic.AsyncAnthropic(api_key="none").beta.memory_stores)


class Memory:
    """The client's memory stores, noting the parameters that were used, and a store with memories."""

    def __init__(self, client: anthropic.AsyncAnthropic) -> None:
        self.client = client
        self.seen: dict[str, set[str]] = {}
        self.stores = Watched(client.beta.memory_stores, "", self.seen)

    async def store(self, **memories: str) -> str:
        """A store's id."""
        store = await self.stores.create(name="Notes", description="d", metadata={"k": "v"}, workspace_id=WORKSPACE)
        for path, content in memories.items():
            await self.stores.memories.create(store.id, path=f"/{path}", content=content)
        return store.id


@pytest.fixture
async def memory(platform: Platform) -> AsyncIterator[Memory]:
    async with anthropic.AsyncAnthropic(
        api_key="any", base_url=platform.url, max_retries=0, timeout=60, _strict_response_validation=True
    ) as client:
        yield Memory(client)


@pytest.mark.parametrize("method", METHODS)
async def test_a_method_of_the_client_passes_with_every_parameter(memory: Memory, method: str) -> None:
    part, _, name = method.rpartition(".")
    case = globals().get(f"_{part or 'stores'}_{name}")
    assert case is not None, f"no case for memory_stores.{method}"
    await case(memory)
    assert METHODS[method] - memory.seen.get(method, set()) == set()


async def _stores_create(memory: Memory) -> None:
    made = await memory.stores.create(name="N", description="d", metadata={"k": "v"}, workspace_id=WORKSPACE)
    assert (made.name, made.description, made.metadata, made.archived_at) == ("N", "d", {"k": "v"}, None)
    assert (await memory.stores.create(name="N")).description == ""


async def _stores_retrieve(memory: Memory) -> None:
    store_id = await memory.store()
    assert (await memory.stores.retrieve(store_id, workspace_id=WORKSPACE)).id == store_id


async def _stores_update(memory: Memory) -> None:
    store_id = await memory.store()
    changed = await memory.stores.update(
        store_id, name="New", description="", metadata={"k": None, "l": "w"}, workspace_id=WORKSPACE
    )
    assert (changed.name, changed.description, changed.metadata) == ("New", "", {"l": "w"})


async def _stores_list(memory: Memory) -> None:
    ids = [await memory.store() for _ in range(3)]
    archived = await memory.stores.archive(ids[1])
    first = await memory.stores.retrieve(ids[0])
    page = await memory.stores.list(
        created_at_gte=first.created_at,
        created_at_lte=(await memory.stores.retrieve(ids[2])).created_at,
        include_archived=True,
        limit=2,
        workspace_id=WORKSPACE,
    )
    assert [store.id for store in page.data] == [ids[2], archived.id]
    following = await memory.stores.list(
        created_at_gte=first.created_at,
        created_at_lte=(await memory.stores.retrieve(ids[2])).created_at,
        include_archived=True,
        page=page.next_page,
    )
    assert [store.id for store in following.data] == [ids[0]]
    live = [store.id async for store in memory.client.beta.memory_stores.list(created_at_gte=first.created_at)]
    assert live == [ids[2], ids[0]]


async def _stores_archive(memory: Memory) -> None:
    store_id = await memory.store(a="kept")
    archived = await memory.stores.archive(store_id, workspace_id=WORKSPACE)
    assert archived.archived_at is not None
    assert (await memory.stores.archive(store_id)).archived_at == archived.archived_at
    assert (await memory.stores.retrieve(store_id)).archived_at == archived.archived_at
    with pytest.raises(anthropic.BadRequestError):
        await memory.stores.memories.create(store_id, path="/b", content="no")
    [found] = (await memory.stores.memories.list(store_id)).data
    assert (await memory.stores.memories.delete(found.id, memory_store_id=store_id)).id == found.id


async def _stores_delete(memory: Memory) -> None:
    store_id = await memory.store(a="gone")
    assert (await memory.stores.delete(store_id, workspace_id=WORKSPACE)).type == "memory_store_deleted"
    with pytest.raises(anthropic.NotFoundError):
        await memory.stores.retrieve(store_id)


async def _memories_create(memory: Memory) -> None:
    store_id = await memory.store()
    made = await memory.stores.memories.create(
        store_id, path="/a/b.md", content="one", view="full", workspace_id=WORKSPACE
    )
    assert (made.path, made.content, made.content_sha256) == ("/a/b.md", "one", _sha("one"))
    assert (await memory.stores.memories.create(store_id, path="/c", content="")).content is None
    with pytest.raises(anthropic.ConflictError) as refused:
        await memory.stores.memories.create(store_id, path="/a/b.md", content="two")
    assert _error(refused.value) == ("memory_path_conflict_error", made.id)


async def _memories_retrieve(memory: Memory) -> None:
    store_id = await memory.store(a="one")
    [listed] = (await memory.stores.memories.list(store_id)).data
    found = await memory.stores.memories.retrieve(listed.id, memory_store_id=store_id, workspace_id=WORKSPACE)
    assert found.content == "one"
    basic = await memory.stores.memories.retrieve(listed.id, memory_store_id=store_id, view="basic")
    assert basic.content is None and basic.content_size_bytes == 3


async def _memories_update(memory: Memory) -> None:
    store_id = await memory.store(a="one")
    [listed] = (await memory.stores.memories.list(store_id)).data
    changes: dict[str, Any] = {
        "content": "two",
        "path": "/b",
        "precondition": {"type": "content_sha256", "content_sha256": _sha("one")},
    }
    changed = await memory.stores.memories.update(
        listed.id, memory_store_id=store_id, view="full", workspace_id=WORKSPACE, **changes
    )
    assert (changed.id, changed.path, changed.content) == (listed.id, "/b", "two")
    # The same once more is what a lost answer brings; it changes nothing and is no conflict.
    again = await memory.stores.memories.update(listed.id, memory_store_id=store_id, **changes)
    assert again.memory_version_id == changed.memory_version_id and again.content is None
    with pytest.raises(anthropic.ConflictError) as refused:
        await memory.stores.memories.update(
            listed.id, memory_store_id=store_id, content="three", precondition=changes["precondition"]
        )
    assert _error(refused.value)[0] == "memory_precondition_failed_error"
    assert refused.value.response.headers["x-should-retry"] == "false"


async def _memories_list(memory: Memory) -> None:
    store_id = await memory.store(**{"a": "one", "d/b": "two", "d/c": "three"})
    page = await memory.stores.memories.list(
        store_id, depth=1, limit=1, path_prefix="/", view="full", workspace_id=WORKSPACE
    )
    assert [item.path for item in page.data] == ["/a"] and page.data[0].content == "one"
    following = await memory.stores.memories.list(store_id, depth=1, path_prefix="/", page=page.next_page)
    assert [(item.type, item.path) for item in following.data] == [("memory_prefix", "/d/")]
    everything = [item.path async for item in memory.client.beta.memory_stores.memories.list(store_id, limit=2)]
    assert everything == ["/a", "/d/b", "/d/c"]


async def _memories_delete(memory: Memory) -> None:
    store_id = await memory.store(a="one")
    [listed] = (await memory.stores.memories.list(store_id)).data
    with pytest.raises(anthropic.ConflictError):
        await memory.stores.memories.delete(
            listed.id, memory_store_id=store_id, expected_content_sha256=_sha("other"), workspace_id=WORKSPACE
        )
    gone = await memory.stores.memories.delete(
        listed.id, memory_store_id=store_id, expected_content_sha256=listed.content_sha256
    )
    assert (gone.id, gone.type) == (listed.id, "memory_deleted")


async def _memory_versions_list(memory: Memory) -> None:
    store_id = await memory.store(a="one", b="other")
    listed = (await memory.stores.memories.list(store_id)).data
    first = (await memory.stores.memories.retrieve(listed[0].id, memory_store_id=store_id)).created_at
    await memory.stores.memories.update(listed[0].id, memory_store_id=store_id, content="two")
    await memory.stores.memories.delete(listed[0].id, memory_store_id=store_id)
    versions = memory.stores.memory_versions
    page = await versions.list(
        store_id, memory_id=listed[0].id, created_at_gte=first, limit=2, view="full", workspace_id=WORKSPACE
    )
    assert [(each.operation, each.content) for each in page.data] == [("deleted", None), ("modified", "two")]
    following = await versions.list(
        store_id, memory_id=listed[0].id, created_at_gte=first, limit=2, view="full", page=page.next_page
    )
    assert [(each.operation, each.content) for each in following.data] == [("created", "one")]
    early = await versions.list(store_id, operation="created", created_at_lte=first)
    assert [each.path for each in early.data] == ["/a"] and early.data[0].created_by is None
    for nobody in ({"api_key_id": "apikey_x"}, {"session_id": "sess_x"}, {"service_account_id": "svac_x"}):
        assert not (await versions.list(store_id, **nobody)).data


async def _memory_versions_retrieve(memory: Memory) -> None:
    store_id = await memory.store(a="one")
    [version] = (await memory.stores.memory_versions.list(store_id)).data
    found = await memory.stores.memory_versions.retrieve(
        version.id, memory_store_id=store_id, view="full", workspace_id=WORKSPACE
    )
    assert (found.content, found.content_sha256, found.path) == ("one", _sha("one"), "/a")


async def _memory_versions_redact(memory: Memory) -> None:
    store_id = await memory.store(a="one")
    [listed] = (await memory.stores.memories.list(store_id)).data
    with pytest.raises(anthropic.BadRequestError):
        await memory.stores.memory_versions.redact(listed.memory_version_id, memory_store_id=store_id)
    await memory.stores.memories.update(listed.id, memory_store_id=store_id, content="two")
    redacted = await memory.stores.memory_versions.redact(
        listed.memory_version_id, memory_store_id=store_id, workspace_id=WORKSPACE
    )
    assert redacted.redacted_at is not None
    assert (redacted.path, redacted.content, redacted.content_sha256, redacted.content_size_bytes) == (None,) * 4


async def test_a_session_with_a_store_writes_versions_as_its_actor(memory: Memory) -> None:
    store_id = await memory.store(a="one")
    agent = await memory.client.beta.agents.create(name="rememberer", model="default", tools=[TOOLSET])
    session = await memory.client.beta.sessions.create(
        agent=agent.id,
        environment_id="env_default",
        resources=[
            {"type": "memory_store", "memory_store_id": store_id, "access": "read_write", "instructions": "Be short."}
        ],
        initial_events=[
            {
                "type": "user.message",
                "content": [
                    {"type": "text", "text": 'TOOL:bash:{"command": "cd /mnt/memory/notes; cat a; echo two > a"}'}
                ],
            }
        ],
    )
    [resource] = session.resources
    assert (resource.type, resource.name, resource.description) == ("memory_store", "Notes", "d")
    assert (resource.mount_path, resource.instructions) == ("/mnt/memory/notes", "Be short.")
    async with await memory.client.beta.sessions.events.stream(session.id) as stream:
        if (await memory.client.beta.sessions.retrieve(session.id)).status != "idle":
            async for event in stream:
                if event.type == "session.status_idle":
                    break
    [changed] = (await memory.stores.memory_versions.list(store_id, session_id=session.id, view="full")).data
    assert (changed.operation, changed.content) == ("modified", "two\n")
    assert changed.created_by is not None and changed.created_by.type == "session_actor"
    assert [each.id async for each in memory.client.beta.sessions.list(memory_store_id=store_id)] == [session.id]


def _error(refused: anthropic.APIStatusError) -> tuple[str, Any]:
    assert isinstance(refused.body, dict)
    error = refused.body["error"]
    return error["type"], error.get("conflicting_memory_id")


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

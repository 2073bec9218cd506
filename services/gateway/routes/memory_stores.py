"""Memory stores, their memories, and the versions of those."""

from __future__ import annotations

from dataclasses import replace

import orjson

from managed_agents.sessions.v1 import memory_pb2 as pb
from managed_agents.sessions.v1.common_pb2 import Page

from ..operation import Call, Operation, Parameter, choice, flag, integer, limit, page, text, timestamp
from ..render.memory_stores import (
    render_deleted,
    render_memory,
    render_memory_item,
    render_memory_store,
    render_memory_version,
)
from ..render.splice import collection
from ..schemas.memory_stores import (
    Memory,
    MemoryCreate,
    MemoryDeleted,
    MemoryPage,
    MemoryStore,
    MemoryStoreCreate,
    MemoryStoreDeleted,
    MemoryStorePage,
    MemoryStoreUpdate,
    MemoryUpdate,
    MemoryVersion,
    MemoryVersionPage,
)

TAG = "Memory stores"
STORES = "/v1/memory_stores"
STORE = f"{STORES}/{{memory_store_id}}"
MEMORIES = f"{STORE}/memories"
MEMORY = f"{MEMORIES}/{{memory_id}}"
VERSIONS = f"{STORE}/memory_versions"
VERSION = f"{VERSIONS}/{{version_id}}"
# A page with texts holds no more than this.
MAX_FULL_LIMIT = 20


def view(default: str = "") -> Parameter:
    """Whether texts are in the answer; without a default the route decides by who asks."""
    described = choice("view", ("basic", "full"), default=default or "full", description="`full` shows the texts.")
    if default:
        return described
    return replace(described, default="", schema={"type": "string", "enum": ["basic", "full"]})


async def create_store(call: Call) -> bytes:
    """POST /v1/memory_stores."""
    request = pb.CreateMemoryStoreRequest(definition_json=call.raw_body, idempotency=call.idempotency())
    return render_memory_store((await call.ask(call.clients.memory.CreateMemoryStore, request)).memory_store)


async def get_store(call: Call) -> bytes:
    """GET one. The published contract finds archived stores too; `api.md` does not."""
    request = pb.GetMemoryStoreRequest(memory_store_id=call.path["memory_store_id"], include_archived=call.published)
    return render_memory_store((await call.ask(call.clients.memory.GetMemoryStore, request)).memory_store)


async def update_store(call: Call) -> bytes:
    """POST and PUT one."""
    request = pb.UpdateMemoryStoreRequest(memory_store_id=call.path["memory_store_id"], patch_json=call.raw_body)
    return render_memory_store((await call.ask(call.clients.memory.UpdateMemoryStore, request)).memory_store)


async def list_stores(call: Call) -> bytes:
    """GET /v1/memory_stores."""
    request = pb.ListMemoryStoresRequest(
        page=Page(limit=call.query["limit"], cursor=call.query["page"]),
        include_archived=call.query["include_archived"],
        created_at_gte=call.query["created_at[gte]"],
        created_at_lte=call.query["created_at[lte]"],
    )
    answer = await call.ask(call.clients.memory.ListMemoryStores, request)
    return collection([render_memory_store(store) for store in answer.memory_stores], answer.page_info)


async def archive_store(call: Call) -> bytes:
    """POST …/archive."""
    request = pb.ArchiveMemoryStoreRequest(memory_store_id=call.path["memory_store_id"])
    return render_memory_store((await call.ask(call.clients.memory.ArchiveMemoryStore, request)).memory_store)


async def delete_store(call: Call) -> bytes:
    """DELETE one."""
    store_id = call.path["memory_store_id"]
    await call.ask(call.clients.memory.DeleteMemoryStore, pb.DeleteMemoryStoreRequest(memory_store_id=store_id))
    return render_deleted("memory_store", store_id)


async def create_memory(call: Call) -> bytes:
    """POST …/memories."""
    assert isinstance(call.body, MemoryCreate)
    request = pb.CreateMemoryRequest(
        memory_store_id=call.path["memory_store_id"],
        path=call.body.path,
        content=call.body.content or "",
        idempotency=call.idempotency(),
    )
    answer = await call.ask(call.clients.memory.CreateMemory, request)
    return render_memory(answer.memory, with_content=_shows_content(call))


async def get_memory(call: Call) -> bytes:
    """GET …/memories/{memory_id}."""
    request = pb.GetMemoryRequest(memory_store_id=call.path["memory_store_id"], memory_id=call.path["memory_id"])
    answer = await call.ask(call.clients.memory.GetMemory, request)
    return render_memory(answer.memory, with_content=call.query["view"] == "full")


async def update_memory(call: Call) -> bytes:
    """POST, PUT and PATCH …/memories/{memory_id}."""
    assert isinstance(call.body, MemoryUpdate)
    precondition = call.body.precondition
    request = pb.UpdateMemoryRequest(
        memory_store_id=call.path["memory_store_id"],
        memory_id=call.path["memory_id"],
        path=call.body.path,
        content=call.body.content,
        precondition_json=b"" if precondition is None else orjson.dumps(precondition),
    )
    answer = await call.ask(call.clients.memory.UpdateMemory, request)
    return render_memory(answer.memory, with_content=_shows_content(call))


async def list_memories(call: Call) -> bytes:
    """GET …/memories."""
    full = call.query["view"] == "full"
    request = pb.ListMemoriesRequest(
        memory_store_id=call.path["memory_store_id"],
        page=_page(call),
        path_prefix=call.query["path_prefix"],
        depth=call.query["depth"],
        with_content=full,
    )
    answer = await call.ask(call.clients.memory.ListMemories, request)
    return collection([render_memory_item(item, with_content=full) for item in answer.items], answer.page_info)


async def delete_memory(call: Call) -> bytes:
    """DELETE …/memories/{memory_id}."""
    memory_id = call.path["memory_id"]
    request = pb.DeleteMemoryRequest(
        memory_store_id=call.path["memory_store_id"],
        memory_id=memory_id,
        expected_content_sha256=call.query["expected_content_sha256"],
    )
    await call.ask(call.clients.memory.DeleteMemory, request)
    return render_deleted("memory", memory_id)


async def list_versions(call: Call) -> bytes:
    """GET …/memory_versions."""
    full = call.query["view"] == "full"
    request = pb.ListMemoryVersionsRequest(
        memory_store_id=call.path["memory_store_id"],
        page=_page(call),
        created_at_gte=call.query["created_at[gte]"],
        created_at_lte=call.query["created_at[lte]"],
        with_content=full,
        **{name: call.query[name] for name in _VERSION_FILTERS},
    )
    answer = await call.ask(call.clients.memory.ListMemoryVersions, request)
    return collection([render_memory_version(each, with_content=full) for each in answer.versions], answer.page_info)


async def get_version(call: Call) -> bytes:
    """GET …/memory_versions/{version_id}."""
    request = pb.GetMemoryVersionRequest(
        memory_store_id=call.path["memory_store_id"], memory_version_id=call.path["version_id"]
    )
    answer = await call.ask(call.clients.memory.GetMemoryVersion, request)
    return render_memory_version(answer.version, with_content=call.query["view"] == "full")


async def redact_version(call: Call) -> bytes:
    """POST …/memory_versions/{version_id}/redact."""
    request = pb.RedactMemoryVersionRequest(
        memory_store_id=call.path["memory_store_id"], memory_version_id=call.path["version_id"]
    )
    answer = await call.ask(call.clients.memory.RedactMemoryVersion, request)
    return render_memory_version(answer.version, with_content=True)


def _shows_content(call: Call) -> bool:
    """A plain caller sees what it wrote; the published contract shows no text unless asked."""
    return call.query["view"] == "full" or (not call.query["view"] and not call.published)


def _page(call: Call) -> Page:
    size = call.query["limit"]
    if call.query["view"] == "full":
        size = min(size, MAX_FULL_LIMIT)
    return Page(limit=size, cursor=call.query["page"])


_VERSION_FILTERS = ("memory_id", "operation", "session_id", "api_key_id", "service_account_id")
_CREATED = (
    timestamp("created_at[gte]", description="Made then or later."),
    timestamp("created_at[lte]", description="Made then or before."),
)


def _update_store(method: str) -> Operation:
    return Operation(
        method,
        STORE,
        update_store,
        tag=TAG,
        summary="Update a memory store",
        description="A partial definition is merged; sessions keep name and description of their attachment.",
        body=MemoryStoreUpdate,
        response=MemoryStore,
    )


def _update_memory(method: str) -> Operation:
    return Operation(
        method,
        MEMORY,
        update_memory,
        tag=TAG,
        summary="Update a memory",
        holders="store",
        description="Text, path or both, under a precondition if one is given. What changes nothing is no new version.",
        query=(view(),),
        body=MemoryUpdate,
        response=Memory,
    )


OPERATIONS = (
    Operation(
        "GET",
        STORES,
        list_stores,
        tag=TAG,
        summary="List memory stores, newest first",
        query=(flag("include_archived", description="Archived stores too."), limit(), page(), *_CREATED),
        response=MemoryStorePage,
    ),
    Operation(
        "POST",
        STORES,
        create_store,
        tag=TAG,
        summary="Create a memory store",
        body=MemoryStoreCreate,
        response=MemoryStore,
        idempotent_write=True,
    ),
    Operation(
        "GET", STORE, get_store, tag=TAG, summary="Retrieve a memory store", holders="store", response=MemoryStore
    ),
    _update_store("POST"),
    _update_store("PUT"),
    Operation(
        "POST",
        f"{STORE}/archive",
        archive_store,
        tag=TAG,
        summary="Archive a memory store for good",
        description="It can still be read; nothing in it changes any more, and no new session attaches it.",
        response=MemoryStore,
    ),
    Operation(
        "DELETE",
        STORE,
        delete_store,
        tag=TAG,
        summary="Delete a memory store with all its memories and versions",
        response=MemoryStoreDeleted,
    ),
    Operation(
        "GET",
        MEMORIES,
        list_memories,
        tag=TAG,
        summary="List memories in the order of their paths",
        holders="store",
        description="At depth 1 each folder below the prefix is one item. A page with texts holds at most 20.",
        query=(
            limit(),
            page(),
            text("path_prefix", max_length=2048, description="Absolute, ending with /."),
            integer("depth", minimum=0, maximum=1, default=0, description="1 for the direct children alone."),
            view("basic"),
        ),
        response=MemoryPage,
    ),
    Operation(
        "POST",
        MEMORIES,
        create_memory,
        tag=TAG,
        summary="Add a memory",
        holders="store",
        query=(view(),),
        body=MemoryCreate,
        response=Memory,
        idempotent_write=True,
    ),
    Operation(
        "GET",
        MEMORY,
        get_memory,
        tag=TAG,
        summary="Retrieve a memory",
        holders="store",
        query=(view("full"),),
        response=Memory,
    ),
    _update_memory("POST"),
    _update_memory("PUT"),
    _update_memory("PATCH"),
    Operation(
        "DELETE",
        MEMORY,
        delete_memory,
        tag=TAG,
        summary="Delete a memory; its versions stay",
        holders="store",
        query=(text("expected_content_sha256", description="Refuse unless this is the digest of the stored text."),),
        response=MemoryDeleted,
    ),
    Operation(
        "GET",
        VERSIONS,
        list_versions,
        tag=TAG,
        summary="List versions of memories, newest first",
        description="A page with texts holds at most 20.",
        query=(
            limit(),
            page(),
            *(text(name) for name in _VERSION_FILTERS if name != "operation"),
            replace(
                choice("operation", ("created", "modified", "deleted"), default="created"),
                default="",
                schema={"type": "string", "enum": ["created", "modified", "deleted"]},
            ),
            *_CREATED,
            view("basic"),
        ),
        response=MemoryVersionPage,
    ),
    Operation(
        "GET",
        VERSION,
        get_version,
        tag=TAG,
        summary="Retrieve a version",
        query=(view("full"),),
        response=MemoryVersion,
    ),
    Operation(
        "POST",
        f"{VERSION}/redact",
        redact_version,
        tag=TAG,
        summary="Empty a version for good",
        description="Only what is no longer the newest version of a memory that exists.",
        response=MemoryVersion,
    ),
)

"""Memory as other processes get it. Pure."""

from kit.clock import rfc3339
from kit.rpc.context import CallContext
from managed_agents.sessions.v1 import memory_pb2 as pb
from services.sessions.domain.memory import Actor, Memory, Store
from services.sessions.store.memory_versions import Version

ANONYMOUS = "anonymous"


def store_message(store: Store) -> pb.MemoryStore:
    """A store."""
    return pb.MemoryStore(
        id=store.id,
        name=store.name,
        description=store.description,
        metadata_json=store.metadata.encode(),
        created_at=rfc3339(store.created_at),
        updated_at=rfc3339(store.updated_at),
        archived_at=rfc3339(store.archived_at) if store.archived_at else "",
        memory_count=store.memory_count,
    )


def memory_message(memory: Memory) -> pb.Memory:
    """A memory, with its text where that was read."""
    return pb.Memory(
        id=memory.id,
        memory_store_id=memory.store_id,
        memory_version_id=memory.version_id,
        version=memory.version,
        path=memory.path,
        content=memory.content,
        content_sha256=memory.content_sha256,
        content_size_bytes=memory.content_size,
        created_at=rfc3339(memory.created_at),
        updated_at=rfc3339(memory.updated_at),
    )


def version_message(version: Version) -> pb.MemoryVersion:
    """A version, with its text where that was read."""
    return pb.MemoryVersion(
        id=version.id,
        memory_store_id=version.store_id,
        memory_id=version.memory_id,
        version=version.version,
        operation=version.operation,
        path=version.path,
        content=version.content,
        content_sha256=version.content_sha256 or "",
        content_size_bytes=version.content_size,
        created_by=pb.MemoryActor(kind=version.actor_kind, id=version.actor_id),
        created_at=rfc3339(version.created_at),
        redacted_at=rfc3339(version.redacted_at) if version.redacted_at else "",
        redacted_by=(
            pb.MemoryActor(kind=version.redacted_by_kind, id=version.redacted_by_id) if version.redacted_at else None
        ),
    )


def caller(context: CallContext) -> Actor:
    """Who calls: the holder of a key, a session whose worker speaks for it, or nobody that is known."""
    if context.session_id:
        return Actor("session", context.session_id)
    known = context.principal_id not in ("", ANONYMOUS)
    return Actor("api_key", context.principal_id) if known else Actor("", "")

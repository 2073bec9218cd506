"""Public JSON of memory stores, memories and versions; both projections agree."""

from __future__ import annotations

from managed_agents.sessions.v1 import memory_pb2 as pb

from .splice import object_of, raw, text, text_or_null

# How the published contract names who made a change, and the member that holds the id.
_ACTORS = {
    "session": (b"session_actor", b"session_id"),
    "api_key": (b"api_actor", b"api_key_id"),
    "user": (b"user_actor", b"user_id"),
    "service_account": (b"service_account_actor", b"service_account_id"),
}


def render_memory_store(store: pb.MemoryStore) -> bytes:
    """One store."""
    return object_of(
        (
            b'"id":%b,"type":"memory_store","name":%b' % (text(store.id), text(store.name)),
            b'"description":' + text(store.description),
            b'"metadata":' + raw(store.metadata_json, b"{}"),
            b'"status":"archived"' if store.archived_at else b'"status":"active"',
            b'"memory_count":%d' % store.memory_count,
            b'"created_at":%b,"updated_at":%b' % (text(store.created_at), text(store.updated_at)),
            b'"archived_at":' + text_or_null(store.archived_at),
        )
    )


def render_memory(memory: pb.Memory, *, with_content: bool) -> bytes:
    """One memory."""
    content = text(memory.content) if with_content and memory.HasField("content") else b"null"
    return object_of(
        (
            b'"id":%b,"type":"memory"' % text(memory.id),
            b'"memory_store_id":' + text(memory.memory_store_id),
            b'"memory_version_id":' + text(memory.memory_version_id),
            b'"version":%d' % memory.version,
            b'"path":' + text(memory.path),
            b'"content":' + content,
            b'"content_sha256":' + text(memory.content_sha256),
            b'"content_size_bytes":%d' % memory.content_size_bytes,
            b'"created_at":%b,"updated_at":%b' % (text(memory.created_at), text(memory.updated_at)),
        )
    )


def render_memory_item(item: pb.MemoryListItem, *, with_content: bool) -> bytes:
    """One item of a listing."""
    if item.WhichOneof("item") == "prefix":
        return b'{"path":%b,"type":"memory_prefix"}' % text(item.prefix)
    return render_memory(item.memory, with_content=with_content)


def render_memory_version(version: pb.MemoryVersion, *, with_content: bool) -> bytes:
    """One version."""
    content = text(version.content) if with_content and version.HasField("content") else b"null"
    by_session = version.created_by.id if version.created_by.kind == "session" else ""
    size = b"%d" % version.content_size_bytes if version.HasField("content_size_bytes") else b"null"
    return object_of(
        (
            b'"id":%b,"type":"memory_version"' % text(version.id),
            b'"memory_store_id":' + text(version.memory_store_id),
            b'"memory_id":' + text(version.memory_id),
            b'"version":%d' % version.version,
            b'"operation":' + text(version.operation),
            b'"path":' + (text(version.path) if version.HasField("path") else b"null"),
            b'"content":' + content,
            b'"content_sha256":' + text_or_null(version.content_sha256),
            b'"content_size_bytes":' + size,
            b'"session_id":' + text_or_null(by_session),
            b'"created_by":' + _actor(version.created_by),
            b'"created_at":' + text(version.created_at),
            b'"redacted_at":' + text_or_null(version.redacted_at),
            b'"redacted_by":' + _actor(version.redacted_by),
        )
    )


def render_deleted(kind: str, resource_id: str) -> bytes:
    """What a deletion answers."""
    return b'{"id":%b,"type":"%b_deleted"}' % (text(resource_id), kind.encode())


def _actor(actor: pb.MemoryActor) -> bytes:
    named = _ACTORS.get(actor.kind)
    if named is None:
        return b"null"
    kind, member = named
    return b'{"type":"%b","%b":%b}' % (kind, member, text(actor.id))

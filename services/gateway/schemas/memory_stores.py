"""Shapes of memory stores, memories and their versions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from .shapes import JUDGED, Metadata, MetadataPatch, Page, Rendered, Shape

StoreName = Annotated[str, Field(min_length=1, max_length=255)]
StoreDescription = Annotated[str, Field(max_length=1024)]
# Longer than a sound path, whose bytes its service counts.
Path = Annotated[str, Field(max_length=2048)]
# As many characters as the largest memory has bytes; its service counts those.
Content = Annotated[str, Field(max_length=1_000_000)]
PRECONDITION = {
    "type": "object",
    "required": ["type", "content_sha256"],
    "properties": {
        "type": {"const": "content_sha256"},
        "content_sha256": {"type": "string", "pattern": "[0-9a-f]{64}"},
    },
}
Precondition = Annotated[Any, JUDGED, WithJsonSchema({"anyOf": [PRECONDITION, {"type": "null"}]})]


class MemoryStoreCreate(Shape):
    """A new store."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "Project notes"}]})

    name: StoreName
    description: StoreDescription | None = None
    metadata: Metadata | None = None


class MemoryStoreUpdate(Shape):
    """A partial definition: what is left out stays, metadata merges."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"description": "What the team agreed on"}]})

    name: StoreName | None = None
    description: StoreDescription | None = None
    metadata: MetadataPatch | None = None


class MemoryStore(Rendered):
    """A named place for memories."""

    id: str
    type: Literal["memory_store"]
    name: str
    description: str
    metadata: dict[str, str]
    status: Literal["active", "archived"]
    memory_count: int
    created_at: str
    updated_at: str
    archived_at: str | None


class MemoryStorePage(Page):
    """A page of stores."""

    data: list[MemoryStore]


class MemoryStoreDeleted(Rendered):
    """What the deletion of a store answers."""

    id: str
    type: Literal["memory_store_deleted"]


class MemoryCreate(Shape):
    """A new memory."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"path": "/notes/release", "content": "Keep release notes concise."}]}
    )

    path: Path
    content: Content | None


class MemoryUpdate(Shape):
    """What is left out stays."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"content": "Keep release notes short."}]})

    path: Path | None = None
    content: Content | None = None
    precondition: Precondition = None


class Memory(Rendered):
    """A text at a path of a store."""

    id: str
    type: Literal["memory"]
    memory_store_id: str
    memory_version_id: str
    version: int
    path: str
    content: str | None
    content_sha256: str
    content_size_bytes: int
    created_at: str
    updated_at: str


class MemoryPrefix(Rendered):
    """A folder with memories in it, in a listing at depth 1."""

    path: str
    type: Literal["memory_prefix"]


class MemoryPage(Page):
    """A page of memories, in the order of their paths."""

    data: list[Memory | MemoryPrefix]


class MemoryDeleted(Rendered):
    """What the deletion of a memory answers."""

    id: str
    type: Literal["memory_deleted"]


class MemoryVersion(Rendered):
    """One change of a memory; a redacted one tells neither path nor text."""

    id: str
    type: Literal["memory_version"]
    memory_store_id: str
    memory_id: str
    version: int
    operation: Literal["created", "modified", "deleted"]
    path: str | None
    content: str | None
    content_sha256: str | None
    content_size_bytes: int | None
    session_id: str | None
    created_by: dict[str, Any] | None
    created_at: str
    redacted_at: str | None
    redacted_by: dict[str, Any] | None


class MemoryVersionPage(Page):
    """A page of versions, newest first."""

    data: list[MemoryVersion]

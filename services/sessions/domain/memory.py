"""Memory stores and what is in them: the rules on paths, texts, sizes and preconditions.

A path is absolute, in Unicode normal form C, and names a place in a folder on some
sandbox's disk, so whatever could lead elsewhere there is refused here. Sizes and digests
are those of the UTF-8 bytes, with no normalisation of the text.
"""

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from services.sessions.domain import shape
from services.sessions.domain.memory_errors import (
    InvalidMemoryPath,
    InvalidPrecondition,
    MemoryPreconditionFailed,
    MemoryTooLarge,
)
from services.sessions.domain.metadata import Metadata, merge_metadata, validate_metadata
from services.sessions.domain.session_errors import InvalidRequest

MAX_CONTENT_BYTES = 102_400
MAX_MEMORIES = 10_000
MAX_PATH_BYTES = 1_024
MAX_SEGMENTS = 20
MAX_NAME_CHARACTERS = 255
MAX_DESCRIPTION_CHARACTERS = 1_024
OPERATIONS = ("created", "modified", "deleted")
ROOT = "/"

_DIGEST = re.compile(r"[0-9a-f]{64}")
# Control and format characters, line and paragraph separators, and what no UTF-8 can hold.
_REFUSED_CATEGORIES = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs"})


@dataclass(frozen=True, slots=True)
class StoreDefinition:
    """What a caller decides about a store."""

    name: str
    description: str
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class Store:
    """One stored memory store."""

    id: str
    name: str
    description: str
    # JSON object of string pairs.
    metadata: str
    created_at: datetime
    updated_at: datetime
    archived_at: datetime | None
    memory_count: int
    # Grows by one with every change of a memory.
    revision: int

    def definition(self) -> StoreDefinition:
        """What its caller decided."""
        return StoreDefinition(self.name, self.description, orjson.loads(self.metadata))


@dataclass(frozen=True, slots=True)
class Memory:
    """One memory as it is now."""

    id: str
    store_id: str
    version_id: str
    version: int
    path: str
    content_sha256: str
    content_size: int
    created_at: datetime
    updated_at: datetime
    revision: int
    # None where it was not read.
    content: str | None


@dataclass(frozen=True, slots=True)
class Actor:
    """Who changes a memory: a session, or the holder of a key; nobody where the kind is empty."""

    kind: str
    id: str


@dataclass(frozen=True, slots=True)
class Text:
    """A text that was judged, with its size and digest."""

    content: str
    sha256: str
    size: int


def validate_store(body: dict[str, Any]) -> StoreDefinition:
    """A new store's definition."""
    shape.known_only(body, "", ("name", "description", "metadata"))
    return StoreDefinition(
        _name(body.get("name")), _description(body.get("description")), validate_metadata(body.get("metadata"))
    )


def merge_store(current: StoreDefinition, patch: dict[str, Any]) -> StoreDefinition:
    """The definition after a patch: what is left out, or null, stays; metadata merges."""
    shape.known_only(patch, "", ("name", "description", "metadata"))
    name, description, metadata = patch.get("name"), patch.get("description"), patch.get("metadata")
    return StoreDefinition(
        current.name if name is None else _name(name),
        current.description if description is None else _description(description),
        current.metadata if metadata is None else merge_metadata(current.metadata, metadata),
    )


def check_path(path: str, field: str = "path") -> str:
    """The path, or the refusal that names the rule that it breaks."""
    if not path.startswith("/"):
        raise InvalidMemoryPath(f"{field} must be absolute: it starts with /.", field=field)
    if path.endswith("/"):
        raise InvalidMemoryPath(f"{field} must not end with /.", field=field)
    _check_characters(path, field)
    segments = path[1:].split("/")
    if len(segments) > MAX_SEGMENTS:
        raise InvalidMemoryPath(
            f"{field} has {len(segments)} segments; at most {MAX_SEGMENTS} are accepted.", field=field
        )
    for segment in segments:
        if segment in ("", ".", ".."):
            raise InvalidMemoryPath(f"{field} must not have empty segments, `.` or `..`.", field=field)
    return path


def check_prefix(prefix: str, field: str = "path_prefix") -> str:
    """The prefix of a listing; an empty one means the whole store."""
    if prefix in ("", ROOT):
        return ROOT
    if not prefix.startswith("/") or not prefix.endswith("/"):
        raise InvalidRequest(f"{field} must be absolute and end with /, such as /notes/.", field=field)
    try:
        check_path(prefix[:-1], field)
    except InvalidMemoryPath as refusal:
        # A path like that holds no memory; a parameter of a query is refused as such.
        raise InvalidRequest(refusal.message, field=field) from None
    return prefix


def prefix_end(prefix: str) -> str:
    """The first text behind all that begin with the prefix: `0` is the character after `/`."""
    return f"{prefix[:-1]}0"


def read_text(content: str, field: str = "content") -> Text:
    """The text with its digest, or the refusal of one that a store can't hold."""
    if "\x00" in content:
        raise InvalidRequest(f"{field} must not contain NUL characters.", field=field)
    try:
        encoded = content.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{field} must be text that UTF-8 can hold.", field=field) from None
    if len(encoded) > MAX_CONTENT_BYTES:
        raise MemoryTooLarge(
            f"{field} has {len(encoded)} bytes; a memory holds at most {MAX_CONTENT_BYTES}.",
            field=field,
            limit_bytes=MAX_CONTENT_BYTES,
        )
    return Text(content, hashlib.sha256(encoded).hexdigest(), len(encoded))


def read_precondition(value: Any) -> str:
    """The digest that a precondition names; empty where there is none."""
    if value is None:
        return ""
    if not isinstance(value, dict):
        raise InvalidPrecondition("precondition must be an object.", field="precondition")
    if value.get("type") != "content_sha256":
        raise InvalidPrecondition('precondition.type must be "content_sha256".', field="precondition.type")
    for key in value:
        if key not in ("type", "content_sha256"):
            raise InvalidPrecondition(
                f"precondition.{key[:64]} is not known: it takes type and content_sha256.", field="precondition"
            )
    return read_digest(value.get("content_sha256"), "precondition.content_sha256")


def read_digest(value: Any, field: str) -> str:
    """The digest of a precondition."""
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise InvalidPrecondition(f"{field} must be 64 lower-case hexadecimal characters.", field=field)
    return value


def require_content(memory: Memory, expected_sha256: str) -> None:
    """Refuse where a precondition names another text than the stored one."""
    if expected_sha256 and memory.content_sha256 != expected_sha256:
        details = {"current_content_sha256": memory.content_sha256, "memory_id": memory.id}
        raise MemoryPreconditionFailed(
            "The memory has another content now than the precondition names. Read it again, or retry with its "
            f"current digest, {memory.content_sha256}.",
            details=orjson.dumps(details).decode(),
        )


def _check_characters(path: str, field: str) -> None:
    if any(unicodedata.category(character) in _REFUSED_CATEGORIES for character in path):
        raise InvalidMemoryPath(f"{field} must not have control, format or separator characters.", field=field)
    if len(path.encode()) > MAX_PATH_BYTES:
        raise InvalidMemoryPath(f"{field} is longer than {MAX_PATH_BYTES} bytes.", field=field)
    if not unicodedata.is_normalized("NFC", path):
        raise InvalidMemoryPath(f"{field} must be in Unicode normalization form C.", field=field)


def _name(value: Any) -> str:
    name = shape.label(value, "name", maximum=MAX_NAME_CHARACTERS)
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        raise InvalidRequest("name must not have control characters.", field="name")
    return name


def _description(value: Any) -> str:
    return "" if value is None else shape.text(value, "description", maximum=MAX_DESCRIPTION_CHARACTERS)

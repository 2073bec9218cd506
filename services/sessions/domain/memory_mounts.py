"""Memory stores as a session attaches them: what a resource entry may say, and where its folder stands.

    wanted = read_memory_entries(resources)              # shape; before anything is looked up
    mounts = place(wanted, stores)                       # names, places; `stores` are the active ones by id

An entry says little; what the session keeps is a snapshot, so later edits of the store's
name or description change no session. Memory is part of what a session was made with:
`MAY_BE_ATTACHED_LATER` and `MAY_BE_DETACHED` say so to whoever serves the resource routes.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.sessions.domain import shape
from services.sessions.domain.memory import Store
from services.sessions.domain.memory_errors import MemoryStoreUnknown
from services.sessions.domain.session_errors import InvalidRequest

MEMORY_STORE = "memory_store"
MAX_STORES = 8
MAX_INSTRUCTIONS_CHARACTERS = 4_096
MAX_MOUNT_PATH_BYTES = 1_024
MAX_SEGMENT_BYTES = 255
ACCESSES = ("read_write", "read_only")
MEMORY_FOLDER = "/mnt/memory"
MAY_BE_ATTACHED_LATER = False
MAY_BE_DETACHED = False

_FIELDS = ("type", "memory_store_id", "mount_path", "access", "instructions")
# Folders of the system and of the platform: nothing is mounted in them, over them, or as an
# ancestor of them. Below /mnt/memory is the place meant for stores.
_TAKEN = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/root", "/run", "/sbin"),
    *("/sys", "/tmp", "/usr", "/var", "/workspace", "/mnt/session"),
)
_SLUG_BREAK = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class WantedMemory:
    """One entry whose form is sound."""

    # Its place in the caller's `resources`.
    index: int
    memory_store_id: str
    # None for the default, which follows from the store's name.
    mount_path: str | None
    access: str
    instructions: str


def read_memory_entries(resources: Sequence[Mapping[str, Any]]) -> list[WantedMemory]:
    """The memory stores among a caller's resource entries, or the refusal of the first one that is wrong."""
    wanted = [
        _read_entry(index, dict(entry)) for index, entry in enumerate(resources) if entry.get("type") == MEMORY_STORE
    ]
    if len(wanted) > MAX_STORES:
        raise InvalidRequest(
            f"resources holds {len(wanted)} memory stores; a session attaches at most {MAX_STORES}.", field="resources"
        )
    chosen = [each for each in wanted if each.mount_path is not None]
    for position, each in enumerate(chosen):
        _refuse_overlap(str(each.mount_path), (str(other.mount_path) for other in chosen[:position]), each.index)
    return wanted


def place(
    wanted: Sequence[WantedMemory], stores: Mapping[str, Store], taken: Iterable[str] = ()
) -> dict[int, dict[str, Any]]:
    """What a session keeps of each entry, by its index; `taken` are the mount paths of its other resources."""
    for each in wanted:
        if each.memory_store_id not in stores:
            raise MemoryStoreUnknown(
                f"Memory store not found: {shape.shown(each.memory_store_id)}. It has to exist and not be archived.",
                field=f"resources.{each.index}.memory_store_id",
            )
    used = [*taken, *(each.mount_path for each in wanted if each.mount_path is not None)]
    mounts: dict[int, dict[str, Any]] = {}
    for each in wanted:
        store = stores[each.memory_store_id]
        path = each.mount_path
        if path is None:
            path = _default_path(store, used)
            used.append(path)
        mounts[each.index] = {
            "type": MEMORY_STORE,
            "memory_store_id": store.id,
            "mount_path": path,
            "access": each.access,
            "instructions": each.instructions or None,
            "name": store.name,
            "description": store.description,
        }
    return mounts


def slug_of(store: Store) -> str:
    """The name as a folder: lower case, every run of other characters than letters and digits one hyphen."""
    slug = _SLUG_BREAK.sub("-", store.name.lower()).strip("-")
    return slug or _SLUG_BREAK.sub("-", store.id.lower())


def check_mount_path(path: Any, field: str) -> str:
    """An absolute path of whole segments, outside the folders of the system and of the platform."""
    shape.text(path, field, minimum=2, maximum=MAX_MOUNT_PATH_BYTES)
    if not path.startswith("/") or path.endswith("/"):
        raise InvalidRequest(f"{field} must start with / and not end with it.", field=field)
    if any(unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") for character in path):
        raise InvalidRequest(f"{field} must not have control, format or separator characters.", field=field)
    if len(path.encode()) > MAX_MOUNT_PATH_BYTES or not unicodedata.is_normalized("NFC", path):
        raise InvalidRequest(
            f"{field} must be in Unicode normalization form C and at most {MAX_MOUNT_PATH_BYTES} bytes long.",
            field=field,
        )
    for segment in path[1:].split("/"):
        if segment in ("", ".", "..") or len(segment.encode()) > MAX_SEGMENT_BYTES:
            raise InvalidRequest(
                f"{field} must consist of whole segments: none empty, `.`, `..` or over {MAX_SEGMENT_BYTES} bytes.",
                field=field,
            )
    if path in ("/mnt", MEMORY_FOLDER) or any(_overlap(path, other) for other in _TAKEN):
        raise InvalidRequest(
            f"{field} must not be in or above a folder of the system or of the session, such as /usr, /workspace and "
            f"/mnt/session. Take a path below {MEMORY_FOLDER}.",
            field=field,
        )
    return path


def _read_entry(index: int, entry: dict[str, Any]) -> WantedMemory:
    field = f"resources.{index}"
    shape.known_only(entry, field, _FIELDS)
    store_id = shape.label(entry.get("memory_store_id"), f"{field}.memory_store_id", maximum=256)
    path, access, instructions = entry.get("mount_path"), entry.get("access"), entry.get("instructions")
    if instructions is not None:
        shape.text(instructions, f"{field}.instructions", maximum=MAX_INSTRUCTIONS_CHARACTERS)
    return WantedMemory(
        index,
        store_id,
        None if path is None else check_mount_path(path, f"{field}.mount_path"),
        ACCESSES[0] if access is None else shape.one_of(access, f"{field}.access", ACCESSES),
        instructions or "",
    )


def _default_path(store: Store, used: Sequence[str]) -> str:
    # Names need not be unique, so two stores may have one slug: the later one gets a number.
    slug = slug_of(store)[: MAX_SEGMENT_BYTES - 4]
    path, number = f"{MEMORY_FOLDER}/{slug}", 1
    while any(_overlap(path, other) for other in used):
        number += 1
        path = f"{MEMORY_FOLDER}/{slug}-{number}"
    return path


def _refuse_overlap(path: str, others: Iterable[str], index: int) -> None:
    for other in others:
        if _overlap(path, other):
            raise InvalidRequest(
                f"resources.{index}.mount_path is the same as, in or above {other}, where another resource is mounted.",
                field=f"resources.{index}.mount_path",
            )


def _overlap(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}/") or other.startswith(f"{path}/")

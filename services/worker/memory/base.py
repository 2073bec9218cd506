"""What a folder had when it last agreed with its store: kept beside it, replaced as a whole, fsynced."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

# How a file system tells that a file is another than before: size, times of change, inode.
Signature = tuple[int, int, int, int]
# A change within the grain of a file's times can't be told from the state before it.
GRAIN_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Entry:
    """A memory as the folder has it."""

    memory_id: str
    sha256: str
    signature: Signature
    # When it was looked at, to the nanosecond.
    seen_ns: int

    def surely_is(self, signature: Signature) -> bool:
        """Whether a file with this signature holds what it held, without a look at its bytes."""
        return signature == self.signature and max(signature[1], signature[2]) + GRAIN_NS < self.seen_ns


@dataclass(slots=True)
class Base:
    """The state of one folder."""

    # The store's revision that the folder agrees with; 0 before the first time.
    revision: int = 0
    # Inode of the folder: another one was put there by somebody else.
    folder: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)
    # Memories that have no file here, by path, with their ids: names that the disk can't hold, or that are in the way
    # of each other.
    hidden: dict[str, str] = field(default_factory=dict)
    # What was told about files that the store did not take, so that it is told once for each state of a file.
    told: dict[str, list[int]] = field(default_factory=dict)
    # `active`, `archived` or `deleted`, as last heard.
    state: str = "active"
    # Files are known to be what they were that had to be read before: worth keeping, so that the next pass need not.
    surer: bool = False


def load(path: Path) -> Base:
    """The kept state; a fresh one where there is none, or none that can be read."""
    try:
        stored: dict[str, Any] = orjson.loads(path.read_bytes())
        entries = {
            name: Entry(memory_id, sha256, (size, modified, changed, inode), seen)
            for name, (memory_id, sha256, size, modified, changed, inode, seen) in stored["entries"].items()
        }
        return Base(stored["revision"], stored["folder"], entries, stored["hidden"], stored["told"], stored["state"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        # Without a base every file is new: what the store has already is found to be the same, the rest is offered.
        return Base()


def save(base: Base, path: Path) -> None:
    """Replace the kept state; it is on the disk when this returns."""
    entries = {
        name: [entry.memory_id, entry.sha256, *entry.signature, entry.seen_ns] for name, entry in base.entries.items()
    }
    document = {
        "revision": base.revision,
        "folder": base.folder,
        "state": base.state,
        "entries": entries,
        "hidden": base.hidden,
        "told": base.told,
    }
    fresh = path.with_suffix(".new")
    with open(fresh, "wb") as stream:
        stream.write(orjson.dumps(document))
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(fresh, path)
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

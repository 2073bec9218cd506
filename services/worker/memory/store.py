"""What a folder asks of its store, and what it is told."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from services.worker.memory.difference import LocalChange

# What became of a change, in the numbers of `MemoryChangeOutcome`.
WRITTEN, CONFLICT, REFUSED = 1, 2, 3
# A push stays below both, so that its answer, which holds newer texts, fits into a message too.
_PUSH_CHANGES = 200
_PUSH_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Pulled:
    """A part of what changed in a store; its revision holds once all parts are taken in."""

    state: str
    revision: int
    # Each with `id`, `path`, `content` and `content_sha256`.
    changed: Sequence[Any]
    deleted_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class Pushed:
    """What became of some changes."""

    state: str
    previous_revision: int
    revision: int
    # Each result with `outcome`, `memory` (without an id where there is none) and `refusal`.
    results: list[tuple[LocalChange, Any]]


class MemoryStore(Protocol):
    """A store, as a pass over its folder uses it."""

    def pull(self, store_id: str, known_revision: int) -> AsyncIterator[Pulled]:
        """Everything that a folder with this revision does not know, in parts that fit into memory."""
        ...

    async def push(self, session_id: str, epoch: int, store_id: str, changes: Sequence[LocalChange]) -> Pushed:
        """Write changes; one that the store has already is written."""
        ...


def portions(changes: Sequence[LocalChange]) -> list[list[LocalChange]]:
    """Changes in portions that fit into a message. Deletions come first, also over all of them."""
    ordered = sorted(changes, key=lambda change: change.content is not None)
    found: list[list[LocalChange]] = []
    size = _PUSH_BYTES
    for change in ordered:
        bytes_of_change = len(change.path) + len(change.content or "")
        if size + bytes_of_change > _PUSH_BYTES or len(found[-1]) >= _PUSH_CHANGES:
            found.append([])
            size = 0
        found[-1].append(change)
        # A character may take four bytes.
        size += 4 * bytes_of_change
    return found

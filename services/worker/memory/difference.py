"""What an agent did to a folder, told from what it had and what it has. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.worker.memory.base import Base, Signature

MAX_CONTENT_BYTES = 102_400


@dataclass(slots=True)
class Scan:
    """The files of a folder, by their path in the store."""

    files: dict[str, Signature] = field(default_factory=dict)
    # What is there and can't be a memory, with the reason: links, devices, names that are no text.
    odd: dict[str, tuple[str, Signature]] = field(default_factory=dict)
    # Folders that could not be looked into, as prefixes that end with `/`.
    unseen: list[str] = field(default_factory=list)
    # Files that went or became something else while they were looked at: the next look tells.
    restless: set[str] = field(default_factory=set)
    # False where there was more than could be looked at, or another folder was there.
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Found:
    """The bytes of a file, read; `reason` says why they can't be a memory."""

    signature: Signature
    sha256: str = ""
    content: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LocalChange:
    """What the folder has and the store is to get; no content means that the file is gone."""

    path: str
    content: str | None
    base_sha256: str


def to_read(base: Base, scan: Scan) -> list[str]:
    """Files that may hold something else than the base says: the others need no look at their bytes."""
    return [
        path
        for path, signature in scan.files.items()
        if not ((entry := base.entries.get(path)) and entry.surely_is(signature))
    ]


def changes_of(base: Base, scan: Scan, read: Mapping[str, Found]) -> list[LocalChange]:
    """What was done, in the order of paths; `read` holds what `to_read` asked for and could be read."""
    changes = [
        LocalChange(path, found.content, entry.sha256 if entry else "")
        for path, found in sorted(read.items())
        for entry in [base.entries.get(path)]
        if not found.reason and found.content is not None and (entry is None or entry.sha256 != found.sha256)
    ]
    return changes + [LocalChange(path, None, base.entries[path].sha256) for path in _gone(base, scan, read)]


def state_of(change: LocalChange, read: Mapping[str, Found]) -> list[int]:
    """Names the state of a file that a change brings, so that its refusal is told once."""
    return [-1] if change.content is None else list(read[change.path].signature)


def oddities(base: Base, scan: Scan, read: Mapping[str, Found]) -> list[tuple[str, str, Signature]]:
    """What can't be stored and was not told yet in this state: path, reason, state."""
    found = [(path, each.reason, each.signature) for path, each in read.items() if each.reason]
    found += [(path, reason, signature) for path, (reason, signature) in scan.odd.items()]
    return sorted(each for each in found if base.told.get(each[0]) != list(each[2]))


def _gone(base: Base, scan: Scan, read: Mapping[str, Found]) -> Sequence[str]:
    """Files that the agent deleted. What was not seen, or became something odd, was not deleted."""
    if not scan.whole:
        return ()
    return sorted(
        path
        for path in base.entries
        if path not in scan.files
        and path not in read
        and path not in scan.odd
        and path not in scan.restless
        and not any(path.startswith(prefix) for prefix in scan.unseen)
        and not any(path.startswith(f"{odd}/") for odd in scan.odd)
    )

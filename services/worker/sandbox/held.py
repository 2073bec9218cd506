"""What a session's processes hold of files that were deleted.

A file without a name still takes its disk while a process has it open or mapped,
and no look at folders finds it. Owns the way from a sandbox's first process to
everything below it, and from there to such files. Reads /proc only.
"""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_DELETED = " (deleted)\n"
# Names of mappings that are no files of a disk.
_MEMORY = ("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV", "/[aio]")


@dataclass(slots=True)
class HeldFiles:
    """Deleted files that are in use, each counted once."""

    # A living process did not let us look at its descriptors.
    opaque: bool = False
    # Descriptors are under way in a socket: in nobody's table, and yet in use.
    in_flight: bool = False
    _files: dict[tuple[int, int], int] = field(default_factory=dict)
    _mapped: dict[int, int] = field(default_factory=dict)

    @property
    def used_bytes(self) -> int:
        """What they take of the disk."""
        known = {inode for _, inode in self._files}
        return sum(self._files.values()) + sum(size for inode, size in self._mapped.items() if inode not in known)

    def add(self, path: str, devices: frozenset[int]) -> os.stat_result:
        """Count what a link of /proc leads to, if it is a file of these devices without a name."""
        found = os.stat(path)
        if not found.st_nlink and stat.S_ISREG(found.st_mode) and found.st_dev in devices:
            self._files[found.st_dev, found.st_ino] = found.st_blocks * 512
        return found

    def add_mapped(self, inode: int, size: int) -> None:
        """Count a file of which only a mapping is known, by the largest."""
        self._mapped[inode] = max(size, self._mapped.get(inode, 0))


def file_devices(folder: Path) -> frozenset[int]:
    """Device numbers that files of a folder carry; a layered file system gives its files another than its folders."""
    devices = {os.stat(folder).st_dev}
    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as probe:
        devices.add(os.fstat(probe.fileno()).st_dev)
    return frozenset(devices)


def held_by(pids: set[int], devices: frozenset[int]) -> HeldFiles:
    """What these processes hold open or mapped, whichever of their threads does."""
    held = HeldFiles()
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            try:
                _add_descriptors(pid, held, devices)
                _add_mappings(pid, held, devices)
            except PermissionError:
                # The dead let nobody look, and hold nothing.
                held.opaque = held.opaque or not _is_dead(pid)
    return held


def below(pid: int) -> set[int]:
    """A process and all its descendants."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting += _children(current)
    return found


def tagged_children(pid: int, tag: str) -> set[int]:
    """Children of a process whose environment carries a tag, with all below them."""
    found: set[int] = set()
    for child in _children(pid):
        with suppress(OSError):
            if tag.encode() in Path(f"/proc/{child}/environ").read_bytes():
                found |= below(child)
    return found


def _children(pid: int) -> Iterator[int]:
    for task in _tasks(pid):
        with suppress(OSError):
            yield from map(int, Path(f"/proc/{pid}/task/{task}/children").read_bytes().split())


def _tasks(pid: int) -> list[str]:
    with suppress(OSError):
        return os.listdir(f"/proc/{pid}/task")
    return []


def _add_descriptors(pid: int, held: HeldFiles, devices: frozenset[int]) -> None:
    # Each thread may have a table of its own.
    for task in _tasks(pid):
        folder = f"/proc/{pid}/task/{task}"
        with suppress(FileNotFoundError, ProcessLookupError):
            for name in os.listdir(f"{folder}/fd"):
                with suppress(FileNotFoundError, ProcessLookupError):
                    found = held.add(f"{folder}/fd/{name}", devices)
                    if stat.S_ISSOCK(found.st_mode) and not held.in_flight:
                        held.in_flight = _carries_descriptors(f"{folder}/fdinfo/{name}")


def _carries_descriptors(path: str) -> bool:
    lines = Path(path).read_bytes().splitlines()
    return any(line.startswith(b"scm_fds:") and int(line.partition(b":")[2]) for line in lines)


def _add_mappings(pid: int, held: HeldFiles, devices: frozenset[int]) -> None:
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            if not line.endswith(_DELETED):
                continue
            extent, _, offset, _, inode, name = line.split(maxsplit=5)
            try:
                held.add(f"/proc/{pid}/map_files/{_unpadded(extent)}", devices)
            except FileNotFoundError:
                continue
            except PermissionError:
                # Only root is led to a mapped file; others know as much of it as is mapped.
                if not name.startswith(_MEMORY):
                    begin, end = (int(each, 16) for each in extent.split("-"))
                    held.add_mapped(int(inode), int(offset, 16) + end - begin)


def _unpadded(extent: str) -> str:
    return "-".join(f"{int(each, 16):x}" for each in extent.split("-"))


def _is_dead(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1]
    except OSError:
        return True
    return state in ([b"Z"], [b"X"])

"""Walking a folder of the agent: bounded, in order, and never through a link.

Folders are opened by descriptor below their parent with O_NOFOLLOW, so a folder
that is swapped for a link in the middle of the walk is skipped, not followed.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

# History of version control is never what is looked for.
_SKIPPED_FOLDERS = frozenset({".git"})
_MAX_DEPTH = 100
TIME_LIMIT_SECONDS = 20.0


@dataclass(slots=True)
class Entry:
    """One thing in a folder. `folder_fd` is open only until the next entry."""

    folder_fd: int
    segments: tuple[str, ...]
    is_folder: bool
    is_file: bool

    @property
    def name(self) -> str:
        """The last segment."""
        return self.segments[-1]

    @property
    def path(self) -> str:
        """The path relative to where the walk began."""
        return "/".join(self.segments)


@dataclass(slots=True)
class Walk:
    """One walk; `stopped` says why it saw less than everything, or is empty."""

    folder_fd: int
    deepest: int | None = None
    deadline: float = field(default_factory=lambda: time.monotonic() + TIME_LIMIT_SECONDS)
    stopped: str = ""

    def entries(self) -> Iterator[Entry]:
        """Yield entries depth first, names in order. Does not close `folder_fd`."""
        yield from self._folder(self.folder_fd, ())

    def out_of_time(self) -> bool:
        """Whether the time is up; the walk ends then."""
        if not self.stopped and time.monotonic() > self.deadline:
            self.stopped = "the search took too long and was cut short; narrow it by path or pattern"
        return bool(self.stopped)

    def _folder(self, fd: int, above: tuple[str, ...]) -> Iterator[Entry]:
        try:
            with os.scandir(fd) as found:
                listed = sorted(
                    (each.name, each.is_dir(follow_symlinks=False), each.is_file(follow_symlinks=False))
                    for each in found
                )
        except OSError:
            return
        for name, is_folder, is_file in listed:
            if self.out_of_time():
                return
            if is_folder and name in _SKIPPED_FOLDERS:
                continue
            entry = Entry(fd, (*above, name), is_folder, is_file)
            yield entry
            if is_folder and self._goes_into(entry):
                yield from self._enter(entry)

    def _goes_into(self, entry: Entry) -> bool:
        depth = len(entry.segments)
        return depth < _MAX_DEPTH and (self.deepest is None or depth < self.deepest)

    def _enter(self, entry: Entry) -> Iterator[Entry]:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(entry.name, flags, dir_fd=entry.folder_fd)
        except OSError:
            return
        try:
            yield from self._folder(fd, entry.segments)
        finally:
            os.close(fd)

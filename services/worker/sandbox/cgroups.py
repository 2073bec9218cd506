"""Memory and process limits for a whole session, where the host lets us set them.

Owns one control group per sandbox (per controller on version 1), below the
runner's own or at the top. Each carries the runner's pid and start time in its
name, so a later start removes what a killed runner left.
"""

import contextlib
import itertools
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from services.worker.sandbox.limits import SandboxLimits

_MOUNT = Path("/sys/fs/cgroup")
_PREFIX = "managed-agents-"


@dataclass(frozen=True, slots=True)
class SessionGroup:
    """The groups of one sandbox; `joins` are the files that take a pid."""

    folders: tuple[Path, ...]

    @property
    def joins(self) -> list[str]:
        """Files to which a process writes its pid to become a member."""
        return [str(folder / "cgroup.procs") for folder in self.folders]


class ControlGroups:
    """Makes and removes groups. `memory` and `pids` say what can be limited."""

    def __init__(self) -> None:
        self._bases = {name: base for name in ("memory", "pids") if (base := _find_base(name))}
        self._version_2 = (_MOUNT / "cgroup.controllers").exists()
        self._owner = f"{_PREFIX}{os.getpid()}-{_start_time(os.getpid())}-{secrets.token_hex(4)}-"
        self._numbers = itertools.count(1)
        self._leftover: list[Path] = []
        self._sweep()

    @property
    def memory(self) -> bool:
        """Whether a session's memory can be limited."""
        return "memory" in self._bases

    @property
    def pids(self) -> bool:
        """Whether a session's number of processes can be limited."""
        return "pids" in self._bases

    def create(self, limits: SandboxLimits) -> SessionGroup:
        """Make the groups of one sandbox; fewer where the host refuses."""
        name = f"{self._owner}{next(self._numbers)}"
        folders: list[Path] = []
        for base in dict.fromkeys(self._bases.values()):
            with contextlib.suppress(OSError):
                (base / name).mkdir()
                folders.append(base / name)
        for folder in folders:
            for file, value in self._settings(limits):
                if (folder / file).exists():
                    with contextlib.suppress(OSError):
                        (folder / file).write_text(str(value))
        return SessionGroup(tuple(folders))

    def is_empty(self, group: SessionGroup) -> bool:
        """Whether nobody is left in it, so that a sandbox with the same limits may have it next."""
        try:
            return not any(Path(path).read_bytes() for path in group.joins)
        except OSError:
            return False

    def remove(self, group: SessionGroup) -> None:
        """Remove the groups of a sandbox that has ended; what is busy is tried again later."""
        self._leftover += group.folders
        busy: list[Path] = []
        for folder in self._leftover:
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                busy.append(folder)
        self._leftover = busy

    def _settings(self, limits: SandboxLimits) -> tuple[tuple[str, int], ...]:
        if self._version_2:
            return (("memory.max", limits.memory_bytes), ("memory.swap.max", 0), ("pids.max", limits.processes))
        return (
            ("memory.limit_in_bytes", limits.memory_bytes),
            ("memory.memsw.limit_in_bytes", limits.memory_bytes),
            ("pids.max", limits.processes),
        )

    def _sweep(self) -> None:
        for base in dict.fromkeys(self._bases.values()):
            for folder in base.glob(f"{_PREFIX}*"):
                pid, _, rest = folder.name.removeprefix(_PREFIX).partition("-")
                if pid.isdigit() and _start_time(int(pid)) != rest.partition("-")[0]:
                    with contextlib.suppress(OSError):
                        folder.rmdir()


def _start_time(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "gone"


def _find_base(controller: str) -> Path | None:
    """The folder in which groups with this controller can be made, found by trying."""
    for base in _candidates(controller):
        trial = base / f"{_PREFIX}{os.getpid()}-trial-{controller}"
        try:
            trial.mkdir()
        except OSError:
            continue
        try:
            if any((trial / name).exists() for name in (f"{controller}.max", f"{controller}.limit_in_bytes")):
                return base
        finally:
            with contextlib.suppress(OSError):
                trial.rmdir()
    return None


def _candidates(controller: str) -> list[Path]:
    found: list[Path] = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, names, path = line.split(":", 2)
            if controller in names.split(","):
                mount = _MOUNT / names
                found += [mount / path.strip("/"), mount]
            elif number == "0" and (_MOUNT / "cgroup.controllers").exists():
                found += [_MOUNT / path.strip("/"), _MOUNT]
    return [base for base in found if os.access(base, os.W_OK)]

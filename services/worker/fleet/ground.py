"""Where single commands run: the workdir as `/workspace`, a temporary folder, and the isolation that was asked for.

What the sandbox itself needs lies in a private folder of its own outside the workdir, where no command can change it.
It goes with the worker; what a killed worker left is removed by the next one.
"""

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from services.worker.fleet.errors import OptionUnusable
from services.worker.sandbox.cgroups import ControlGroups, SessionGroup
from services.worker.sandbox.egress import NetworkPolicy
from services.worker.sandbox.folders import TEMPORARY, WORKSPACE, SessionFolders
from services.worker.sandbox.isolation import Isolation, detect
from services.worker.sandbox.launching import Launcher
from services.worker.sandbox.limits import SandboxLimits
from services.worker.tools import VisibleRoot

_PREFIX = "managed-agents-worker-"
# A folder may be so new that its owner has not locked it yet.
_LEFT_SECONDS = 60.0
# To make a control group and to remove it costs more than to look whether nobody is left in it.
_KEPT_GROUPS = 4


@dataclass(frozen=True, slots=True)
class WorkdirFolders(SessionFolders):
    """The workdir in the place of a session's workspace."""

    temporary: str = ""

    def host(self, inside: str) -> str:
        """The host's path of a path inside."""
        if inside == TEMPORARY:
            return self.temporary
        return f"{self.path}{inside.removeprefix(WORKSPACE)}"


class Ground:
    """The isolation of this machine, found once, and what commands share. Open it in a thread: it tries programs."""

    def __init__(self, workdir: Path, kind: str, allow_hosts: tuple[str, ...]) -> None:
        _remove_leftovers()
        self.private = Path(tempfile.mkdtemp(prefix=_PREFIX))
        # Free again when this process is gone, however it went.
        self._lock = os.open(self.private, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        temporary = self.private / "tmp"
        temporary.mkdir(mode=0o700)
        self.groups = ControlGroups()
        self._ended_groups: deque[SessionGroup] = deque()
        self.limits = SandboxLimits()
        self.launcher = Launcher()
        self.policy = network_policy(allow_hosts)
        self.isolation: Isolation = detect(sandbox_kind(kind), self.private, self.groups)
        roots = (VisibleRoot(WORKSPACE), VisibleRoot(TEMPORARY))
        self.folders = WorkdirFolders("workdir", workdir, roots, str(temporary))

    @property
    def confined(self) -> bool:
        """Whether commands are held back by anything."""
        return self.isolation.kind != "process"

    @property
    def proxied(self) -> bool:
        """Whether commands have a way out, through the proxy."""
        return self.isolation.proxied_network and self.policy.allows_something

    def environment(self) -> dict[str, str]:
        """What every command is told: nothing of the worker's own."""
        variables = self.isolation.environment(self.folders, proxied=self.proxied)
        for name in ("SESSION_OUTPUTS", "SESSION_UPLOADS"):
            variables.pop(name, None)
        return variables

    def new_group(self) -> SessionGroup | None:
        """The share of one command, where anything is limited at all."""
        while self._ended_groups:
            group = self._ended_groups.popleft()
            if self.groups.is_empty(group):
                return group
            self.groups.remove(group)
        return self.groups.create(self.limits) if self.confined else None

    def end_group(self, group: SessionGroup) -> None:
        """The command is over, and everything that it started."""
        self._ended_groups.append(group)
        if len(self._ended_groups) > _KEPT_GROUPS:
            self.groups.remove(self._ended_groups.popleft())

    def require_usable(self) -> None:
        """OptionUnusable where commands could not be run, or the asked network can't be given."""
        require_usable(self.isolation, self.policy)

    async def aclose(self) -> None:
        """End whatever runs, and leave nothing behind."""
        await self.launcher.aclose()
        for group in self._ended_groups:
            self.groups.remove(group)
        shutil.rmtree(self.private, ignore_errors=True)
        os.close(self._lock)


def sandbox_kind(asked: str) -> str:
    """An option's word as the sandbox knows it."""
    return "process" if asked == "none" else asked


def network_policy(allow_hosts: tuple[str, ...]) -> NetworkPolicy:
    """What `--allow-host` allows; OptionUnusable for what names no host."""
    if "*" in allow_hosts:
        return NetworkPolicy(unrestricted=True)
    if not allow_hosts:
        return NetworkPolicy()
    policy = NetworkPolicy.of({"networking": {"type": "limited", "allowed_hosts": list(allow_hosts)}})
    if len(policy.rules) != len(set(allow_hosts)):
        raise OptionUnusable(
            "--allow-host names a host: api.example.com or *.example.com, with :port or not, or * alone."
        )
    return policy


def require_usable(isolation: Isolation, policy: NetworkPolicy) -> None:
    """OptionUnusable where this machine can't give what was asked for."""
    if sys.platform != "linux":
        raise OptionUnusable("A worker needs Linux, whatever --sandbox says; on this machine run one in a container.")
    notes = " ".join(isolation.description.notes)
    if not isolation.description.usable:
        raise OptionUnusable(f"--sandbox: {notes} `--sandbox none` runs commands with the rights of this user.")
    if policy.allows_something and isolation.kind != "process" and not isolation.proxied_network:
        raise OptionUnusable(f"--allow-host: the sandbox of this machine has no network. {notes}")


def _remove_leftovers() -> None:
    """Private folders of this user whose worker is gone."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if not entry.name.startswith(_PREFIX) or not entry.is_dir(follow_symlinks=False):
                continue
            status = entry.stat(follow_symlinks=False)
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _LEFT_SECONDS:
                continue
            with contextlib.suppress(OSError):
                fd = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(entry.path, ignore_errors=True)
                finally:
                    os.close(fd)

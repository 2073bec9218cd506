"""Runs git: no user's configuration, no hooks, no prompt, no protocol but the gateway's, and an end in any case."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from services.worker.runner.workspace.git.errors import CLONE, RepositoryFailed

_PROGRAM = Path(__file__).with_name("confined.py")
_READ = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf")
_READ_MORE = (
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/hosts",
    "/etc/localtime",
    "/etc/alternatives",
)
_DEVICES = ("/dev/null", "/dev/urandom", "/dev/zero")
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.allow=never",
    "protocol.http.allow=always",
    "http.followRedirects=false",
    "advice.detachedHead=false",
    "submodule.recurse=false",
)
_CPU_SECONDS = 600
_MAX_OUTPUT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    output: str
    complaint: str


class Git:
    """git in one folder, for one gateway."""

    def __init__(self, folder: Path, port: int, *, file_bytes: int) -> None:
        """RepositoryFailed where this host has no git."""
        binary = shutil.which("git")
        if binary is None:
            raise RepositoryFailed(CLONE, "git is not installed on the host of the platform, so nothing can be cloned.")
        self._binary = os.path.realpath(binary)
        self._folder = folder
        rules = {
            "read": [*_READ, *_READ_MORE, str(Path(self._binary).parent.parent)],
            "write": [str(folder)],
            "device": list(_DEVICES),
            "port": port,
            "cpu_seconds": _CPU_SECONDS,
            "file_bytes": file_bytes,
        }
        self._line = [sys.executable, "-I", "-S", "-B", str(_PROGRAM), json.dumps(rules), self._binary]
        for setting in _SETTINGS:
            self._line += ["-c", setting]
        self._environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(folder / "home"),
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "/bin/false",
            "GIT_PROTOCOL_FROM_USER": "0",
            "GIT_LFS_SKIP_SMUDGE": "1",
        }

    async def run(self, *arguments: str, within: Path | None = None) -> Ended:
        """Run a command to its end; a cancelled one is killed with all that it started."""
        process = await asyncio.create_subprocess_exec(
            *self._line,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=within or self._folder,
            env=self._environment,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None and process.stderr is not None
            output, complaint = await asyncio.gather(_read(process.stdout), _read(process.stderr))
            code = await process.wait()
        finally:
            # Also what it left behind: nothing of it may write when the folder is moved.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if process.returncode is None:
                await process.wait()
        return Ended(code, output, complaint)


async def _read(stream: asyncio.StreamReader) -> str:
    """All of an output, of which only the beginning is kept."""
    kept = bytearray()
    while chunk := await stream.read(65_536):
        if len(kept) < _MAX_OUTPUT_BYTES:
            kept += chunk
    return kept.decode("utf-8", "replace")

"""One command of an `exec` item: its own process, its own group, nothing left of it when it is over.

The script goes to the shell through a pipe, so neither the command nor what it is told as variables is in a list of
processes. The shell tells the end on its own descriptor, behind a random word, so no output passes for it by chance;
a command that forges it cheats itself alone. Whatever a command started ends with it, at the latest when its time is
up, and in a sandbox some hundredths of a second after its result, for which somebody waits; the launcher ends
everything when the worker goes, by whatever means. Output beyond what an answer may hold goes to a file in the workdir.
"""

import asyncio
import contextlib
import os
import re
import secrets
import signal
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from services.worker.fleet.confine import Confined
from services.worker.fleet.ground import Ground
from services.worker.fleet.tool.output import MarkedStream, OutputStream, Spill
from services.worker.sandbox.cgroups import SessionGroup
from services.worker.sandbox.isolation import PROXY_PORT
from services.worker.sandbox.launching import LaunchedShell, LaunchRequest
from services.worker.sandbox.proxy import EgressProxy
from services.worker.tools import ShellUnavailable
from services.worker.tools.shell import STATUS_FD

TIMED_OUT_CODE = 124
SPILLS = ".managed-agents/outputs"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PAUSE_SECONDS = 0.002
# A result is told before anything is tidied up, since somebody waits for it; but its telling may take long.
_LATEST_TIDY_SECONDS = 0.03
# And who has heard it goes on first: what comes up and what is taken down would be in its way.
_GO_ON_SECONDS = 0.02
# The kernel has a new sandbox wait for housekeeping of its own, together about as long as a turn takes whose model is
# quick: only one in advance would come too late.
_SPARES = 2
# A command that is ended may tidy up for so long.
_TERM_SECONDS = 2.0
_DRAIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Command:
    """What is to be run; `inside` is the folder below the workdir, `` or `/a/b`."""

    text: str
    inside: str
    variables: Mapping[str, str]
    timeout_seconds: float
    # Names the files of output that is too long.
    name: str


@dataclass(slots=True)
class _Prepared:
    """A shell that waits for its script, with what was made for it."""

    shell: LaunchedShell
    group: SessionGroup | None
    proxy: EgressProxy | None


class Commands:
    """Runs commands on a ground. Shells are started in advance, so that a command need not wait for one."""

    def __init__(self, ground: Ground, files: Confined, passed: Mapping[str, str]) -> None:
        self._ground = ground
        self._files = files
        self._passed = dict(passed)
        self._spares: deque[asyncio.Task[_Prepared]] = deque()
        self._ending: set[asyncio.Task[None]] = set()
        # Set for commands whose result somebody has heard, by the commands' names.
        self._told: dict[str, asyncio.Event] = {}
        self._closed = False

    async def run(self, command: Command) -> dict[str, Any]:
        """Run one to its end, or until this is cancelled: then everything of it is gone. Raises ShellUnavailable."""
        prepared = await self._take()
        try:
            return await self._watched(prepared.shell, command)
        finally:
            # What was its own is given back while others go on.
            task = asyncio.create_task(self._tidy(command.name, prepared), name=f"end of {command.name}")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def told(self, name: str) -> None:
        """Somebody has heard the result of this command: now there is time to tidy up after it."""
        if (event := self._told.get(name)) is not None:
            event.set()

    def prepare(self) -> None:
        """Start the next shells, unless they are there."""
        while len(self._spares) < _SPARES and not self._closed:
            self._spares.append(asyncio.create_task(self._start(), name="next shell"))

    async def aclose(self) -> None:
        """End what is left."""
        self._closed = True
        while self._spares:
            with contextlib.suppress(ShellUnavailable, OSError):
                await self._release(await self._spares.popleft())
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _tidy(self, name: str, prepared: _Prepared) -> None:
        told = self._told[name] = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LATEST_TIDY_SECONDS):
                await told.wait()
        del self._told[name]
        await asyncio.sleep(_GO_ON_SECONDS)
        self.prepare()
        await self._release(prepared)

    async def _take(self) -> _Prepared:
        while self._spares:
            spare = self._spares.popleft()
            try:
                prepared = await spare
            except (ShellUnavailable, OSError):
                # Whatever was wrong then may be right now, and is told if it isn't.
                continue
            except asyncio.CancelledError:
                # It may have come up at this very moment: then nobody else would end it.
                if spare.done() and not spare.cancelled() and spare.exception() is None:
                    await self._release(spare.result())
                raise
            if not prepared.shell.ended:
                return prepared
            await self._release(prepared)
        return await self._start()

    async def _start(self) -> _Prepared:
        ground = self._ground
        group = ground.new_group()
        shell: LaunchedShell | None = None
        try:
            shell = await self._spawn(group.joins if group else [])
            if shell.listener is None:
                return _Prepared(shell, group, None)
            proxy = EgressProxy(ground.policy)
            await proxy.serve(shell.listener)
            return _Prepared(shell, group, proxy)
        except BaseException:
            if shell is not None:
                await _end(shell)
            if group is not None:
                ground.end_group(group)
            raise

    async def _release(self, prepared: _Prepared) -> None:
        await _end(prepared.shell)
        if prepared.proxy is not None:
            await prepared.proxy.close()
        if prepared.group is not None:
            self._ground.end_group(prepared.group)

    async def _spawn(self, joins: list[str]) -> LaunchedShell:
        ground = self._ground
        isolation = ground.isolation
        variables = {**ground.environment(), **self._passed}
        tag = ""
        if not isolation.own_view:
            variables["SANDBOX_ID"] = os.urandom(16).hex()
            tag = f"SANDBOX_ID={variables['SANDBOX_ID']}"
        return await ground.launcher.spawn(
            LaunchRequest(
                argv=isolation.command(ground.folders, ground.limits, own_network=ground.proxied),
                env=variables,
                cwd="/" if isolation.own_view else str(ground.folders.path),
                cgroups=joins,
                network_port=PROXY_PORT if ground.proxied else 0,
                landlock=isolation.landlock_rules(ground.folders),
                tag=tag,
            )
        )

    async def _watched(self, shell: LaunchedShell, command: Command) -> dict[str, Any]:
        marker = secrets.token_hex(16)
        stdout = OutputStream(shell.output_fd, self._spill(f"{command.name}-stdout.txt"))
        stderr = MarkedStream(shell.status_fd, self._spill(f"{command.name}-stderr.txt"), marker.encode())
        exited = asyncio.ensure_future(shell.exited())
        code: int | None = None
        timed_out = False
        limit = asyncio.timeout(command.timeout_seconds)
        try:
            async with limit:
                await _send(shell.control_fd, self._script(command, marker))
                await asyncio.wait((exited, stderr.end), return_when=asyncio.FIRST_COMPLETED)
            # The shell tells the end itself, and before anything of the sandbox is taken down: nobody waits for that.
            code = stderr.end.result() if stderr.end.done() else await shell.wait()
        except TimeoutError:
            if not limit.expired():
                raise
            timed_out, code = True, TIMED_OUT_CODE
            await _ask_to_end(shell)
        except asyncio.CancelledError:
            await _ask_to_end(shell)
            raise
        finally:
            exited.cancel()
            if stderr.end.done():
                stdout.take_remaining()
            if not stderr.end.done() or not self._ground.isolation.own_view:
                # To take a sandbox down takes longer than to tell the result, and what is left in one is in nobody's
                # way for that moment; without one it is.
                shell.kill()
            for stream in (stdout, stderr):
                await stream.close(wait=not stderr.end.done())
        return {
            "stdout": stdout.text(),
            "stderr": stderr.text(),
            "exitCode": -1 if code is None else code,
            "timedOut": timed_out,
        }

    def _script(self, command: Command, marker: str) -> bytes:
        ground = self._ground
        where = ground.isolation.inside(ground.folders, "/workspace") + command.inside
        lines = _limits(ground) if ground.confined else []
        lines += [f"export {name}={_quoted(value)}" for name, value in command.variables.items()]
        lines += [
            # Standard error has a pipe of its own, and the command has neither that nor the script to read from.
            f"exec 2>&{STATUS_FD}",
            f"cd -- {_quoted(where)} || exit 126",
            # In a shell of its own, whose end is an end: traps are run, and nothing is left to change what follows.
            f"(eval {_quoted(command.text)}) </dev/null {STATUS_FD}>&-",
            f"builtin printf '\\0%s %d\\0' {marker} $? >&{STATUS_FD}",
            # And no `exit`: it waits for more until it is taken down.
            "",
        ]
        return "\n".join(lines).encode("utf-8", "surrogateescape")

    def _spill(self, name: str) -> Spill:
        def opened() -> tuple[BinaryIO, str] | None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                with self._files.folder(SPILLS, make=True) as folder:
                    fd = os.open(name, flags, 0o600, dir_fd=folder)
            except Exception:
                # It is a help, not the result; the text says that there is no file.
                return None
            return open(fd, "wb", buffering=1 << 16), f"{SPILLS}/{name}"

        return opened


def valid_name(name: str) -> bool:
    """Whether a shell takes this for the name of a variable."""
    return _NAME.fullmatch(name) is not None


async def _send(fd: int, script: bytes) -> None:
    view = memoryview(script)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            await asyncio.sleep(_PAUSE_SECONDS)
        except OSError:
            # Nobody reads any more: its end tells the rest.
            return


async def _ask_to_end(shell: LaunchedShell) -> None:
    """A moment to tidy up for whatever runs in the command's own group; where there is a namespace, none is needed."""
    if shell.ended:
        return
    # It leads its own session, or is the sandbox itself, which takes everything inside with it.
    with contextlib.suppress(OSError):
        if os.getpgid(shell.pid) == shell.pid:
            os.killpg(shell.pid, signal.SIGTERM)
            async with asyncio.timeout(_TERM_SECONDS):
                await shell.exited()


async def _end(shell: LaunchedShell) -> None:
    """Kill what is left and give the pipes back."""
    shell.kill()
    waiting = asyncio.ensure_future(shell.wait())
    try:
        await asyncio.wait((waiting,), timeout=_DRAIN_SECONDS)
    finally:
        waiting.cancel()
        for fd in (shell.control_fd, shell.output_fd, shell.status_fd):
            with contextlib.suppress(OSError):
                os.close(fd)


def _limits(ground: Ground) -> list[str]:
    limits = ground.limits
    settings = [("c", 0), ("n", limits.open_files), ("v", limits.address_space_bytes // 1024)]
    if ground.isolation.own_view:
        settings.append(("u", limits.processes))
    return [f"ulimit -{letter} {value} 2>/dev/null" for letter, value in settings]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"

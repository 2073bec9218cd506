"""Programs that a sandbox holds beside its shell: spoken to over pipes, until they are closed.

A program is isolated as the shell is, with the same folders, limits and network, and apart from it: neither sees the
other's processes or environment, as far as the kind of isolation has a view of its own. All of a session's programs
and its shell share one group of limits. What a program writes to standard error is kept only as far as it may say why
it ended.
"""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from services.worker.sandbox.cgroups import SessionGroup
from services.worker.sandbox.egress import NetworkPolicy
from services.worker.sandbox.folders import WORKSPACE, SessionFolders
from services.worker.sandbox.isolation import PROXY_PORT, Isolation
from services.worker.sandbox.launching import LaunchedShell, LaunchRequest
from services.worker.sandbox.placeholders import SandboxSecrets
from services.worker.sandbox.variables import ShellVariables, forget_trust, shell_variables
from services.worker.tools import ShellUnavailable

if TYPE_CHECKING:
    from services.worker.sandbox.local import LocalProvider
    from services.worker.sandbox.proxy import EgressProxy

_LAST_WORDS_BYTES = 4096
_EXIT_SECONDS = 5.0
# Standard error of the program is the status pipe of a shell, of which it inherits nothing else.
_SCRIPT = '{prelude}exec 2>&9 9>&-\nexec "$@"\n'


class SandboxProgram:
    """A running program. `stdin` and `stdout` are its pipes."""

    def __init__(
        self,
        shell: LaunchedShell,
        proxy: "EgressProxy | None",
        secrets: SandboxSecrets | None = None,
        variables: ShellVariables | None = None,
    ) -> None:
        self._shell = shell
        self._proxy = proxy
        self._secrets = secrets
        self._variables = variables
        self._errors: deque[bytes] = deque()
        self._errors_task: asyncio.Task[None] | None = None
        self._pipes: list[asyncio.BaseTransport] = []
        self._closed = False
        self.on_close: Callable[[SandboxProgram], None] = _nothing

    async def attach(self, line_bytes: int) -> "SandboxProgram":
        """Take the pipes over."""
        loop = asyncio.get_running_loop()
        self.stdout = await self._reader(self._shell.output_fd, line_bytes)
        errors = await self._reader(self._shell.status_fd, 1 << 16)
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(self._shell.control_fd, "wb", buffering=0)
        )
        self._pipes.append(transport)
        self.stdin = asyncio.StreamWriter(transport, protocol, None, loop)
        self._errors_task = asyncio.create_task(self._listen(errors), name="standard error of a program")
        return self

    def last_words(self) -> str:
        """The end of what it wrote to standard error, without secrets."""
        words = b"".join(self._errors)[-_LAST_WORDS_BYTES:].decode("utf-8", "replace")
        return self._secrets.scrubber.text(words) if self._secrets is not None else words

    async def close(self, grace_seconds: float) -> None:
        """Close its standard input, and end it and all that it started if it does not end by itself in time."""
        if self._closed:
            return
        self._closed = True
        self.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self._shell.exited()
        # Also where the first process has ended: what it left behind goes too.
        self._shell.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_SECONDS):
                await self._shell.exited()
        for pipe in self._pipes:
            pipe.close()
        if self._errors_task is not None:
            self._errors_task.cancel()
            await asyncio.gather(self._errors_task, return_exceptions=True)
        if self._proxy is not None:
            await self._proxy.close()
        forget_trust(self._variables)
        self.on_close(self)

    async def _reader(self, fd: int, limit: int) -> asyncio.StreamReader:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=limit, loop=loop)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader, loop=loop), os.fdopen(fd, "rb", buffering=0)
        )
        self._pipes.append(transport)
        return reader

    async def _listen(self, errors: asyncio.StreamReader) -> None:
        kept = 0
        while piece := await errors.read(_LAST_WORDS_BYTES):
            self._errors.append(piece)
            kept += len(piece)
            while kept - len(self._errors[0]) >= _LAST_WORDS_BYTES:
                kept -= len(self._errors.popleft())


async def start_program(
    provider: "LocalProvider",
    folders: SessionFolders,
    policy: NetworkPolicy,
    group: SessionGroup,
    prelude: Callable[[Isolation], bytes],
    argv: Sequence[str],
    env: Mapping[str, str],
    line_bytes: int,
    secrets: SandboxSecrets | None = None,
) -> SandboxProgram:
    """Start a program, which is told of `secrets` what a shell is told.

    Raises ShellUnavailable with the reason; one that isn't there ends with that as last words.
    """
    isolation = await asyncio.to_thread(lambda: provider.isolation)
    if not isolation.description.usable:
        raise ShellUnavailable(" ".join(isolation.description.notes))
    proxied = isolation.proxied_network and policy.allows_something
    variables = ShellVariables()
    if secrets is not None:
        variables = await shell_variables(secrets, isolation, policy, folders, proxied=proxied)
    own = isolation.environment(folders, proxied=proxied)
    credentials = {name: value for name, value in variables.environment.items() if name not in own}
    environment = {**own, **env, **credentials}
    tag = "" if isolation.own_view else os.urandom(16).hex()
    if tag:
        environment["SANDBOX_ID"] = tag
    script = _SCRIPT.format(prelude=prelude(isolation).decode())
    program = ("--noprofile", "--norc", "-c", script, "program", *argv)
    command = isolation.command(folders, provider.limits, own_network=proxied, program=program, binds=variables.binds)
    try:
        shell = await provider.launcher.spawn(
            LaunchRequest(
                argv=command,
                env=environment,
                cwd="/" if isolation.own_view else folders.host(WORKSPACE),
                cgroups=group.joins,
                network_port=PROXY_PORT if proxied else 0,
                landlock=isolation.landlock_rules(folders),
                tag=f"SANDBOX_ID={tag}" if tag else "",
            )
        )
    except BaseException:
        forget_trust(variables)
        raise
    proxy = None
    if shell.listener is not None:
        proxy = provider.proxy(policy, secrets)
        await proxy.serve(shell.listener)
    return await SandboxProgram(shell, proxy, secrets, variables).attach(line_bytes)


def _nothing(_: SandboxProgram) -> None:
    return None

"""The `local` provider: sessions on the runner's own machine.

Files live in the session's folder; file tools work on it directly, below a root
that no path or link leaves. Commands run in a shell that the launcher starts
under the isolation of this host, with limits and, where the environment allows
any network, behind the egress proxy.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from kit.addresses import NO_PRIVATE_HOSTS, PrivateHosts
from services.worker.sandbox.cgroups import ControlGroups, SessionGroup
from services.worker.sandbox.egress import NetworkPolicy
from services.worker.sandbox.folders import TOOL_OUTPUTS, WORKSPACE, DiskMeter, FolderStore
from services.worker.sandbox.held import below, file_devices, held_by, tagged_children
from services.worker.sandbox.isolation import PROXY_PORT, Isolation, detect
from services.worker.sandbox.launching import LaunchedShell, Launcher, LaunchRequest
from services.worker.sandbox.limits import SandboxLimits
from services.worker.sandbox.placeholders import SandboxSecrets, SecretsOf, no_secrets
from services.worker.sandbox.programs import SandboxProgram, start_program
from services.worker.sandbox.provider import SandboxDescription
from services.worker.sandbox.proxy import Connect, EgressProxy, Resolve, resolve_host
from services.worker.sandbox.variables import ShellVariables, forget_trust, shell_variables
from services.worker.tools import (
    FileView,
    PersistentShell,
    ShellUnavailable,
    Toolbox,
    ToolOutcome,
    VisibleRoot,
    spill_opener,
)
from services.worker.tools.overflow import OpenSpill

log = logging.getLogger(__name__)

# Tools after which the session's folder may be larger than before.
_GROWING = frozenset({"bash", "write", "edit"})
# How often the folder of a shell is looked at between tools, for what goes on in the background.
_GUARD_SECONDS = 2.0
# More than these are looked at in a thread.
_INLINE_PROCESSES = 8
# Open files that are sent from one process to another can't be measured on their way, which is short where it is one.
_IN_FLIGHT_SECONDS = 10.0


class LocalProvider:
    """Makes local sandboxes below one root folder."""

    def __init__(
        self,
        root: Path,
        *,
        limits: SandboxLimits,
        kind: str = "auto",
        package_hosts: Sequence[str] = (),
        resolve: Resolve = resolve_host,
        connect: Connect = asyncio.open_connection,
        private_hosts: PrivateHosts = NO_PRIVATE_HOSTS,
        secrets_of: SecretsOf = no_secrets,
    ) -> None:
        self.limits = limits
        self.secrets_of = secrets_of
        self.store = FolderStore(root)
        self.launcher = Launcher()
        self.package_hosts = tuple(package_hosts)
        self._kind = kind
        self._resolve = resolve
        self._connect = connect
        self._private_hosts = private_hosts

    @cached_property
    def groups(self) -> ControlGroups:
        """The control groups of this runner; removes what a killed one left."""
        return ControlGroups()

    @cached_property
    def isolation(self) -> Isolation:
        """What holds on this host, found once."""
        return detect(self._kind, self.store.root, self.groups)

    @cached_property
    def devices(self) -> frozenset[int]:
        """Device numbers of files below the root."""
        return file_devices(self.store.root)

    def describe(self) -> SandboxDescription:
        """Say what isolates here."""
        return self.isolation.description

    def open(
        self, session_id: str, environment: Mapping[str, Any], roots: Sequence[VisibleRoot] = ()
    ) -> "LocalSandbox":
        """Return the session's sandbox with its folders made."""
        return LocalSandbox(self, session_id, NetworkPolicy.of(environment, self.package_hosts), roots)

    def folder(self, session_id: str, roots: Sequence[VisibleRoot] = ()) -> Path:
        """The session's folder on this host, made if need be."""
        return self.store.open(session_id, roots).path

    def proxy(self, policy: NetworkPolicy, secrets: SandboxSecrets | None = None) -> EgressProxy:
        """Make a proxy for one shell; with `secrets` it looks into requests."""
        return EgressProxy(
            policy,
            resolve=self._resolve,
            connect=self._connect,
            private_hosts=self._private_hosts,
            secrets=secrets,
        )

    async def remove(self, session_id: str) -> None:
        """Delete the session's folders."""
        await self.store.remove(session_id)

    async def aclose(self) -> None:
        """End the launcher, and with it whatever still runs."""
        await self.launcher.aclose()


class LocalSandbox:
    """One session: its folder, its shell, its share of the host."""

    def __init__(
        self, provider: LocalProvider, session_id: str, policy: NetworkPolicy, roots: Sequence[VisibleRoot] = ()
    ) -> None:
        self._provider = provider
        self._policy = policy
        self._secrets = provider.secrets_of(session_id)
        self._variables: ShellVariables | None = None
        self._folders = provider.store.open(session_id, roots)
        self._files = FileView(self._folders.path, cwd=WORKSPACE, roots=self._folders.roots)
        self._spills = os.open(self._folders.host(TOOL_OUTPUTS), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._shell = PersistentShell(self._start_shell, cwd=WORKSPACE)
        self._meter = DiskMeter(str(self._folders.path), self._held_bytes)
        self._process: LaunchedShell | None = None
        self._tag = ""
        self._opaque = False
        self._in_flight_since: float | None = None
        self._group: SessionGroup | None = None
        self._proxy: EgressProxy | None = None
        self._guard: asyncio.Task[None] | None = None
        self._programs: set[SandboxProgram] = set()
        self._running = 0
        self._closed = False
        self._toolbox = Toolbox(
            files=self._files,
            shell=self._shell,
            new_spill=self._new_spill,
            watch=self._watch_disk,
            refuse_writes=self._refuse_writes,
            scrub=self._secrets.scrubber if self._secrets is not None else None,
        )

    async def run_tool(self, name: str, value: object) -> ToolOutcome:
        """Run a tool and add what the model must know about its disk."""
        self._running += 1
        try:
            outcome = await self._toolbox.run(name, value)
        finally:
            self._running -= 1
        if name in _GROWING:
            # Who is over the limit is to see at once that deleting has helped.
            await self._meter.measure(now=self._over_limit() is not None)
            if note := self._over_limit():
                return replace(outcome, text=f"{outcome.text}\n[{note}]")
        return outcome

    async def start_program(self, argv: Sequence[str], env: Mapping[str, str], line_bytes: int) -> SandboxProgram:
        """Start a program beside the shell; it ends with the sandbox at the latest."""
        limits = self._provider.limits
        if self._group is None:
            self._group = self._provider.groups.create(limits)

        def prelude(isolation: Isolation) -> bytes:
            cwd = isolation.inside(self._folders, WORKSPACE)
            return _prelude(limits, cwd, own_processes=isolation.own_view)

        program = await start_program(
            self._provider, self._folders, self._policy, self._group, prelude, argv, env, line_bytes, self._secrets
        )
        self._programs.add(program)
        program.on_close = self._programs.discard
        self._start_guard()
        return program

    def limit_output(self, text: str, *, is_error: bool = False) -> ToolOutcome:
        """Apply the overflow contract."""
        return self._toolbox.limit(text, is_error=is_error)

    def interrupt(self) -> bool:
        """End the shell and all in it."""
        return self._shell.interrupt()

    async def close(self) -> None:
        """End the shell, stop the proxy, give the host's resources back."""
        if self._closed:
            return
        self._closed = True
        if self._guard is not None:
            self._guard.cancel()
            await asyncio.gather(self._guard, return_exceptions=True)
        await asyncio.gather(*(program.close(0) for program in list(self._programs)))
        await self._shell.close()
        await self._stop_proxy()
        forget_trust(self._variables)
        if self._group is not None:
            self._provider.groups.remove(self._group)
            self._group = None
        self._files.close()
        os.close(self._spills)

    async def _start_shell(self, cwd: str) -> LaunchedShell:
        provider = self._provider
        # The first look at the host runs programs and takes its time.
        isolation = await asyncio.to_thread(lambda: provider.isolation)
        if not isolation.description.usable:
            raise ShellUnavailable(" ".join(isolation.description.notes))
        await self._stop_proxy()
        proxied = isolation.proxied_network and self._policy.allows_something
        if self._group is None:
            self._group = provider.groups.create(provider.limits)
        tag = "" if isolation.own_view else f"SANDBOX_ID={os.urandom(16).hex()}"
        variables = await self._shell_variables(isolation, proxied=proxied)
        environment = {**variables.environment, **isolation.environment(self._folders, proxied=proxied)}
        if tag:
            environment["SANDBOX_ID"] = tag.partition("=")[2]
        shell = await provider.launcher.spawn(
            LaunchRequest(
                argv=isolation.command(self._folders, provider.limits, own_network=proxied, binds=variables.binds),
                env=environment,
                cwd="/" if isolation.own_view else self._folders.host(WORKSPACE),
                cgroups=self._group.joins,
                network_port=PROXY_PORT if proxied else 0,
                landlock=isolation.landlock_rules(self._folders),
                tag=tag,
            )
        )
        self._process, self._tag = shell, tag
        if shell.listener is not None:
            self._proxy = provider.proxy(self._policy, self._secrets)
            await self._proxy.serve(shell.listener)
        if cwd == WORKSPACE:
            cwd = isolation.inside(self._folders, WORKSPACE)
        os.write(shell.control_fd, _prelude(provider.limits, cwd, own_processes=isolation.own_view))
        self._start_guard()
        return shell

    def _start_guard(self) -> None:
        if self._guard is None:
            self._guard = asyncio.create_task(self._guard_disk(), name=f"disk of {self._folders.session_id}")

    async def _shell_variables(self, isolation: Isolation, *, proxied: bool) -> ShellVariables:
        """What the next shell is told of the session's credentials; that of the former one is gone."""
        if self._secrets is None:
            return ShellVariables()
        forget_trust(self._variables)
        self._variables = await shell_variables(self._secrets, isolation, self._policy, self._folders, proxied=proxied)
        return self._variables

    async def _guard_disk(self) -> None:
        """End what fills the disk in the background, while no tool is there to watch it."""
        while True:
            await asyncio.sleep(_GUARD_SECONDS)
            if self._running or not (self._shell.running or self._programs):
                continue
            await self._meter.measure()
            if not self._running and self._over_limit():
                log.warning("what filled the disk of %s in the background was ended", self._folders.session_id)
                self._shell.interrupt()
                await asyncio.gather(*(program.close(0) for program in list(self._programs)))

    async def _stop_proxy(self) -> None:
        if self._proxy is not None:
            await self._proxy.close()
            self._proxy = None

    def _new_spill(self, identity: str) -> OpenSpill:
        return spill_opener(self._spills, TOOL_OUTPUTS, f"{self._folders.session_id}-{identity}.txt")

    async def _watch_disk(self) -> str | None:
        await self._meter.measure()
        return self._over_limit()

    async def _held_bytes(self) -> int:
        """What deleted files take that the session's processes still use."""
        self._opaque = False
        if self._process is None or self._process.ended:
            self._in_flight_since = None
            return 0
        pids = below(self._process.pid)
        if self._tag:
            pids |= tagged_children(self._provider.launcher.pid, self._tag)
        if len(pids) > _INLINE_PROCESSES:
            held = await asyncio.to_thread(held_by, pids, self._provider.devices)
        else:
            held = held_by(pids, self._provider.devices)
        now = time.monotonic()
        self._in_flight_since = (self._in_flight_since or now) if held.in_flight else None
        stuck = self._in_flight_since is not None and now - self._in_flight_since > _IN_FLIGHT_SECONDS
        self._opaque = held.opaque or stuck
        return held.used_bytes

    def _refuse_writes(self) -> str | None:
        return self._over_limit()

    def _over_limit(self) -> str | None:
        limit, used = self._provider.limits.disk_bytes, self._meter.used_bytes
        if self._meter.hidden:
            return "the session has folders that cannot be measured, nested too deep or locked; delete or unlock them"
        if self._opaque:
            return "a process of the session hides its open files, so their size cannot be measured; end it"
        if used <= limit:
            return None
        return f"the session's files take {used} bytes of disk, more than the {limit} allowed; delete some"


def _prelude(limits: SandboxLimits, cwd: str, *, own_processes: bool) -> bytes:
    """The first lines of the shell's script: limits that every child inherits, and the folder."""
    settings = [
        ("c", 0),
        ("f", limits.file_bytes // 1024),
        ("n", limits.open_files),
        ("t", limits.cpu_seconds),
        ("v", limits.address_space_bytes // 1024),
    ]
    if own_processes:
        # Counted within the sandbox; outside one it would count all of the user's processes.
        settings.append(("u", limits.processes))
    lines = [f"ulimit -{letter} {value} 2>/dev/null" for letter, value in settings]
    quoted = cwd.replace("'", "'\\''")
    lines.append(f"cd -- '{quoted}' 2>/dev/null")
    with contextlib.suppress(UnicodeEncodeError):
        return ("\n".join(lines) + "\n").encode()
    return ("\n".join(lines[:-1]) + "\n").encode()

"""The sandboxes of a runner, by session.

Owns which sandboxes are open: opened when a session first needs one, kept warm
between turns, and closed after some idle minutes, or earlier when there are too
many (the longest unused one first). Files outlive the sandbox; only `remove`
deletes them.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.addresses import NO_PRIVATE_HOSTS, PrivateHosts
from services.worker.sandbox.limits import SandboxLimits
from services.worker.sandbox.local import LocalProvider
from services.worker.sandbox.placeholders import SecretsOf, no_secrets
from services.worker.sandbox.programs import SandboxProgram
from services.worker.sandbox.provider import (
    Sandbox,
    SandboxDescription,
    SandboxProvider,
    SandboxProviderNotRegistered,
)
from services.worker.tools import ShellUnavailable, ToolOutcome, VisibleRoot, limit_text

log = logging.getLogger(__name__)

_SWEEP_SECONDS = 15.0


@dataclass(slots=True)
class _Warm:
    sandbox: Sandbox
    # The session whose files it works in.
    session_id: str
    roots: tuple[VisibleRoot, ...] = ()
    busy: int = 0
    used_at: float = 0.0


class SandboxManager:
    """Hands out sandboxes. Use it inside a running event loop; `aclose` it.

    `package_hosts` are the hosts that an environment's leave for package managers stands for; `private_hosts` are
    those of the operator's own network that an environment may name; `secrets_of` tells a session's secrets.
    """

    def __init__(
        self,
        root: Path,
        *,
        limits: SandboxLimits | None = None,
        kind: str = "auto",
        idle_seconds: float = 300.0,
        max_warm: int = 64,
        package_hosts: Sequence[str] = (),
        private_hosts: PrivateHosts = NO_PRIVATE_HOSTS,
        secrets_of: SecretsOf = no_secrets,
        providers: Mapping[str, SandboxProvider] | None = None,
    ) -> None:
        if providers is None:
            local = LocalProvider(
                root,
                limits=limits or SandboxLimits(),
                kind=kind,
                package_hosts=package_hosts,
                private_hosts=private_hosts,
                secrets_of=secrets_of,
            )
            providers = {"local": local}
        self._providers = dict(providers)
        self._idle_seconds = idle_seconds
        self._max_warm = max_warm
        self._warm: OrderedDict[str, _Warm] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def providers(self) -> tuple[str, ...]:
        """Names that an environment may ask for."""
        return tuple(self._providers)

    def describe(self) -> SandboxDescription:
        """What isolates local sessions on this host."""
        return self._providers["local"].describe()

    def session(
        self,
        session_id: str,
        environment: Mapping[str, Any],
        thread_id: str = "",
        roots: Sequence[VisibleRoot] = (),
    ) -> "SessionSandbox":
        """Return the session's sandbox; nothing is started before a tool needs it.

        With `thread_id` it is that thread's: a shell of its own in the session's files.
        `roots` are folders that it has beside the usual ones.
        Raises SandboxProviderNotRegistered for an environment of another build.
        """
        provider = self._provider(environment)
        key = thread_id or session_id
        warm = self._warm.get(key)
        if warm is not None and warm.roots != tuple(roots) and not warm.busy:
            # What it shows was settled when it was opened.
            self._close_soon(key)
        return SessionSandbox(
            self, key, session_id, tuple(roots), lambda: provider.open(session_id, environment, roots)
        )

    def folder(self, session_id: str, environment: Mapping[str, Any], roots: Sequence[VisibleRoot] = ()) -> Path:
        """The session's folder as this host sees it, with its roots made."""
        return self._provider(environment).folder(session_id, roots)

    def _provider(self, environment: Mapping[str, Any]) -> SandboxProvider:
        name = environment.get("sandbox_provider") or environment.get("hosting_type") or "local"
        provider = self._providers.get(name)
        if provider is None:
            raise SandboxProviderNotRegistered(str(name))
        return provider

    async def close(self, session_id: str) -> None:
        """Close the session's sandbox and those of its threads, as far as they are open here; the files stay."""
        for key in [key for key, warm in self._warm.items() if session_id in (key, warm.session_id)]:
            await self._close(key)

    async def remove(self, session_id: str) -> None:
        """Close the session's sandbox, also those of its threads, and delete its files."""
        await self.close(session_id)
        for provider in self._providers.values():
            await provider.remove(session_id)

    async def aclose(self) -> None:
        """Close every sandbox."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
            self._sweeper = None
        await asyncio.gather(*(self._close(key) for key in list(self._warm)))
        await asyncio.gather(*self._closing, return_exceptions=True)
        for provider in self._providers.values():
            await provider.aclose()

    def _acquire(
        self, key: str, session_id: str, roots: tuple[VisibleRoot, ...], open_sandbox: Callable[[], Sandbox]
    ) -> _Warm:
        warm = self._warm.get(key)
        if warm is None:
            warm = self._warm[key] = _Warm(open_sandbox(), session_id, roots)
            self._evict()
        self._warm.move_to_end(key)
        warm.busy += 1
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name="sandbox sweeper")
        return warm

    def _release(self, warm: _Warm) -> None:
        warm.busy -= 1
        warm.used_at = asyncio.get_running_loop().time()

    def _evict(self) -> None:
        """Close the longest unused sandboxes beyond the allowed number."""
        surplus = len(self._warm) - self._max_warm
        for session_id in [each for each, warm in self._warm.items() if not warm.busy][: max(surplus, 0)]:
            # The newest entry is the one being opened.
            if session_id != next(reversed(self._warm)):
                self._close_soon(session_id)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, self._idle_seconds))
            limit = asyncio.get_running_loop().time() - self._idle_seconds
            for session_id, warm in list(self._warm.items()):
                if not warm.busy and warm.used_at < limit:
                    self._close_soon(session_id)

    def _close_soon(self, session_id: str) -> None:
        warm = self._warm.pop(session_id)
        task = asyncio.create_task(warm.sandbox.close(), name=f"close sandbox {session_id}")
        self._closing.add(task)
        task.add_done_callback(self._closed)

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("closing a sandbox failed", exc_info=task.exception())

    async def _close(self, key: str) -> None:
        warm = self._warm.pop(key, None)
        if warm is not None:
            await warm.sandbox.close()


class SessionSandbox:
    """A session's or thread's handle: opens the sandbox when needed, and again after it was reaped."""

    def __init__(
        self,
        manager: SandboxManager,
        key: str,
        session_id: str,
        roots: tuple[VisibleRoot, ...],
        open_sandbox: Callable[[], Sandbox],
    ) -> None:
        self._manager = manager
        self._key = key
        self._session_id = session_id
        self._roots = roots
        self._open = open_sandbox

    async def run_tool(self, name: str, value: object) -> ToolOutcome:
        """Run a tool; failures of any kind come back as an outcome."""
        try:
            warm = self._acquire()
        except OSError as error:
            log.exception("the sandbox of %s cannot be opened", self._session_id)
            return ToolOutcome(f"The session's sandbox cannot be opened: {error.strerror}.", is_error=True)
        try:
            return await warm.sandbox.run_tool(name, value)
        finally:
            self._manager._release(warm)

    def limit_output(self, text: str, *, is_error: bool = False) -> ToolOutcome:
        """Apply the overflow contract to output that was made elsewhere; never fails, whatever the sandbox does."""
        try:
            warm = self._acquire()
        except OSError:
            log.exception("the sandbox of %s cannot be opened", self._session_id)
            return limit_text(text, None, is_error=is_error)
        try:
            return warm.sandbox.limit_output(text, is_error=is_error)
        finally:
            self._manager._release(warm)

    async def start_program(self, argv: Sequence[str], env: Mapping[str, str], line_bytes: int) -> SandboxProgram:
        """Start a program beside the shell; the sandbox stays open for as long as it lives.

        Raises ShellUnavailable with the reason, also where the kind of sandbox can't hold programs.
        """
        warm = self._acquire()
        try:
            start = getattr(warm.sandbox, "start_program", None)
            if start is None:
                raise ShellUnavailable("this kind of sandbox holds no programs")
            program: SandboxProgram = await start(argv, env, line_bytes)
        except BaseException:
            self._manager._release(warm)
            raise
        ended = program.on_close

        def release(closed: SandboxProgram) -> None:
            ended(closed)
            self._manager._release(warm)

        program.on_close = release
        return program

    def interrupt(self) -> bool:
        """End everything that runs in the session's shell."""
        warm = self._manager._warm.get(self._key)
        return warm.sandbox.interrupt() if warm else False

    def _acquire(self) -> _Warm:
        return self._manager._acquire(self._key, self._session_id, self._roots, self._open)

    async def close(self) -> None:
        """End the session's shell and release it; files stay."""
        await self._manager._close(self._key)

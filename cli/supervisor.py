"""Runs the whole platform as children of one process.

Promises: nothing is left running after `stop`; a killed supervisor takes its services with it (they see EOF on the
pipe) while the embedded servers stay for the next run to join; a crashed service is started again; a start that can't
succeed ends with one plain reason.
"""

import asyncio
import contextlib
import functools
import os
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from cli import catalog, config, health
from cli.catalog import Servers
from cli.child import Child
from cli.data_folder import DataFolder
from cli.errors import CannotStart
from cli.servers import Foundation
from kit.config import ConfigError
from kit.cost_profile import read_cost_profile
from kit.embedded.errors import EmbeddedServerError

READY_SECONDS = 60.0
GRACE_SECONDS = 25.0
_PREDECESSOR_SECONDS = 25.0
_WATCH_SECONDS = 1.0
_LOG_LIMIT_BYTES = 20 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Options:
    """What `up` was asked for."""

    host: str
    port: int
    data_dir: Path
    runners: int = 1
    database_url: str | None = field(default=None, repr=False)
    nats_url: str | None = field(default=None, repr=False)


class Supervisor:
    """`start`, then wait for `failed` or whatever ends the command, then `stop`."""

    def __init__(self, options: Options, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self.folder = DataFolder(options.data_dir)
        self._foundation = Foundation(self.folder, database_url=options.database_url, nats_url=options.nats_url)
        self._servers: Servers | None = None
        self._children: list[Child] = []
        self._watchers: list[asyncio.Task[None]] = []
        self._pipe: tuple[int, int] | None = None
        self._hurry = asyncio.Event()

    @property
    def url(self) -> str:
        return health.url(self._options.host, self._options.port)

    async def start(self) -> None:
        """Return when every process serves; CannotStart otherwise. `stop` is due in both cases."""
        _check_prices()
        self.folder.take()
        await self._outlive_predecessor()
        await self._check_port()
        self.folder.make_secrets()
        self._servers = await asyncio.to_thread(self._foundation.start)
        self._pipe = os.pipe()
        self._make_children(self._servers)
        # Started in the reverse of the stop order: who is asked first, first.
        for child in reversed(self._children):
            await child.start()
        async with _first_failure() as group:
            for child in self._children:
                group.create_task(self._bring_up(child))
        self._watchers.append(asyncio.create_task(self._watch()))

    async def _bring_up(self, child: Child) -> None:
        """Watched from the moment it is ready: one that crashes while others still start would hold those up."""
        await child.until_ready(READY_SECONDS)
        self._watchers.append(asyncio.create_task(child.keep_running(READY_SECONDS)))

    async def until_failed(self) -> None:
        """Never returns; raises what a watcher raised."""
        await asyncio.gather(*self._watchers)
        await asyncio.Event().wait()

    def hurry(self) -> None:
        """Stop at once, also when an orderly stop is under way."""
        self._hurry.set()

    async def stop(self) -> None:
        """End everything in order. Safe to call in any state."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        ordered, now = asyncio.ensure_future(self._stop_in_order()), asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait({ordered, now}, return_when=asyncio.FIRST_COMPLETED)
            if not ordered.done():
                for child in self._children:
                    child.kill()
            await ordered
        finally:
            now.cancel()
        try:
            await asyncio.to_thread(self._foundation.stop)
        except EmbeddedServerError as error:
            self._say(str(error))
        for descriptor in self._pipe or ():
            os.close(descriptor)
        self._pipe = None
        self.folder.release()

    async def _stop_in_order(self) -> None:
        for child in self._children:
            await child.stop(GRACE_SECONDS)

    async def _outlive_predecessor(self) -> None:
        """Services of a killed supervisor end by themselves; those that don't are ended."""
        if await self._take_services():
            return
        self._say("Services of an earlier run are still ending …")
        for _ in range(2):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PREDECESSOR_SECONDS):
                    await health.until(self._take_services, every_seconds=0.05)
                    return
            self.folder.kill_leftovers()
        raise CannotStart(f"Services of an earlier run still use {self.folder.path} and can't be ended.")

    async def _take_services(self) -> bool:
        return self.folder.take_services()

    async def _check_port(self) -> None:
        host, port = self._options.host, self._options.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            # As the server will: a port whose last connections only linger counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
                return
            except OSError as error:
                reason = error.strerror or str(error)
        if (await health.http_get(host, port, "/v1/x/health"))[0] == 200:
            reason = "another managed-agents platform answers there"
        raise CannotStart(
            f"Port {port} on {host} can't be used: {reason}. Choose another with --port, or free this one."
        )

    def _processes(self, servers: Servers) -> list[catalog.Process]:
        options = self._options
        return catalog.processes(self.folder, servers, host=options.host, port=options.port, runners=options.runners)

    def _make_children(self, servers: Servers) -> None:
        assert self._pipe is not None
        host, port = self._options.host, self._options.port
        for process in self._processes(servers):
            answers = functools.partial(health.until_answering, process, host=host, port=port)
            self._children.append(
                Child(process, self.folder, supervisor_fd=self._pipe[0], answers=answers, say=self._say)
            )

    async def _watch(self) -> None:
        """Bring back an embedded server that died, and keep logs within bounds."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            for child in self._children:
                self.folder.rotate_log(child.name, limit_bytes=_LOG_LIMIT_BYTES)
            missing = await asyncio.to_thread(self._foundation.missing)
            if missing:
                self._say(f"{' and '.join(missing)} ended; starting again (logs in {self.folder.path}).")
                try:
                    await self._restart_foundation()
                except CannotStart as error:
                    self._say(str(error))

    async def _restart_foundation(self) -> None:
        servers = await asyncio.to_thread(self._foundation.start)
        if servers != self._servers:
            # NATS lost its port to another program. A service reads addresses once, so each starts anew.
            self._servers = servers
            for child, process in zip(self._children, self._processes(servers), strict=True):
                child.change(process)


def _check_prices() -> None:
    """A faulty price list is told before anything is started that would stumble over it."""
    try:
        read_cost_profile(config.cost_profile())
    except ConfigError as error:
        raise CannotStart(str(error)) from None


@contextlib.asynccontextmanager
async def _first_failure() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group whose first failure comes out as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except* CannotStart as failures:
        raise failures.exceptions[0] from None

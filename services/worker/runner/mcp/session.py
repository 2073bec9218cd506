"""The servers of one session: connected when they are needed, kept between turns, and told of.

A connection is made in a task of its own, so that a turn which is stopped meanwhile leaves it be. A server that fails
is not tried again in the turn that it failed. One that loses its connection is connected anew before the next model
request, or for the call that found it lost, if that call did not reach it.
"""

import asyncio
import importlib
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kit.clock import rfc3339
from kit.telemetry import log
from services.worker.runner.mcp.credentials import Credentials
from services.worker.runner.mcp.errors import CallRefused, NotDelivered, OutcomeUnknown, ServerFailed
from services.worker.runner.mcp.reach import Reach
from services.worker.runner.mcp.spec import Server

if TYPE_CHECKING:
    from services.worker.runner.mcp.connection import Connection, Opened, Tool

_TRANSPORTS = "services.worker.runner.mcp.transports"
UNKNOWN = "work_outcome_unknown: {} Whether the call took effect is not known. It was not made again."


@dataclass(frozen=True, slots=True)
class Limits:
    """How long servers may take."""

    connect_seconds: float = 15.0
    call_seconds: float = 300.0


@dataclass(slots=True)
class _Link:
    """One server, with its connection if it has one."""

    server: Server
    connection: "Connection | None" = None
    opening: "asyncio.Task[Connection] | None" = None
    failure: ServerFailed | None = None
    connected_at: str = ""


class SessionServers:
    """The servers of one session, or of one thread of it."""

    def __init__(self, credentials: Credentials, limits: Limits) -> None:
        self.credentials = credentials
        # Turns that use it now.
        self.users = 0
        self.used_at = asyncio.get_running_loop().time()
        self._limits = limits
        self._links: dict[str, _Link] = {}
        self._reach: Reach | None = None
        # Gives the session's sandbox, where processes run.
        self._host: Callable[[], Any] = lambda: None
        self._closing: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()

    def configure(self, servers: tuple[Server, ...], reach: Reach, host: Callable[[], Any]) -> None:
        """What the agent and the environment say now; connections to what changed are closed."""
        if self._reach is not None and reach != self._reach:
            self._retire_all()
        self._reach, self._host = reach, host
        wanted = {server.name: server for server in servers}
        for name, link in list(self._links.items()):
            if wanted.get(name) != link.server:
                self._retire(self._links.pop(name))
        for name, server in wanted.items():
            self._links.setdefault(name, _Link(server))
        # In the agent's order.
        self._links = {name: self._links[name] for name in wanted}

    async def ensure(self, name: str) -> None:
        """Have a connection with a list of tools that is not old. Raises ServerFailed."""
        link = self._links[name]
        connection = link.connection
        if connection is not None and not connection.lost:
            try:
                await connection.relist()
            except ServerFailed:
                self._retire(link)
            else:
                return
        await self._connected(link)

    def tools(self, name: str) -> "tuple[Tool, ...]":
        """What a server offers now; nothing while it has no connection."""
        link = self._links.get(name)
        connection = link.connection if link is not None else None
        return connection.tools if connection is not None and not connection.lost else ()

    async def call(self, name: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The result of a call as on the wire. Raises ServerFailed, CallRefused or OutcomeUnknown."""
        link = self._links.get(name)
        if link is None:
            raise ServerFailed(f"The agent no longer has a server named {name}.")
        for again in (False, True):
            connection = await self._connected(link)
            try:
                return await connection.call(tool, dict(arguments))
            except NotDelivered as failed:
                self._drop(link, connection)
                if again:
                    raise self._failed(link, ServerFailed(str(failed))) from failed
            except OutcomeUnknown:
                # Whatever it still does, it does not do it for us.
                self._drop(link, connection)
                raise
            except ServerFailed as failed:
                self._drop(link, connection)
                raise self._failed(link, failed) from None
        raise AssertionError("the second attempt returns or raises")

    def reconnect(self) -> None:
        """Close every connection, once its calls have ended, and open another at once: secrets were rotated."""
        for link in self._links.values():
            if link.connection is None and link.opening is None and link.failure is None:
                continue
            self._retire(link)
            self._begin(link)

    def describe(self, server: Server) -> dict[str, Any]:
        """What people are told of a server of the session; never a secret."""
        link = self._links.get(server.name)
        return self._described(link if link is not None and link.server == server else _Link(server))

    def descriptions(self) -> list[dict[str, Any]]:
        """What people are told of the servers."""
        return [self._described(link) for link in self._links.values()]

    def _described(self, link: _Link) -> dict[str, Any]:
        # A server may repeat its token anywhere, also in what it says of itself.
        described: dict[str, Any] = self.credentials.scrubber.value(_described(link))
        return described

    async def close(self) -> None:
        """Close all connections."""
        self._over.set()
        self._retire_all()
        if self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)

    async def _connected(self, link: _Link) -> "Connection":
        while True:
            if link.connection is not None and not link.connection.lost:
                return link.connection
            if link.opening is None:
                self._retire(link)
                self._begin(link)
            opening = link.opening
            assert opening is not None
            # Whoever waits may be stopped; the connection is made all the same.
            await asyncio.wait({opening})
            if not opening.cancelled():
                return opening.result()
            # It was given up for another one, which is waited for now.

    def _begin(self, link: _Link) -> None:
        link.opening = asyncio.create_task(self._open(link), name=f"connect to {link.server.name}")
        link.opening.add_done_callback(_seen)

    async def _open(self, link: _Link) -> "Connection":
        me = asyncio.current_task()
        try:
            if self._over.is_set():
                raise ServerFailed("The session is closed.")
            connection = await self._make(link.server)
        except ServerFailed as failed:
            if link.opening is me:
                link.opening = None
            raise self._failed(link, failed) from None
        except Exception as failed:
            log.exception("a server could not be connected to", server=link.server.name)
            if link.opening is me:
                link.opening = None
            raise self._failed(link, ServerFailed("The platform failed to connect.")) from failed
        if link.opening is not me or self._over.is_set():
            # It was given up meanwhile.
            self._end_soon(connection)
            raise ServerFailed("The connection was given up.")
        link.opening = None
        link.connection, link.failure = connection, None
        link.connected_at = rfc3339(datetime.now(UTC))
        return connection

    async def _make(self, server: Server) -> "Connection":
        # On the loop the import would keep this process from renewing its leases.
        transports = await asyncio.to_thread(importlib.import_module, _TRANSPORTS)
        await asyncio.to_thread(transports.warm)
        open_transport = await (self._by_url if server.type == "url" else self._as_process)(server, transports)
        connection: Connection = transports.Connection(
            open_transport, connect_seconds=self._limits.connect_seconds, call_seconds=self._limits.call_seconds
        )
        try:
            await connection.open()
        except BaseException:
            self._end_soon(connection)
            raise
        return connection

    async def _by_url(self, server: Server, transports: Any) -> Any:
        assert self._reach is not None
        token, reach = await self.credentials.for_url(server.url), self._reach

        def opens() -> "AbstractAsyncContextManager[Opened]":
            return transports.over_http(server.url, token, reach, self._limits.connect_seconds)

        return opens

    async def _as_process(self, server: Server, transports: Any) -> Any:
        host = self._host()
        if not hasattr(host, "start_program"):
            raise ServerFailed("The session's sandbox can't hold a server as a process.")

        def opens() -> "AbstractAsyncContextManager[Opened]":
            # Of the session's credentials it is told by the sandbox, as the shell is.
            return transports.over_stdio(host, (server.command, *server.args), dict(server.env))

        return opens

    def _failed(self, link: _Link, failure: ServerFailed) -> ServerFailed:
        link.failure = ServerFailed(self.credentials.scrubber.text(failure.message), failure.kind)
        return link.failure

    def _drop(self, link: _Link, connection: "Connection") -> None:
        if link.connection is connection:
            self._retire(link)

    def _retire_all(self) -> None:
        for link in self._links.values():
            self._retire(link)

    def _retire(self, link: _Link) -> None:
        """Have nobody use its connection any more, and close it once its calls have ended."""
        connection, opening = link.connection, link.opening
        link.connection = link.opening = None
        link.connected_at = ""
        if opening is not None:
            opening.cancel()
        if connection is not None:
            self._end_soon(connection)

    def _end_soon(self, connection: "Connection") -> None:
        task = asyncio.create_task(self._end(connection), name="close a connection")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _end(self, connection: "Connection") -> None:
        # Calls that are under way may end; the session being over ends them too.
        over = asyncio.create_task(self._over.wait())
        idle = asyncio.create_task(connection.idle.wait())
        await asyncio.wait({over, idle}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        idle.cancel()
        await connection.close()


def _described(link: _Link) -> dict[str, Any]:
    server, connection = link.server, link.connection
    told: dict[str, Any] = {"name": server.name, "type": server.type}
    if server.url:
        told["url"] = server.url
    told |= {"status": "not_connected", "error": None, "tools": [], "connected_at": None}
    if connection is not None and not connection.lost:
        tools = [{"name": tool.name, "description": tool.description} for tool in connection.tools]
        told |= {"status": "connected", "tools": tools, "connected_at": link.connected_at}
    elif link.opening is not None:
        told["status"] = "connecting"
    elif link.failure is not None:
        told |= {"status": "failed", "error": {"type": link.failure.kind, "message": link.failure.message}}
    return told


def _seen(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()


__all__ = ["UNKNOWN", "CallRefused", "Limits", "OutcomeUnknown", "ServerFailed", "SessionServers"]

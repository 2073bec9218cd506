"""One open connection to one server: made, used by any number of calls at once, and closed in the task that made it.

The protocol's package wants a connection to be left where it was entered, so each one lives in a task of its own. Calls
come from other tasks and may be cancelled; the server is told, and the connection stays. `tools` is the newest list:
the server says when it has changed, and it is read again at once.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2
import mcp_types as types
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from kit.telemetry import log
from services.worker.runner.mcp.errors import (
    AUTHENTICATION_FAILED,
    CallRefused,
    NotDelivered,
    OutcomeUnknown,
    ServerFailed,
)
from services.worker.runner.mcp.http import ATTEMPT, Attempt

# What they say of each message would put calls and addresses into our own log.
for _name in ("mcp", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

MOST_TOOLS = 512
_MOST_PAGES = 64
_CLOSE_SECONDS = 6.0
_SLACK_SECONDS = 0.25
_CLIENT = types.Implementation(name="managed-agents", version="1")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as its server describes it."""

    name: str
    description: str
    input_schema: dict[str, Any]


@dataclass(slots=True)
class Opened:
    """The two streams of an open transport, and what is known of it beside them."""

    read: Any
    write: Any
    # Whether the server can tell of changes by itself right now.
    listening: Callable[[], bool] = lambda: True
    # Why the transport ended by itself, or empty.
    ended: Callable[[], str] = lambda: ""
    # Set when it ends by itself.
    end: asyncio.Event = field(default_factory=asyncio.Event)


Open = Callable[[], AbstractAsyncContextManager[Opened]]


class Connection:
    """A connection; `open` it, `call` on it, `close` it."""

    def __init__(self, open_transport: Open, *, connect_seconds: float, call_seconds: float) -> None:
        self.tools: tuple[Tool, ...] = ()
        # Set while no call is under way.
        self.idle = asyncio.Event()
        self.idle.set()
        # Why it can't be used any more; empty while it can.
        self.lost = ""
        self._open_transport = open_transport
        self._connect_seconds = connect_seconds
        self._call_seconds = call_seconds
        self._session: ClientSession | None = None
        self._opened: Opened | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wake = asyncio.Event()
        self._closing = False
        # Whether the tools may have changed, and whether they are being read.
        self._stale = self._listing = False
        self._relisted: list[asyncio.Future[None]] = []
        self._calls = 0

    async def open(self) -> None:
        """Connect, shake hands and list the tools, all within the limit. Raises ServerFailed; `close` it even then."""
        self._task = asyncio.create_task(self._live(), name="mcp connection")
        # What was begun may take longer to undo than anybody should wait for.
        done, _ = await asyncio.wait({self._ready}, timeout=self._connect_seconds + _SLACK_SECONDS)
        if not done:
            raise ServerFailed(f"The server did not answer within {self._connect_seconds:g} seconds.")
        self._ready.result()

    async def close(self) -> None:
        """End it, and wait until it has ended, for a while."""
        self._closing = True
        self.lost = self.lost or "closed"
        self._wake.set()
        if self._task is None:
            return
        done, _ = await asyncio.wait({self._task}, timeout=_CLOSE_SECONDS)
        if not done:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_CLOSE_SECONDS)

    async def relist(self) -> None:
        """Read the tools again where they may have changed, as far as is known. Raises ServerFailed."""
        assert self._opened is not None
        is_known = self._opened.listening() and not self._stale and not self._listing
        if self.lost or is_known:
            return
        listed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._relisted.append(listed)
        # One that is under way may have been answered before the change.
        self._stale = True
        self._wake.set()
        await listed

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of one tool, as on the wire. Raises NotDelivered, OutcomeUnknown, CallRefused or ServerFailed."""
        session = self._session
        if session is None or self.lost:
            raise NotDelivered(self.lost or "the connection is closed")
        attempt = Attempt()
        token = ATTEMPT.set(attempt)
        try:
            task = asyncio.create_task(_call(session, name, arguments, self._call_seconds), name=f"mcp call {name}")
        finally:
            ATTEMPT.reset(token)
        self._calls += 1
        self.idle.clear()
        try:
            # The limit of the package begins when the message is on its way; ours counts from now.
            done, _ = await asyncio.wait({task}, timeout=self._call_seconds + 1.0)
            if not done:
                raise _timed_out(self._call_seconds)
            return task.result()
        except MCPError as failed:
            raise self._meaning(failed, attempt) from failed
        except (ValidationError, RuntimeError, ValueError) as failed:
            raise OutcomeUnknown("The server's answer is no result of a tool.") from failed
        finally:
            self._calls -= 1
            if not self._calls:
                self.idle.set()
            if not task.done():
                task.add_done_callback(_ignore)
                task.cancel()

    def _meaning(self, failed: MCPError, attempt: Attempt) -> Exception:
        if attempt.failure:
            unsure = OutcomeUnknown if attempt.reached else NotDelivered
            return unsure(attempt.failure)
        if attempt.status == 404:
            self.lost = self.lost or "the server forgot the session"
            return NotDelivered("the server forgot the session")
        if attempt.status == 401:
            return ServerFailed("The server refused the credential, or asks for one.", AUTHENTICATION_FAILED)
        if failed.code == types.REQUEST_TIMEOUT:
            return _timed_out(self._call_seconds)
        if failed.code in (types.CONNECTION_CLOSED, types.PARSE_ERROR):
            return OutcomeUnknown(self._why() or failed.message)
        if attempt.status >= 500:
            return OutcomeUnknown(f"The server answered with HTTP status {attempt.status}: {failed.message}")
        status = f" (HTTP status {attempt.status})" if attempt.status >= 400 else ""
        return CallRefused(f"{failed.message}{status}")

    def _why(self) -> str:
        return self._opened.ended() if self._opened is not None else ""

    async def _live(self) -> None:
        attempt = Attempt()
        ATTEMPT.set(attempt)
        failure: BaseException | None = None
        try:
            async with AsyncExitStack() as stack:
                # Not a scope of anyio's: what is entered inside it outlives it.
                async with asyncio.timeout(self._connect_seconds):
                    session = await self._connect(stack)
                    self.tools = await _list_tools(session)
                self._session = session
                if not self._ready.done():
                    self._ready.set_result(None)
                await self._serve(session)
        except Exception as failed:
            failure = failed
        finally:
            self._session = None
            told = _explain(failure, attempt, self._why(), self._connect_seconds)
            self.lost = self.lost or told.message
            if not self._ready.done():
                self._ready.set_exception(told)
                # Nobody may be waiting any more.
                self._ready.exception()
            self._settle(told)

    async def _connect(self, stack: AsyncExitStack) -> ClientSession:
        self._opened = await stack.enter_async_context(self._open_transport())
        session = ClientSession(
            self._opened.read,
            self._opened.write,
            read_timeout_seconds=self._connect_seconds,
            message_handler=self._on_message,
            client_info=_CLIENT,
        )
        await stack.enter_async_context(session)
        try:
            await session.initialize()
        except MCPError as refused:
            if refused.code not in (types.UNSUPPORTED_PROTOCOL_VERSION, types.METHOD_NOT_FOUND):
                raise
            # A server that knows only the newer way to say hello. It has no way to tell of changes by itself.
            await session.discover()
            self._opened.listening = lambda: False
        return session

    async def _serve(self, session: ClientSession) -> None:
        """Read the tools again whenever they may have changed, until the end."""
        assert self._opened is not None
        ended = asyncio.create_task(self._opened.end.wait())
        try:
            while not self._closing and not self._opened.end.is_set():
                waiting = asyncio.create_task(self._wake.wait())
                try:
                    await asyncio.wait({ended, waiting}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waiting.cancel()
                self._wake.clear()
                while self._stale and not self._closing:
                    self._stale, self._listing = False, True
                    await self._list_again(session)
                    self._listing = False
        finally:
            ended.cancel()

    async def _list_again(self, session: ClientSession) -> None:
        try:
            with anyio.fail_after(self._connect_seconds):
                self.tools = await _list_tools(session)
        except (MCPError, ValidationError, TimeoutError) as failed:
            log.warning("the tools of a server could not be listed again", error=type(failed).__name__)
            self._settle(ServerFailed("The server no longer lists its tools."))
        else:
            self._settle(None)

    def _settle(self, failure: ServerFailed | None) -> None:
        waiting, self._relisted = self._relisted, []
        for listed in waiting:
            if listed.done():
                continue
            if failure is None:
                listed.set_result(None)
            else:
                listed.set_exception(failure)

    async def _on_message(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._stale = True
            self._wake.set()


async def _call(session: ClientSession, name: str, arguments: dict[str, Any], seconds: float) -> dict[str, Any]:
    request = types.CallToolRequest(params=types.CallToolRequestParams(name=name, arguments=arguments))
    # Without the package's own check against the tool's output schema: the call was made, and its result is the result.
    result = await session.send_request(request, types.CallToolResult, request_read_timeout_seconds=seconds)
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


async def _list_tools(session: ClientSession) -> tuple[Tool, ...]:
    found: dict[str, Tool] = {}
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
        try:
            page = await session.list_tools(params=params)
        except MCPError as refused:
            if refused.code == types.METHOD_NOT_FOUND and not found:
                return ()
            raise
        for tool in page.tools:
            found.setdefault(tool.name, Tool(tool.name, tool.description or "", tool.input_schema))
        cursor = page.next_cursor
        if not cursor or len(found) >= MOST_TOOLS:
            break
    return tuple(found.values())[:MOST_TOOLS]


def _timed_out(seconds: float) -> OutcomeUnknown:
    return OutcomeUnknown(f"The server did not answer within {seconds:g} seconds.")


def _explain(failure: BaseException | None, attempt: Attempt, ended: str, seconds: float) -> ServerFailed:
    """What a person is told of a connection that could not be made, or is over."""
    first = failure
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    if isinstance(first, ServerFailed):
        return first
    if attempt.failure:
        return ServerFailed(attempt.failure)
    if attempt.status in (401, 403):
        told = "The server refused the credential, or asks for one" + f" (HTTP status {attempt.status})."
        return ServerFailed(told, AUTHENTICATION_FAILED)
    if attempt.status >= 400:
        return ServerFailed(f"The server answered with HTTP status {attempt.status}.")
    if ended:
        return ServerFailed(ended)
    if isinstance(first, TimeoutError) or (isinstance(first, MCPError) and first.code == types.REQUEST_TIMEOUT):
        return ServerFailed(f"The server did not answer within {seconds:g} seconds.")
    if isinstance(first, MCPError):
        return ServerFailed(f"The server refused: {first.message}")
    if isinstance(first, OSError | httpx2.HTTPError):
        return ServerFailed(f"The server can't be reached: {first}")
    if first is None:
        return ServerFailed("The connection is closed.")
    log.warning("a connection to a server failed", error=type(first).__name__)
    return ServerFailed("The server's answers can't be understood.")


def _ignore(task: "asyncio.Task[Any]") -> None:
    with contextlib.suppress(BaseException):
        task.exception()

"""A server as a process in the session's sandbox, spoken to over its standard input and output.

It has the rights of what else runs there, and a view, a network and limits of its own of the same kind. What it writes
to standard error is kept for a short while, to say why it ended.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

from services.worker.runner.mcp.connection import Opened
from services.worker.runner.mcp.errors import ServerFailed
from services.worker.tools import ShellUnavailable

MOST_LINE_BYTES = 32 * 1024 * 1024
_TOLD_CHARS = 300
_FAREWELL_SECONDS = 2.0


class Program(Protocol):
    """A running program of a sandbox."""

    stdout: asyncio.StreamReader
    stdin: asyncio.StreamWriter

    def last_words(self) -> str:
        """The end of what it wrote to standard error."""
        ...

    async def close(self, grace_seconds: float) -> None:
        """Close its standard input, and end it and all that it started if it does not end by itself in time."""
        ...


class Host(Protocol):
    """A sandbox that can hold programs."""

    async def start_program(self, argv: Sequence[str], env: Mapping[str, str], line_bytes: int) -> Program:
        """Start one. Raises ShellUnavailable or OSError with the reason."""
        ...


@asynccontextmanager
async def over_stdio(host: Host, argv: Sequence[str], env: Mapping[str, str]) -> AsyncIterator[Opened]:
    """Start the program, and end it with the connection."""
    try:
        program = await host.start_program(argv, env, MOST_LINE_BYTES)
    except (ShellUnavailable, OSError) as refused:
        raise ServerFailed(f"{argv[0]} can't be started in the session's sandbox: {refused}") from refused
    incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    opened = Opened(read, write, ended=lambda: _why(opened, program))
    try:
        async with read, write, anyio.create_task_group() as tasks:
            tasks.start_soon(_read, program, incoming, opened)
            tasks.start_soon(_write, program, outgoing)
            try:
                yield opened
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await program.close(_FAREWELL_SECONDS)


async def _read(program: Program, incoming: Any, opened: Opened) -> None:
    async with incoming:
        try:
            while line := await program.stdout.readline():
                if not line.strip():
                    continue
                try:
                    message: SessionMessage | Exception = SessionMessage(
                        types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                    )
                except ValueError:
                    # Servers that also print on standard output are common; the line is nothing to us.
                    continue
                await incoming.send(message)
        except (ValueError, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            # A line without end, a pipe that broke, or nobody reads any more.
            pass
        finally:
            opened.end.set()


async def _write(program: Program, outgoing: Any) -> None:
    async with outgoing:
        async for message in outgoing:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                program.stdin.write(text.encode() + b"\n")
                await program.stdin.drain()
            except OSError:
                return


def _why(opened: Opened, program: Program) -> str:
    if not opened.end.is_set():
        return ""
    words = program.last_words().strip()
    told = "The server's process ended, or closed its output."
    return f"{told} Its last words: {words[-_TOLD_CHARS:]}" if words else told

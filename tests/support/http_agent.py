"""An outside agent of the HTTP agent protocol under a test's control: a real HTTP server on loopback.

    async with http_agent(calls(("c1", "bash", {"command": "ls"})), reply("Done.")) as agent:
        …                                   # agent.url, agent.steps, agent.headers

It answers in order, and the last answer again and again, or as `plan` says. It keeps no state but what it was sent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """One answer, as bytes. Pieces are sent one by one; a callable among them is awaited."""

    body: list[bytes | Callable[[], Awaitable[object]]] = field(default_factory=list)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    # Awaited before anything is sent.
    first: Callable[[], Awaitable[object]] | None = None
    # Whether the connection stays open after the body.
    hang: bool = False


def reply(text: Any, **more: Any) -> Answer:
    """A reply to the user."""
    return body({"reply": text, **more})


def calls(*made: tuple[str, str, Any]) -> Answer:
    """Calls, as (id, name, arguments)."""
    return body({"tool_calls": [{"id": call, "name": name, "arguments": given} for call, name, given in made]})


def body(value: Any, status: int = 200) -> Answer:
    """Any JSON; bytes are sent as they are."""
    return Answer([value if isinstance(value, bytes) else json.dumps(value).encode()], status)


Plan = Callable[[dict[str, Any]], Answer]


@dataclass
class HttpAgent:
    """What the agent was sent, and what it answers."""

    url: str = ""
    answers: list[Answer] = field(default_factory=list)
    plan: Plan | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    # Requests that were broken off before they were answered.
    broken: int = 0

    def step_keys(self) -> list[str]:
        """The Idempotency-Key of each request."""
        return [headers["idempotency-key"] for headers in self.headers]

    def options(self, **more: Any) -> dict[str, Any]:
        """Options of the engine `http` for this agent."""
        return {"url": self.url, **more}

    def _next(self, step: dict[str, Any]) -> Answer:
        if self.plan is not None:
            return self.plan(step)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@asynccontextmanager
async def http_agent(*answers: Answer, plan: Plan | None = None) -> AsyncIterator[HttpAgent]:
    """An agent on a free port of loopback."""
    agent = HttpAgent(answers=list(answers), plan=plan)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await _serve(agent, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            agent.broken += 1
        except asyncio.CancelledError:
            # The test is over.
            return
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    agent.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/step"
    try:
        yield agent
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def _serve(agent: HttpAgent, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    lines = (line.partition(": ") for line in head.split("\r\n")[1:])
    headers = {name.lower(): value for name, _, value in lines if value}
    step = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"null")
    agent.steps.append(step)
    agent.headers.append(headers)
    answer = agent._next(step)
    gone = asyncio.ensure_future(reader.read(1))
    try:
        if answer.first is not None:
            await _unless(gone, answer.first())
        told = {"content-type": "application/json", "connection": "close", **answer.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        writer.write(f"HTTP/1.1 {answer.status} Scripted\r\n{lines}\r\n".encode())
        for piece in answer.body:
            if callable(piece):
                await _unless(gone, piece())
            else:
                writer.write(piece)
                await writer.drain()
        if answer.hang:
            await gone
            raise ConnectionResetError
    finally:
        gone.cancel()


async def _unless(gone: asyncio.Future[bytes], work: Awaitable[object]) -> None:
    """Do something for as long as the other side waits for it."""
    doing = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({gone, doing}, return_when=asyncio.FIRST_COMPLETED)
    if doing not in done:
        doing.cancel()
        raise ConnectionResetError
    doing.result()

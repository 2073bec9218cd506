"""Outside workers: a turn through the real program, cycles of many workers at the queue, and what idle ones cost."""

import asyncio
import os
import resource
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from bench.client import Client, milliseconds
from bench.platform import Platform
from bench.turns import TOOL, play_turns
from cli.data_folder import DataFolder
from kit.ids import new_id
from kit.rpc.client import Channel
from kit.rpc.context import CallContext
from kit.testing import await_until
from managed_agents.worker.v1.queue_pb2 import RunWorkItemRequest
from managed_agents.worker.v1.queue_pb2_grpc import QueueServiceStub

Figures = dict[str, float]
_ROOT = Path(__file__).parents[1]
_POLL = [sys.executable, "-c", "from cli.main import main; main()", "worker", "poll"]
_WORKERS = 16
_CYCLES = 4000
_IDLE_WORKERS = 2000
# For so long a claim is held open, so in this time each idle worker comes once.
_ROUND_SECONDS = 30.0
_RESULT = {"stdout": "hi\n", "stderr": "", "exitCode": 0, "timedOut": False}


async def outside(client: Client, platform: Platform, scale: float) -> Figures:
    """In this order: what idles comes last."""
    environment = (await client.post("/v1/environments", {"name": "bench", "hosting_type": "self_hosted"}))["id"]
    keys = f"/v1/environments/{environment}/worker-keys"
    key = (await client.post(keys, {"name": "bench"}))["secret_key"]
    figures = await _turns(client, platform, environment, key, scale)
    figures |= await _cycles(client, platform, environment, key, scale)
    return figures | await _idle(client, platform, environment, key, scale)


async def _turns(client: Client, platform: Platform, environment: str, key: str, scale: float) -> Figures:
    agent = await client.agent()
    async with _program(platform, environment, key):
        await play_turns(client, agent, 10, 1, TOOL, environment)
        await platform.settle()
        before, count = platform.cpu(), max(10, int(100 * scale))
        whole, _, _ = await play_turns(client, agent, count, 1, TOOL, environment)
    return {
        "worker_turn_p50_ms": milliseconds(whole, 50),
        "worker_turn_p99_ms": milliseconds(whole, 99),
        "worker_turn_cpu_ms": (platform.cpu() - before).total() * 1000 / count,
    }


@asynccontextmanager
async def _program(platform: Platform, environment: str, key: str) -> AsyncIterator[None]:
    """The worker program as an operator starts it; the first turn waits until it is there."""
    folder = platform.data_dir.parent / "worker"
    folder.mkdir()
    options = ["--environment-id", environment, "--workdir", str(folder), "--port", str(platform.port)]
    process = await asyncio.create_subprocess_exec(
        *_POLL,
        *options,
        cwd=_ROOT,
        env={**os.environ, "MANAGED_AGENTS_ENVIRONMENT_KEY": key},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def _cycles(client: Client, platform: Platform, environment: str, key: str, scale: float) -> Figures:
    """All items are there before the first worker comes; each has somebody who waits for it."""
    count = max(200, int(_CYCLES * scale))
    folder = DataFolder(platform.data_dir)
    queue = Channel(f"unix:{folder.run / 'queue.sock'}", token=folder.internal_token.read_text().strip(), exchange=True)
    stub = queue.stub(QueueServiceStub)
    context = CallContext("wrkspc_default", new_id("req"), "bench")

    async def ask(number: int) -> None:
        request = RunWorkItemRequest(
            item_id=new_id("work"),
            session_id=f"sess_bench{number % 50}",
            environment_id=environment,
            kind="exec",
            payload_json=b'{"command":"echo hi","timeout_ms":120000}',
            wait_seconds=300,
        )
        await stub.RunWorkItem(request, context=context, timeout_seconds=300)

    asked = [asyncio.create_task(ask(number)) for number in range(count)]
    await _until_pending(client, environment, count)
    callers = [await Caller.to(platform.port, key) for _ in range(_WORKERS)]
    await platform.settle()
    before, taken, left = platform.cpu().total(), [], iter(range(count))

    async def work(caller: Caller, name: str) -> None:
        for _ in left:
            began = time.perf_counter()
            item = await caller.post("claim", {"worker_id": name, "environment_id": environment, "wait_ms": 5000})
            mark = {"id": item["id"], "worker_id": name}
            await caller.post("accept", mark)
            await caller.post("complete", {**mark, "result": _RESULT})
            taken.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(work(caller, f"bench-{number}") for number, caller in enumerate(callers)))
    seconds = time.perf_counter() - began
    await asyncio.gather(*asked)
    spent = platform.cpu().total() - before
    for caller in callers:
        caller.close()
    await queue.close()
    return {
        "worker_cycles_per_s": count / seconds,
        "worker_cycle_p50_ms": milliseconds(taken, 50),
        "worker_cycle_p99_ms": milliseconds(taken, 99),
        "worker_cycle_cpu_ms": spent * 1000 / count,
    }


async def _until_pending(client: Client, environment: str, count: int) -> None:
    async def there() -> bool:
        listed = orjson.loads(await client.get(f"/v1/environments/{environment}/work-items?limit=1"))
        return listed["status_counts"]["pending"] == count

    await await_until(there, timeout=60)


async def _idle(client: Client, platform: Platform, environment: str, key: str, scale: float) -> Figures:
    """Each holds a claim open, for as long as a claim may be, and comes again."""
    number = max(50, int(_IDLE_WORKERS * scale))
    _allow_files(number + 500)
    resting = await _cpu_share(platform)
    callers = [await Caller.to(platform.port, key) for _ in range(number)]

    async def wait(caller: Caller, at: int) -> None:
        # One after another, as workers come that nobody started together.
        await asyncio.sleep(_ROUND_SECONDS * at / number)
        body = {"worker_id": f"idle-{at}", "environment_id": environment, "wait_ms": int(_ROUND_SECONDS * 1000)}
        while True:
            await caller.post("claim", body)

    waiting = [asyncio.create_task(wait(caller, at)) for at, caller in enumerate(callers)]
    await asyncio.sleep(_ROUND_SECONDS + 1)
    busy = await _cpu_share(platform)
    if failed := [task.exception() for task in waiting if task.done()]:
        raise RuntimeError(f"{len(failed)} idle workers were sent away") from failed[0]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for caller in callers:
        caller.close()
    return {"idle_workers_cpu_percent": max(0.0, busy - resting) * 100}


async def _cpu_share(platform: Platform) -> float:
    await platform.settle()
    before = platform.cpu().total()
    await asyncio.sleep(_ROUND_SECONDS)
    return (platform.cpu().total() - before) / _ROUND_SECONDS


def _allow_files(number: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < number:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(number, hard), hard))


class Caller(asyncio.Protocol):
    """A worker's connection that costs next to nothing, so that the platform is measured and not its client."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._transport: Any = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._got = bytearray()

    @classmethod
    async def to(cls, port: int, key: str) -> "Caller":
        """Connect."""
        return (await asyncio.get_running_loop().create_connection(lambda: cls(key), "127.0.0.1", port))[1]

    def connection_made(self, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, found, body = self._got.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        if len(body) >= length and self._answer is not None and not self._answer.done():
            self._answer.set_result((int(lines[0].split()[1]), bytes(body[:length])))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("The gateway closed a worker's connection."))

    async def post(self, verb: str, body: dict[str, Any]) -> Any:
        """One call; None where there is nothing."""
        content = orjson.dumps(body)
        self._got.clear()
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(
            f"POST /v1/x/worker/{verb} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {self._key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n".encode()
            + content
        )
        status, answer = await self._answer
        if status >= 300:
            raise RuntimeError(f"{verb} was answered {status}: {answer[:300]!r}")
        return orjson.loads(answer) if answer else None

    def close(self) -> None:
        """Go away."""
        if self._transport is not None:
            self._transport.abort()

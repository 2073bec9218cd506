"""The published client's own `EnvironmentWorker`, as it comes: in this process, or as a process that can be killed.

python -m tests.support.published_worker URL ENVIRONMENT_ID KEY WORKDIR
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anthropic

ROOT = Path(__file__).parents[2]


def client_of(url: str, **credential: str) -> anthropic.AsyncAnthropic:
    """The client, wanting every answer to be exactly of its type."""
    return anthropic.AsyncAnthropic(
        base_url=url,
        max_retries=0,
        timeout=60,
        _strict_response_validation=True,
        **(credential or {"api_key": "unused"}),  # type: ignore[arg-type]
    )


@asynccontextmanager
async def working(
    client: anthropic.AsyncAnthropic, environment_id: str, key: str, workdir: Path, **options: Any
) -> AsyncIterator[asyncio.Task[None]]:
    """A worker that runs meanwhile, as the client makes it."""
    options = {"max_idle": 1.0} | options
    worker = client.beta.environments.work.worker(
        environment_id=environment_id, environment_key=key, workdir=workdir, **options
    )
    task = asyncio.create_task(worker.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


@contextmanager
def worker_process(url: str, environment_id: str, key: str, workdir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker in a process group of its own."""
    command = [sys.executable, "-m", "tests.support.published_worker", url, environment_id, key, str(workdir)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def _main(url: str, environment_id: str, key: str, workdir: str) -> None:
    async with client_of(url) as client, working(client, environment_id, key, Path(workdir)) as task:
        await task


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))

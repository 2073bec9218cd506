"""What a client sees while something that the platform stands on is away, and how each such thing is taken away.

`Writer` sends one message after another and keeps what was acknowledged. It bears nothing but what is promised: an
answer in time, and where that is a refusal, a 503 that says when to come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from kit.testing import await_until
from tests.faults.ground import Ground
from tests.support.api import Api, Event, Refused, message

# The gateway gives a call 15 s; a client must never wait noticeably longer than that.
DEADLINE_SECONDS = 17.0
_FILLER_BYTES = 1 << 20


class Writer:
    """Sends messages to one session, each once, as fast as they are answered."""

    def __init__(self, api: Api, session_id: str, *, size_bytes: int = 40) -> None:
        self._api = api
        self.session_id = session_id
        self._size = size_bytes
        self.acknowledged: list[Event] = []
        # Texts of messages that were refused; an outage may hit between the commit and its answer.
        self.unsure: list[str] = []
        self.refusals: Counter[str] = Counter()
        self.slowest = 0.0

    async def once(self) -> bool:
        """One message; whether it was acknowledged."""
        text = uuid.uuid4().hex.ljust(self._size, ".")
        begun = time.monotonic()
        try:
            self.acknowledged += await self._api.send(self.session_id, message(text))
            return True
        except Refused as refused:
            self.unsure.append(text)
            self.refusals[refused.body["error"]["code"]] += 1
            assert refused.status == 503, refused
            assert 1 <= int(refused.headers["retry-after"]) <= 60, refused
            assert refused.body["error"]["message"], refused
            return False
        finally:
            took = time.monotonic() - begun
            self.slowest = max(self.slowest, took)
            assert took < DEADLINE_SECONDS, f"an answer took {took:.1f} s"

    async def until_refused(self, timeout: float) -> None:
        """Write on until the outage shows."""
        async with asyncio.timeout(timeout):
            while await self.once():
                pass

    async def until_taken(self, timeout: float) -> None:
        """Write on until the platform has recovered on its own."""
        async with asyncio.timeout(timeout):
            while True:
                if await self.once():
                    return
                # A client's own pace: shorter than what it is told, so that more writes meet the outage.
                await asyncio.sleep(0.1)

    async def throughout(self, seconds: float) -> None:
        """Write on for a time, whatever comes of it."""
        over = time.monotonic() + seconds
        while time.monotonic() < over:
            await self.once()
            await asyncio.sleep(0.05)


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own that can really be full. Skips where the kernel lets this user mount none."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leave no byte of the file system that holds the folder; the file to remove afterwards."""
    filler = folder / "filler"
    with open(filler, "ab", buffering=0) as file:
        for size in (_FILLER_BYTES, 4096):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * size)
    with pytest.raises(OSError) as refused, open(folder / "more", "wb", buffering=0) as file:
        file.write(b"\0" * 4096)
    assert refused.value.errno == errno.ENOSPC
    (folder / "more").unlink()
    return filler


@asynccontextmanager
async def paused(pids: Callable[[], list[int]]) -> AsyncIterator[None]:
    """Processes that neither answer nor end, as a machine without CPU or a network that swallows would look."""
    stopped = pids()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def gone(ground: Ground, server: str) -> AsyncIterator[None]:
    """A server that is killed and stays away: nobody may start it again before the end."""
    async with paused(lambda: [ground.platform.process.pid]):
        killed = ground.signal(server, signal.SIGKILL)
        assert killed is not None
        await await_until(lambda: ground.pid(server) is None, timeout=30)
        yield

"""Pages to text, in processes of their own that are started when pages come.

Few pages at a time, each in a process for itself; one that takes too long costs its process, and keeps nobody else
waiting. The processes have neither the environment nor the files of this one, and end when nobody needs them.
"""

import asyncio
import contextlib
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process

from services.worker.runner.web.page_process import LENGTH, UNREADABLE
from services.worker.runner.web.policy import WebRefused

PAGE_SECONDS = 15.0
AT_ONCE = 3
# Larger pages are cut: what is behind is no reading matter.
MAX_PAGE_CHARACTERS = 2_000_000
# A text is shorter than its page but for what Markdown escapes.
_MAX_TEXT_BYTES = 64 * 1024 * 1024
_MODULE = "services.worker.runner.web.page_process"
_GONE = (BrokenPipeError, ConnectionResetError, asyncio.IncompleteReadError)


class PageReader:
    """Turns pages into text."""

    def __init__(self, *, seconds: float = PAGE_SECONDS, at_once: int = AT_ONCE) -> None:
        self._seconds = seconds
        self._room = asyncio.Semaphore(at_once)
        # Processes that wait for a page; the last one was used last.
        self._idle: list[Process] = []

    async def read(self, html: str) -> str:
        """The text of a page. WebRefused where it can't be had in time."""
        data = html[:MAX_PAGE_CHARACTERS].encode("utf-8", "replace")
        async with self._room:
            try:
                async with asyncio.timeout(self._seconds):
                    return await self._ask(data)
            except TimeoutError:
                raise WebRefused("the page takes too long to be turned into text.") from None

    async def close(self) -> None:
        """End the processes."""
        while self._idle:
            await _end(self._idle.pop())

    async def _ask(self, data: bytes) -> str:
        if self._idle:
            # It may have gone for want of pages; or it does not survive this one, which the second try will show.
            with contextlib.suppress(*_GONE):
                return await self._use(self._idle.pop(), data)
        try:
            return await self._use(await _start(), data)
        except _GONE:
            raise WebRefused("the page can't be turned into text.") from None

    async def _use(self, process: Process, data: bytes) -> str:
        try:
            text = await _exchange(process, data)
        except BaseException:
            # Cut off in between, it would answer the next page with this one.
            await _end(process)
            raise
        self._idle.append(process)
        return text


async def _start() -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", _MODULE, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=_environment()
    )


async def _exchange(process: Process, data: bytes) -> str:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(LENGTH.pack(len(data)) + data)
    await process.stdin.drain()
    (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
    if length == UNREADABLE or length > _MAX_TEXT_BYTES:
        raise WebRefused("the page can't be turned into text.")
    return (await process.stdout.readexactly(length)).decode("utf-8", "replace")


async def _end(process: Process) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.stdin.close()
    await process.wait()


def _environment() -> dict[str, str]:
    """Enough to find the code, and nothing that anybody keeps secret."""
    return {"PYTHONPATH": ":".join(path for path in sys.path if path), "PYTHONIOENCODING": "utf-8"}

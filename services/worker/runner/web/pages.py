"""Pages to text, in a process of their own that is started when the first page comes.

One page at a time; a page that takes too long costs its process, and the next one gets a new process. The process has
neither the environment nor the files of this one.
"""

import asyncio
import contextlib
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process

from services.worker.runner.web.page_process import LENGTH, UNREADABLE
from services.worker.runner.web.policy import WebRefused

PAGE_SECONDS = 15.0
# Larger pages are cut: what is behind is no reading matter.
MAX_PAGE_CHARACTERS = 2_000_000
# A text is shorter than its page but for what Markdown escapes.
_MAX_TEXT_BYTES = 64 * 1024 * 1024
_MODULE = "services.worker.runner.web.page_process"


class PageReader:
    """Turns pages into text."""

    def __init__(self, *, seconds: float = PAGE_SECONDS) -> None:
        self._seconds = seconds
        self._process: Process | None = None
        self._lock = asyncio.Lock()

    async def read(self, html: str) -> str:
        """The text of a page. WebRefused where it can't be had in time."""
        data = html[:MAX_PAGE_CHARACTERS].encode("utf-8", "replace")
        async with self._lock:
            try:
                async with asyncio.timeout(self._seconds):
                    return await self._ask(data)
            except TimeoutError:
                await self._kill()
                raise WebRefused("the page takes too long to be turned into text.") from None
            except BaseException:
                # Cut off in between, the process would answer the next page with this one.
                await self._kill()
                raise

    async def close(self) -> None:
        """End the process."""
        async with self._lock:
            await self._kill()

    async def _ask(self, data: bytes) -> str:
        try:
            return await self._exchange(data)
        except (BrokenPipeError, ConnectionResetError, asyncio.IncompleteReadError):
            # It has gone, for want of pages; or it did not survive this one, which the second try will show.
            await self._kill()
        try:
            return await self._exchange(data)
        except (BrokenPipeError, ConnectionResetError, asyncio.IncompleteReadError):
            await self._kill()
            raise WebRefused("the page can't be turned into text.") from None

    async def _exchange(self, data: bytes) -> str:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", _MODULE, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=_environment()
            )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(LENGTH.pack(len(data)) + data)
        await process.stdin.drain()
        (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
        if length == UNREADABLE or length > _MAX_TEXT_BYTES:
            await self._kill()
            raise WebRefused("the page can't be turned into text.")
        return (await process.stdout.readexactly(length)).decode("utf-8", "replace")

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        # What it has written meanwhile is read to its end, else the pipe stays open.
        if process.stdin is not None:
            process.stdin.close()
        await process.communicate() if process.stdin is None else await process.wait()


def _environment() -> dict[str, str]:
    """Enough to find the code, and nothing that anybody keeps secret."""
    return {"PYTHONPATH": ":".join(path for path in sys.path if path), "PYTHONIOENCODING": "utf-8"}

"""Processes that read pages end with whoever started them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from kit.testing import await_until

_PARENT = """
import asyncio
from services.worker.runner.web.pages import PageReader

async def main():
    pages = PageReader()
    await pages.read("<p>text")
    print(pages._idle[0].pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_runner_that_is_killed_leaves_no_process_behind() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", _PARENT, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    reader = Path(f"/proc/{int(await parent.stdout.readline())}")
    try:
        assert await asyncio.to_thread(_is_reader, reader)
    finally:
        parent.kill()
        await parent.wait()
    await await_until(lambda: not _is_reader(reader), timeout=30, message="the reader ends")


def _is_reader(process: Path) -> bool:
    try:
        return b"page_process" in (process / "cmdline").read_bytes()
    except OSError:
        return False

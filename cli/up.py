"""Running the platform in this terminal until Ctrl-C, for `up` and `demo`."""

import asyncio
import signal
from collections.abc import Awaitable, Callable

from cli.supervisor import Options, Supervisor

# A terminal and a parent program may both pass on one Ctrl-C.
_SAME_WISH_SECONDS = 0.5
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def serve(options: Options, *, say: Callable[[str], None], work: Callable[[Supervisor], Awaitable[None]]) -> None:
    """Start the platform, do `work` beside it, and stop it in order when the work ends or a signal comes.

    The second signal ends all patience.
    """
    supervisor = Supervisor(options, say)
    stop = asyncio.Event()

    loop = asyncio.get_running_loop()
    asked_at = 0.0

    def on_signal() -> None:
        nonlocal asked_at
        if not stop.is_set():
            asked_at = loop.time()
            stop.set()
        elif loop.time() - asked_at > _SAME_WISH_SECONDS:
            supervisor.hurry()

    async def start_and_work() -> None:
        await supervisor.start()
        await _first_of(work(supervisor), supervisor.until_failed())

    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        await _first_of(stop.wait(), start_and_work())
    finally:
        await supervisor.stop()


async def for_ever() -> None:
    """The work of a platform that only serves."""
    await asyncio.Event().wait()


async def _first_of(*waits: Awaitable[object]) -> None:
    """Wait for one of several; its failure is raised, the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""Being asked to stop: the first signal means finish what runs and stop, the second means now.

A Ctrl-C in a terminal comes to the whole group, and a service manager may add a SIGTERM of its own: what arrives
within half a second is one request.
"""

import asyncio
import os
import signal
from collections.abc import Callable

_SAME_SECONDS = 0.5
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopping:
    """Listens to the signals of this process while it is entered."""

    def __init__(self, said: Callable[[str], None], leave: Callable[[int], None] = os._exit) -> None:
        self._said = said
        self._leave = leave
        self._first_at: float | None = None
        self.asked = asyncio.Event()

    def __enter__(self) -> "Stopping":
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.handle, number)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    def handle(self, number: int) -> None:
        """One signal has come."""
        now = asyncio.get_running_loop().time()
        if self._first_at is None:
            self._first_at = now
            self._said("asked to stop: what runs is finished, nothing new is taken; once more ends everything now")
            self.asked.set()
        elif now - self._first_at > _SAME_SECONDS:
            self._said("ended at once; what ran was killed, and the platform will find its outcome unknown")
            # Everything that a command started ends with this process: its launcher sees to that.
            self._leave(128 + number)

    async def sleep(self, seconds: float) -> bool:
        """Wait that long, or until asked to stop; true where asked."""
        if self.asked.is_set():
            return True
        try:
            async with asyncio.timeout(seconds):
                await self.asked.wait()
        except TimeoutError:
            return self.asked.is_set()
        return True

"""How many requests a caller may send in a minute.

Each credential has one window for reads and one for writes. A window opens with the request
that finds none and lasts a minute from then, so a burst over the turn of a clock's minute
is counted once. The count lives in this process alone: it throttles, and is no defence
against a flood. Without a credential the address counts that a proxy forwards, or the
peer's; whoever can send any address there can have any number of windows, but no more
than `MAX_WINDOWS` are kept, and of more the one that opened first is forgotten.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from ..errors import InboundRateLimited
from .principal import ANONYMOUS, Principal

WINDOW_SECONDS = 60.0
DEFAULT_READS = 1200
DEFAULT_WRITES = 300
MAX_WINDOWS = 20_000
MAX_ADDRESS_LENGTH = 64
READS = frozenset({"GET", "HEAD"})
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})

Mode = Literal["on", "off"]


class _Window:
    __slots__ = ("count", "opened_at")

    def __init__(self, opened_at: float) -> None:
        self.opened_at = opened_at
        self.count = 0


class RateLimiter:
    """The windows of one gateway. `mode` None: on while requests need a key."""

    def __init__(
        self,
        *,
        mode: Mode | None = None,
        reads: int = DEFAULT_READS,
        writes: int = DEFAULT_WRITES,
        clock: Callable[[], float] = time.monotonic,
        max_windows: int = MAX_WINDOWS,
    ) -> None:
        self._mode = mode
        self._clock = clock
        self._max_windows = max_windows
        # In the order in which they opened, so what is over is at the front.
        self._windows: OrderedDict[tuple[str, bool], _Window] = OrderedDict()
        self._budgets = {True: writes, False: reads}

    def is_on(self, *, authentication: bool) -> bool:
        """Whether requests are counted now."""
        return authentication if self._mode is None else self._mode == "on"

    def count(self, bucket: str, method: str) -> None:
        """Count one request, or refuse it with the seconds until the window is over."""
        is_write = method in WRITES
        if not is_write and method not in READS:
            return
        now, budget = self._clock(), self._budgets[is_write]
        window = self._windows.get((bucket, is_write))
        if window is None or now - window.opened_at >= WINDOW_SECONDS:
            window = self._open((bucket, is_write), now)
        if window.count >= budget:
            raise InboundRateLimited(
                f"More than {budget} {'writes' if is_write else 'reads'} in a minute came with this credential.",
                retry_after_seconds=window.opened_at + WINDOW_SECONDS - now,
                limit=budget,
            )
        window.count += 1

    def _open(self, key: tuple[str, bool], now: float) -> _Window:
        windows = self._windows
        windows.pop(key, None)
        while windows:
            oldest = next(iter(windows))
            if now - windows[oldest].opened_at < WINDOW_SECONDS and len(windows) < self._max_windows:
                break
            del windows[oldest]
        window = windows[key] = _Window(now)
        return window


def bucket_of(principal: Principal, headers: Mapping[str, str], client: Sequence[object] | None) -> str:
    """Whose windows a request counts in."""
    if principal is not ANONYMOUS:
        return principal.id
    forwarded = headers.get("x-forwarded-for", "").partition(",")[0].strip()
    address = forwarded[:MAX_ADDRESS_LENGTH] or (str(client[0]) if client else "")
    return f"address {address}"

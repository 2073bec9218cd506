"""Waiting with a bound, for code that may be cancelled at any moment."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

Result = TypeVar("Result")


async def within(awaitable: Awaitable[Result], seconds: float | None) -> Result:
    """What `awaitable` gives; TimeoutError after `seconds`.

    It stands for `asyncio.wait_for`, which in Python 3.11 returns a result that comes together with a cancellation and
    forgets the cancellation: the caller goes on as if nobody had asked it to end.
    """
    async with asyncio.timeout(seconds):
        return await awaitable

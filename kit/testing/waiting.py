"""Waiting for something to become true, instead of for time to pass."""

import asyncio
import inspect
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

_EVERY_SECONDS = 0.01


def await_until(condition: Callable[[], Any], timeout: float = 30.0, message: str = "") -> Any:
    """Wait until the condition is true and give what it answered; AssertionError when the time is over.

    In a coroutine it is awaited, and the condition may be a coroutine function; elsewhere it blocks.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _blocking(condition, timeout, message)
    return _awaited(condition, timeout, message)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody used a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _blocking(condition: Callable[[], Any], timeout: float, message: str) -> Any:
    deadline, never = time.monotonic() + timeout, threading.Event()
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(_failure(condition, timeout, message))
        never.wait(_EVERY_SECONDS)
    return answer


async def _awaited(condition: Callable[[], Any | Awaitable[Any]], timeout: float, message: str) -> Any:
    deadline = time.monotonic() + timeout
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(_failure(condition, timeout, message))
        await asyncio.sleep(_EVERY_SECONDS)


def _failure(condition: Callable[[], Any], timeout: float, message: str) -> str:
    what = message or getattr(condition, "__qualname__", repr(condition))
    return f"not true within {timeout:g} s: {what}"

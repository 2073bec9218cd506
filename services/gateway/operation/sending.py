"""Client streams: messages to a service, with the refusal of whichever side gave up first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from kit.errors import DomainError

from .call import Call

MAX_SEND_SECONDS = 600.0


async def send_all(call: Call, rpc: Any, messages: AsyncIterator[Any]) -> Any:
    """Send every message; the service's answer. What `messages` raises ends the call, and is raised here."""
    failures: list[Exception] = []

    async def watched() -> AsyncIterator[Any]:
        try:
            async for message in messages:
                yield message
        except Exception as error:
            # gRPC would only tell that the call was cancelled.
            failures.append(error)
            raise

    try:
        return await rpc(watched(), context=call.context, timeout_seconds=MAX_SEND_SECONDS)
    except DomainError:
        if failures:
            raise failures[0] from None
        raise

"""A write that may come twice and must happen once.

    async with operations.unit(workspace_id) as unit:
        return await once(unit.tx, request.idempotency, CreateSessionResponse, create)

The first effect and its answer are one transaction; a repeat gets that answer. A refusal
keeps nothing, so a corrected request may use the key again.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from google.protobuf.message import Message

from kit.postgres import Tx
from managed_agents.sessions.v1.common_pb2 import Idempotency
from services.sessions.store.idempotency import IdempotencyStore

M = TypeVar("M", bound=Message)


async def once(tx: Tx, idempotency: Idempotency, answer: type[M], effect: Callable[[], Awaitable[M]]) -> M:
    """Runs `effect` in the transaction, or answers as its first run did."""
    if not idempotency.key:
        return await effect()
    store = IdempotencyStore(tx)
    former = await store.begin(
        idempotency.key, idempotency.fingerprint, idempotency.keep_seconds, first_try=idempotency.first_try
    )
    if former is not None:
        return answer.FromString(former)
    response = await effect()
    await store.finish(idempotency.key, response.SerializeToString())
    return response

"""The four calls of the tool protocol, in the shapes that both sides agreed on."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from services.worker.fleet.errors import Refused, Unreachable
from services.worker.fleet.platform import Platform

LEASE_LOST = "work_lease_lost"
# Where an answer says nothing of its lease.
_USUAL_LEASE_SECONDS = 60.0
_WAIT_MARGIN_SECONDS = 15.0
_CALL_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Item:
    """An item that was claimed. `lease_seconds` is a length, as clocks of two machines agree on nothing else."""

    id: str
    session_id: str
    kind: str
    payload: Any
    attempt: int
    lease_seconds: float
    # By this machine's own clock, when the answer came: a claim may be held open for longer than a lease, so from
    # when it was sent nothing follows. The lease began before; whether it still holds, the platform says.
    claimed_at: float = field(default_factory=time.monotonic)

    @property
    def lapsed(self) -> bool:
        """Whether the lease of the claim has surely gone by."""
        return time.monotonic() - self.claimed_at > self.lease_seconds


class WorkQueue:
    """The queue, as one worker sees it."""

    def __init__(self, platform: Platform, *, worker_id: str, environment_id: str | None, key: str | None) -> None:
        self._platform = platform
        self._worker_id = worker_id
        self._scope: dict[str, Any] = {"worker_id": worker_id}
        if environment_id:
            self._scope["environment_id"] = environment_id
        if key:
            self._scope["environment_key"] = key

    async def claim(self, wait_seconds: float) -> Item | None:
        """An item, as soon as there is one; None after the wait."""
        body = self._scope | ({"wait_ms": int(wait_seconds * 1000)} if wait_seconds else {})
        answer = await self._platform.call(
            "POST", "/v1/x/worker/claim", body, seconds=wait_seconds + _WAIT_MARGIN_SECONDS
        )
        if not answer:
            return None
        if not isinstance(answer, Mapping) or not isinstance(answer.get("id"), str):
            raise Unreachable("the platform's answer to a claim is no work item")
        return Item(
            id=answer["id"],
            session_id=str(answer.get("session_id") or ""),
            kind=str(answer.get("kind") or ""),
            payload=answer.get("payload"),
            attempt=int(answer.get("attempt") or 1),
            lease_seconds=_window(answer.get("claimed_at"), answer.get("lease_expires_at")),
        )

    async def accept(self, item: Item) -> None:
        """The right to run it. Refused where there is none."""
        await self._platform.call("POST", "/v1/x/worker/accept", self._named(item), seconds=_CALL_SECONDS)

    async def renew(self, item: Item) -> None:
        """Keep the lease."""
        await self._platform.call("POST", "/v1/x/worker/heartbeat", self._named(item), seconds=_CALL_SECONDS)

    async def complete(self, item: Item, result: Mapping[str, Any], *, failed: bool) -> None:
        """Tell how it went."""
        body = self._named(item) | {"result": result} | ({"failed": True} if failed else {})
        await self._platform.call("POST", "/v1/x/worker/complete", body, seconds=4 * _CALL_SECONDS)

    def _named(self, item: Item) -> dict[str, Any]:
        # The attempt tells two workers apart that have the same name by mistake.
        return {"id": item.id, "worker_id": self._worker_id, "attempt": item.attempt}


def is_lost(refused: Refused) -> bool:
    """Whether a refusal says that nobody wants the work any more."""
    return refused.status == 409 and refused.code == LEASE_LOST


def _window(claimed_at: Any, expires_at: Any) -> float:
    try:
        begin, end = (datetime.fromisoformat(str(each)) for each in (claimed_at, expires_at))
        seconds = (end - begin).total_seconds()
    except (ValueError, TypeError):
        return _USUAL_LEASE_SECONDS
    return seconds if seconds > 0 else _USUAL_LEASE_SECONDS

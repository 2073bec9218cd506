"""What a worker reaches through the work item that it holds, and how long what is known of that counts.

A sessions token comes with one item, for one attempt. It opens the item, its session's log, the memory stores that are
attached to the session, as far as they may be written, and the skills of its agents. A worker key opens the sessions
that are out with a worker of its environment. The queue and the sessions service say so; an answer is kept for
`KEEP_SECONDS`, so whoever has lost an item has lost the rest within that time.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kit.errors import DomainError, NotFound, PermissionDenied, Unavailable
from kit.rpc.context import CallContext
from kit.telemetry import log
from managed_agents.sessions.v1.duties_pb2 import GetReachRequest, GetReachResponse
from managed_agents.worker.v1.session_work_pb2 import CheckHeldSessionRequest, CheckSessionsTokenRequest

from .principal import Principal
from .roles import Holders

TOKEN_PREFIX = "mast_"
KEEP_SECONDS = 1.0
ASK_SECONDS = 5.0
GUARD_SECONDS = 2.0
MAX_KNOWN = 5_000
CONTEXT = CallContext(principal_id="gateway")
READS = frozenset({"GET", "HEAD"})


class _Kept:
    """Answers by key, for a moment."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Any, tuple[float, Any]] = OrderedDict()

    async def get(self, key: Any, ask: Callable[[], Awaitable[Any]]) -> Any:
        found = self._answers.get(key)
        if found is not None and time.monotonic() - found[0] < KEEP_SECONDS:
            return found[1]
        asked_at = time.monotonic()
        answer = await ask()
        if answer is False:
            # What a worker does not hold it may be handed any moment.
            return answer
        self._answers[key] = (asked_at, answer)
        self._answers.move_to_end(key)
        if len(self._answers) > MAX_KNOWN:
            self._answers.popitem(last=False)
        return answer


class SessionsTokens:
    """Whose sessions tokens are; `work` is the queue's stub."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self._kept = _Kept()

    async def find(self, digest: bytes) -> Principal | None:
        """Who comes in with the token of this digest. Unavailable where nobody can tell."""
        return await self._kept.get(digest, lambda: self._check(digest))

    async def _check(self, digest: bytes) -> Principal | None:
        request = CheckSessionsTokenRequest(sha256=digest)
        try:
            found = await self._work.CheckSessionsToken(
                request, context=CONTEXT, timeout_seconds=ASK_SECONDS, retry=True
            )
        except DomainError as error:
            log.debug("a sessions token could not be checked", error=str(error))
            raise Unavailable("Whose token this is can't be checked now. Try again shortly.") from error
        if not found.found:
            return None
        return Principal(
            found.work_id,
            found.workspace_id,
            "worker",
            environment_id=found.environment_id,
            session_id=found.session_id,
            work_id=found.work_id,
            token_sha256=digest,
            has_lost=not found.live,
        )

    def guard(self, digest: bytes, end: Callable[[], None]) -> Callable[[], None]:
        """Have an answer that goes on ended once its token opens nothing any more; call what this gives when it is."""
        task = asyncio.create_task(self._watch(digest, end), name="guard of a sessions token")
        return lambda: _cancel(task)

    async def _watch(self, digest: bytes, end: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(GUARD_SECONDS)
            try:
                principal = await self.find(digest)
            except Unavailable:
                continue
            if principal is None or principal.has_lost:
                end()
                return


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


class Holding:
    """Decides whether what a path names is within the reach of a worker."""

    def __init__(self, work: Any, duties: Any) -> None:
        self._work = work
        self._duties = duties
        self._held = _Kept()
        self._reach = _Kept()

    async def require(self, admitted: Any, holders: Holders, method: str, path: Mapping[str, str]) -> None:
        """Refuse with 403 what is out of reach; whether it exists is not told."""
        principal: Principal = admitted.principal
        if not await self._may(principal, admitted.context(), holders, method, path):
            raise PermissionDenied(
                "A worker reaches the sessions of the work items that it holds, and what is attached to those; this is"
                " not, or no longer, among them."
            )

    async def _may(
        self, principal: Principal, context: CallContext, holders: Holders, method: str, path: Mapping[str, str]
    ) -> bool:
        if holders == "item":
            return not principal.work_id or path.get("work_id") == principal.work_id
        if holders == "session":
            session_id = path.get("session_id", "")
            if principal.work_id:
                return session_id == principal.session_id
            key = (principal.workspace_id, principal.environment_id, session_id)
            return await self._held.get(key, lambda: self._is_held(context, session_id))
        reach: GetReachResponse = await self._reach.get(
            (principal.workspace_id, principal.session_id), lambda: self._read_reach(context, principal.session_id)
        )
        if holders == "skill":
            return (path.get("skill_id"), path.get("version")) in {(skill.id, skill.version) for skill in reach.skills}
        store = next((store for store in reach.stores if store.id == path.get("memory_store_id")), None)
        return store is not None and (store.writable or method in READS)

    async def _is_held(self, context: CallContext, session_id: str) -> bool:
        request = CheckHeldSessionRequest(session_id=session_id)
        answer = await self._work.CheckHeldSession(request, context=context, timeout_seconds=ASK_SECONDS, retry=True)
        return answer.held

    async def _read_reach(self, context: CallContext, session_id: str) -> GetReachResponse:
        request = GetReachRequest(session_id=session_id)
        try:
            return await self._duties.GetReach(request, context=context, timeout_seconds=ASK_SECONDS, retry=True)
        except NotFound:
            return GetReachResponse()

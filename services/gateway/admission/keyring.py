"""What the vault said about keys, kept only as long as it is known to hold.

The vault counts a generation up with every key that is made, deleted or revoked. While the
generation is the same, every answer about a key still holds, however many keys there are:
so one small question, at most every `FRESH_SECONDS` and only while requests come, keeps all
of them. `keys.changed` over NATS makes the next request ask at once, and so does a
connection to NATS that was lost meanwhile. Therefore a revocation holds everywhere within
`STALE_SECONDS`, whether or not the announcement arrives.

An answer that goes on, such as a stream, has a guard: once its credential is no longer let in,
it is ended. While there are guards the vault is asked without a request too.

Where the vault can't be asked, the last answers hold for `TRUST_SECONDS`, so that a restart
of the vault refuses nobody. Not so after an announcement: something did change, and until
it is known what, nobody is let in. Both end with 503, never with an open door.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, cast

from kit.clock import rfc3339
from kit.errors import DomainError, Unavailable
from kit.nats import Nats
from kit.rpc.context import CallContext
from kit.telemetry import log
from managed_agents.vault.v1.keys_pb2 import CheckKeyRequest, KeyPrincipal, KeyUse, SyncKeysRequest

from .principal import Principal, Role

CHANGED_SUBJECT = "keys.changed"
FRESH_SECONDS = 0.4
STALE_SECONDS = 0.8
TRUST_SECONDS = 30.0
ASK_SECONDS = 3.0
# So long a request waits for a slow answer while the last one may still be trusted.
WAIT_SECONDS = 1.0
# After the vault could not be asked, requests do not wait for it again at once.
PAUSE_SECONDS = 0.5
# With guards and nothing else to ask for: how often while there are keys, and while there is none.
GUARD_SECONDS = 0.8
KEYLESS_GUARD_SECONDS = 15.0
# Uses are told this much later, many at once.
USES_SECONDS = 10.0
MAX_KNOWN = 20_000
MAX_UNKNOWN = 2_000
MAX_USES = 10_000
USES_AT_ONCE = 1_000
CONTEXT = CallContext(principal_id="gateway")

_Known = tuple[Principal, bytes, float]
# Whether a credential is still let in, and what ends the answer that it was let in for.
_Guard = tuple[Callable[[], Awaitable[bool]], Callable[[], None]]


class KeyRing:
    """The answers, and when they have to be asked for again; `keys` is the vault's stub."""

    def __init__(
        self, keys: Any, *, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._keys = keys
        self._clock = clock
        self._wall = wall
        self.any_api_key = False
        self._generation = -1
        self._heard_at = float("-inf")
        self._is_overtaken = True
        self._retry_at = float("-inf")
        # Grows with each announcement: an answer that was asked for before it settles nothing.
        self._announced = 0
        self._settled = -1
        self._asking: tuple[int, asyncio.Task[None]] | None = None
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._unknown: OrderedDict[bytes, None] = OrderedDict()
        self._uses: dict[str, float] = {}
        self._flush: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._guards: dict[object, _Guard] = {}
        self._look: asyncio.TimerHandle | None = None

    async def listen(self, nats: Nats) -> None:
        """Hear announcements; returns at once, whether or not NATS is up."""
        await nats.subscribe_eventually(CHANGED_SUBJECT, self._hear)
        nats.on_reconnect(self.doubt)

    async def _hear(self, _message: Any) -> None:
        self.forget()

    def forget(self) -> None:
        """Keys have changed: nothing that was asked before now counts."""
        self._announced += 1
        if self._guards:
            self._begin(self._look_now(), "guards of keys")

    def doubt(self) -> None:
        """Announcements may have been missed: the next request asks."""
        self._is_overtaken, self._retry_at = True, float("-inf")

    async def settle(self) -> None:
        """Return once the answers hold. Unavailable where they are too old and nobody can be asked."""
        while True:
            now = self._clock()
            is_announced = self._settled < self._announced
            age = now - self._heard_at
            if not is_announced and not self._is_overtaken:
                if age < FRESH_SECONDS:
                    return
                if age < STALE_SECONDS or (now < self._retry_at and age < TRUST_SECONDS):
                    if now >= self._retry_at:
                        self._ask()
                    return
            elif not is_announced and now < self._retry_at and age < TRUST_SECONDS:
                return
            asking = self._ask()
            if not is_announced and age < TRUST_SECONDS:
                await asyncio.wait({asking}, timeout=WAIT_SECONDS)
                if not asking.done():
                    self._retry_at = self._clock() + PAUSE_SECONDS
                    return
            try:
                await asyncio.shield(asking)
            except DomainError as error:
                if is_announced or self._clock() - self._heard_at >= TRUST_SECONDS:
                    raise _unknowable() from error
                return

    async def find(self, digest: bytes) -> Principal | None:
        """Who comes in with the key of this digest; to be called once settled."""
        known = self._known.get(digest)
        if known is None:
            if digest in self._unknown:
                return None
            known = await self._check(digest)
        if known is None:
            return None
        principal, stored, ends_at = known
        if not hmac.compare_digest(stored, digest) or self._wall() >= ends_at:
            return None
        self._note_use(principal.id)
        return principal

    def guard(self, is_let_in: Callable[[], Awaitable[bool]], end: Callable[[], None]) -> Callable[[], None]:
        """Have an answer ended once its credential is not let in any more; call what this gives when it is over."""
        mark = object()
        self._guards[mark] = (is_let_in, end)
        self._look_later()
        return lambda: self._take_off(mark)

    async def close(self) -> None:
        """Tell the uses that were not told yet, as far as the vault answers."""
        for timer in (self._flush, self._look):
            if timer is not None:
                timer.cancel()
        while self._uses:
            try:
                await self._sync(self._take_uses())
            except DomainError:
                break
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._asking is not None:
            await asyncio.wait({self._asking[1]})

    def _ask(self) -> asyncio.Task[None]:
        """The question that is under way, unless keys have changed since it was asked."""
        if self._asking is not None:
            announced, task = self._asking
            if announced == self._announced and not task.done():
                return task
        task = asyncio.create_task(self._sync([]), name="keys")
        task.add_done_callback(_told)
        self._asking = (self._announced, task)
        return task

    async def _sync(self, uses: list[KeyUse]) -> None:
        announced, asked_at = self._announced, self._clock()
        try:
            answer = await self._keys.SyncKeys(SyncKeysRequest(uses=uses), context=CONTEXT, timeout_seconds=ASK_SECONDS)
        except DomainError as error:
            self._retry_at = self._clock() + PAUSE_SECONDS
            log.debug("keys could not be checked", error=str(error))
            raise
        if asked_at < self._heard_at:
            # One that was asked later has been answered already.
            return
        self._adopt(answer.generation)
        if answer.any_api_key and not self.any_api_key and self._look is not None:
            self._look.cancel()
            self._look = None
        self.any_api_key = answer.any_api_key
        self._look_later()
        self._heard_at, self._retry_at = asked_at, float("-inf")
        self._settled = max(self._settled, announced)
        self._is_overtaken = False

    def _adopt(self, generation: int) -> None:
        if generation != self._generation:
            self._known.clear()
            self._unknown.clear()
            self._generation = generation
            if self._guards:
                self._begin(self._check_guards(), "guards of keys")

    async def _check(self, digest: bytes) -> _Known | None:
        announced = self._announced
        try:
            request = CheckKeyRequest(sha256=digest)
            answer = await self._keys.CheckKey(request, context=CONTEXT, timeout_seconds=ASK_SECONDS, retry=True)
        except DomainError as error:
            raise _unknowable() from error
        found = _known(answer.principal) if answer.HasField("principal") else None
        if answer.generation == self._generation and announced == self._announced:
            if found is None:
                _keep(self._unknown, digest, None, MAX_UNKNOWN)
            else:
                _keep(self._known, digest, found, MAX_KNOWN)
        return found

    def _note_use(self, key_id: str) -> None:
        if key_id not in self._uses and len(self._uses) >= MAX_USES:
            return
        self._uses[key_id] = self._wall()
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(USES_SECONDS, self._tell_uses)

    def _tell_uses(self) -> None:
        self._flush = None
        self._begin(self._sync(self._take_uses()), "uses of keys")
        if self._uses:
            self._flush = asyncio.get_running_loop().call_later(USES_SECONDS, self._tell_uses)

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_told)

    def _take_off(self, mark: object) -> None:
        self._guards.pop(mark, None)

    def _look_later(self) -> None:
        if self._look is None and self._guards:
            seconds = GUARD_SECONDS if self.any_api_key else KEYLESS_GUARD_SECONDS
            self._look = asyncio.get_running_loop().call_later(seconds, self._look_again)

    def _look_again(self) -> None:
        self._look = None
        self._begin(self._look_now(), "guards of keys")

    async def _look_now(self) -> None:
        """Ask where keys stand; another generation has the guards checked. Nobody is cut off for an outage."""
        with suppress(Unavailable):
            await self.settle()
        self._look_later()

    async def _check_guards(self) -> None:
        for mark, (is_let_in, end) in list(self._guards.items()):
            if not await is_let_in():
                self._take_off(mark)
                end()

    def _take_uses(self) -> list[KeyUse]:
        taken = [self._uses.popitem() for _ in range(min(USES_AT_ONCE, len(self._uses)))]
        return [KeyUse(key_id=key_id, used_at=rfc3339(datetime.fromtimestamp(at, UTC))) for key_id, at in taken]


def _unknowable() -> Unavailable:
    return Unavailable("API keys can't be checked now. Try again shortly.")


def _known(found: KeyPrincipal) -> _Known:
    ends_at = datetime.fromisoformat(found.expires_at).timestamp() if found.expires_at else float("inf")
    principal = Principal(found.id, found.workspace_id, cast(Role, found.role), found.owner_name, found.environment_id)
    return principal, found.sha256, ends_at


def _keep(store: OrderedDict[bytes, Any], digest: bytes, value: Any, most: int) -> None:
    store[digest] = value
    if len(store) > most:
        store.popitem(last=False)


def _told(task: asyncio.Task[None]) -> None:
    """A failure is told to whoever waits for the task, and nobody has to."""
    if not task.cancelled():
        task.exception()

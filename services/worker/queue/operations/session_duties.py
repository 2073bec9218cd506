"""Items of the session protocol come and go with what the sessions service says.

It announces each change of whether a session needs a worker, and a durable consumer makes or ends the item in the
transaction that notes the message. An item that ended is followed up: whether another one is needed is asked, after
the calls that a lost worker may have begun were settled. What is to be done stands on the item itself until it is
done, so a crash at any point only repeats a question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kit import failpoints
from kit.consumer import Message
from kit.errors import DomainError, NotFound
from kit.ids import new_id
from kit.nats import Nats
from kit.postgres import Database, Tx
from kit.rpc.context import CallContext
from kit.telemetry import log
from managed_agents.sessions.v1 import duties_pb2
from services.worker.queue.domain import session_item
from services.worker.queue.domain.session_item import SessionItem
from services.worker.queue.operations.session_room import SessionRoom
from services.worker.queue.store.session_items import SessionItemStore

SUBJECTS = ("sessions.work.>",)
HINT = "worker.session_work"
BATCH = 100
IDLE_SECONDS = 15.0
RETRY_SECONDS = 1.0
_FAILED = "Workers took this session several times in a row and left its calls as they were."


class SessionDuties:
    """Makes items, lets them lapse, and follows them up. `duties` is the stub of the sessions service."""

    def __init__(self, database: Database, nats: Nats, duties: Any, room: SessionRoom) -> None:
        self._database = database
        self._nats = nats
        self._duties = duties
        self._room = room
        self._woken = asyncio.Event()
        # The environment in which the message in hand makes an item, or empty.
        self._touched = ""
        self._hints: set[asyncio.Task[Any]] = set()

    async def listen(self) -> None:
        """Hears the hints of other replicas."""

        async def hinted(message: Any) -> None:
            self._room.hint(message.subject.rpartition(".")[2])

        await self._nats.subscribe_eventually(f"{HINT}.*", hinted)
        self._nats.on_reconnect(self._room.doubt)

    def tell(self, environment_id: str) -> None:
        """Something may be found in a queue: here, and for the polls of other replicas."""
        self._room.hint(environment_id)
        task = asyncio.create_task(self._nats.publish(f"{HINT}.{environment_id}", b""), name="hint of session work")
        self._hints.add(task)
        task.add_done_callback(self._hints.discard)

    def look(self) -> None:
        """A lease began, or something is to be followed up."""
        self._woken.set()

    async def hear(self, tx: Tx, message: Message) -> None:
        """Takes note of a change of what a session needs."""
        change = duties_pb2.DutyChanged.FromString(message.payload)
        store = SessionItemStore(tx.for_workspace(change.workspace_id))
        self._touched = change.environment_id if change.has_work else ""
        if change.has_work:
            await store.need(new_id("work"), change.environment_id, change.session_id, duty_seq=change.seq)
            return
        found = await store.lock_live(change.session_id)
        if found is None:
            return
        item, now = found
        if change.ended and item.status == "claimed":
            await store.save(replace(item, stop_requested_at=item.stop_requested_at or now))
        elif item.duty_seq <= change.seq and item.status == "pending" and (change.ended or item.polled_at is None):
            await store.save(session_item.end(item, now, follow_up=False))

    def heard(self, _message: Message) -> None:
        """The transaction of `hear` has committed."""
        environment_id, self._touched = self._touched, ""
        if environment_id:
            self.tell(environment_id)

    async def needs_worker(self, item: SessionItem) -> bool:
        """Whether the session of an item still needs a worker."""
        try:
            duty = await self._ask(item)
        except NotFound:
            return False
        return duty.has_work

    async def run(self) -> None:
        """Lets leases lapse and follows up what ended; until cancelled."""
        while True:
            self._woken.clear()
            seconds = RETRY_SECONDS
            try:
                seconds = await self.round()
            except DomainError as error:
                log.warning("session work was not followed up", reason=error.reason, error=error.message)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._woken.wait()

    async def round(self) -> float:
        """One look at all; the seconds until the next one is due."""
        freed: list[str] = []
        async with self._database.platform_transaction() as tx:
            for item, now in await SessionItemStore(tx).lapsed(BATCH):
                lapsed = session_item.lapse(item, now)
                await SessionItemStore(tx.for_workspace(item.workspace_id)).save(lapsed)
                log.info("the worker of a session fell silent", work_id=item.id, session_id=item.session_id)
                if not lapsed.settle_due:
                    freed.append(item.environment_id)
        for environment_id in freed:
            self.tell(environment_id)
        async with self._database.platform_read() as tx:
            due = await SessionItemStore(tx).due(BATCH)
            next_lapse = await SessionItemStore(tx).next_lapse()
        failed = False
        for item in due:
            try:
                await self._follow_up(item)
            except DomainError as error:
                failed = True
                log.warning("an item was not followed up", work_id=item.id, reason=error.reason, error=error.message)
        seconds = IDLE_SECONDS if next_lapse is None else min(max(next_lapse, 0.02), IDLE_SECONDS)
        if failed:
            return min(seconds, RETRY_SECONDS)
        return 0.0 if len(due) == BATCH else seconds

    async def _follow_up(self, item: SessionItem) -> None:
        await failpoints.point("queue.sessions.following_up")
        if item.settle_due:
            await self._unless_gone(
                self._duties.SettleCalls, duties_pb2.SettleCallsRequest(session_id=item.session_id), item
            )
        duty = await self._duty(item)
        await failpoints.point("queue.sessions.settled")
        if item.status == "stopped":
            await self._succeed(item, duty)
            return
        async with self._database.transaction(item.workspace_id) as tx:
            store = SessionItemStore(tx)
            found = await store.lock(item.environment_id, item.id)
            if found is None or found[0].revision != item.revision:
                return
            settled = replace(found[0], settle_due=False)
            await store.save(settled if duty.has_work else session_item.end(settled, found[1]))
        self.look()
        self.tell(item.environment_id)

    async def _succeed(self, item: SessionItem, duty: duties_pb2.GetDutyResponse) -> None:
        """The end of an item that ended: another one, where the session still needs a worker."""
        fruitless, pause = session_item.successor_pause(item, duty.waiting_call_id)
        if duty.has_work and fruitless >= session_item.MOST_FRUITLESS:
            request = duties_pb2.ReportFailedWorkRequest(session_id=item.session_id, message=_FAILED)
            await self._unless_gone(self._duties.ReportFailedWork, request, item)
            duty = await self._duty(item)
        async with self._database.transaction(item.workspace_id) as tx:
            store = SessionItemStore(tx)
            if not await store.save(replace(item, settle_due=False, follow_up_due=False)) or not duty.has_work:
                return
            await store.need(
                new_id("work"),
                item.environment_id,
                item.session_id,
                waiting_call_id=duty.waiting_call_id,
                fruitless=fruitless,
                pause_seconds=pause.total_seconds(),
            )
        self.tell(item.environment_id)

    async def _duty(self, item: SessionItem) -> duties_pb2.GetDutyResponse:
        try:
            return await self._ask(item)
        except NotFound:
            return duties_pb2.GetDutyResponse(ended=True)

    async def _ask(self, item: SessionItem) -> duties_pb2.GetDutyResponse:
        request = duties_pb2.GetDutyRequest(session_id=item.session_id)
        return await self._duties.GetDuty(request, context=_context(item), retry=True)

    async def _unless_gone(self, rpc: Callable[..., Any], request: Any, item: SessionItem) -> None:
        with suppress(NotFound):
            await rpc(request, context=_context(item))


def _context(item: SessionItem) -> CallContext:
    return CallContext(workspace_id=item.workspace_id, principal_id="queue")

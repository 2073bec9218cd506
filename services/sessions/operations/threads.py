"""Moves sessions together with their threads.

A session's lock is taken before those of its threads, whoever moves them, so nobody waits in
a circle. A thread that moves by itself never waits for its session: what the session has to
hear is noted with the move, and carried over right after its commit, or by the sweep where a
process died in between. Both are one transaction each, so it is heard exactly once.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from kit import failpoints
from kit.errors import DomainError
from kit.ids import new_id
from kit.postgres import Tx
from kit.telemetry import log
from services.sessions.domain import thread_news, threads, turn
from services.sessions.domain.inbound import ClientEvent
from services.sessions.domain.log import LoggedEvent
from services.sessions.domain.move import Move, Moved
from services.sessions.domain.session_errors import SessionNotFound
from services.sessions.domain.session_state import Phase, SessionState, TurnState, phase_of
from services.sessions.operations.unit import Unit, new_event_id
from services.sessions.store.agents import AgentStore
from services.sessions.store.log import EventStored
from services.sessions.store.sessions import Sessions
from services.sessions.store.threads import ThreadStore

if TYPE_CHECKING:
    from services.sessions.operations.core import Operations

MAX_ROOTS = 100

# How a thread ends with its session: its state and the end of its context → the move.
EndOne = Callable[[SessionState, Sequence[LoggedEvent]], Moved]


class ThreadOperations:
    """Threads of the sessions that this replica moves."""

    def __init__(self, operations: "Operations") -> None:
        self._operations = operations
        # Sessions that hear their threads now, and whether there is more by now.
        self._hearing: dict[tuple[str, str], bool] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        operations.writer.on_news = self.hear_soon

    async def stop(self) -> None:
        """Finishes what is being heard; the sweep of another replica does the rest."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def append_client_events(
        self, unit: Unit, state: SessionState, events: list[ClientEvent], traceparent: str
    ) -> Moved:
        """Stores a client's events in a locked session, and gives its threads what is for them; all or none."""
        stored, routed = threads.route(state, events)
        state = threads.settle_posted(state, stored)
        moved = await unit.apply(
            turn.append_client_events(state, stored, unit.now, new_event_id, traceparent=traceparent)
        )
        for thread_id in sorted(routed):
            thread = await unit.lock(thread_id)
            told = turn.append_client_events(thread, routed[thread_id], unit.now, new_event_id, traceparent=traceparent)
            await unit.apply(told)
        await self._hear(unit, moved.state)
        return moved

    async def append_turn(
        self, workspace_id: str, session_id: str, command: turn.TurnAppend, calls: Sequence[threads.Call]
    ) -> Moved:
        """Stores what the runner of a coordinator wrote, with the threads that its calls start or send to."""
        try:
            return await self._append_turn(workspace_id, session_id, command, calls, look_up=False)
        except (turn.MayBeRepeat, EventStored):
            return await self._append_turn(workspace_id, session_id, command, calls, look_up=True)

    async def _append_turn(
        self,
        workspace_id: str,
        session_id: str,
        command: turn.TurnAppend,
        calls: Sequence[threads.Call],
        *,
        look_up: bool,
    ) -> Moved:
        async with self._operations.unit(workspace_id) as unit:
            state = await unit.lock(session_id)
            if look_up:
                ids = [draft.id for draft in command.events]
                command = replace(command, stored_ids=await unit.stored_ids(session_id, ids))
            if state.turn_state is not TurnState.LEASED or state.root_id:
                return await unit.apply(turn.append_turn_events(state, command, unit.now, new_event_id))
            written = turn.append_turn_events(state, replace(command, end=None), unit.now, new_event_id)
            written = await unit.apply(written)
            fresh = [call for call in calls if call.event_id not in (command.stored_ids or ())]
            state = await self._begin(unit, written.state, fresh)
            if command.end is None:
                return replace(written, state=state)
            ending = turn.TurnAppend(epoch=command.epoch, known_seq=command.known_seq, end=command.end)
            return await unit.apply(turn.append_turn_events(state, ending, unit.now, new_event_id))

    async def _begin(self, unit: Unit, state: SessionState, calls: Sequence[threads.Call]) -> SessionState:
        if not calls:
            return state
        members = await _members(unit.tx, state.id)
        move = Move(state, unit.now, new_event_id)
        deliveries = threads.begin_calls(move, calls, members, lambda: new_id("sthr"))
        state = (await unit.apply(move.finish())).state
        for delivery in sorted(deliveries, key=lambda each: each.thread_id):
            if delivery.member is not None:
                document = await _document(unit.tx, delivery.member)
                await ThreadStore(unit.tx).insert(state.id, delivery.thread_id, delivery.member, unit.now, document)
            thread = await unit.lock(delivery.thread_id)
            message = threads.message_for(delivery, state.thread_id)
            begun = turn.append_client_events(thread, [message], unit.now, new_event_id, traceparent=state.traceparent)
            await unit.apply(begun)
        await failpoints.point("sessions.threads.begun")
        return await self._hear(unit, state)

    async def end(self, unit: Unit, state: SessionState, end_one: EndOne) -> SessionState:
        """Ends the threads of a locked session, which itself is about to end."""
        if state.threads is None:
            return state
        for thread_id in sorted(entry.id for entry in state.threads.live):
            thread = await unit.lock(thread_id)
            await unit.apply(end_one(thread, await unit.open_work(thread)))
        store = ThreadStore(unit.tx)
        move = Move(state, unit.now, new_event_id)
        thread_news.end_all(move, await store.understand(await store.take_news(state.id)))
        unit.heard(state.id)
        return (await unit.apply(move.finish())).state

    async def delete(self, unit: Unit, state: SessionState) -> SessionState:
        """Removes the threads of a locked session, which itself is about to be deleted."""
        if state.threads is None:
            return state
        state = await self.end(
            unit, state, lambda each, tail: turn.delete(each, unit.now, new_event_id, tail, refuse_running=False)
        )
        await ThreadStore(unit.tx).delete_closed(state.id, unit.now)
        return state

    async def archive(self, unit: Unit, state: SessionState, thread_id: str) -> None:
        """Closes a thread that doesn't run, in a locked session; one that is archived stays as it is."""
        thread = await unit.lock(thread_id)
        await unit.apply(turn.archive(thread, unit.now, new_event_id, await unit.open_work(thread)))
        state = await self._hear(unit, state)
        entry = state.threads.find(thread_id) if state.threads else None
        if entry is None:
            return
        move = Move(state, unit.now, new_event_id)
        thread_news.close(move, entry, "The thread was archived before it answered.")
        thread_news.settle(move)
        await unit.apply(move.finish())

    async def _hear(self, unit: Unit, state: SessionState) -> SessionState:
        """Carries what threads did into their locked session."""
        store = ThreadStore(unit.tx)
        if not (rows := await store.take_news(state.id)):
            return state
        move = Move(state, unit.now, new_event_id)
        thread_news.hear(move, await store.understand(rows))
        unit.heard(state.id)
        return (await unit.apply(move.finish())).state

    def hear_soon(self, workspace_id: str, root_id: str) -> None:
        """Threads of a session have news for it."""
        key = (workspace_id, root_id)
        if key in self._hearing:
            self._hearing[key] = True
            return
        self._hearing[key] = False
        task = asyncio.create_task(self._hear_until_done(key), name=f"threads of {root_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hear_until_done(self, key: tuple[str, str]) -> None:
        try:
            while True:
                self._hearing[key] = False
                await self._hear_alone(*key)
                if not self._hearing[key]:
                    return
        except (DomainError, failpoints.FailpointHit) as error:
            # Noted in the database: the sweep comes back to it.
            log.warning("threads were not heard yet", session_id=key[1], error=repr(error))
        finally:
            del self._hearing[key]

    async def _hear_alone(self, workspace_id: str, root_id: str) -> None:
        await failpoints.point("sessions.threads.before_hearing")
        async with self._operations.unit(workspace_id) as unit:
            try:
                state = await unit.lock(root_id)
            except SessionNotFound:
                # Deleted, and its threads with it: nobody is left to hear.
                await ThreadStore(unit.tx).take_news(root_id)
                return
            if phase_of(state) is Phase.ENDED:
                await self.end(unit, state, lambda each, tail: turn.stop(each, unit.now, new_event_id, tail))
            else:
                await self._hear(unit, state)

    async def sweep(self) -> None:
        """Has sessions hear what a process that died could not tell them any more."""
        async with self._operations.database.platform_read() as tx:
            found = await ThreadStore(tx).roots_with_news(MAX_ROOTS)
        for workspace_id, root_id in found:
            self.hear_soon(workspace_id, root_id)


async def _members(tx: Tx, session_id: str) -> list[threads.Member]:
    """The roster of a session's coordinator, as it was resolved when the session was made."""
    record = await Sessions(tx).get(session_id)
    document: dict[str, Any] = orjson.loads(record.agent_document) if record else {}
    agents = (document.get("multiagent") or {}).get("agents") or []
    return [
        threads.Member(each["id"], each["version"], each["name"], each.get("skills") or ())
        for each in agents
        if each["type"] == "agent"
    ]


async def _document(tx: Tx, member: threads.Member) -> str | None:
    """The agent of a thread where it is other than the saved one: its skills are those that the session keeps."""
    if not member.skills:
        return None
    saved = await AgentStore(tx).load_version(member.agent_id, member.version)
    return orjson.dumps(orjson.loads(str(saved.document)) | {"skills": list(member.skills)}).decode()

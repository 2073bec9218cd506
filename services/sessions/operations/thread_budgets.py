"""Threads of a session that has a budget: what they spend is the session's, and so is the ceiling.

A thread asks at the session whether it may spend more, so what it wrote goes through the
session's lock: what it spent is in the session's totals with the same commit, and a pause and
a raise never miss each other. Threads of sessions without a budget know nothing of this.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from services.sessions.domain import budget, thread_news, turn
from services.sessions.domain.move import Move, Moved
from services.sessions.domain.session_state import SessionState, TurnState
from services.sessions.operations.unit import Unit, new_event_id
from services.sessions.store.log import EventStored
from services.sessions.store.threads import ThreadStore

if TYPE_CHECKING:
    from services.sessions.operations.core import Operations


class SharesBudget(turn.MayBeRepeat):
    """The thread's session has a budget, so its lock is needed first."""

    def __init__(self, root_id: str) -> None:
        super().__init__()
        self.root_id = root_id


def refuse_shared(state: SessionState) -> None:
    """SharesBudget for a thread whose session had a budget when the thread was made."""
    if state.root_id and state.budget not in (None, budget.REMOVED):
        raise SharesBudget(state.root_id)


class ThreadBudgets:
    """Appends of such threads, and what a raise does for them."""

    def __init__(self, operations: "Operations") -> None:
        self._operations = operations

    async def append_turn(
        self, workspace_id: str, root_id: str, thread_id: str, command: turn.TurnAppend
    ) -> tuple[Moved, bool]:
        """Stores what the runner of a thread wrote, and says whether the session's budget is reached with it."""
        try:
            return await self._append_turn(workspace_id, root_id, thread_id, command, look_up=False)
        except (turn.MayBeRepeat, EventStored):
            return await self._append_turn(workspace_id, root_id, thread_id, command, look_up=True)

    async def _append_turn(
        self, workspace_id: str, root_id: str, thread_id: str, command: turn.TurnAppend, *, look_up: bool
    ) -> tuple[Moved, bool]:
        async with self._operations.unit(workspace_id) as unit:
            await unit.lock(root_id)
            thread = await unit.lock(thread_id)
            if look_up:
                ids = [draft.id for draft in command.events]
                command = replace(command, stored_ids=await unit.stored_ids(thread_id, ids))
            if thread.turn_state is not TurnState.LEASED or command.end is None:
                moved = await unit.apply(turn.append_turn_events(thread, command, unit.now, new_event_id))
                return moved, budget.is_reached(await self._hear(unit, root_id, moved.state))
            written = await unit.apply(
                turn.append_turn_events(thread, replace(command, end=None), unit.now, new_event_id)
            )
            root = await self._hear(unit, root_id, written.state)
            end = replace(command.end, at_ceiling=budget.is_reached(root))
            ending = turn.TurnAppend(epoch=command.epoch, known_seq=command.known_seq, end=end)
            moved = await unit.apply(turn.append_turn_events(written.state, ending, unit.now, new_event_id))
            return moved, budget.is_reached(await self._hear(unit, root_id, moved.state))

    async def _hear(self, unit: Unit, root_id: str, thread: SessionState) -> SessionState:
        """Carries what a thread spent and did into its locked session."""
        store = ThreadStore(unit.tx)
        # Read anew: with a turn that began meanwhile went a grant.
        root = await unit.lock(root_id)
        move = Move(root, unit.now, new_event_id)
        thread_news.count(move, thread.id, thread.usage, thread.spend)
        if rows := await store.take_news(root.id):
            thread_news.hear(move, await store.understand(rows))
            unit.heard(root.id)
        return (await unit.apply(move.finish())).state

    async def resume(self, unit: Unit, root: SessionState, traceparent: str) -> None:
        """Lets the threads go on that the budget of a locked session had paused."""
        if root.threads is None or budget.is_reached(root):
            return
        for thread_id in sorted(entry.id for entry in root.threads.live if entry.is_paused):
            thread = await unit.lock(thread_id)
            if budget.is_paused(thread):
                move = Move(thread, unit.now, new_event_id)
                move.begin_turn(traceparent)
                thread = (await unit.apply(move.finish())).state
            await self._hear(unit, root.id, thread)

"""The way from a finished move to the log, to those who wait for it, and to a runner.

`write` belongs into the transaction of the move, `settle` after its commit, `undo` where
there was none. Whoever writes a log goes through here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from kit import failpoints
from kit.errors import WriteConflict
from kit.postgres import Tx
from kit.telemetry import log
from services.sessions.domain.log import LoggedEvent
from services.sessions.domain.move import Moved
from services.sessions.domain.session_state import Phase, Status, TurnState, phase_of
from services.sessions.domain.thread_news import NEWS_TYPES
from services.sessions.domain.turn import grant_at_once
from services.sessions.operations.announcer import Announcer, outbox_messages
from services.sessions.operations.grants import Grants
from services.sessions.operations.states import States
from services.sessions.operations.waiting_room import Seat, WaitingRoom
from services.sessions.store.log import LogStore
from services.sessions.store.threads import ThreadStore

Headers = dict[str, str]
GiveUp = Callable[[str, str, int], Awaitable[None]]


@dataclass(slots=True)
class Written:
    """What a transaction wrote and has to tell when it commits."""

    moves: list[Moved] = field(default_factory=list)
    # By session: queued inputs as they look now that they were read.
    read: dict[str, list[LoggedEvent]] = field(default_factory=dict)
    # Grants of this transaction with the seat of their runner.
    granted: list[tuple[Moved, Seat]] = field(default_factory=list)
    # Sessions, with their workspaces, that have to hear of what their threads did.
    roots: set[tuple[str, str]] = field(default_factory=set)


class Writer:
    """Writes moves, matches ready turns with waiting runners, and tells about both."""

    def __init__(
        self, room: WaitingRoom, announcer: Announcer, grants: Grants, lease_seconds: float, give_up: GiveUp
    ) -> None:
        """`give_up(workspace_id, session_id, epoch)` returns a turn whose grant nobody got."""
        self._room = room
        self._give_up = give_up
        self._announcer = announcer
        self._grants = grants
        self._lease_seconds = lease_seconds
        self.states = States()
        # Told after a commit which sessions have to hear of their threads.
        self.on_news: Callable[[str, str], None] = lambda workspace_id, root_id: None
        self._deliveries: set[asyncio.Task[None]] = set()

    async def write(self, tx: Tx, moves: Sequence[tuple[Moved, Headers]], written: Written) -> list[Moved]:
        """Saves moves, and the grants of turns that they make ready to runners that wait here; what was saved.

        Each move comes with the headers of the call that asked for it. `written` collects
        what `settle` or `undo` needs, also where this fails half way.
        """
        placed = [moved for moved, _ in moves]
        self._match(placed, written)
        await self.save(tx, [(moved, headers) for moved, (_, headers) in zip(placed, moves, strict=True)], written)
        return placed

    async def save(self, tx: Tx, moves: Sequence[tuple[Moved, Headers]], written: Written) -> None:
        """Saves moves as they are; `written.granted` is the caller's to fill."""
        messages = [message for moved, headers in moves if moved.events for message in outbox_messages(moved, headers)]
        _count(moves)
        saved = await LogStore(tx).save([moved for moved, _ in moves], messages, self._lease_seconds)
        if any(moved.state.id not in saved for moved, _ in moves):
            raise WriteConflict("A session moved on although it was locked.")
        for moved, _ in moves:
            if moved.read and moved.moved_at:
                scoped = LogStore(tx.for_workspace(moved.state.workspace_id))
                # Announced before the events of the move: who has the first of them has seen the input read.
                read_seq = moved.before.last_seq + 1
                fresh = await scoped.mark_read(moved.state.id, moved.read, moved.moved_at, read_seq)
                written.read.setdefault(moved.state.id, []).extend(fresh)
            if moved.state.root_id or moved.state.threads is not None:
                await _note_news(tx, moved, written)
            written.moves.append(moved)
        await failpoints.point("sessions.append.before_commit")

    async def save_guesses(self, tx: Tx, moves: Sequence[tuple[Moved, Headers]], written: Written) -> set[str]:
        """Saves moves of guessed states by one statement that is its own transaction.

        Answers with the sessions whose guess held. Of the others nothing was written, and
        nothing remains in `written`. The moves have not marked any input as read.
        """
        placed = [moved for moved, _ in moves]
        self._match(placed, written)
        moves = [(moved, headers) for moved, (_, headers) in zip(placed, moves, strict=True)]
        messages = [message for moved, headers in moves if moved.events for message in outbox_messages(moved, headers)]
        _count(moves)
        await failpoints.point("sessions.append.before_commit")
        saved = await LogStore(tx).save(placed, messages, self._lease_seconds)
        written.moves.extend(moved for moved in placed if moved.state.id in saved)
        for moved, seat in [pair for pair in written.granted if pair[0].state.id not in saved]:
            written.granted.remove((moved, seat))
            self._room.give_back(seat)
        return saved

    def undo(self, written: Written) -> None:
        """The transaction failed, or may have: nobody gets anything, and nothing is taken for known."""
        for _, seat in written.granted:
            self._room.give_back(seat)
        for moved in written.moves:
            self.states.drop(moved.state.id)

    async def settle(self, written: Written) -> None:
        """The transaction committed: tells tails, holders and other replicas, and hands out grants."""
        for moved in written.moves:
            self.states.keep(moved.state)
        await failpoints.point("sessions.append.after_commit")
        granted = {moved.state.id for moved, _ in written.granted}
        for moved, seat in written.granted:
            self._deliver(moved, seat)
        for moved in written.moves:
            fresh = written.read.get(moved.state.id, ())
            await self._announcer.events(moved.state.id, (*fresh, *moved.events))
            if moved.signal is not None:
                await self._announcer.signal(moved.signal)
        if any(moved.events for moved in written.moves):
            # A worker that serves whole sessions hears of its work by the outbox alone.
            self._announcer.wake_relay(at_once=any(moved.state.on_worker for moved in written.moves))
        for workspace_id, root_id in written.roots:
            self.on_news(workspace_id, root_id)
        if any(m.state.turn_state is TurnState.READY and m.state.id not in granted for m in written.moves):
            self._room.turns_wait()
            await self._announcer.turn_ready()

    async def stop(self) -> None:
        """Waits for grants that are on their way."""
        while self._deliveries:
            await asyncio.wait(self._deliveries)

    def _match(self, placed: list[Moved], written: Written) -> None:
        """Gives turns that the moves made ready to runners that wait here."""
        last = {moved.state.id: index for index, moved in enumerate(placed)}
        for index in last.values():
            moved = placed[index]
            if moved.state.turn_state is not TurnState.READY or moved.state.status is not Status.RUNNING:
                continue
            seat = self._room.reserve(moved.state.turn_holder, moved.state.loop_engine)
            if seat is None:
                continue
            placed[index] = grant_at_once(moved, seat.runner_id)
            written.granted.append((placed[index], seat))

    def _deliver(self, moved: Moved, seat: Seat) -> None:
        task = asyncio.create_task(self._hand_over(moved, seat), name=f"grant {moved.state.id}")
        self._deliveries.add(task)
        task.add_done_callback(self._deliveries.discard)

    async def _hand_over(self, moved: Moved, seat: Seat) -> None:
        """Puts a grant into its runner's queue. One that can't be made is left to the end of its lease."""
        try:
            await failpoints.point("turns.grant.after_commit")
            message = await self._grants.build(moved, seat)
        except Exception:
            log.exception("a grant could not be made", session_id=moved.state.id)
            return
        if message is None:
            return
        if seat.open:
            seat.grants.put_nowait(message)
        else:
            await self._give_up(moved.state.workspace_id, moved.state.id, moved.state.turn_epoch)


def _count(moves: Sequence[tuple[Moved, Headers]]) -> None:
    """Gives the states to be saved their version: one more than what the session's first move began with."""
    begun: dict[str, int] = {}
    for moved, _ in moves:
        moved.state.version = begun.setdefault(moved.state.id, moved.before.version) + 1


async def _note_news(tx: Tx, moved: Moved, written: Written) -> None:
    """What a thread did is noted for its session; a session that has ended takes its threads along."""
    state = moved.state
    if state.root_id:
        if events := [event for event in moved.events if event.type in NEWS_TYPES]:
            await ThreadStore(tx.for_workspace(state.workspace_id)).add_news(state.root_id, state.id, events)
            written.roots.add((state.workspace_id, state.root_id))
    elif state.threads is not None and state.threads.live and phase_of(state) is Phase.ENDED:
        written.roots.add((state.workspace_id, state.id))


def has_news(moved: Moved) -> bool:
    """Whether a move of a thread has to be heard by its session."""
    return bool(moved.state.root_id) and any(event.type in NEWS_TYPES for event in moved.events)


def unchanged(moved: Moved) -> bool:
    """Whether a move has nothing to save."""
    return not moved.events and replace(moved.state, updated_at=moved.before.updated_at) == moved.before

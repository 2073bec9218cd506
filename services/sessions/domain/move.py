"""One move of a session: a copy of its state, and the events that take it there.

The state machine (`domain/turn.py`) decides; a `Move` does the book-keeping that must
never come apart: an event takes the next seq, a running session has a turn and a start
time, an idle one has neither, and each idle is written as its three events.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import orjson

from services.sessions.domain import answers, outcome, turn_events
from services.sessions.domain.log import Draft, LoggedEvent, render
from services.sessions.domain.session_state import SessionState, Status, TurnState, UnreadInput
from services.sessions.domain.thread_state import any_running, client_ids, is_shown_running, waiting_ids

END_TURN = {"type": "end_turn"}
RETRIES_EXHAUSTED = {"type": "retries_exhausted"}


@dataclass(frozen=True, slots=True)
class Signal:
    """What the holder of a turn should hear of at once."""

    runner_id: str
    session_id: str
    epoch: int
    interrupt_seq: int = 0
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class Moved:
    """A finished move: what to save, what to announce."""

    before: SessionState
    state: SessionState
    # In the order of their seq.
    events: tuple[LoggedEvent, ...] = ()
    # The subset that clients sent.
    client_events: tuple[LoggedEvent, ...] = ()
    # Seqs of queued inputs that were read by this move, at `moved_at`.
    read: tuple[int, ...] = ()
    moved_at: datetime | None = None
    signal: Signal | None = None
    # Whether the turn that a runner appended to is over.
    ended: bool = False
    # What is new in the session's list of outcome evaluations, each with its `outcome_id`.
    outcome_changes: tuple[dict[str, Any], ...] = ()

    @property
    def turn_moved(self) -> bool:
        """Whether the turn itself changed hands, and not only its log."""
        before, after = self.before, self.state
        return (before.turn_state, before.turn_epoch) != (after.turn_state, after.turn_epoch)


class Move:
    """The working copy. Event times never run backwards within a session."""

    def __init__(self, state: SessionState, now: datetime, new_id: Callable[[], str]) -> None:
        self.before = state
        self.state = replace(state)
        self.now = max(now, state.updated_at)
        self._new_id = new_id
        self.events: list[LoggedEvent] = []
        self.client_events: list[LoggedEvent] = []
        self.read: list[int] = []
        self.signal: Signal | None = None
        self.ended = False
        self.outcome_changes: list[dict[str, Any]] = []
        # A turn begins before its running events are written: they follow the whole request.
        self.running_is_due = False
        # What the log says of the session and of its primary thread: they differ only while other threads run.
        self.session_shown = state.status is Status.RUNNING
        self.thread_shown = is_shown_running(state)

    def finish(self) -> Moved:
        """The result. The state is not to be touched any more."""
        self.write_running()
        self.state.updated_at = self.now
        parked = (
            self.state.status is Status.REQUIRES_ACTION and not self.state.root_id and not _only_workers(self.state)
        )
        self.state.parked_at = (self.state.parked_at or self.now) if parked else None
        return Moved(
            before=self.before,
            state=self.state,
            events=tuple(self.events),
            client_events=tuple(self.client_events),
            read=tuple(self.read),
            moved_at=self.now,
            signal=self.signal,
            ended=self.ended,
            outcome_changes=tuple(self.outcome_changes),
        )

    def append(self, draft: Draft, *, read: bool = True) -> LoggedEvent:
        """Writes one event at the end of the log."""
        self.state.last_seq += 1
        event = render(draft, self.state.last_seq, self.now, read=read)
        self.events.append(event)
        return event

    def append_input(self, draft: Draft, *, read: bool = True, starts_turn: bool = False) -> LoggedEvent:
        """Writes one event of a client; one that is not `read` waits for the next model request."""
        event = self.append(draft, read=read)
        self.client_events.append(event)
        if event.in_context:
            self.state.input_seq = event.seq
        if not read:
            self.state.unread += (UnreadInput(event.seq, starts_turn),)
        return event

    def write(self, event_type: str, fields: dict[str, Any] | None = None) -> None:
        """Writes one event of the service's own."""
        self.append(Draft(self._new_id(), event_type, orjson.dumps(fields) if fields else b"{}"))

    def write_session(self, event_type: str, fields: dict[str, Any] | None = None) -> None:
        """Writes one event that tells of the session as a whole: the log of a thread of it has none of those."""
        if not self.state.root_id:
            self.write(event_type, fields)

    def new_id(self) -> str:
        """The id of a further event."""
        return self._new_id()

    def close_open(self, events: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Writes the events that close what a turn left open."""
        for event_type, fields in events:
            self.write(event_type, fields)
            self.state.input_seq = self.state.last_seq

    def mark_read(self, up_to_seq: int) -> None:
        """Takes the inputs up to a seq as read by the model."""
        if not self.state.unread:
            return
        self.read.extend(entry.seq for entry in self.state.unread if entry.seq <= up_to_seq)
        self.state.unread = tuple(entry for entry in self.state.unread if entry.seq > up_to_seq)

    def begin_turn(self, traceparent: str) -> None:
        """A turn waits for a runner from here on."""
        self.state.turn_state = TurnState.READY
        self.state.turn_attempt = 0
        self.state.interrupt_seq = 0
        self.state.traceparent = traceparent
        self.start_running()

    def start_running(self) -> None:
        """The session runs from here on; the events that say so are written by `write_running`."""
        self.keep_running()
        self.running_is_due = True

    def keep_running(self) -> None:
        """The session runs, and may have run before."""
        self.state.status = Status.RUNNING
        self.state.running_since = self.state.running_since or self.now

    def write_running(self) -> None:
        """Writes the events of a start that has not been told yet."""
        if not self.running_is_due:
            return
        self.running_is_due = False
        if not self.session_shown:
            self.write_session("session.status_running")
        if not self.thread_shown:
            self.write("session.thread_status_running", turn_events.thread_fields(self.state))
        self.session_shown = self.thread_shown = True

    def stop_running(self) -> None:
        """Counts the time that the session ran, and stops the count."""
        self.state.active_seconds = turn_events.active_seconds(self.state, self.now)
        self.state.running_since = None

    def write_idle(self, stop_reason: dict[str, Any], stop_details: Any = None) -> None:
        """Writes the events of an idle primary thread, whatever put it there: of the session too, unless others run."""
        self.state.stop_reason = orjson.dumps(stop_reason).decode()
        fields = turn_events.idle_fields(stop_reason, stop_details)
        self.write("session.thread_status_idle", turn_events.thread_fields(self.state) | fields)
        self.thread_shown = False
        if any_running(self.state):
            return
        if self.state.status is Status.REQUIRES_ACTION:
            # What others wait for outweighs how this thread ended.
            stop_reason = {"type": "requires_action", "event_ids": waiting_ids(self.state)}
            fields = turn_events.idle_fields(stop_reason, None)
        self.write_session_idle(stop_reason, fields)

    def write_session_idle(self, stop_reason: dict[str, Any], fields: dict[str, Any]) -> None:
        """Writes the events of an idle session."""
        self.state.stop_reason = orjson.dumps(stop_reason).decode()
        self.write_session("session.usage", turn_events.usage_fields(self.state))
        metadata: dict[str, Any] = {"stop_reason": stop_reason}
        if stop_reason["type"] == "requires_action" and (answers := client_ids(self.state)) != stop_reason["event_ids"]:
            # The others wait for workers: whoever waits for people or an end goes on waiting where there is none.
            metadata["client_event_ids"] = answers
        self.write_session("session.status_idle", fields | {"metadata": metadata})
        self.session_shown = False

    def close_turn(self, stop_reason: dict[str, Any], stop_details: Any = None) -> None:
        """Ends the turn: the only way from running to idle."""
        self.write_running()
        outcome.close_with_turn(self, stop_reason)
        self.state.turn_state = TurnState.NONE
        self.state.interrupt_seq = 0
        self.state.pending = ()
        self._unawait()
        if any_running(self.state):
            self.keep_running()
        else:
            self.stop_running()
            self.state.status = Status.REQUIRES_ACTION if waiting_ids(self.state) else Status.IDLE
        self.write_idle(stop_reason, stop_details)

    def park_turn(self, stop_details: Any = None) -> None:
        """Ends the turn for now: `state.pending` says which answers it waits for."""
        self.state.turn_state = TurnState.NONE
        if any_running(self.state):
            # The session runs on, and so does this thread, whose calls wait for the others. The next turn finds
            # that this one waited for a client as well.
            self.keep_running()
            if waiting := waiting_ids(self.state):
                self.state.stop_reason = orjson.dumps({"type": "requires_action", "event_ids": waiting}).decode()
            return
        outcome.close_parked(self)
        self.stop_running()
        self.state.status = Status.REQUIRES_ACTION
        self.write_waiting()

    def write_waiting(self) -> None:
        """Tells which calls still wait for their answer, unless threads run."""
        if not any_running(self.state):
            self.write_idle({"type": "requires_action", "event_ids": waiting_ids(self.state)})

    def revoke_turn(self) -> None:
        """Takes the turn from whoever holds it."""
        outcome.close_ended(self)
        state = self.state
        if state.turn_state is TurnState.LEASED:
            self.signal = Signal(state.turn_holder, state.id, state.turn_epoch, revoked=True)
        state.turn_state = TurnState.NONE
        state.turn_epoch += 1
        state.interrupt_seq = 0
        state.pending = ()
        self._unawait()
        self.stop_running()

    def input_waits(self) -> bool:
        """Whether a message waits that is to start, or to go on with, a turn."""
        return any(entry.starts_turn for entry in self.state.unread)

    def give_up_calls(self) -> None:
        """Gives every parked call that will not be executed a result, so that the context stays sound."""
        for call in answers.without_result(self.state.pending):
            self.write(*turn_events.interrupted_result(call))
            self.state.input_seq = self.state.last_seq
        self.state.pending = ()
        self._unawait()

    def unawait_running(self) -> None:
        """The holder of the turn gives up the calls that wait for threads, and writes their results."""
        self.state.pending = tuple(call for call in self.state.pending if call.answered)
        self._unawait()

    def _unawait(self) -> None:
        if self.state.threads is not None:
            self.state.threads = self.state.threads.unawaited()


def _only_workers(state: SessionState) -> bool:
    """Whether everything that the session waits for is up to workers, so that no client can be late."""
    return bool(waiting_ids(state)) and not client_ids(state)

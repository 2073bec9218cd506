"""One session for histories that are played against the state machine, and what must hold after each step."""

import itertools
from datetime import UTC, datetime, timedelta

import orjson
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant

from services.sessions.domain import turn
from services.sessions.domain.inbound import ClientEvent
from services.sessions.domain.log import LoggedEvent
from services.sessions.domain.move import Moved
from services.sessions.domain.session_errors import SessionEnded
from services.sessions.domain.session_state import PendingCall, Phase, SessionState, Status, TurnState

START = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
# What may follow each public status in the log.
NEXT = {
    "new": {"running", "terminated", "deleted"},
    "running": {"idle", "rescheduled", "terminated"},
    "rescheduled": {"running", "idle", "terminated"},
    "idle": {"running", "idle", "terminated", "deleted"},
    "terminated": {"deleted"},
    "deleted": set(),
}


class History(RuleBasedStateMachine):
    """One session, and what a runner believes."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1)
        self.moments = itertools.count(1)
        self.state = SessionState("wrkspc_default", "sess_1", "sthr_1", "tester", START, START)
        self.log: list[dict] = []
        self.context: list[LoggedEvent] = []
        self.messages: set[int] = set()
        self.read: set[int] = set()
        self.parked: dict[str, PendingCall] = {}
        self.epochs_of_events: list[int] = []
        self.last_append: turn.TurnAppend | None = None
        self.ended_epochs: set[int] = set()

    def new_id(self) -> str:
        return f"sevt_{next(self.numbers)}"

    def now(self) -> datetime:
        # Clocks of replicas differ: some moments lie before the last one.
        number = next(self.moments)
        return START + timedelta(milliseconds=number * 10 - (25 if number % 7 == 0 else 0))

    def keep(self, moved: Moved) -> Moved:
        assert moved.before == self.state
        assert moved.state.turn_epoch >= self.state.turn_epoch
        self.log.extend(orjson.loads(event.body) for event in moved.events)
        self.context.extend(event for event in moved.events if event.in_context)
        for event in moved.events:
            if event.type == "user.message":
                self.messages.add(event.seq)
                if orjson.loads(event.body)["processed_at"] is not None:
                    self.read.add(event.seq)
        assert not set(moved.read) & self.read, "an input was read twice"
        self.read.update(seq for seq in moved.read if seq in self.messages)
        self.state = moved.state
        return moved

    def send(self, *events: ClientEvent) -> Moved | None:
        command = (self.state, list(events), self.now(), self.new_id)
        if turn.phase_of(self.state) is Phase.ENDED:
            with pytest.raises(SessionEnded):
                turn.append_client_events(*command)
            return None
        return self.keep(turn.append_client_events(*command))

    def close_calls(self) -> None:
        results = {event["tool_use_id"] for event in self.log if event["type"] == "agent.tool_result"}
        answered = {e["custom_tool_use_id"] for e in self.log if e["type"] == "user.custom_tool_result"}
        for event_id in self.parked:
            assert event_id in results | answered, "a parked call was left without a result"
        self.parked.clear()

    @invariant()
    def the_log_has_no_gap_and_no_event_twice(self) -> None:
        assert [event["seq"] for event in self.log] == list(range(1, self.state.last_seq + 1))
        assert len({event["id"] for event in self.log}) == len(self.log)
        moments = [event["created_at"] for event in self.log]
        assert moments == sorted(moments)

    @invariant()
    def every_running_is_closed_once(self) -> None:
        standing = "new"
        for event in self.log:
            kind = event["type"]
            following = kind.removeprefix("session.status_") if kind.startswith("session.status_") else None
            following = "deleted" if kind == "session.deleted" else following
            if following is not None:
                assert following in NEXT[standing], f"{following} after {standing}"
                standing = following
        expected = {
            "new": {Status.IDLE},
            "running": {Status.RUNNING},
            "rescheduled": {Status.RESCHEDULING},
            "idle": {Status.IDLE, Status.REQUIRES_ACTION},
            "terminated": {Status.TERMINATED, Status.TIMED_OUT},
            "deleted": set(Status),
        }
        assert self.state.status in expected[standing]

    @invariant()
    def each_idle_comes_with_its_usage(self) -> None:
        for index, event in enumerate(self.log):
            if event["type"] == "session.status_idle":
                before = [entry["type"] for entry in self.log[index - 2 : index]]
                assert before == ["session.thread_status_idle", "session.usage"]
                assert event["metadata"]["stop_reason"] == event["stop_reason"]

    @invariant()
    def times_are_what_the_log_says(self) -> None:
        ran, started, parked = timedelta(), None, None
        for event in self.log:
            moment = datetime.fromisoformat(event["created_at"])
            if event["type"] == "session.status_running":
                started, parked = started or moment, None
            elif event["type"].startswith("session.status_") and started is not None:
                ran, started = ran + (moment - started), None
            if event["type"] == "session.status_idle":
                parked = parked or moment
        assert self.state.running_since == started
        assert abs(self.state.active_seconds - ran.total_seconds()) < 1e-6
        waits = self.state.status is Status.REQUIRES_ACTION
        assert self.state.parked_at == (parked if waits else None)

    @invariant()
    def no_call_is_answered_twice(self) -> None:
        named = [event.get("tool_use_id") or event.get("custom_tool_use_id") for event in self.log if _answers(event)]
        assert len(set(named)) == len(named)

    @invariant()
    def the_state_is_one_that_the_table_takes(self) -> None:
        state = self.state
        assert (state.status in (Status.RUNNING, Status.RESCHEDULING)) == (state.turn_state is not TurnState.NONE)
        assert (state.status is Status.RUNNING) == (state.running_since is not None)
        assert state.turn_state is not TurnState.LEASED or state.turn_holder
        assert state.active_seconds >= 0
        if state.status is Status.REQUIRES_ACTION:
            assert any(not call.answered for call in state.pending)

    @invariant()
    def no_input_is_lost(self) -> None:
        unread = {entry.seq for entry in self.state.unread if entry.starts_turn}
        assert self.messages == self.read | unread
        assert not self.read & unread
        if turn.phase_of(self.state) is Phase.IDLE:
            assert not unread, "a message waits for a turn that nobody starts"


def _answers(event: dict) -> bool:
    return event["type"] in ("user.tool_confirmation", "user.custom_tool_result")

"""Calls that a worker runs, in the state machine: answered at any time and once, never lost, and told to the queue.

A random history of a session whose workers serve it as a whole is played. Whatever the order of calls, leaves, results,
crashes, interrupts and lost workers, each call ends with exactly one result, which workers can read.
"""

from __future__ import annotations

import orjson
import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import invariant, precondition, rule

from services.sessions.domain import duty, turn
from services.sessions.domain.inbound import ClientEvent
from services.sessions.domain.log import Draft
from services.sessions.domain.move import Moved
from services.sessions.domain.session_errors import InvalidEventType
from services.sessions.domain.session_state import CallKind, Phase, Status, TurnState
from services.sessions.domain.turn_errors import ToolCallNotPending
from services.sessions.domain.turn_events import parked_call
from tests.unit.sessions.histories import START, History, SessionState

MESSAGE = ClientEvent("user.message", {"content": [{"type": "text", "text": "go"}]})
INTERRUPT = ClientEvent("user.interrupt", {})


def result_for(call_id: str) -> ClientEvent:
    return ClientEvent("user.tool_result", {"tool_use_id": call_id, "content": [{"type": "text", "text": "x"}]})


def leave(call_id: str, *, deny: bool = False) -> ClientEvent:
    return ClientEvent("user.tool_confirmation", {"tool_use_id": call_id, "result": "deny" if deny else "allow"})


class WorkerHistories(History):
    """What clients, runners and workers may do; `open` are calls without a result, by whether a worker may run them."""

    def __init__(self) -> None:
        super().__init__()
        self.state.on_worker = True
        self.open: dict[str, bool] = {}
        self.told: list[tuple[bool, bool]] = []

    def keep(self, moved: Moved) -> Moved:
        change = duty.change(moved)
        if change is not None:
            self.told.append((change.has_work, change.ended))
        super().keep(moved)
        for event in moved.events:
            body = orjson.loads(event.body)
            if event.type in ("user.tool_result", "agent.tool_result"):
                # By the kind of the event alone workers know that nothing is left to do.
                assert event.type == "user.tool_result"
                assert self.open.pop(body["tool_use_id"], None) is not None, "a result for a call that has one"
        return moved

    @rule()
    def message(self) -> None:
        self.send(MESSAGE)

    @precondition(lambda self: self.state.turn_state is TurnState.READY)
    @rule()
    def grant(self) -> None:
        self.keep(turn.grant(self.state, "runner_1", self.now(), self.new_id))

    @precondition(lambda self: self.state.turn_state is TurnState.LEASED)
    @rule(
        asks=strategies.lists(strategies.booleans(), min_size=1, max_size=3),
        parks=strategies.booleans(),
        answered_before=strategies.booleans(),
    )
    def call(self, asks: list[bool], parks: bool, answered_before: bool) -> None:
        """An answer of the model with calls for the worker, which may be quicker than the runner that parks on them."""
        if self.open or self.state.interrupt_seq:
            return
        drafts = [Draft(self.new_id(), "span.model_request_start")]
        for asking in asks:
            fields = {
                "name": "bash",
                "input": {},
                "evaluated_permission": "ask" if asking else "allow",
                "executor": "worker",
                "content": [{"type": "tool_use", "id": f"toolu_{next(self.numbers)}"}],
            }
            drafts.append(Draft(self.new_id(), "agent.tool_use", orjson.dumps(fields)))
            self.open[drafts[-1].id] = not asking
        self.append(tuple(drafts))
        if answered_before and not asks[0]:
            self.send(result_for(drafts[1].id))
        if parks:
            self.park(tuple(drafts[1:]))

    def park(self, calls: tuple[Draft, ...]) -> None:
        parked = tuple(parked_call(each.id, each.type, orjson.loads(each.fields)) for each in calls)
        moved = self.append((), turn.End(turn.EndKind.REQUIRES_ACTION, parked))
        waiting = [each.event_id for each in parked if each.event_id in self.open]
        assert moved.ended == bool(waiting)
        if waiting:
            assert orjson.loads(moved.events[-1].body)["stop_reason"]["event_ids"] == waiting

    def append(self, drafts: tuple[Draft, ...], end: turn.End | None = None) -> Moved:
        command = turn.TurnAppend(self.state.turn_epoch, self.state.last_seq, drafts, None, end)
        return self.keep(turn.append_turn_events(self.state, command, self.now(), self.new_id))

    @precondition(lambda self: self.open and turn.phase_of(self.state) is not Phase.ENDED)
    @rule(index=strategies.integers(0, 2))
    def answer(self, index: int) -> None:
        """A worker tells a result. It counts once the call may be run, whatever the turn does just then."""
        call_id = list(self.open)[index % len(self.open)]
        if self.open[call_id] and not self.state.interrupt_seq:
            assert self.send(result_for(call_id)) is not None
        else:
            with pytest.raises(ToolCallNotPending):
                turn.append_client_events(self.state, [result_for(call_id)], self.now(), self.new_id)

    @precondition(lambda self: turn.phase_of(self.state) is Phase.PARKED)
    @rule(deny=strategies.booleans())
    def decide(self, deny: bool) -> None:
        asking = [call for call in self.state.pending if call.kind is CallKind.CONFIRMATION and not call.answered]
        if not asking:
            return
        call_id = asking[0].event_id
        self.send(leave(call_id, deny=deny))
        if not deny:
            self.open[call_id] = True
            assert call_id in list(duty.waiting_calls(self.state))
        with pytest.raises(ToolCallNotPending):
            turn.append_client_events(self.state, [leave(call_id)], self.now(), self.new_id)

    @precondition(lambda self: self.state.turn_state is TurnState.LEASED and self.state.pending == ())
    @rule()
    def finish(self) -> None:
        """The runner goes on with results, writes those of denied calls, and is done."""
        self.close(turn.End(turn.EndKind.END_TURN))

    @precondition(lambda self: self.state.turn_state is TurnState.LEASED and self.state.interrupt_seq)
    @rule()
    def obey(self) -> None:
        self.close(turn.End(turn.EndKind.INTERRUPTED))

    def close(self, end: turn.End) -> None:
        drafts = [
            Draft(self.new_id(), "user.tool_result", orjson.dumps({"tool_use_id": call_id})) for call_id in self.open
        ]
        self.append(tuple(drafts), end)

    @rule()
    def interrupt(self) -> None:
        parked = turn.phase_of(self.state) is Phase.PARKED
        self.send(INTERRUPT)
        if parked:
            assert not self.open

    @precondition(lambda self: self.state.turn_state is TurnState.LEASED)
    @rule()
    def lose_the_runner(self) -> None:
        self.keep(turn.expire(self.state, self.now(), self.new_id, self.context))
        if self.state.turn_state is TurnState.NONE:
            assert not self.open

    @precondition(lambda self: turn.phase_of(self.state) is not Phase.ENDED)
    @rule()
    def lose_the_worker(self) -> None:
        """What it may have begun is settled; nothing else is."""
        results = duty.results(self.state, duty.UNKNOWN_TEXT)
        if self.state.interrupt_seq:
            return
        assert {each.fields["tool_use_id"] for each in results} <= {key for key, may in self.open.items() if may}
        if results:
            self.send(*results)
        assert duty.results(self.state, duty.UNKNOWN_TEXT) == []

    @precondition(lambda self: turn.phase_of(self.state) is not Phase.ENDED)
    @rule(sure=strategies.integers(0, 3))
    def workers_that_can_not_serve(self, sure: int) -> None:
        if sure:
            return
        parked = turn.phase_of(self.state) is Phase.PARKED
        error = duty.not_served_error("x", [{"memory_store_id": "memstore_1"}])
        moved = self.keep(duty.tell_failure(self.state, error, self.now(), self.new_id))
        assert b"memstore_1" in moved.events[0].body
        if parked:
            assert self.state.status is Status.IDLE and not self.open

    @rule(how=strategies.sampled_from(["stop", "delete"]), sure=strategies.integers(0, 9))
    def end_session(self, how: str, sure: int) -> None:
        if sure or self.state.deleted_at:
            return
        if how == "stop":
            self.keep(turn.stop(self.state, self.now(), self.new_id, self.context))
        else:
            self.keep(turn.delete(self.state, self.now(), self.new_id, self.context, refuse_running=False))
        assert not self.open and not duty.has_work(self.state)

    @invariant()
    def times_are_what_the_log_says(self) -> None:
        """A session that waits for workers alone waits as long as it takes."""
        asks = any(call.kind is CallKind.CONFIRMATION and not call.answered for call in self.state.pending)
        assert (self.state.parked_at is not None) == (self.state.status is Status.REQUIRES_ACTION and asks)

    @invariant()
    def the_queue_has_heard_what_is_needed(self) -> None:
        needed = self.told[-1][0] if self.told else False
        assert needed == duty.has_work(self.state)
        assert [word for word, _ in self.told[1:]] != [word for word, _ in self.told[:-1]] or len(self.told) < 2
        ended = turn.phase_of(self.state) is Phase.ENDED
        assert not ended or not self.log or not self.told or self.told[-1][1] == ended or self.state.last_seq == 0

    @invariant()
    def a_call_that_waits_is_one_that_may_be_run(self) -> None:
        assert {call for call in duty.waiting_calls(self.state)} <= {key for key, may in self.open.items() if may}


TestWorkerHistories = WorkerHistories.TestCase
TestWorkerHistories.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def test_results_of_workers_are_for_sessions_that_workers_serve() -> None:
    state = SessionState("wrkspc_default", "sess_1", "sthr_1", "tester", START, START)
    with pytest.raises(InvalidEventType) as refused:
        turn.append_client_events(state, [MESSAGE, result_for("sevt_1")], START, lambda: "sevt_2")
    assert refused.value.field == "events.1.type"

"""Whatever the order of messages, interrupts, answers, appends, crashes and stops: the log stays sound.

A random history is played against the state machine. After each step the log has no gap,
every running is closed before the next, the state satisfies the table's constraints, no
input is lost, and no parked call is left without a result.
"""

from dataclasses import replace
from datetime import timedelta

import orjson
import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import precondition, rule

from services.sessions.domain import turn, waiting
from services.sessions.domain.inbound import ClientEvent
from services.sessions.domain.log import Draft
from services.sessions.domain.move import Moved
from services.sessions.domain.session_errors import InvalidSystemMessage, SessionRunning
from services.sessions.domain.session_state import CallKind, PendingCall, Phase, Status, TurnState
from services.sessions.domain.turn_errors import ToolCallNotPending, TurnLeaseLost
from tests.unit.sessions.histories import History

MESSAGE = ClientEvent("user.message", {"content": [{"type": "text", "text": "go"}]})
SYSTEM = ClientEvent("system.message", {"content": [{"type": "text", "text": "brief"}]})
INTERRUPT = ClientEvent("user.interrupt", {})
STEER = ClientEvent("user.steer", {"input_id": "steer_1", "text": "smaller"})
BOUND = timedelta(hours=1)


def answer_to(call: PendingCall, named: str, *, deny: bool = False) -> ClientEvent:
    if call.kind is CallKind.CUSTOM:
        return ClientEvent("user.custom_tool_result", {"custom_tool_use_id": named})
    result = {"result": "deny", "deny_message": "No."} if deny else {"result": "allow"}
    return ClientEvent("user.tool_confirmation", {"tool_use_id": named} | result)


class Histories(History):
    """What clients, runners, the clock and operators may do to the session."""

    @rule(count=strategies.integers(1, 3))
    def message(self, count: int) -> None:
        before = turn.phase_of(self.state)
        moved = self.send(*[MESSAGE] * count)
        if moved is not None and before is Phase.IDLE:
            assert turn.phase_of(self.state) is Phase.READY
            assert not any(entry.starts_turn for entry in self.state.unread)

    @rule(published=strategies.booleans())
    def message_with_system(self, published: bool) -> None:
        if published and turn.phase_of(self.state) is Phase.PARKED:
            with pytest.raises(InvalidSystemMessage):
                self.send(MESSAGE, replace(SYSTEM, published=True))
        else:
            self.send(MESSAGE, replace(SYSTEM, published=published))

    @rule()
    def system_alone(self) -> None:
        """It is context of what comes next and starts nothing."""
        before = self.state
        if self.send(SYSTEM) is not None:
            assert self.state.turn_state is before.turn_state and self.state.status is before.status

    @rule()
    def interrupt(self) -> None:
        before = self.state
        phase = turn.phase_of(before)
        moved = self.send(INTERRUPT)
        if moved is None:
            return
        if phase is Phase.IDLE:
            assert [event.type for event in moved.events] == ["user.interrupt"]
        if phase is Phase.LEASED:
            assert moved.signal is not None and moved.signal.interrupt_seq == self.state.interrupt_seq
        if phase is Phase.PARKED:
            assert turn.phase_of(self.state) in (Phase.IDLE, Phase.READY)
            self.close_calls()

    @rule(change_of_mind=strategies.booleans())
    def message_and_interrupt(self, change_of_mind: bool) -> None:
        parked = turn.phase_of(self.state) is Phase.PARKED
        moved = self.send(MESSAGE, INTERRUPT, *([MESSAGE] if change_of_mind else []))
        if moved is not None and parked:
            self.close_calls()

    @rule()
    def steer(self) -> None:
        """Nothing but the log takes notice."""
        before = self.state
        if self.send(STEER) is not None:
            assert self.state.turn_state is before.turn_state and self.state.unread == before.unread

    @rule(by_block=strategies.booleans(), deny=strategies.booleans(), index=strategies.integers(0, 3))
    def answer(self, by_block: bool, deny: bool, index: int) -> None:
        waiting = [call for call in self.state.pending if not call.answered]
        if turn.phase_of(self.state) is not Phase.PARKED or index >= len(waiting):
            return
        call = waiting[index]
        moved = self.send(answer_to(call, call.block_id if by_block else call.event_id, deny=deny))
        assert moved is not None
        stored = orjson.loads(moved.events[0].body)
        field = "custom_tool_use_id" if call.kind is CallKind.CUSTOM else "tool_use_id"
        assert stored[field] == call.event_id
        assert stored["metadata"][field] == call.block_id
        if len(waiting) == 1:
            assert turn.phase_of(self.state) is Phase.READY
            # The runner executes what was allowed; here it counts as done.
            self.parked.clear()
        else:
            remaining = [entry.event_id for entry in waiting if entry is not call]
            assert orjson.loads(moved.events[-1].body)["stop_reason"]["event_ids"] == remaining

    @rule(interrupted=strategies.booleans())
    def answer_all_at_once(self, interrupted: bool) -> None:
        waiting_calls = [call for call in self.state.pending if not call.answered]
        if turn.phase_of(self.state) is not Phase.PARKED:
            return
        answers = [answer_to(call, call.event_id) for call in waiting_calls]
        self.send(*answers, *([INTERRUPT] if interrupted else []))
        assert turn.phase_of(self.state) is Phase.READY
        # The runner that gets the turn does what was decided, or closes it where it was interrupted.
        self.parked.clear()

    @rule()
    def one_call_answered_twice_in_a_request(self) -> None:
        waiting_calls = [call for call in self.state.pending if not call.answered]
        if turn.phase_of(self.state) is Phase.PARKED and waiting_calls:
            twice = [
                answer_to(waiting_calls[0], name) for name in (waiting_calls[0].event_id, waiting_calls[0].block_id)
            ]
            with pytest.raises(ToolCallNotPending):
                turn.append_client_events(self.state, twice, self.now(), self.new_id)

    @rule(sure=strategies.integers(0, 4))
    def wait_too_long(self, sure: int) -> None:
        early = waiting.time_out(self.state, BOUND, self.now(), self.new_id)
        assert early.state == self.state and not early.events
        if sure or turn.phase_of(self.state) is not Phase.PARKED:
            return
        moved = self.keep(waiting.time_out(self.state, BOUND, self.now() + BOUND, self.new_id))
        assert self.state.status is Status.TIMED_OUT
        told = [event.type for event in moved.events if event.type.startswith("session.")]
        assert told == ["session.error", "session.thread_status_terminated", "session.status_terminated"]
        # Nobody decides what the calls would have brought.
        self.parked.clear()

    @rule()
    def wrong_answers(self) -> None:
        if turn.phase_of(self.state) is Phase.ENDED:
            return
        unknown = PendingCall("sevt_unknown", "toolu_unknown", CallKind.CONFIRMATION)
        wrong = [answer_to(unknown, unknown.event_id), answer_to(unknown, unknown.block_id)]
        for call in self.state.pending:
            if call.answered:
                wrong.append(answer_to(call, call.event_id))
            elif call.kind is CallKind.CUSTOM:
                wrong.append(ClientEvent("user.tool_confirmation", {"tool_use_id": call.event_id, "result": "deny"}))
        waits = {call.event_id for call in self.state.pending if not call.answered}
        for event in wrong:
            with pytest.raises(ToolCallNotPending) as refused:
                turn.append_client_events(self.state, [event], self.now(), self.new_id)
            other_kind = event.fields.get("tool_use_id") in waits
            assert other_kind == ("another kind of answer: user.custom_tool_result" in str(refused.value))

    @precondition(lambda self: self.state.turn_state is TurnState.READY)
    @rule(at_once=strategies.booleans())
    def grant(self, at_once: bool) -> None:
        before = self.state.turn_epoch
        runner = f"runner_{next(self.numbers)}"
        if at_once and self.state.status is Status.RUNNING:
            moved = Moved(self.state, self.state)
            self.keep(turn.grant_at_once(moved, runner))
        else:
            self.keep(turn.grant(self.state, runner, self.now(), self.new_id))
        assert self.state.turn_epoch == before + 1
        self.last_append = None

    def append(self, command: turn.TurnAppend) -> Moved:
        self.last_append = command
        return self.keep(turn.append_turn_events(self.state, command, self.now(), self.new_id))

    @precondition(lambda self: self.state.turn_state is TurnState.LEASED)
    @rule(
        lag=strategies.integers(0, 4),
        kind=strategies.sampled_from([None, *turn.EndKind]),
        calls=strategies.integers(1, 3),
    )
    def model_request(self, lag: int, kind: turn.EndKind | None, calls: int) -> None:
        known = max(0, self.state.last_seq - lag)
        drafts = [Draft(self.new_id(), "span.model_request_start"), Draft(self.new_id(), "agent.message")]
        end = None
        if kind is turn.EndKind.REQUIRES_ACTION:
            parked = tuple(
                PendingCall(self.new_id(), f"toolu_{next(self.numbers)}", list(CallKind)[number % 2])
                for number in range(calls)
            )
            drafts.extend(Draft(call.event_id, "agent.tool_use") for call in parked)
            self.parked.update({call.event_id: call for call in parked})
            end = turn.End(kind, parked)
        elif kind is not None:
            end = turn.End(kind)
        interrupted = self.state.interrupt_seq
        moved = self.append(turn.TurnAppend(self.state.turn_epoch, known, tuple(drafts), None, end))
        assert [event.id for event in moved.events[:2]] == [draft.id for draft in drafts[:2]]
        if end is not None and moved.ended:
            self.ended_epochs.add(self.state.turn_epoch)
            assert self.state.turn_state is TurnState.NONE
        if kind is turn.EndKind.REQUIRES_ACTION and interrupted:
            self.close_calls()
        if kind in (turn.EndKind.END_TURN, turn.EndKind.INTERRUPTED) and not moved.ended:
            assert any(entry.starts_turn for entry in self.state.unread)

    @precondition(lambda self: self.state.turn_state is TurnState.LEASED)
    @rule(known=strategies.booleans())
    def wait_for_the_vendor_or_go_on(self, known: bool) -> None:
        """A runner that backs off says so, and says when it asks again."""
        waits = self.state.status is Status.RUNNING
        kind = "rescheduled" if waits else "running"
        draft = Draft(self.new_id(), f"session.status_{kind}")
        self.append(turn.TurnAppend(self.state.turn_epoch, self.state.last_seq if known else 0, (draft,)))
        assert self.state.status is (Status.RESCHEDULING if waits else Status.RUNNING)

    @rule()
    def repeat_the_last_append(self) -> None:
        """The answer was lost on its way, so the runner asks again."""
        command = self.last_append
        if command is None or command.epoch != self.state.turn_epoch:
            return
        if self.state.turn_state is TurnState.LEASED and command.end is not None:
            return
        stored = frozenset(draft.id for draft in command.events)
        repeated = turn.TurnAppend(command.epoch, command.known_seq, command.events, None, command.end, stored)
        if self.state.turn_state is not TurnState.LEASED:
            with pytest.raises(turn.MayBeRepeat):
                turn.append_turn_events(self.state, command, self.now(), self.new_id)
        moved = turn.append_turn_events(self.state, repeated, self.now(), self.new_id)
        assert not moved.events
        self.keep(moved)

    @rule(back=strategies.integers(1, 3))
    def stale_append(self, back: int) -> None:
        epoch = self.state.turn_epoch - back
        command = turn.TurnAppend(epoch, self.state.last_seq, (Draft(self.new_id(), "agent.message"),))
        with pytest.raises(TurnLeaseLost):
            turn.append_turn_events(self.state, command, self.now(), self.new_id)

    @rule()
    def append_without_lease(self) -> None:
        if self.state.turn_state is TurnState.LEASED:
            return
        draft = Draft(self.new_id(), "agent.message")
        command = turn.TurnAppend(self.state.turn_epoch, 0, (draft,), stored_ids=frozenset())
        with pytest.raises(TurnLeaseLost):
            turn.append_turn_events(self.state, command, self.now(), self.new_id)

    @precondition(lambda self: self.state.turn_state is TurnState.LEASED)
    @rule()
    def expire(self) -> None:
        attempt = self.state.turn_attempt
        self.keep(turn.expire(self.state, self.now(), self.new_id))
        given_up = attempt >= turn.MAX_LOST_ATTEMPTS
        assert self.state.status is (Status.IDLE if given_up else Status.RESCHEDULING)

    @precondition(lambda self: self.state.turn_state is TurnState.LEASED)
    @rule(leaves_calls=strategies.booleans())
    def release(self, leaves_calls: bool) -> None:
        with pytest.raises(TurnLeaseLost):
            turn.release(self.state, self.state.turn_epoch - 1, self.now(), self.new_id)
        attempt = self.state.turn_attempt
        moved = self.keep(
            turn.release(self.state, self.state.turn_epoch, self.now(), self.new_id, leaves_calls=leaves_calls)
        )
        assert not moved.events
        # However often it is given back, that never uses its attempts up.
        assert self.state.turn_attempt == (max(attempt - 1, 1) if leaves_calls else attempt - 1)

    @rule(
        how=strategies.sampled_from(["stop", "archive", "delete", "delete published"]), sure=strategies.integers(0, 9)
    )
    def end_session(self, how: str, sure: int) -> None:
        if sure or self.state.deleted_at:
            return
        running = self.state.turn_state is not TurnState.NONE
        if how == "stop":
            self.keep(turn.stop(self.state, self.now(), self.new_id, self.context))
        elif how == "delete":
            self.keep(turn.delete(self.state, self.now(), self.new_id, self.context, refuse_running=False))
        else:
            move = (
                (lambda: turn.archive(self.state, self.now(), self.new_id, self.context))
                if how == "archive"
                else (lambda: turn.delete(self.state, self.now(), self.new_id, self.context, refuse_running=True))
            )
            if running:
                with pytest.raises(SessionRunning):
                    move()
                return
            self.keep(move())
        self.close_calls()


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=400, stateful_step_count=40, deadline=None)

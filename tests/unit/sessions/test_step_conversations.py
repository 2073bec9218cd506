"""Whatever the order of steps, repeats, owners, runners and crashes: a step is taken once and keeps its answer.

A conversation is played against the state machine of sessions, over the rules of steps and the reading of answers.
After each move everything holds that holds for any session, and each step that was ever answered has that answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import invariant, precondition, rule

from kit.errors import DomainError
from services.gateway.render.steps import LOOKED_AT, Reading
from services.sessions.domain import steps, turn
from services.sessions.domain.inbound import ClientEvent
from services.sessions.domain.log import Draft
from services.sessions.domain.session_errors import SessionEnded
from services.sessions.domain.session_state import CallKind, PendingCall, Phase, TurnState
from services.sessions.domain.step_errors import StepRequiresConfirmation, StepResultsMismatch
from services.sessions.domain.steps import Step, TakenStep, read_step
from tests.unit.sessions.histories import History

MESSAGE = ClientEvent("user.message", {"content": [{"type": "text", "text": "from its owner"}]})

# What ends a turn, the usual first.
ENDS = (*(turn.EndKind.REQUIRES_ACTION, turn.EndKind.END_TURN) * 8, None, *turn.EndKind)


@dataclass
class Taken:
    """A step that was taken, as the database keeps it."""

    step: Step
    body: dict[str, Any]
    key: str
    kept: TakenStep
    # What it was answered with, once it was.
    answer: Any = None


class Conversations(History):
    """What callers, owners, runners and crashes may do to the session of a conversation."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Taken] = []
        self.said: list[str] = []

    # The caller.

    def take(self, body: dict[str, Any], key: str = "") -> Taken | None:
        """A step as the service takes it; None where a turn has to end first."""
        step = read_step({"session_id": "conversation", **body}, key)
        former = steps.repeated(
            step,
            newest=self.taken[-1].kept if self.taken else None,
            named=next((each.kept for each in self.taken if step.key and each.step.key == step.key), None),
            same=next((e.kept for e in self.taken if step.results and e.step.fingerprint == step.fingerprint), None),
        )
        if former is not None:
            return self.taken[former.number - 1]
        before = self.state
        events = steps.events_of(step, before)
        if events is None:
            return None
        moved = self.send(*events)
        assert moved is not None
        first_seq = next(event.seq for event in moved.client_events if event.type != "user.interrupt")
        taken = Taken(step, body, key, TakenStep(len(self.taken) + 1, step.fingerprint, first_seq))
        self.taken.append(taken)
        if step.message is not None:
            self.said.append(step.message)
        return taken

    def refused(self, body: dict[str, Any], key: str = "") -> DomainError:
        before, log = self.state, list(self.log)
        with pytest.raises(DomainError) as refusal:
            self.take(body, key)
        assert self.state == before and self.log == log
        return refusal.value

    def waiting(self, kind: CallKind) -> list[str]:
        return [call.event_id for call in self.state.pending if not call.answered and call.kind is kind]

    def has_ended(self) -> bool:
        return turn.phase_of(self.state) is Phase.ENDED

    @rule(named=strategies.booleans())
    def speak(self, named: bool) -> None:
        number = next(self.numbers)
        body, key = {"message": f"message {number}"}, f"key {number}" if named else ""
        if self.has_ended():
            assert isinstance(self.refused(body, key), SessionEnded)
            return
        if self.state.turn_state is TurnState.NONE and self.waiting(CallKind.CONFIRMATION):
            assert isinstance(self.refused(body, key), StepRequiresConfirmation)
            return
        runs, calls = self.state.turn_state is not TurnState.NONE, self.waiting(CallKind.CUSTOM)
        taken = self.take(body, key)
        assert (taken is None) is runs
        if taken is not None:
            assert taken is self.taken[-1] and self.state.turn_state is TurnState.READY
            given_up = {e["tool_use_id"] for e in self.log if e["type"] == "agent.tool_result"}
            assert given_up.issuperset(calls), "a call was left without a result"

    @precondition(lambda self: self.taken and self.waiting(CallKind.CUSTOM))
    @rule(named=strategies.booleans())
    def answer(self, named: bool) -> None:
        results = [{"id": each, "ok": True, "result": {"of": each}} for each in self.waiting(CallKind.CUSTOM)]
        key = f"key {next(self.numbers)}" if named else ""
        if self.waiting(CallKind.CONFIRMATION):
            assert isinstance(self.refused({"tool_results": results}, key), StepRequiresConfirmation)
            return
        taken = self.take({"tool_results": results}, key)
        assert taken is self.taken[-1] and not self.waiting(CallKind.CUSTOM)

    @rule(how=strategies.sampled_from(["unknown", "partial", "too many", "answered"]))
    def answer_wrongly(self, how: str) -> None:
        waiting = self.waiting(CallKind.CUSTOM)
        ids = {
            "unknown": ["sevt_unknown"],
            "partial": waiting[1:],
            "too many": [*waiting, "sevt_unknown"],
            "answered": [e["custom_tool_use_id"] for e in self.log if e["type"] == "user.custom_tool_result"],
        }[how]
        if ids:
            # With a result that nobody sent before: what was sent before is a repeat.
            wrong = {"tool_results": [{"id": each, "ok": False, "error": "another"} for each in ids]}
            assert isinstance(self.refused(wrong), SessionEnded if self.has_ended() else StepResultsMismatch)

    @precondition(lambda self: self.taken)
    @rule(data=strategies.data())
    def send_again(self, data: strategies.DataObject) -> None:
        """The answer was lost: any named step, any results, and the newest message."""
        repeatable = [each for each in self.taken if each.key or each.step.results or each is self.taken[-1]]
        again = data.draw(strategies.sampled_from(repeatable))
        before, count = self.state, len(self.taken)
        assert self.take(again.body, again.key) is again
        assert self.state == before and len(self.taken) == count

    @precondition(lambda self: any(each.key for each in self.taken))
    @rule(data=strategies.data())
    def use_a_name_twice(self, data: strategies.DataObject) -> None:
        named = data.draw(strategies.sampled_from([each for each in self.taken if each.key]))
        other = {"message": f"message {next(self.numbers)}"}
        assert self.refused(other, named.key).reason == "IDEMPOTENCY_KEY_REUSED"

    @precondition(lambda self: self.taken and turn.phase_of(self.state) is Phase.IDLE)
    @rule(data=strategies.data())
    def say_the_same_again(self, data: strategies.DataObject) -> None:
        """Under a new name at any time, and without one as soon as something else came in between."""
        former = data.draw(strategies.sampled_from([each for each in self.taken if each.step.message]))
        needs_name = former.step.fingerprint == self.taken[-1].step.fingerprint
        count = len(self.taken)
        taken = self.take({"message": former.step.message}, f"key {next(self.numbers)}" if needs_name else "")
        assert taken is self.taken[-1] and len(self.taken) == count + 1

    # The owner of the session, who sees it under /v1/sessions.

    @rule(sure=strategies.integers(0, 5), speaks=strategies.booleans())
    def owner_interferes(self, sure: int, speaks: bool) -> None:
        if not sure:
            self.send(MESSAGE if speaks else ClientEvent("user.interrupt", {}))

    @precondition(lambda self: self.waiting(CallKind.CONFIRMATION))
    @rule(allow=strategies.booleans())
    def owner_confirms(self, allow: bool) -> None:
        call = self.waiting(CallKind.CONFIRMATION)[0]
        fields = {"tool_use_id": call, "result": "allow" if allow else "deny"}
        self.send(ClientEvent("user.tool_confirmation", fields))

    @rule(sure=strategies.integers(0, 60))
    def owner_stops(self, sure: int) -> None:
        if sure == 0:
            self.keep(turn.stop(self.state, self.now(), self.new_id, self.context))

    # Runners.

    @precondition(lambda self: self.state.turn_state is not TurnState.NONE)
    @rule(
        kind=strategies.sampled_from(ENDS),
        speaks=strategies.booleans(),
        custom=strategies.sampled_from([2, 1, 1, 0]),
        asking=strategies.sampled_from([0, 0, 1]),
    )
    def work(self, kind: turn.EndKind | None, speaks: bool, custom: int, asking: int) -> None:
        if self.state.turn_state is TurnState.READY:
            self.keep(turn.grant(self.state, f"runner_{next(self.numbers)}", self.now(), self.new_id))
        drafts = [Draft(self.new_id(), "span.model_request_start")]
        if speaks:
            text = {"content": [{"type": "text", "text": f"text {next(self.numbers)}"}]}
            drafts.append(Draft(self.new_id(), "agent.message", orjson.dumps(text)))
        end = None
        if kind is turn.EndKind.REQUIRES_ACTION:
            parked = [self._call(drafts, CallKind.CUSTOM) for _ in range(custom)]
            parked += [self._call(drafts, CallKind.CONFIRMATION) for _ in range(asking)]
            if not parked:
                return
            end = turn.End(kind, tuple(parked))
        elif kind is not None:
            if kind is turn.EndKind.RETRIES_EXHAUSTED:
                error = {"error": {"type": "model_overloaded_error", "message": f"failure {next(self.numbers)}"}}
                drafts.append(Draft(self.new_id(), "session.error", orjson.dumps(error)))
            end = turn.End(kind)
        command = turn.TurnAppend(self.state.turn_epoch, self.state.last_seq, tuple(drafts), None, end)
        self.keep(turn.append_turn_events(self.state, command, self.now(), self.new_id))

    def _call(self, drafts: list[Draft], kind: CallKind) -> PendingCall:
        call = PendingCall(self.new_id(), f"toolu_{next(self.numbers)}", kind)
        fields: dict[str, Any] = {"name": "tool", "input": {"of": call.event_id}}
        event_type = "agent.custom_tool_use"
        if kind is CallKind.CONFIRMATION:
            event_type, fields = "agent.tool_use", fields | {"evaluated_permission": "ask"}
        drafts.append(Draft(call.event_id, event_type, orjson.dumps(fields)))
        return call

    @precondition(lambda self: self.state.turn_state is TurnState.READY)
    @rule(sure=strategies.integers(0, 3))
    def crash(self, sure: int) -> None:
        if sure:
            return
        self.keep(turn.grant(self.state, f"runner_{next(self.numbers)}", self.now(), self.new_id))
        self.keep(turn.expire(self.state, self.now(), self.new_id, self.context))

    @rule(rounds=strategies.integers(0, 3), named=strategies.booleans())
    def a_turn_without_any_trouble(self, rounds: int, named: bool) -> None:
        """What callers mostly see, so that trouble finds conversations of some length."""
        if turn.phase_of(self.state) is not Phase.IDLE:
            return
        self.speak(named)
        for _ in range(rounds):
            self.work(turn.EndKind.REQUIRES_ACTION, True, 2, 0)
            self.answer(named)
        self.work(turn.EndKind.END_TURN, True, 0, 0)

    # What must hold.

    def reading(self, taken: Taken) -> Any:
        """The answer by the whole log; None while there is none."""
        reading = Reading("sess_1")
        for event in self.log[taken.kept.first_seq - 1 :]:
            if event["type"] in LOOKED_AT and reading.take(event["type"], event):
                break
        if reading.answer is None and reading.refusal is None:
            assert reading.is_paused or self.state.turn_state is not TurnState.NONE, "a step without an answer"
            return None
        try:
            return orjson.loads(reading.body())
        except DomainError as refusal:
            return refusal.reason, str(refusal.message)

    @invariant()
    def each_answer_stays_what_it_was(self) -> None:
        for taken in self.taken:
            answer = self.reading(taken)
            assert taken.answer is None or answer == taken.answer
            taken.answer = answer

    @invariant()
    def an_answer_is_a_reply_or_calls_that_nobody_else_was_given(self) -> None:
        given: list[str] = []
        for taken in self.taken:
            if isinstance(taken.answer, dict):
                assert len(taken.answer) == 1 and taken.answer.keys() <= {"reply", "tool_calls"}
                calls = taken.answer.get("tool_calls")
                assert calls is None or calls
                given += [call["id"] for call in calls or ()]
        assert len(set(given)) == len(given)

    @invariant()
    def every_message_stands_once_and_in_order(self) -> None:
        texts = [event["content"][0]["text"] for event in self.log if event["type"] == "user.message"]
        assert [text for text in texts if text != "from its owner"] == self.said


TestConversations = Conversations.TestCase
TestConversations.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)

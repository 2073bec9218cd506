"""Whatever the order of declarations, verdicts, messages, interrupts, parked calls, crashes and ends: outcomes end.

The histories of the state machine, with outcomes in them. After each step: one outcome at a time is worked on, its log
ends with one result that is final, and what the session shows is what its log says.
"""

import itertools
from typing import Any

import orjson
import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import invariant, precondition, rule

from services.sessions.domain import outcome, turn
from services.sessions.domain.inbound import ClientEvent
from services.sessions.domain.log import Draft
from services.sessions.domain.move import Moved
from services.sessions.domain.outcome import Result, Stage
from services.sessions.domain.session_errors import InvalidDefineOutcome, OutcomeActive
from services.sessions.domain.session_state import Phase, TurnState
from tests.unit.sessions.test_turn_machine import INTERRUPT, MESSAGE, Histories

RUBRIC = {"type": "text", "content": "It returns 200."}
DECLARATION = ClientEvent("user.define_outcome", {"description": "Ship it", "rubric": RUBRIC, "max_iterations": 3})
SHOWN_FIRST = {"iteration": 0, "result": "pending", "explanation": None}


class Outcomes(Histories):
    """One session that is given outcomes, and what readers see of them."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[dict[str, Any]] = []

    def keep(self, moved: Moved) -> Moved:
        for change in moved.outcome_changes:
            if self.shown and self.shown[-1]["outcome_id"] == change["outcome_id"]:
                self.shown[-1] |= change
            else:
                self.shown.append(dict(change))
        return super().keep(moved)

    @property
    def is_active(self) -> bool:
        return self.state.outcome is not None and self.state.outcome.is_active

    @rule(before=strategies.booleans(), interrupted=strategies.booleans(), message=strategies.booleans())
    def declare(self, before: bool, interrupted: bool, message: bool) -> None:
        events = [*([INTERRUPT] if before else []), DECLARATION, *([MESSAGE] if message else [])]
        events += [INTERRUPT] if interrupted else []
        phase = turn.phase_of(self.state)
        if phase is not Phase.ENDED and self.is_active and not self._ends_with(before):
            with pytest.raises(OutcomeActive):
                turn.append_client_events(self.state, events, self.now(), self.new_id)
            return
        moved = self.send(*events)
        if moved is None:
            return
        (declared,) = [orjson.loads(event.body) for event in moved.events if event.type == "user.define_outcome"]
        assert declared["processed_at"] is not None
        assert declared["outcome_id"] == self.shown[-1]["outcome_id"]
        if phase is Phase.PARKED and (before or interrupted):
            self.close_calls()
        if not interrupted:
            assert self.is_active
            assert turn.phase_of(self.state) is not Phase.IDLE
            assert {key: self.shown[-1][key] for key in SHOWN_FIRST} == SHOWN_FIRST

    def _ends_with(self, interrupt: bool) -> bool:
        """Whether an interrupt at the head of the request is obeyed at once, and ends what is worked on."""
        phase, state = turn.phase_of(self.state), self.state
        fresh = phase is Phase.READY and not state.turn_attempt and not state.pending
        return interrupt and (fresh or phase is Phase.PARKED)

    @precondition(lambda self: self.state.turn_state is TurnState.LEASED and self.is_active)
    @rule(result=strategies.sampled_from(["satisfied", "needs_revision", "failed", "max_iterations_reached"]))
    def evaluate(self, result: str) -> None:
        current = self.state.outcome
        assert current is not None
        if any(entry.seq == current.seq for entry in self.state.unread):
            return
        about = {"outcome_id": current.id, "iteration": current.iteration}
        self._append_evaluation("start", about)
        assert self.shown[-1]["result"] == "evaluating"
        self._append_evaluation("ongoing", about)
        self._append_evaluation("end", about | {"result": result, "explanation": f"because {next(self.numbers)}"})
        assert self.state.turn_attempt == 1
        if result == "needs_revision":
            assert (self.shown[-1]["result"], self.shown[-1]["iteration"]) == ("running", current.iteration + 1)
            self._append("user.message", {"content": []})
        else:
            assert self.shown[-1]["result"] == result and not self.is_active

    def _append_evaluation(self, kind: str, fields: dict[str, Any]) -> None:
        self._append(f"span.outcome_evaluation_{kind}", fields)

    def _append(self, event_type: str, fields: dict[str, Any]) -> None:
        draft = Draft(self.new_id(), event_type, orjson.dumps(fields))
        self.append(turn.TurnAppend(self.state.turn_epoch, self.state.last_seq, (draft,)))

    @invariant()
    def no_input_is_lost(self) -> None:
        declared = {event["seq"] for event in self.log if event["type"] == "user.define_outcome"}
        unread = {entry.seq for entry in self.state.unread if entry.starts_turn}
        assert self.messages == self.read | (unread - declared)
        if unread & declared:
            assert self.is_active and self.state.outcome is not None
            assert unread & declared == {self.state.outcome.seq}, "a declaration that is over starts a turn"

    @invariant()
    def one_outcome_at_a_time_ends_once(self) -> None:
        declared = [event["outcome_id"] for event in self.log if event["type"] == "user.define_outcome"]
        assert declared == [entry["outcome_id"] for entry in self.shown]
        for number, outcome_id in enumerate(declared):
            ends = [event for event in self.log if event["type"] == outcome.EVALUATION_END]
            results = [event["result"] for event in ends if event["outcome_id"] == outcome_id]
            final = [result for result in results if result != Result.NEEDS_REVISION]
            last = number == len(declared) - 1
            if last and self.is_active:
                assert not final
            else:
                assert len(final) == 1 or final == [Result.MAX_ITERATIONS_REACHED, Result.BUDGET_REACHED]
                assert results.index(final[0]) == len(results) - len(final), "evaluated after its end"

    @invariant()
    def nobody_waits_for_an_outcome_that_is_not_worked_on(self) -> None:
        phase = turn.phase_of(self.state)
        if phase in (Phase.IDLE, Phase.ENDED):
            assert not self.is_active
        if phase is Phase.PARKED and self.is_active:
            assert self.state.outcome is not None and self.state.outcome.iteration == 0

    @invariant()
    def the_session_shows_what_its_log_says(self) -> None:
        for entry in self.shown:
            ends = [
                event
                for event in self.log
                if event["type"] == outcome.EVALUATION_END and event["outcome_id"] == entry["outcome_id"]
            ]
            is_open = self.is_active and entry is self.shown[-1]
            assert (entry["completed_at"] is None) == is_open
            if is_open:
                assert entry["result"] in (Stage.PENDING, Stage.RUNNING, Stage.EVALUATING)
                assert entry["iteration"] == len(ends)
            else:
                assert (entry["result"], entry["iteration"]) == (ends[-1]["result"], ends[-1]["iteration"])
            assert entry["explanation"] == (ends[-1]["explanation"] if ends else None)
            # What no evaluation began is told as such.
            for end in ends:
                closed = end["result"] in (Result.INTERRUPTED, Result.BUDGET_REACHED)
                assert end.get("outcome_evaluation_start_id", "sevt") == "" or not closed


Outcomes.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestOutcomes = Outcomes.TestCase


def test_a_session_takes_so_many_outcomes_and_no_more() -> None:
    """What it remembers of them is shown with each read."""
    numbers = itertools.count(1)
    histories = Outcomes()
    for number in range(outcome.MAX_OUTCOMES):
        histories.send(DECLARATION, INTERRUPT)
        assert histories.shown[-1]["result"] == "interrupted", number
    with pytest.raises(InvalidDefineOutcome):
        turn.append_client_events(histories.state, [DECLARATION], histories.now(), lambda: f"sevt_more_{next(numbers)}")

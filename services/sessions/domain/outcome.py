"""The outcome that a session works towards: declared by a client, measured by the runner.

    stage        declared    model request   evaluation_start   end: needs_revision   end: any other   turn over
    ───────────  ──────────  ──────────────  ─────────────────  ────────────────────  ───────────────  ─────────
    (none), OVER → PENDING
    PENDING      refused     → RUNNING
    RUNNING      refused                     → EVALUATING                                              → OVER
    EVALUATING   refused                                        → RUNNING, next       → OVER           → OVER
    SETTLING     → PENDING                                                                             → OVER

The last evaluation that `max_iterations` allows ends in SETTLING instead of OVER: its result
stands, and the agent has one more answer to give. One outcome is worked on at a time.

A runner writes evaluations. Whatever else closes an outcome is written here, in the
transaction of what closed it: no session comes to rest, parks a revision or ends with an
outcome that a client would go on waiting for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import orjson

from kit.clock import rfc3339
from services.sessions.domain.log import Draft, LoggedEvent
from services.sessions.domain.session_errors import InvalidDefineOutcome, OutcomeActive

if TYPE_CHECKING:
    from services.sessions.domain.move import Move

# What a session remembers of its outcomes is shown with each read of it.
MAX_OUTCOMES = 100

EVALUATION_START = "span.outcome_evaluation_start"
EVALUATION_END = "span.outcome_evaluation_end"

INTERRUPTED_TEXT = "The outcome was given up: the session was interrupted."
WAITS_TEXT = "The outcome was given up: its revision waits for an answer to a tool call."
ENDED_TEXT = "The outcome was given up: the session was ended."
BUDGET_TEXT = "The outcome was given up: the session has spent its budget."
FAILED_TEXT = "The outcome was not measured: the turn that worked on it did not come to its end."
_NO_USAGE = {
    "input_tokens": 0,
    "output_tokens": 0,
    "cache_read_input_tokens": 0,
    "cache_creation_input_tokens": 0,
}


class Result(StrEnum):
    """What an end event may say."""

    SATISFIED = "satisfied"
    NEEDS_REVISION = "needs_revision"
    FAILED = "failed"
    MAX_ITERATIONS_REACHED = "max_iterations_reached"
    INTERRUPTED = "interrupted"
    BUDGET_REACHED = "budget_reached"


class Stage(StrEnum):
    """Where an outcome stands. The first three are what a session shows until there is a result."""

    PENDING = "pending"
    RUNNING = "running"
    EVALUATING = "evaluating"
    SETTLING = "settling"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The newest outcome of a session."""

    id: str
    # Of its declaration: an interrupt before it is not meant for it.
    seq: int
    # 1 for the first outcome of the session.
    number: int
    iteration: int = 0
    stage: Stage = Stage.PENDING

    @property
    def is_active(self) -> bool:
        """Whether it is worked on and has no result."""
        return self.stage in (Stage.PENDING, Stage.RUNNING, Stage.EVALUATING)


def identified(draft: Draft, fields: Mapping[str, Any]) -> Draft:
    """The declaration as it is stored: with the id that evaluations will name."""
    return replace(draft, fields=orjson.dumps({"outcome_id": _outcome_id(draft), **fields}))


def require_free(current: Outcome | None, session_id: str) -> None:
    """Refuses a declaration while another outcome is worked on, or where there were too many."""
    if current is None:
        return
    if current.is_active:
        raise OutcomeActive(
            f"Session {session_id} works towards the outcome {current.id}, and one at a time is accepted. Wait for its"
            " last span.outcome_evaluation_end, or send a user.interrupt and wait until the session is idle.",
            session_id=session_id,
            outcome_id=current.id,
        )
    if current.number >= MAX_OUTCOMES:
        raise InvalidDefineOutcome(
            f"Session {session_id} has had {MAX_OUTCOMES} outcomes, the most that one session takes.",
            session_id=session_id,
        )


def declare(move: "Move", logged: LoggedEvent, draft: Draft, fields: Mapping[str, Any]) -> None:
    """Takes up an outcome whose declaration is in the log now."""
    former = move.state.outcome
    outcome = Outcome(_outcome_id(draft), logged.seq, former.number + 1 if former else 1)
    move.state.outcome = outcome
    move.outcome_changes.append(
        {
            "type": "outcome_evaluation",
            "outcome_id": outcome.id,
            "description": fields["description"],
            "iteration": 0,
            "result": Stage.PENDING.value,
            "explanation": None,
            "completed_at": None,
        }
    )


def follow_request(move: "Move", known_seq: int) -> None:
    """A model request read the log up to a seq: the agent works on what it found there."""
    outcome = move.state.outcome
    if outcome is not None and outcome.stage is Stage.PENDING and outcome.seq <= known_seq:
        _show(move, replace(outcome, stage=Stage.RUNNING))


def follow_evaluation(move: "Move", draft: Draft) -> None:
    """What an evaluation event of a runner says about the outcome."""
    outcome = move.state.outcome
    if outcome is None or not outcome.is_active:
        return
    if draft.type == EVALUATION_START:
        _show(move, replace(outcome, stage=Stage.EVALUATING))
        return
    if draft.type != EVALUATION_END:
        return
    # Work that got this far is not to be given up because of runners that were lost before.
    move.state.turn_attempt = 1
    fields = orjson.loads(draft.fields)
    result, explanation = str(fields.get("result")), str(fields.get("explanation", ""))
    if result == Result.NEEDS_REVISION:
        revised = replace(outcome, stage=Stage.RUNNING, iteration=outcome.iteration + 1)
        _show(move, revised, explanation=explanation)
        return
    stage = Stage.SETTLING if result == Result.MAX_ITERATIONS_REACHED else Stage.OVER
    _settle(move, replace(outcome, stage=stage), result, explanation)


def close(move: "Move", result: Result, explanation: str) -> None:
    """Ends the outcome that is worked on, if any, by one further end event that no evaluation began."""
    outcome = move.state.outcome
    if outcome is None or outcome.stage is Stage.OVER:
        return
    if outcome.is_active or result is Result.BUDGET_REACHED:
        fields = {
            "outcome_id": outcome.id,
            "iteration": outcome.iteration,
            "result": result.value,
            "explanation": explanation,
            "outcome_evaluation_start_id": "",
            "usage": _NO_USAGE,
        }
        move.write(EVALUATION_END, fields)
        # Runners have to hear of it, as of what clients send.
        move.state.input_seq = move.state.last_seq
        _settle(move, replace(outcome, stage=Stage.OVER), result.value, explanation)
        # A declaration that nobody has read starts no turn any more.
        move.state.unread = tuple(entry for entry in move.state.unread if entry.seq != outcome.seq)
    else:
        move.state.outcome = replace(outcome, stage=Stage.OVER)


def close_interrupted(move: "Move", interrupt_seq: int) -> None:
    """Ends the outcome because of an interrupt, unless it was declared after that."""
    outcome = move.state.outcome
    if outcome is not None and outcome.seq < interrupt_seq:
        close(move, Result.INTERRUPTED, INTERRUPTED_TEXT)


def close_parked(move: "Move") -> None:
    """Ends the outcome whose revision waits for a client. The first attempt may wait: it is measured afterwards."""
    outcome = move.state.outcome
    if outcome is not None and (outcome.iteration or not outcome.is_active):
        close(move, Result.INTERRUPTED, WAITS_TEXT)


def close_ended(move: "Move") -> None:
    """Ends the outcome of a session that takes no more work."""
    close(move, Result.INTERRUPTED, ENDED_TEXT)


def close_with_turn(move: "Move", stop_reason: Mapping[str, Any]) -> None:
    """Ends what the end of a turn leaves open."""
    if stop_reason.get("type") == "budget_reached":
        close(move, Result.BUDGET_REACHED, BUDGET_TEXT)
    else:
        close(move, Result.FAILED, FAILED_TEXT)


def _outcome_id(draft: Draft) -> str:
    # As unique and as sortable as the event that declares it.
    return "outc_" + draft.id.partition("_")[2]


def _show(move: "Move", outcome: Outcome, **more: Any) -> None:
    move.state.outcome = outcome
    change = {"outcome_id": outcome.id, "iteration": outcome.iteration, "result": outcome.stage.value}
    move.outcome_changes.append(change | more)


def _settle(move: "Move", outcome: Outcome, result: str, explanation: str) -> None:
    move.state.outcome = outcome
    move.outcome_changes.append(
        {
            "outcome_id": outcome.id,
            "iteration": outcome.iteration,
            "result": result,
            "explanation": explanation,
            "completed_at": rfc3339(move.now),
        }
    )

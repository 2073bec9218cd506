"""The outcome that a session works towards, as its log tells. Pure.

A `user.define_outcome` is an instruction to the agent and the beginning of a goal. Evaluations then say how far it is:
one that was begun and has no end is to be finished under its own start; one that asks for a revision is followed by a
message to the agent, which may be missing where a crash came in between; any other ends the goal. The last evaluation
that is allowed still leaves the agent one answer: what it says becomes an input.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

START, ONGOING, END = (f"span.outcome_evaluation_{name}" for name in ("start", "ongoing", "end"))
SATISFIED, NEEDS_REVISION, FAILED = "satisfied", "needs_revision", "failed"
MAX_ITERATIONS_REACHED = "max_iterations_reached"
UNEXPLAINED = "The work does not meet the rubric yet."


@dataclass(slots=True)
class Goal:
    """The newest outcome of a session, if it has no result yet."""

    outcome_id: str
    # Of the declaration in the log.
    seq: int
    description: str
    rubric: Mapping[str, Any]
    max_iterations: int
    # Counts from 0.
    iteration: int = 0
    # Id of an evaluation that was begun and has no end.
    start_id: str = ""
    # Whether the log says that this evaluation goes on.
    is_told: bool = False
    # What the agent is to be told about its work, where that is not in the log yet.
    revision: str = ""

    @property
    def is_last(self) -> bool:
        """Whether no evaluation may follow the next one."""
        return self.iteration + 1 >= self.max_iterations

    def instruction(self) -> str:
        """The outcome as the agent reads it."""
        # What the file holds is no part of the log, of which alone a context is made.
        rubric = self.rubric.get("content") or f"(It is in the file {self.rubric.get('file_id')}, which graders read.)"
        return f"Bring about this outcome:\n\n{self.description}\n\nThe result is measured by this rubric:\n\n{rubric}"

    def follow(self, event_id: str, event_type: str, fields: Mapping[str, Any]) -> bool:
        """Take an evaluation event; whether the goal is still worked on."""
        if event_type == START:
            self.start_id, self.is_told = event_id, False
        elif event_type == ONGOING:
            self.is_told = True
        elif event_type == END:
            if fields.get("result") != NEEDS_REVISION:
                return False
            self.start_id, self.is_told = "", False
            self.iteration += 1
            self.revision = fields.get("explanation") or UNEXPLAINED
        return True

    def dump(self) -> dict[str, Any]:
        """As JSON, for a compaction to carry along: what declared it is no longer read then."""
        return asdict(self)


def restored(value: Any) -> Goal | None:
    """The goal that a compaction carried along, if any."""
    return Goal(**value) if isinstance(value, dict) else None


def declared(fields: Mapping[str, Any], seq: int) -> Goal:
    """The goal of a declaration."""
    return Goal(
        fields.get("outcome_id", ""),
        seq,
        fields["description"],
        fields["rubric"],
        fields.get("max_iterations") or 1,
    )


def settling(fields: Mapping[str, Any]) -> str:
    """What the agent reads after the last evaluation that is allowed, or nothing after any other."""
    if fields.get("result") != MAX_ITERATIONS_REACHED:
        return ""
    return (
        "The outcome was measured for the last time, and it is not met:\n\n"
        f"{fields.get('explanation') or UNEXPLAINED}\n\n"
        "It will not be measured again. Settle your answer: say what is done and what is not."
    )

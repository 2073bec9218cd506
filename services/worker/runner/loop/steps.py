"""Where a session stands with an outside agent, as its log tells. Pure.

A step is a model request whose start has a `step`, its number, and whose end says by `step_outcome` what became of it.
It is in the log before it is posted. One whose end says nothing (this platform broke off, or never reached the agent)
is posted again under its number before anything else, with what it had the first time. Any other is never posted again:
the agent may have acted on it, and a person was told how it went.

A step carries the results of the newest answer's calls where there were calls, else what the user said since. Both at
once do not fit into one, so what is said while an agent works on calls waits until it has replied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from services.worker.runner.loop.calls import Call
from services.worker.runner.models.base import Block
from services.worker.runner.models.http_agent import StepResult
from services.worker.runner.models.text import plain_text

ANSWERED, FAILED, INTERRUPTED = "answered", "failed", "interrupted"
_SETTLED = (ANSWERED, FAILED, INTERRUPTED)
UNANSWERED = "No result was recorded for this call."


@dataclass(slots=True)
class Steps:
    """The newest step of a session, and what it carries until it is settled."""

    number: int = 0
    settled: bool = True
    # Rounds of calls whose results were posted since the user spoke.
    rounds: int = 0
    message: str | None = None
    results: Sequence[StepResult] | None = None

    @property
    def next_number(self) -> int:
        """The number of the step to be made now."""
        return self.number + 1 if self.settled else self.number

    def begin(self, number: int, calls: Sequence[Call], said: Sequence[Block]) -> None:
        """A step was begun after an answer with these calls; `said` is what it read of the user."""
        is_repeat = number == self.number
        self.settled = False
        if is_repeat:
            return
        self.number = number
        if calls:
            self.message, self.results = None, [_result(call) for call in calls]
            self.rounds += 1
        else:
            self.message, self.results = plain_text(said), None
            self.rounds = 0

    def end(self, outcome: Any) -> None:
        """It ended; what was settled needs to be kept no longer."""
        if outcome in _SETTLED:
            self.settled = True
            self.message = self.results = None


def _result(call: Call) -> StepResult:
    result = call.result
    if result is None:
        return StepResult(call.block_id, False, UNANSWERED)
    content = result.get("content") or ()
    if result.get("is_error"):
        return StepResult(call.block_id, False, plain_text(content))
    return StepResult(call.block_id, True, _value(content, call))


def _value(content: Sequence[Block], call: Call) -> Any:
    """What the agent gets: text as a string, and content that is more than text as its blocks.

    A client can answer with text only, so an object or array that it wrote as JSON is handed on as what it means.
    """
    if any(block["type"] != "text" for block in content):
        return list(content)
    text = plain_text(content)
    if call.custom and text[:1] in ("{", "["):
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            pass
    return text

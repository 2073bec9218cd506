"""How a turn measures the outcome that it worked for.

    satisfied, failed          the outcome is over, and the turn ends
    needs_revision             the explanation becomes a user.message, and the agent goes on
    … at the last evaluation   max_iterations_reached: the agent gives one more answer, which is not measured

An evaluation is in the log before the grader is asked, and ends there on every path. What a crash leaves open is
finished under the same start, and a message that a verdict should have caused is made up for. Everything else that ends
an outcome (an interrupt, the budget, a parked revision, a failed turn) is told by the service when the turn ends
because of it.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from kit import failpoints
from kit.errors import Unavailable
from kit.telemetry import log
from managed_agents.sessions.v1.events_pb2 import Event
from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.loop import grading, retry
from services.worker.runner.loop.asking import Answer, broke_off, read_deltas
from services.worker.runner.loop.ceiling import Ceiling
from services.worker.runner.loop.context import Conversation
from services.worker.runner.loop.goal import (
    END,
    FAILED,
    MAX_ITERATIONS_REACHED,
    NEEDS_REVISION,
    ONGOING,
    START,
    UNEXPLAINED,
    Goal,
)
from services.worker.runner.loop.grading import Record, Verdict
from services.worker.runner.loop.journal import Journal
from services.worker.runner.loop.leases import Lease
from services.worker.runner.loop.rubrics import RubricReader, RubricUnreadable
from services.worker.runner.loop.services import TurnServices
from services.worker.runner.loop.stopping import StopSignal
from services.worker.runner.models.access import Model, ModelAccessCache
from services.worker.runner.models.base import (
    Message,
    ModelAccess,
    ModelDelta,
    ModelError,
    ModelErrorKind,
    ModelRequest,
    Stop,
    TextDelta,
    TokenUsage,
    ToolCall,
    UsageReport,
)

# Answers without a verdict, after which the grader is given up.
MOST_ANSWERS = 3
NO_VERDICT = "The grader gave no verdict."
EVALUATOR_UNAVAILABLE = "outcome_evaluator_unavailable"
RUBRIC_NOT_FOUND = "outcome_rubric_file_not_found"
RUBRIC_UNREADABLE = "outcome_rubric_file_unreadable"
# Attempts to read a rubric while the service that keeps it is away, with longer and longer pauses.
MOST_READS = 6
READ_AGAIN_SECONDS = 1.0


class BudgetSpent(Exception):
    """The session may spend nothing more, so nothing more is measured."""


@dataclass(slots=True)
class _Failure(Exception):
    """The grader could not run: what the log says of it."""

    kind: str
    message: str


class _TooLong(Exception):
    """The grader's context is too long for its model."""

    def __init__(self, error: ModelError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(slots=True)
class Evaluator:
    """Measures outcomes on behalf of one turn."""

    grant: TurnGrant
    journal: Journal
    conversation: Conversation
    stop: StopSignal
    ceiling: Ceiling
    access: ModelAccessCache
    retry_policy: retry.RetryPolicy
    model_id: str
    # The context events of the session's log from its beginning.
    read_log: Callable[[], AsyncIterator[Event]]
    rubrics: RubricReader
    usage: TokenUsage = field(default_factory=TokenUsage)

    async def measure(self) -> None:
        """One evaluation, unless input waits that the agent has to read first. Raises Stopped and BudgetSpent."""
        await self.journal.flush()
        goal = self.conversation.goal
        if goal is None or self.conversation.has_unread_input():
            return
        if goal.revision:
            self._write_revision(goal)
            await self._store()
            return
        if await self.ceiling.is_reached(self.journal):
            raise BudgetSpent
        self._begin(goal)
        await self.journal.flush()
        try:
            verdict = await self._grade(goal)
        except _Failure as failure:
            self._end(goal, Verdict(FAILED, failure.message))
            self.journal.add("session.error", retry.error_fields(failure.kind, failure.message))
        else:
            self._end(goal, verdict)
        await self._store()

    async def _store(self) -> None:
        await self.journal.flush()
        self.conversation.settle_own_inputs()

    def _begin(self, goal: Goal) -> None:
        about = {"outcome_id": goal.outcome_id, "iteration": goal.iteration}
        if not goal.start_id:
            self.journal.add(START, about)
        if not goal.is_told:
            self.journal.add(ONGOING, about)

    def _end(self, goal: Goal, verdict: Verdict) -> None:
        result = verdict.result
        if result == NEEDS_REVISION and goal.is_last:
            result = MAX_ITERATIONS_REACHED
        usage, self.usage = self.usage, TokenUsage()
        self.journal.add(
            END,
            {
                "outcome_id": goal.outcome_id,
                "iteration": goal.iteration,
                "result": result,
                "explanation": verdict.explanation or UNEXPLAINED,
                "outcome_evaluation_start_id": goal.start_id,
                "usage": _shown(usage),
            },
        )
        if result == NEEDS_REVISION:
            self._write_revision(goal)

    def _write_revision(self, goal: Goal) -> None:
        message: dict[str, Any] = {
            "content": [{"type": "text", "text": goal.revision}],
            # Tells this message from those of a person.
            "metadata": {"outcome_id": goal.outcome_id, "iteration": goal.iteration},
        }
        self.journal.add("user.message", message)

    async def _grade(self, goal: Goal) -> Verdict:
        rubric = await self._read_rubric(goal)
        record = Record()
        async for event in self.read_log():
            record.take(event.type, event.body)
        while True:
            try:
                return await self._converse(grading.question(goal.description, rubric, record))
            except _TooLong as refused:
                # The vendor alone knows what its model takes.
                if not record.shorten():
                    raise _Failure(retry.error_type(refused.error), refused.error.message) from refused

    async def _read_rubric(self, goal: Goal) -> str:
        failures = 0
        while True:
            try:
                with self.stop.scope():
                    return await self.rubrics.read(goal.rubric)
            except RubricUnreadable as unreadable:
                kind = RUBRIC_NOT_FOUND if unreadable.missing else RUBRIC_UNREADABLE
                raise _Failure(kind, unreadable.message) from unreadable
            except Unavailable as away:
                failures += 1
                if failures == MOST_READS:
                    message = f"The rubric can't be read now. {away.message}"
                    raise _Failure(EVALUATOR_UNAVAILABLE, message) from away
                with self.stop.scope():
                    await asyncio.sleep(failures * READ_AGAIN_SECONDS)

    async def _converse(self, question: Message) -> Verdict:
        messages = [question]
        for _ in range(MOST_ANSWERS):
            answer = await self._ask(messages)
            said = "".join(answer.text)
            if (verdict := grading.read_verdict(answer.calls, said)) is not None:
                return verdict
            messages = [question, *grading.asked_again(said)]
        raise _Failure("outcome_evaluation_failed", NO_VERDICT)

    async def _ask(self, messages: list[Message]) -> Answer:
        """One answer of the grader, asked for as often as the vendor's failures allow."""
        failures = 0
        while True:
            access: ModelAccess | None = None
            try:
                async with self.access.use(self.grant.workspace_id) as model:
                    access = model.access
                    return await self._ask_once(model, messages)
            except ModelError as error:
                if error.kind is ModelErrorKind.TOO_LONG:
                    raise _TooLong(error) from error
                failures += 1
                may_be_old = error.kind is ModelErrorKind.AUTHENTICATION and failures == 1
                if access and may_be_old and await self.access.refresh(self.grant.workspace_id, access.revision):
                    continue
                delay = self.retry_policy.delay(failures, error, random.random)
                log.warning("grader failed", session_id=self.grant.session.id, error=error.message, retry_in=delay)
                if delay is None:
                    raise _failure(error, access) from error
            with self.stop.scope():
                await asyncio.sleep(delay)

    async def _ask_once(self, model: Model, messages: list[Message]) -> Answer:
        model_id = model.resolve(self.model_id)
        self.journal.default_model = model.access.default_model
        request = ModelRequest(model_id, grading.SYSTEM, messages, (grading.TOOL,))
        answer = Answer()

        async def take(delta: ModelDelta) -> None:
            if isinstance(delta, TextDelta):
                answer.text.append(delta.text)
            elif isinstance(delta, ToolCall):
                answer.calls.append(delta)
            elif isinstance(delta, UsageReport):
                answer.usage = delta.usage
            elif isinstance(delta, Stop):
                answer.stop = delta

        try:
            with self.stop.scope():
                await failpoints.point("runner.outcome.mid_grading")
                await read_deltas(model.provider, request, take)
        finally:
            # Also what a broken or interrupted answer cost.
            if answer.usage != TokenUsage():
                self.usage = _sum(self.usage, answer.usage)
                answered = answer.stop.model_id if answer.stop is not None else None
                self.journal.spend(answered or model_id, answer.usage, asked_as=model_id)
        if answer.stop is None:
            raise broke_off()
        return answer


def _shown(usage: TokenUsage) -> dict[str, int]:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": usage.cache_read_input_tokens,
        "cache_creation_input_tokens": usage.cache_creation_5m_input_tokens + usage.cache_creation_1h_input_tokens,
    }


def _sum(spent: TokenUsage, more: TokenUsage) -> TokenUsage:
    return TokenUsage(*(getattr(spent, one.name) + getattr(more, one.name) for one in fields(TokenUsage)))


def _failure(error: ModelError, access: ModelAccess | None) -> _Failure:
    """A vendor that is missing, or that doesn't let us in, is a matter of configuration; the rest is the vendor's."""
    if error.kind is ModelErrorKind.AUTHENTICATION or (access is None and not error.retryable):
        return _Failure(EVALUATOR_UNAVAILABLE, retry.error_message(error, access))
    return _Failure(retry.error_type(error), retry.error_message(error, access))


def evaluator_of(
    held: tuple[TurnGrant, Lease, StopSignal, Ceiling],
    services: TurnServices,
    journal: Journal,
    conversation: Conversation,
    model_id: str,
) -> Evaluator:
    """The evaluator of a held turn."""
    grant, lease, stop, ceiling = held
    return Evaluator(
        grant,
        journal,
        conversation,
        stop,
        ceiling,
        services.access,
        services.retry_policy,
        model_id,
        partial(services.read_log, lease),
        services.rubrics,
    )

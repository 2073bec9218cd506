"""What tests of outcomes declare, answer and look for."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from services.worker.runner.loop import goal as goals
from services.worker.runner.models.base import VERDICT_TOOL, ModelDelta, ModelRequest
from tests.integration.runner.harness import World, of, text_of
from tests.integration.runner.played import (
    Part,
    ScriptedModel,
    call,
)

START, ONGOING, END = goals.START, goals.ONGOING, goals.END
ENDING = ["session.thread_status_idle", "session.usage", "session.status_idle"]
NO_TOKENS = {
    "input_tokens": 0,
    "output_tokens": 0,
    "cache_read_input_tokens": 0,
    "cache_creation_input_tokens": 0,
}


def outcome(rubric: Any = "The endpoint returns 200", **fields: Any) -> dict[str, Any]:
    """A declaration."""
    rubric = {"type": "text", "content": rubric} if isinstance(rubric, str) else rubric
    return {"type": "user.define_outcome", "description": "Ship a working endpoint", "rubric": rubric, **fields}


def verdict(result: str, explanation: str = "because") -> list[Part]:
    """A grader's answer."""
    return call((VERDICT_TOOL, {"result": result, "explanation": explanation}))


def is_grading(request: ModelRequest) -> bool:
    """Whether the grader is asked, and not the agent."""
    return [tool.name for tool in request.tools] == [VERDICT_TOOL]


def results(log: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """What the evaluations of a log say."""
    return [(event["iteration"], event["result"]) for event in of(log, END)]


def revisions(log: list[dict[str, Any]]) -> list[str]:
    """What the runtime told the agent."""
    return [text_of(event) for event in of(log, "user.message") if (event.get("metadata") or {}).get("outcome_id")]


async def evaluations(platform: World, session_id: str) -> list[dict[str, Any]]:
    """What the session says of its outcomes."""
    return await platform.clients.evaluations(session_id)


class Team(ScriptedModel):
    """Answers the grader, the coordinator and its writer each from answers of their own."""

    def __init__(self, **answers: list[list[Part]]) -> None:
        super().__init__([])
        self._models = {role: ScriptedModel(given) for role, given in answers.items()}

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelDelta, None]:
        """The next answer of whoever is asked."""
        role = "grader" if is_grading(request) else "writer" if "You are the writer" in request.system else "lead"
        async with aclosing(self._models[role].stream(request)) as deltas:
            async for delta in deltas:
                yield delta

"""Shapes of outcome definitions, and of what sessions were found to be."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from .shapes import Description, Label, Metadata, MetadataPatch, Page, Rendered, Shape

Objective = Annotated[str, Field(max_length=10_000)]
Criteria = Annotated[list[Annotated[str, Field(min_length=1, max_length=2000)]], Field(max_length=100)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
OutcomeId = Annotated[str, Field(min_length=1, max_length=256)]


class _Definition(Shape):
    description: Description | None = None
    objective: Objective | None = None
    criteria: Criteria | None = None
    pass_threshold: Share | None = None


class OutcomeCreate(_Definition):
    """A new definition. `pass_threshold` is the share of criteria from which a session passes."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "Release readiness", "criteria": ["Mentions tests", "Mentions risks"]}],
        }
    )

    name: Label
    metadata: Metadata | None = None


class OutcomeUpdate(_Definition):
    """A partial definition: what is left out stays, null clears, metadata merges."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"pass_threshold": 0.5}]})

    name: Label | None = None
    metadata: MetadataPatch | None = None


class Outcome(Rendered):
    """A quality check that sessions are held against."""

    id: str
    type: Literal["outcome"]
    name: str
    description: str | None
    objective: str
    criteria: list[str]
    pass_threshold: float
    metadata: dict[str, str]
    status: Literal["active", "archived"]
    created_at: str
    updated_at: str
    archived_at: str | None


class OutcomePage(Page):
    """A page of definitions."""

    data: list[Outcome]


class SessionOutcomeRecord(Shape):
    """What a caller found about a session."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"outcome_id": "OUTCOME_ID", "status": "passed", "score": 0.92}]}
    )

    outcome_id: OutcomeId
    status: Literal["passed", "inconclusive", "failed"]
    score: Share | None = None
    summary: Annotated[str, Field(max_length=10_000)] | None = None
    metadata: Metadata | None = None


class SessionOutcomeEvaluate(Shape):
    """Which definition to hold a session against."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"outcome_id": "OUTCOME_ID"}]})

    outcome_id: OutcomeId


class CriterionResult(Rendered):
    """Whether the transcript shows one criterion."""

    criterion: str
    matched: bool


class SessionOutcome(Rendered):
    """What a session was found to be."""

    id: str
    type: Literal["session_outcome"]
    session_id: str
    outcome_id: str
    status: Literal["passed", "inconclusive", "failed"]
    score: float | None
    summary: str | None
    evaluator: Literal["caller", "transcript"]
    criteria: list[CriterionResult]
    metadata: dict[str, str]
    created_at: str


class SessionOutcomePage(Page):
    """A page of what was found about one session."""

    data: list[SessionOutcome]

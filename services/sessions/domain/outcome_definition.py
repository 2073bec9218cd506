"""Outcome definitions: quality checks that are defined once and held against any session.

A definition has criteria, and the share of them from which a session passes. What a
session was found to be is a record that never changes; a caller may bring one of its own.
Both are apart from `user.define_outcome`, which is measured while a session works.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from services.sessions.domain import shape
from services.sessions.domain.errors import OutcomeArchived
from services.sessions.domain.metadata import Metadata, merge_metadata, validate_metadata
from services.sessions.domain.session_errors import InvalidRequest

DEFAULT_THRESHOLD = 0.8
MAX_NAME_CHARACTERS = 256
MAX_DESCRIPTION_CHARACTERS = 2048
MAX_OBJECTIVE_CHARACTERS = 10_000
MAX_CRITERIA = 100
MAX_CRITERION_CHARACTERS = 2000
MAX_SUMMARY_CHARACTERS = 10_000
MAX_ID_CHARACTERS = 256
STATUSES = ("passed", "inconclusive", "failed")

FIELDS = ("name", "description", "objective", "criteria", "pass_threshold", "metadata")
_RECORD_FIELDS = ("outcome_id", "status", "score", "summary", "metadata")
_EVALUATION_FIELDS = ("outcome_id",)


@dataclass(frozen=True, slots=True)
class OutcomeDefinition:
    """The sound content of a creation or an update."""

    name: str
    description: str | None
    objective: str
    criteria: tuple[str, ...]
    pass_threshold: float
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class StoredOutcome:
    """One stored definition."""

    id: str
    name: str
    description: str | None
    objective: str
    # JSON array of strings.
    criteria: str
    pass_threshold: float
    # JSON object of string pairs.
    metadata: str
    created_at: datetime
    updated_at: datetime
    archived_at: datetime | None

    def require_active(self) -> None:
        """Refuses an archived definition."""
        if self.archived_at is not None:
            raise OutcomeArchived(
                f"The outcome {self.id} is archived and takes no changes and no evaluations.", outcome_id=self.id
            )

    def content(self) -> OutcomeDefinition:
        """What an update is merged into."""
        return OutcomeDefinition(
            self.name,
            self.description,
            self.objective,
            tuple(orjson.loads(self.criteria)),
            self.pass_threshold,
            orjson.loads(self.metadata),
        )

    def points(self) -> tuple[str, ...]:
        """What the built-in evaluator looks for: the criteria, or the objective where there are none."""
        points = self.content().criteria or ((self.objective,) if self.objective.strip() else ())
        if not points:
            raise InvalidRequest(
                f"The outcome {self.id} has neither criteria nor an objective, so there is nothing to look for.",
                field="outcome_id",
            )
        return points


@dataclass(frozen=True, slots=True)
class OutcomeRecord:
    """What a caller found about a session."""

    outcome_id: str
    status: str
    score: float | None
    summary: str | None
    metadata: Metadata


def validate_outcome(body: dict[str, Any]) -> OutcomeDefinition:
    """The content of a new definition, or a refusal that names the field."""
    shape.known_only(body, "", FIELDS)
    if body.get("name") is None:
        raise InvalidRequest("name is required.", field="name")
    empty = OutcomeDefinition("", None, "", (), DEFAULT_THRESHOLD, {})
    return _read(body, empty, validate_metadata(body.get("metadata")))


def merge_outcome(stored: OutcomeDefinition, body: dict[str, Any]) -> OutcomeDefinition:
    """The content after an update: left out keeps, null clears what may be empty, metadata merges."""
    shape.known_only(body, "", FIELDS)
    metadata = stored.metadata
    if "metadata" in body:
        metadata = merge_metadata(stored.metadata, body["metadata"])
    return _read(body, stored, metadata)


def read_record(body: dict[str, Any]) -> OutcomeRecord:
    """What a caller found, or a refusal that names the field."""
    shape.known_only(body, "", _RECORD_FIELDS)
    score, summary = body.get("score"), body.get("summary")
    return OutcomeRecord(
        outcome_id=_outcome_id(body),
        status=shape.one_of(body.get("status"), "status", STATUSES),
        score=None if score is None else _share(score, "score"),
        summary=None if summary is None else shape.text(summary, "summary", maximum=MAX_SUMMARY_CHARACTERS),
        metadata=validate_metadata(body.get("metadata")),
    )


def read_evaluation(body: dict[str, Any]) -> str:
    """The definition that a session is to be held against."""
    shape.known_only(body, "", _EVALUATION_FIELDS)
    return _outcome_id(body)


def _read(body: dict[str, Any], base: OutcomeDefinition, metadata: Metadata) -> OutcomeDefinition:
    name, description, objective = (body.get(field) for field in ("name", "description", "objective"))
    threshold = body.get("pass_threshold")
    if "name" in body and name is None:
        raise InvalidRequest("name cannot be cleared: an outcome always has one.", field="name")
    if description is not None:
        shape.text(description, "description", maximum=MAX_DESCRIPTION_CHARACTERS)
    if objective is not None:
        shape.text(objective, "objective", maximum=MAX_OBJECTIVE_CHARACTERS)
    if "pass_threshold" in body and threshold is None:
        threshold = DEFAULT_THRESHOLD
    return OutcomeDefinition(
        name=base.name if name is None else shape.label(name, "name", maximum=MAX_NAME_CHARACTERS),
        description=description if "description" in body else base.description,
        objective=(objective or "") if "objective" in body else base.objective,
        criteria=_criteria(body["criteria"]) if "criteria" in body else base.criteria,
        pass_threshold=base.pass_threshold if threshold is None else _share(threshold, "pass_threshold"),
        metadata=metadata,
    )


def _criteria(value: Any) -> tuple[str, ...]:
    entries = shape.entries(value, "criteria", maximum=MAX_CRITERIA)
    return tuple(
        shape.label(entry, f"criteria.{index}", maximum=MAX_CRITERION_CHARACTERS) for index, entry in enumerate(entries)
    )


def _share(value: Any, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidRequest(f"{field} must be a number from 0 to 1.", field=field)
    return float(value)


def _outcome_id(body: dict[str, Any]) -> str:
    if body.get("outcome_id") is None:
        raise InvalidRequest("outcome_id is required.", field="outcome_id")
    return shape.label(body["outcome_id"], "outcome_id", maximum=MAX_ID_CHARACTERS)

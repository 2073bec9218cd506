"""Public JSON of outcome definitions and of what sessions were found to be; the same for every caller."""

from __future__ import annotations

import orjson

from managed_agents.sessions.v1.outcomes_pb2 import Outcome, SessionOutcome

from .splice import object_of, raw, text, text_or_null


def render_outcome(outcome: Outcome) -> bytes:
    """One definition."""
    return object_of(
        (
            b'"id":%b,"type":"outcome","name":%b' % (text(outcome.id), text(outcome.name)),
            b'"description":' + (text(outcome.description) if outcome.HasField("description") else b"null"),
            b'"objective":%b,"criteria":%b' % (text(outcome.objective), orjson.dumps(list(outcome.criteria))),
            b'"pass_threshold":' + orjson.dumps(outcome.pass_threshold),
            b'"metadata":' + raw(outcome.metadata_json, b"{}"),
            b'"status":"archived"' if outcome.archived_at else b'"status":"active"',
            b'"created_at":%b,"updated_at":%b' % (text(outcome.created_at), text(outcome.updated_at)),
            b'"archived_at":' + text_or_null(outcome.archived_at),
        )
    )


def render_session_outcome(found: SessionOutcome) -> bytes:
    """What one check found about one session."""
    return object_of(
        (
            b'"id":%b,"type":"session_outcome","session_id":%b' % (text(found.id), text(found.session_id)),
            b'"outcome_id":%b,"status":%b' % (text(found.outcome_id), text(found.status)),
            b'"score":' + (orjson.dumps(found.score) if found.HasField("score") else b"null"),
            b'"summary":' + (text(found.summary) if found.HasField("summary") else b"null"),
            b'"evaluator":%b,"criteria":%b' % (text(found.evaluator), raw(found.criteria_json, b"[]")),
            b'"metadata":%b,"created_at":%b' % (raw(found.metadata_json, b"{}"), text(found.created_at)),
        )
    )

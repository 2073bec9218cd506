"""Outcome definitions, and what sessions were found to be by them."""

from __future__ import annotations

from managed_agents.sessions.v1 import outcomes_pb2 as pb
from managed_agents.sessions.v1.common_pb2 import Page

from ..operation import Call, Operation, flag, limit, page
from ..render.outcomes import render_outcome, render_session_outcome
from ..render.splice import collection
from ..schemas.outcomes import (
    Outcome,
    OutcomeCreate,
    OutcomePage,
    OutcomeUpdate,
    SessionOutcome,
    SessionOutcomeEvaluate,
    SessionOutcomePage,
    SessionOutcomeRecord,
)

TAG = "Outcomes"


async def create_outcome(call: Call) -> bytes:
    """POST /v1/outcomes."""
    request = pb.CreateOutcomeRequest(definition_json=call.raw_body, idempotency=call.idempotency())
    answer = await call.ask(call.clients.outcomes.CreateOutcome, request)
    return render_outcome(answer.outcome)


async def get_outcome(call: Call) -> bytes:
    """GET /v1/outcomes/{outcome_id}."""
    request = pb.GetOutcomeRequest(outcome_id=call.path["outcome_id"])
    answer = await call.ask(call.clients.outcomes.GetOutcome, request)
    return render_outcome(answer.outcome)


async def update_outcome(call: Call) -> bytes:
    """PUT /v1/outcomes/{outcome_id}."""
    request = pb.UpdateOutcomeRequest(outcome_id=call.path["outcome_id"], patch_json=call.raw_body)
    answer = await call.ask(call.clients.outcomes.UpdateOutcome, request)
    return render_outcome(answer.outcome)


async def list_outcomes(call: Call) -> bytes:
    """GET /v1/outcomes."""
    request = pb.ListOutcomesRequest(
        page=Page(limit=call.query["limit"], cursor=call.query["page"]),
        include_archived=call.query["include_archived"],
    )
    answer = await call.ask(call.clients.outcomes.ListOutcomes, request)
    return collection([render_outcome(each) for each in answer.outcomes], answer.page_info)


async def archive_outcome(call: Call) -> bytes:
    """POST /v1/outcomes/{outcome_id}/archive."""
    request = pb.ArchiveOutcomeRequest(outcome_id=call.path["outcome_id"])
    answer = await call.ask(call.clients.outcomes.ArchiveOutcome, request)
    return render_outcome(answer.outcome)


async def record_session_outcome(call: Call) -> bytes:
    """POST /v1/sessions/{session_id}/outcomes."""
    request = pb.RecordSessionOutcomeRequest(
        session_id=call.path["session_id"], record_json=call.raw_body, idempotency=call.idempotency()
    )
    answer = await call.ask(call.clients.outcomes.RecordSessionOutcome, request)
    return render_session_outcome(answer.session_outcome)


async def evaluate_session_outcome(call: Call) -> bytes:
    """POST /v1/sessions/{session_id}/outcomes/evaluate."""
    request = pb.EvaluateSessionOutcomeRequest(
        session_id=call.path["session_id"], request_json=call.raw_body, idempotency=call.idempotency()
    )
    answer = await call.ask(call.clients.outcomes.EvaluateSessionOutcome, request)
    return render_session_outcome(answer.session_outcome)


async def list_session_outcomes(call: Call) -> bytes:
    """GET /v1/sessions/{session_id}/outcomes."""
    request = pb.ListSessionOutcomesRequest(
        session_id=call.path["session_id"], page=Page(limit=call.query["limit"], cursor=call.query["page"])
    )
    answer = await call.ask(call.clients.outcomes.ListSessionOutcomes, request)
    return collection([render_session_outcome(each) for each in answer.session_outcomes], answer.page_info)


OPERATIONS = (
    Operation(
        "GET",
        "/v1/outcomes",
        list_outcomes,
        tag=TAG,
        summary="List outcome definitions, newest first",
        query=(limit(), page(), flag("include_archived", description="Archived definitions too.")),
        response=OutcomePage,
    ),
    Operation(
        "POST",
        "/v1/outcomes",
        create_outcome,
        tag=TAG,
        summary="Create an outcome definition",
        body=OutcomeCreate,
        response=Outcome,
        idempotent_write=True,
    ),
    Operation(
        "GET",
        "/v1/outcomes/{outcome_id}",
        get_outcome,
        tag=TAG,
        summary="Retrieve an outcome definition",
        response=Outcome,
    ),
    Operation(
        "PUT",
        "/v1/outcomes/{outcome_id}",
        update_outcome,
        tag=TAG,
        summary="Update an outcome definition",
        description="A partial definition is merged; what was found before stays as it is.",
        body=OutcomeUpdate,
        response=Outcome,
    ),
    Operation(
        "POST",
        "/v1/outcomes/{outcome_id}/archive",
        archive_outcome,
        tag=TAG,
        summary="Archive an outcome definition for good",
        response=Outcome,
    ),
    Operation(
        "GET",
        "/v1/sessions/{session_id}/outcomes",
        list_session_outcomes,
        tag=TAG,
        summary="List what was found about a session, newest first",
        query=(limit(), page()),
        response=SessionOutcomePage,
    ),
    Operation(
        "POST",
        "/v1/sessions/{session_id}/outcomes",
        record_session_outcome,
        tag=TAG,
        summary="Record what was found about a session",
        body=SessionOutcomeRecord,
        response=SessionOutcome,
        idempotent_write=True,
    ),
    Operation(
        "POST",
        "/v1/sessions/{session_id}/outcomes/evaluate",
        evaluate_session_outcome,
        tag=TAG,
        summary="Hold a session's log against the criteria of a definition",
        description="Deterministic, and without a model: a criterion is met where its words stand in the transcript.",
        body=SessionOutcomeEvaluate,
        response=SessionOutcome,
        idempotent_write=True,
    ),
)

"""OutcomesService: definitions of quality checks, and what sessions were found to be by them."""

import asyncio
from typing import Any

import orjson

from kit.clock import Clock, rfc3339
from kit.ids import new_id
from kit.postgres import Database
from kit.rpc.context import current_context
from managed_agents.sessions.v1 import outcomes_pb2 as pb
from managed_agents.sessions.v1 import outcomes_pb2_grpc
from managed_agents.sessions.v1.common_pb2 import Idempotency, PageInfo
from services.sessions.domain.errors import OutcomeNotFound
from services.sessions.domain.outcome_definition import (
    StoredOutcome,
    merge_outcome,
    read_evaluation,
    read_record,
    validate_outcome,
)
from services.sessions.domain.outcome_evaluator import Transcript
from services.sessions.domain.session_errors import SessionNotFound
from services.sessions.handlers.definitions import (
    can_be_session,
    can_exist,
    once,
    page_limit,
    position_after,
    read_body,
    read_position,
)
from services.sessions.store.outcomes import OutcomeStore, SessionOutcome

BY_CALLER, BY_TRANSCRIPT = "caller", "transcript"
TRANSCRIPT_BATCH = 200


class OutcomesHandler(outcomes_pb2_grpc.OutcomesServiceServicer):
    """Serves outcomes out of this service's database."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def CreateOutcome(self, request: Any, context: Any) -> pb.CreateOutcomeResponse:
        """Saves a definition."""
        content = validate_outcome(read_body(request.definition_json))
        async with self._database.transaction(current_context().workspace_id) as tx:

            async def create() -> pb.CreateOutcomeResponse:
                saved = await OutcomeStore(tx).insert(new_id("out"), content, self._clock.now())
                return pb.CreateOutcomeResponse(outcome=_outcome(saved))

            return await once(tx, request.idempotency, pb.CreateOutcomeResponse, create)

    async def GetOutcome(self, request: Any, context: Any) -> pb.GetOutcomeResponse:
        """Reads one."""
        outcome_id = _known(request.outcome_id)
        async with self._database.read(current_context().workspace_id) as tx:
            return pb.GetOutcomeResponse(outcome=_outcome(await OutcomeStore(tx).load(outcome_id)))

    async def UpdateOutcome(self, request: Any, context: Any) -> pb.UpdateOutcomeResponse:
        """Merges a partial definition; an update that changes nothing writes nothing."""
        outcome_id = _known(request.outcome_id)
        body = read_body(request.patch_json)
        async with self._database.transaction(current_context().workspace_id) as tx:
            store = OutcomeStore(tx)
            current = await store.load_for_update(outcome_id)
            current.require_active()
            former = current.content()
            content = merge_outcome(former, body)
            if content != former:
                current = await store.save(outcome_id, content, self._clock.now())
            return pb.UpdateOutcomeResponse(outcome=_outcome(current))

    async def ListOutcomes(self, request: Any, context: Any) -> pb.ListOutcomesResponse:
        """Pages newest first."""
        limit = page_limit(request.page)
        scope = f"outcomes?archived={request.include_archived}"
        before = read_position(request.page, scope)
        async with self._database.read(current_context().workspace_id) as tx:
            found = await OutcomeStore(tx).page(
                limit=limit + 1, before=before, include_archived=request.include_archived
            )
        page = found[:limit]
        cursor = position_after(scope, page[-1].created_at, page[-1].id) if len(found) > limit else ""
        return pb.ListOutcomesResponse(
            outcomes=[_outcome(each) for each in page], page_info=PageInfo(next_cursor=cursor)
        )

    async def ArchiveOutcome(self, request: Any, context: Any) -> pb.ArchiveOutcomeResponse:
        """Archives for good."""
        outcome_id = _known(request.outcome_id)
        async with self._database.transaction(current_context().workspace_id) as tx:
            archived = await OutcomeStore(tx).archive(outcome_id, self._clock.now())
        return pb.ArchiveOutcomeResponse(outcome=_outcome(archived))

    async def RecordSessionOutcome(self, request: Any, context: Any) -> pb.RecordSessionOutcomeResponse:
        """Saves what a caller found about a session."""
        record = read_record(read_body(request.record_json))
        found = SessionOutcome(
            id=new_id("sout"),
            session_id=request.session_id,
            outcome_id=record.outcome_id,
            status=record.status,
            score=record.score,
            summary=record.summary,
            evaluator=BY_CALLER,
            criteria="[]",
            metadata=orjson.dumps(record.metadata).decode(),
            created_at=self._clock.now(),
        )
        return await self._record(found, request.idempotency, pb.RecordSessionOutcomeResponse)

    async def EvaluateSessionOutcome(self, request: Any, context: Any) -> pb.EvaluateSessionOutcomeResponse:
        """Holds the log of a session against the criteria, and saves what that shows."""
        outcome_id = read_evaluation(read_body(request.request_json))
        session_id = request.session_id
        async with self._database.read(current_context().workspace_id) as tx:
            outcome = await self._measurable(OutcomeStore(tx), session_id, outcome_id)
        transcript = Transcript(outcome.points())
        await self._read_log(session_id, transcript)
        shown = transcript.evaluate(outcome.pass_threshold)
        criteria = [{"criterion": criterion, "matched": is_met} for criterion, is_met in shown.criteria]
        found = SessionOutcome(
            id=new_id("sout"),
            session_id=session_id,
            outcome_id=outcome_id,
            status=shown.status,
            score=shown.score,
            summary=shown.summary,
            evaluator=BY_TRANSCRIPT,
            criteria=orjson.dumps(criteria).decode(),
            metadata="{}",
            created_at=self._clock.now(),
        )
        return await self._record(found, request.idempotency, pb.EvaluateSessionOutcomeResponse)

    async def ListSessionOutcomes(self, request: Any, context: Any) -> pb.ListSessionOutcomesResponse:
        """Pages what was found about a session, newest first."""
        session_id, limit = request.session_id, page_limit(request.page)
        scope = f"session_outcomes?session={session_id}"
        before = read_position(request.page, scope)
        async with self._database.read(current_context().workspace_id) as tx:
            store = OutcomeStore(tx)
            await _require_session(store, session_id)
            found = await store.records(session_id, limit=limit + 1, before=before)
        page = found[:limit]
        cursor = position_after(scope, page[-1].created_at, page[-1].id) if len(found) > limit else ""
        return pb.ListSessionOutcomesResponse(
            session_outcomes=[_session_outcome(each) for each in page], page_info=PageInfo(next_cursor=cursor)
        )

    async def _record(self, found: SessionOutcome, idempotency: Idempotency, response: Any) -> Any:
        async with self._database.transaction(current_context().workspace_id) as tx:

            async def record() -> Any:
                store = OutcomeStore(tx)
                await self._measurable(store, found.session_id, found.outcome_id)
                await store.record(found)
                return response(session_outcome=_session_outcome(found))

            return await once(tx, idempotency, response, record)

    async def _measurable(self, store: OutcomeStore, session_id: str, outcome_id: str) -> StoredOutcome:
        await _require_session(store, session_id)
        outcome = await store.load(_known(outcome_id))
        outcome.require_active()
        return outcome

    async def _read_log(self, session_id: str, transcript: Transcript) -> None:
        """Reads as much of a log as it takes; no connection is held while the text is looked at."""
        workspace_id, after_seq, size = current_context().workspace_id, 0, TRANSCRIPT_BATCH
        while size == TRANSCRIPT_BATCH and not transcript.is_complete:
            async with self._database.read(workspace_id) as tx:
                events = await OutcomeStore(tx).transcript(session_id, after_seq, TRANSCRIPT_BATCH)
            size = len(events)
            for seq, body in events:
                after_seq = seq
                transcript.read(body.encode())
                # A long log must not hold up other calls.
                await asyncio.sleep(0)


async def _require_session(store: OutcomeStore, session_id: str) -> None:
    if not can_be_session(session_id) or not await store.has_session(session_id):
        raise SessionNotFound(f"Session not found: {session_id}", session_id=session_id)


def _known(outcome_id: str) -> str:
    if not can_exist(outcome_id):
        raise OutcomeNotFound("Outcome not found.")
    return outcome_id


def _outcome(stored: StoredOutcome) -> pb.Outcome:
    return pb.Outcome(
        id=stored.id,
        name=stored.name,
        description=stored.description,
        objective=stored.objective,
        criteria=orjson.loads(stored.criteria),
        pass_threshold=stored.pass_threshold,
        metadata_json=stored.metadata.encode(),
        created_at=rfc3339(stored.created_at),
        updated_at=rfc3339(stored.updated_at),
        archived_at=rfc3339(stored.archived_at) if stored.archived_at else "",
    )


def _session_outcome(found: SessionOutcome) -> pb.SessionOutcome:
    return pb.SessionOutcome(
        id=found.id,
        session_id=found.session_id,
        outcome_id=found.outcome_id,
        status=found.status,
        score=found.score,
        summary=found.summary,
        evaluator=found.evaluator,
        criteria_json=found.criteria.encode(),
        metadata_json=found.metadata.encode(),
        created_at=rfc3339(found.created_at),
    )

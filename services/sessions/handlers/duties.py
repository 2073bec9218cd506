"""DutiesService: what the queue and the gateway ask about sessions whose tools workers run."""

from typing import Any

import orjson

from kit.rpc.context import current_context
from kit.telemetry import traceparent
from managed_agents.sessions.v1 import duties_pb2, duties_pb2_grpc
from services.sessions.domain import duty
from services.sessions.domain.inbound import ClientEvent
from services.sessions.domain.resources import MEMORY_STORE
from services.sessions.domain.session_state import Phase, SessionState, phase_of
from services.sessions.domain.threads import concern
from services.sessions.handlers.definitions import can_be_session
from services.sessions.operations.core import Operations, Unit, new_event_id, not_found
from services.sessions.store.sessions import Sessions


class DutiesHandlers(duties_pb2_grpc.DutiesServiceServicer):
    """The rpcs of other processes of the platform."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def GetDuty(self, request: duties_pb2.GetDutyRequest, context: Any) -> duties_pb2.GetDutyResponse:
        """Whether a worker is needed now."""
        async with self._unit(request.session_id) as unit:
            state = await unit.lock(request.session_id)
        return duties_pb2.GetDutyResponse(
            has_work=duty.has_work(state),
            waiting_call_id=next(duty.waiting_calls(state), ""),
            ended=phase_of(state) is Phase.ENDED,
        )

    async def SettleCalls(self, request: duties_pb2.SettleCallsRequest, context: Any) -> duties_pb2.SettleCallsResponse:
        """Results for calls that a lost worker may have begun."""
        async with self._unit(request.session_id) as unit:
            state = await unit.lock(request.session_id)
            results = duty.results(state, duty.UNKNOWN_TEXT) if phase_of(state) is not Phase.ENDED else []
            if results:
                await self._append(unit, state, results)
        return duties_pb2.SettleCallsResponse(settled=len(results))

    async def ReportFailedWork(
        self, request: duties_pb2.ReportFailedWorkRequest, context: Any
    ) -> duties_pb2.ReportFailedWorkResponse:
        """An error in the log, and the end of what waits for workers."""
        async with self._unit(request.session_id) as unit:
            state = await unit.lock(request.session_id)
            results = duty.results(state, duty.NOT_SERVED_TEXT) if phase_of(state) is not Phase.ENDED else []
            if results:
                resources = await self._resources(unit, request.session_id)
                error = duty.not_served_error(request.message, _stores(resources))
                failed = await unit.apply(duty.tell_failure(state, error, unit.now, new_event_id))
                if failed.state.pending or failed.state.threads is not None:
                    await self._append(unit, failed.state, duty.results(failed.state, duty.NOT_SERVED_TEXT))
        return duties_pb2.ReportFailedWorkResponse()

    async def GetReach(self, request: duties_pb2.GetReachRequest, context: Any) -> duties_pb2.GetReachResponse:
        """What the holder of a session's item may read and write."""
        session_id = request.session_id
        found = None
        if can_be_session(session_id):
            async with self._operations.database.read(current_context().workspace_id) as tx:
                found = await Sessions(tx).get(session_id)
        if found is None:
            raise not_found(session_id)
        return duties_pb2.GetReachResponse(
            stores=[
                duties_pb2.ReachedStore(id=store["memory_store_id"], writable=store.get("access") != "read_only")
                for store in _stores(orjson.loads(found.row.resources))
            ],
            skills=[
                duties_pb2.ReachedSkill(id=skill["skill_id"], version=str(skill["version"]))
                for skill in _skills(orjson.loads(found.agent_document))
            ],
        )

    def _unit(self, session_id: str) -> Any:
        if not can_be_session(session_id):
            raise not_found(session_id)
        return self._operations.unit(current_context().workspace_id)

    async def _append(self, unit: Unit, state: SessionState, results: list[ClientEvent]) -> None:
        if not results:
            return
        if concern(state, results):
            await self._operations.threads.append_client_events(unit, state, results, traceparent())
        else:
            await unit.append_client_events(state, results)

    async def _resources(self, unit: Unit, session_id: str) -> list[dict[str, Any]]:
        found = await Sessions(unit.tx).get(session_id)
        return orjson.loads(found.row.resources) if found is not None else []


def _stores(resources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [resource for resource in resources if resource.get("type") == MEMORY_STORE]


def _skills(document: dict[str, Any]) -> list[dict[str, Any]]:
    members = (document.get("multiagent") or {}).get("agents") or []
    return [skill for agent in (document, *members) for skill in agent.get("skills") or ()]

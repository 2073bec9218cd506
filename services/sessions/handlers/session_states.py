"""SessionStatesService: where sessions stand, for processes of the platform."""

from kit.errors import InvalidArgument, PermissionDenied
from kit.postgres import Database
from kit.rpc.server import current_context
from managed_agents.sessions.v1 import states_pb2, states_pb2_grpc
from services.sessions.store.ended import EndedStore

MAX_SESSIONS = 1_000


class SessionStatesHandler(states_pb2_grpc.SessionStatesServiceServicer):
    """Answers from the rows as they are committed now."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def ReadEndedSessions(self, request, context) -> states_pb2.ReadEndedSessionsResponse:
        """Names those that have ended."""
        if current_context().workspace_id:
            raise PermissionDenied("Only the platform itself asks where sessions of all workspaces stand.")
        if len(request.session_ids) > MAX_SESSIONS:
            raise InvalidArgument(f"At most {MAX_SESSIONS} sessions can be asked about at once.", field="session_ids")
        async with self._database.platform_read() as tx:
            ended = await EndedStore(tx).ended(request.session_ids)
        return states_pb2.ReadEndedSessionsResponse(ended_session_ids=ended)

"""Whose sessions have ended, asked of the service that owns them right before their work is handed out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from kit.rpc.client import Channel
from kit.rpc.context import CallContext
from managed_agents.sessions.v1.states_pb2 import ReadEndedSessionsRequest
from managed_agents.sessions.v1.states_pb2_grpc import SessionStatesServiceStub

ASK_SECONDS = 3.0
CONTEXT = CallContext(principal_id="queue")

# Which of the sessions have ended. Unavailable where nobody can tell.
AskEnded = Callable[[Collection[str]], Awaitable[set[str]]]


def ended_reader(sessions: Channel) -> AskEnded:
    """Asks the sessions service."""
    stub = sessions.stub(SessionStatesServiceStub)

    async def ask(session_ids: Collection[str]) -> set[str]:
        request = ReadEndedSessionsRequest(session_ids=session_ids)
        answer = await stub.ReadEndedSessions(request, context=CONTEXT, timeout_seconds=ASK_SECONDS, retry=True)
        return set(answer.ended_session_ids)

    return ask

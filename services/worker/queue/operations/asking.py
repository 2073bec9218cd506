"""Whose sessions have ended, asked of the service that owns them right before their work is handed out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from kit.rpc.client import Channel
from kit.rpc.context import CallContext
from managed_agents.sessions.v1.states_pb2 import ReadEndedSessionsRequest
from managed_agents.sessions.v1.states_pb2_grpc import SessionStatesServiceStub

ASK_SECONDS = 3.0
# Each names no more sessions than an intake or a round of claims has items, so a question stays within what is taken.
MAX_QUESTIONS = 10
CONTEXT = CallContext(principal_id="queue")

# Which of the sessions have ended. Unavailable where nobody can tell.
AskEnded = Callable[[Collection[str]], Awaitable[set[str]]]


class EndedSessions:
    """Asks the sessions service, one question at a time: those that come meanwhile go together in the next one.

    No question is answered by one that was asked before it, so whatever was committed before is known.
    """

    def __init__(self, sessions: Channel) -> None:
        self._stub = sessions.stub(SessionStatesServiceStub)
        self._waiting: list[tuple[set[str], asyncio.Future[set[str]]]] = []
        self._task: asyncio.Task[None] | None = None

    async def ask(self, session_ids: Collection[str]) -> set[str]:
        """Which of the sessions have ended, and maybe some others that have."""
        answer: asyncio.Future[set[str]] = asyncio.get_running_loop().create_future()
        self._waiting.append((set(session_ids), answer))
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="ended sessions")
        return await answer

    async def _work(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting[:MAX_QUESTIONS], self._waiting[MAX_QUESTIONS:]
                await self._answer(waiting)
        finally:
            self._task = None

    async def _answer(self, waiting: list[tuple[set[str], asyncio.Future[set[str]]]]) -> None:
        request = ReadEndedSessionsRequest(session_ids=set().union(*(ids for ids, _ in waiting)))
        try:
            told = await self._stub.ReadEndedSessions(request, context=CONTEXT, timeout_seconds=ASK_SECONDS, retry=True)
        except Exception as error:
            for _, answer in waiting:
                if not answer.done():
                    answer.set_exception(error)
            return
        ended = set(told.ended_session_ids)
        for _, answer in waiting:
            if not answer.done():
                answer.set_result(ended)

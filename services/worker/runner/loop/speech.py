"""What is told of an answer before it is whole: previews, and for some sessions parts in the log.

An agent with a check on its output tells nothing before the check has passed.
"""

from collections.abc import Mapping
from typing import Any

from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.loop.guardrails import Callout, Guardrails
from services.worker.runner.loop.parts import Add, Parts
from services.worker.runner.loop.previews import Previews, Publish


class Speech:
    """The ways of one turn's text, and what stands in them."""

    def __init__(
        self, publish: Publish, grant: TurnGrant, checks: Mapping[str, Any], callout: Callout | None = None
    ) -> None:
        session = grant.session
        identity = {"session_id": session.id, "agent_id": session.agent.id, "agent_version": session.agent.version}
        self.guardrails = Guardrails(checks, callout, identity)
        self._previews = Previews(publish, session.id)
        self._parts = Parts() if session.text_parts else None

    @property
    def withholds(self) -> bool:
        """Whether nothing of an answer may be told before it is whole."""
        return self.guardrails.withholds

    async def start_message(self, add: Add, event_id: str, text: str) -> None:
        """The first piece of an answer's text."""
        if self._parts is not None:
            self._parts.start(add, event_id, text)
        await self._previews.start_message(event_id, text)

    async def more_text(self, text: str) -> None:
        """A further piece of it."""
        if self._parts is not None:
            self._parts.more(text)
        await self._previews.more_text(text)

    async def start_thinking(self, event_id: str) -> None:
        """The model reasons; what it reasons is not shown."""
        await self._previews.start_thinking(event_id)

    def end(self) -> None:
        """The answer is whole, or broke off."""
        if self._parts is not None:
            self._parts.end()

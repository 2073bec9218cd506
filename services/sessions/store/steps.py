"""The tables `step_conversations` and `steps`: which session a conversation is, and what was taken in it.

Whoever takes a step holds the row of its conversation first and the lock of its session after
it, so the steps of a conversation come one after the other.
"""

from datetime import datetime

from kit.postgres import Tx
from services.sessions.domain.steps import Conversation, Step, TakenStep


class StepStore:
    """Statements of one transaction's workspace."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def is_known(self, agent_id: str, digest: bytes) -> bool:
        """Whether the conversation has a session."""
        row = await self._tx.maybe_one(
            """
            SELECT session_id FROM step_conversations
            WHERE workspace_id = %(workspace_id)s AND agent_id = %(agent_id)s AND digest = %(digest)s
            """,
            {"agent_id": agent_id, "digest": digest},
        )
        return row is not None

    async def claim(self, agent_id: str, step: Step, conversation: Conversation, now: datetime) -> bool:
        """Notes a new conversation, whose session is to follow; False where another transaction did, once it has."""
        written = await self._tx.execute(
            """
            INSERT INTO step_conversations
                (workspace_id, agent_id, digest, name, session_id, tools, system, created_at)
            VALUES (%(workspace_id)s, %(agent_id)s, %(digest)s, %(name)s, '', %(tools)s, %(system)s, %(now)s)
            ON CONFLICT (workspace_id, agent_id, digest) DO NOTHING
            """,
            {
                "agent_id": agent_id,
                "digest": step.digest,
                "name": step.conversation,
                "tools": conversation.tools,
                "system": conversation.system,
                "now": now,
            },
        )
        return written == 1

    async def name_session(self, agent_id: str, digest: bytes, session_id: str) -> None:
        """Gives a conversation that this transaction claimed its session."""
        await self._tx.execute(
            """
            UPDATE step_conversations SET session_id = %(session_id)s
            WHERE workspace_id = %(workspace_id)s AND agent_id = %(agent_id)s AND digest = %(digest)s
            """,
            {"agent_id": agent_id, "digest": digest, "session_id": session_id},
        )

    async def hold(self, agent_id: str, digest: bytes) -> Conversation:
        """A conversation that is there, held until the transaction ends."""
        return await self._tx.one(
            """
            SELECT session_id, tools, system FROM step_conversations
            WHERE workspace_id = %(workspace_id)s AND agent_id = %(agent_id)s AND digest = %(digest)s
            FOR NO KEY UPDATE
            """,
            {"agent_id": agent_id, "digest": digest},
            row=Conversation,
        )

    async def newest(self, session_id: str) -> TakenStep | None:
        """The newest step of a session."""
        return await self._tx.maybe_one(
            """
            SELECT number, fingerprint, first_seq FROM steps
            WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s
            ORDER BY number DESC LIMIT 1
            """,
            {"session_id": session_id},
            row=TakenStep,
        )

    async def named(self, session_id: str, key: bytes) -> TakenStep | None:
        """The step of this name."""
        return await self._tx.maybe_one(
            """
            SELECT number, fingerprint, first_seq FROM steps
            WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND key = %(key)s
            """,
            {"session_id": session_id, "key": key},
            row=TakenStep,
        )

    async def same(self, session_id: str, fingerprint: bytes) -> TakenStep | None:
        """The newest step with this content."""
        return await self._tx.maybe_one(
            """
            SELECT number, fingerprint, first_seq FROM steps
            WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND fingerprint = %(fingerprint)s
            ORDER BY number DESC LIMIT 1
            """,
            {"session_id": session_id, "fingerprint": fingerprint},
            row=TakenStep,
        )

    async def add(self, session_id: str, step: Step, taken: TakenStep, now: datetime) -> None:
        """Notes a step, with whose events this transaction commits."""
        await self._tx.execute(
            """
            INSERT INTO steps (workspace_id, session_id, number, fingerprint, key, first_seq, created_at)
            VALUES (%(workspace_id)s, %(session_id)s, %(number)s, %(fingerprint)s, %(key)s, %(first_seq)s, %(now)s)
            """,
            {
                "session_id": session_id,
                "number": taken.number,
                "fingerprint": taken.fingerprint,
                "key": step.key,
                "first_seq": taken.first_seq,
                "now": now,
            },
        )

"""Conversations that a runner keeps between turns, so that a long session is not read and built again each time.

Bounded by bytes: the conversation that was used longest ago goes first. What a runner keeps, it announces to the
service, which then sends only what is newer; `take_changes` tells what the service does not know yet.
"""

from collections import OrderedDict

from services.worker.runner.loop.context import Conversation


class ConversationCache:
    """Conversations by session. One is taken out while its turn runs, and put back when the turn ended well."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._kept: OrderedDict[str, Conversation] = OrderedDict()
        # Session → the seq that the service should know of; 0 for what was forgotten.
        self._changes: dict[str, int] = {}

    @property
    def size_bytes(self) -> int:
        """What the kept conversations take, roughly."""
        return self._size_bytes

    def take(self, session_id: str) -> Conversation | None:
        """The conversation of a session, which is then no longer kept."""
        conversation = self._kept.pop(session_id, None)
        if conversation is not None:
            self._size_bytes -= conversation.size_bytes
        return conversation

    def put(self, session_id: str, conversation: Conversation) -> None:
        """Keep a conversation."""
        self.take(session_id)
        self._kept[session_id] = conversation
        self._size_bytes += conversation.size_bytes
        self._changes[session_id] = conversation.known_seq
        while self._size_bytes > self._limit_bytes and self._kept:
            oldest, dropped = self._kept.popitem(last=False)
            self._size_bytes -= dropped.size_bytes
            self._changes[oldest] = 0

    def forget(self, session_id: str) -> None:
        """The conversation can't be trusted any more, or is of no use."""
        self.take(session_id)
        self._changes[session_id] = 0

    def take_changes(self) -> dict[str, int]:
        """What changed since the last call."""
        changes, self._changes = self._changes, {}
        return changes

    def everything(self) -> dict[str, int]:
        """All that is kept, for a service that knows nothing; nothing counts as changed afterwards."""
        self._changes = {}
        return {session_id: kept.known_seq for session_id, kept in self._kept.items()}

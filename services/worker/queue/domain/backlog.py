"""What waits for a worker in one environment, and whose turn it is.

Every session with pending items has a lane. Lanes are served round robin, one item at a time, so that a session with a
thousand items holds up another's single one for no longer than one of its own; within a lane items keep their order.
What is in here is what is believed to be pending: whoever takes an item finds out by writing to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from .item import Item


class Backlog:
    """The lanes of one environment."""

    def __init__(self) -> None:
        # In the order in which they are served: the front is next.
        self._lanes: dict[str, deque[Item]] = {}
        self._ids: set[str] = set()
        # Whether everything that is pending was in here when it was last looked at.
        self.is_whole = False

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._ids

    def add(self, items: Iterable[Item]) -> None:
        """Takes in items that are pending; known ones are skipped. A new lane is served after all others."""
        for item in items:
            if item.id not in self._ids:
                self._ids.add(item.id)
                self._lanes.setdefault(item.session_id, deque()).append(item)

    def put_back(self, item: Item) -> None:
        """An item that was taken and not handed out is the next one of its session again."""
        if item.id in self._ids:
            return
        self._ids.add(item.id)
        lane = self._lanes.get(item.session_id)
        if lane is not None:
            lane.appendleft(item)
            return
        # It had been its turn: it is the first one again.
        self._lanes = {item.session_id: deque((item,)), **self._lanes}

    def take(self) -> Item | None:
        """The next item of the next session."""
        if not self._lanes:
            return None
        session_id = next(iter(self._lanes))
        return self.take_of(session_id)

    def take_of(self, session_id: str) -> Item | None:
        """The next item of one session, which is then served after all others."""
        lane = self._lanes.pop(session_id, None)
        if lane is None:
            return None
        item = lane.popleft()
        self._ids.discard(item.id)
        if lane:
            self._lanes[session_id] = lane
        return item

    def drop_session(self, session_id: str) -> None:
        """Forgets what a session has in here."""
        for item in self._lanes.pop(session_id, ()):
            self._ids.discard(item.id)

    def clear(self) -> None:
        """Forgets everything."""
        self._lanes.clear()
        self._ids.clear()
        self.is_whole = False

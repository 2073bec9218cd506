"""First tries of writes whose repeats are recognised by their content alone.

The published client says how often it has tried, and nothing that tells one message from
another with the same words. A retry that comes here after the first try of its message has
failed must not be answered by what an earlier message of the same content was told: so the
newest first try of each content is remembered, by an id that grows with time, and an older
answer does not count. What another gateway has seen, or this one before it was started
again, is not known; a retry is then answered by any former answer, as a lost answer is the
likely reason for it.
"""

from __future__ import annotations

from collections import OrderedDict

from kit.ids import new_id

MAX_REMEMBERED = 10_000


class FirstTries:
    """The newest first try of each content, the longest unused ones dropped first."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, str] = OrderedDict()

    def begin(self, key: str) -> str:
        """A first try has come; its id."""
        try_id = self._ids[key] = new_id("try")
        self._ids.move_to_end(key)
        if len(self._ids) > MAX_REMEMBERED:
            self._ids.popitem(last=False)
        return try_id

    def newest(self, key: str) -> str:
        """The id of the newest one; empty where none was seen."""
        return self._ids.get(key, "")

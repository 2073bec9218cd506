"""Versions of agents, kept in memory for listings.

A saved version never changes, so what is kept is always right; what is not kept is read.
The bounds hold for a process, over all workspaces.
"""

from collections import OrderedDict

from kit.postgres import Tx
from services.sessions.store.session_row import SessionRow
from services.sessions.store.sessions import SavedAgent, SessionRecord, Sessions

MAX_VERSIONS = 2000
MAX_CHARACTERS = 32_000_000

Key = tuple[str, str, int]


class SavedAgents:
    """The least recently listed versions are forgotten first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, SavedAgent] = OrderedDict()
        self._characters = 0

    async def records(self, tx: Tx, rows: list[SessionRow]) -> list[SessionRecord]:
        """The sessions with their versions; at most one further statement."""
        known: dict[tuple[str, int], SavedAgent] = {}
        missing: set[tuple[str, int]] = set()
        for row in rows:
            key = (row.agent_id, row.agent_version)
            if key not in known and key not in missing:
                saved = self._recall((tx.workspace_id, *key))
                if saved is None:
                    missing.add(key)
                else:
                    known[key] = saved
        if missing:
            for key, saved in (await Sessions(tx).saved_agents(missing)).items():
                known[key] = saved
                self._keep((tx.workspace_id, *key), saved)
        return [SessionRecord(row, known[row.agent_id, row.agent_version]) for row in rows]

    def _recall(self, key: Key) -> SavedAgent | None:
        saved = self._kept.get(key)
        if saved is not None:
            self._kept.move_to_end(key)
        return saved

    def _keep(self, key: Key, saved: SavedAgent) -> None:
        if key not in self._kept:
            self._kept[key] = saved
            self._characters += len(saved.document)
        while len(self._kept) > MAX_VERSIONS or self._characters > MAX_CHARACTERS:
            _, dropped = self._kept.popitem(last=False)
            self._characters -= len(dropped.document)

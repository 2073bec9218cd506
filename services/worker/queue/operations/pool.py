"""What this replica believes to be pending, read from the database no more often than needed.

An environment is read when somebody claims there and what is known is older than `FRESH_SECONDS`; items that are put in
are added as they come, on this replica or, by a hint, on another. So a claim that finds others waiting in vain joins
them without a statement, and what a lost hint hides is found by the sweep.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kit.postgres import Database
from services.worker.queue.domain.backlog import Backlog
from services.worker.queue.domain.item import Item
from services.worker.queue.store.pending import PendingStore

FRESH_SECONDS = 2.5
# What was read so lately is not doubted: replicas that share an environment are a little late with each other.
SURE_SECONDS = 0.05
# An environment that nobody claimed in for so long is forgotten.
KEEP_SECONDS = 90.0

Key = tuple[str, str]


@dataclass(slots=True)
class _Known:
    """One environment."""

    backlog: Backlog = field(default_factory=Backlog)
    read_at: float = float("-inf")
    used_at: float = float("-inf")
    # Where the next page begins, of an environment with more than a page.
    next_after: str = ""


class Pool:
    """Backlogs by workspace and environment."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[Key, _Known] = {}
        # Environments with items, by workspace, in the order in which they are served.
        self._filled: dict[str, dict[str, None]] = {}
        # When all environments of a workspace were last looked for, and when a session's lane was read.
        self._listed_at: dict[str, float] = {}
        self._lanes_read_at: dict[tuple[str, str], float] = {}
        # Makes claims that lapsed pending again; whoever only polls leaves no time for a sweep.
        self.lapse: Callable[[], Awaitable[None]] = _nothing
        self._lapsed_at = float("-inf")

    def add(self, item: Item, *, wanted: bool) -> None:
        """An item became pending. `wanted` tells whether somebody waits for any environment's."""
        known = self._known.get((item.workspace_id, item.environment_id))
        if known is None:
            if not wanted:
                return
            known = self._known[item.workspace_id, item.environment_id] = _Known()
        # Where there is more than is known here, it has its turn when it is read.
        if known.backlog.is_whole or not known.backlog:
            self._add((item.workspace_id, item.environment_id), known, [item])

    def put_back(self, item: Item) -> None:
        """An item was taken and not handed out."""
        known = self._known.get((item.workspace_id, item.environment_id))
        if known is not None:
            known.backlog.put_back(item)
            self._note(item.workspace_id, item.environment_id, known)

    def doubt(self, item: Item) -> None:
        """An item was not to be had any more: what else is believed to be pending there is read anew.

        Hints tell of what becomes pending, and nothing tells of what others take. So the beliefs of a replica whose
        workers were busy for a while may all be wrong, and its workers would try them one by one.
        """
        known = self._known.get((item.workspace_id, item.environment_id))
        if known is not None and time.monotonic() - known.read_at > SURE_SECONDS:
            self._lanes_read_at.pop((item.workspace_id, item.session_id), None)
            self._unlearn(item.workspace_id, item.environment_id, known)

    def drop_session(self, item: Item) -> None:
        """Nothing of the item's session is to be handed out."""
        known = self._known.get((item.workspace_id, item.environment_id))
        if known is not None:
            known.backlog.drop_session(item.session_id)
            self._note(item.workspace_id, item.environment_id, known)

    def is_dry(self, workspace_id: str, environment_id: str) -> bool:
        """Whether an environment is known to have nothing now."""
        known = self._known.get((workspace_id, environment_id))
        if known is None or known.backlog or not known.backlog.is_whole:
            return False
        now = time.monotonic()
        known.used_at = now
        return now - known.read_at <= FRESH_SECONDS

    def filled(self, workspace_id: str) -> list[str]:
        """Environments with items, whose turn it is first."""
        return list(self._filled.get(workspace_id, ()))

    def take(self, workspace_id: str, environment_id: str) -> Item | None:
        """The next item of an environment, which is then served after all others."""
        known = self._known[workspace_id, environment_id]
        item = known.backlog.take()
        filled = self._filled.get(workspace_id, {})
        filled.pop(environment_id, None)
        self._note(workspace_id, environment_id, known)
        return item

    def take_of(self, workspace_id: str, environment_id: str, session_id: str) -> Item | None:
        """The next item of a session, in one environment or in any."""
        for each in [environment_id] if environment_id else self.filled(workspace_id):
            known = self._known.get((workspace_id, each))
            item = known.backlog.take_of(session_id) if known is not None else None
            if known is not None and item is not None:
                self._note(workspace_id, each, known)
                return item
        return None

    async def read(self, workspace_id: str, scopes: Iterable[tuple[str, str]]) -> None:
        """Reads what is not known well enough to answer claims of these scopes."""
        now = time.monotonic()
        if now - self._lapsed_at > FRESH_SECONDS:
            self._lapsed_at = now
            await self.lapse()
        environments: dict[str, None] = {}
        sessions: dict[str, None] = {}
        for environment_id, session_id in scopes:
            if session_id:
                sessions[session_id] = None
            elif environment_id:
                environments[environment_id] = None
            else:
                environments |= dict.fromkeys(await self._all(workspace_id, now))
        for environment_id in environments:
            await self._read_environment(workspace_id, environment_id, now)
        for session_id in sessions:
            await self._read_session(workspace_id, session_id, now)

    async def look(self, waited_for: Sequence[Key], workspaces: Iterable[str]) -> bool:
        """Looks into all environments at once; True where something was found that was not known."""
        now = time.monotonic()
        self._forget(now)
        watched = dict.fromkeys([*waited_for, *self._known])
        news = False
        if watched:
            async with self._database.platform_read() as tx:
                filled = await PendingStore(tx).filled(list(watched))
            for key in watched:
                known = self._known.get(key)
                if key in filled:
                    if known is None or not known.backlog:
                        news = True
                        self._known.setdefault(key, _Known(used_at=now)).read_at = float("-inf")
                elif known is not None and known.backlog:
                    # Nothing of it is pending; or it came since, and is read by the next claim.
                    self._unlearn(*key, known)
                elif known is not None:
                    known.read_at = now
        for workspace_id in workspaces:
            self._listed_at.pop(workspace_id, None)
            known_ones = self.filled(workspace_id)
            news = len(await self._all(workspace_id, now)) > len(known_ones) or news
            self._listed_at.pop(workspace_id, None)
        return news

    async def _all(self, workspace_id: str, now: float) -> list[str]:
        """Environments of a workspace with items; looked for where that is too long ago."""
        found: list[str] = []
        if now - self._listed_at.get(workspace_id, float("-inf")) > FRESH_SECONDS:
            async with self._database.platform_read() as tx:
                found = await PendingStore(tx).environments(workspace_id)
            self._listed_at[workspace_id] = now
        return list(dict.fromkeys([*self.filled(workspace_id), *found]))

    async def _read_environment(self, workspace_id: str, environment_id: str, now: float) -> None:
        key = (workspace_id, environment_id)
        known = self._known.setdefault(key, _Known())
        known.used_at = now
        is_fresh = now - known.read_at <= FRESH_SECONDS
        if is_fresh and (known.backlog or known.backlog.is_whole):
            return
        after = known.next_after if not known.backlog else ""
        async with self._database.platform_read() as tx:
            page = await PendingStore(tx).page(workspace_id, environment_id, after)
        known.read_at, known.backlog.is_whole, known.next_after = now, page.is_whole, page.next_after
        self._add(key, known, page.items)

    async def _read_session(self, workspace_id: str, session_id: str, now: float) -> None:
        key = (workspace_id, session_id)
        if now - self._lanes_read_at.get(key, float("-inf")) <= FRESH_SECONDS:
            return
        async with self._database.platform_read() as tx:
            items = await PendingStore(tx).of_session(workspace_id, session_id)
        self._lanes_read_at[key] = now
        for item in items:
            home = (workspace_id, item.environment_id)
            self._add(home, self._known.setdefault(home, _Known(used_at=now)), [item])

    def _add(self, key: Key, known: _Known, items: Iterable[Item]) -> None:
        known.backlog.add(items)
        self._note(*key, known)

    def _note(self, workspace_id: str, environment_id: str, known: _Known) -> None:
        """Keeps the order of the environments that have something."""
        filled = self._filled.setdefault(workspace_id, {})
        if known.backlog:
            filled.setdefault(environment_id)
        else:
            filled.pop(environment_id, None)
            if not filled:
                del self._filled[workspace_id]

    def _unlearn(self, workspace_id: str, environment_id: str, known: _Known) -> None:
        known.backlog.clear()
        known.read_at, known.next_after = float("-inf"), ""
        self._listed_at.pop(workspace_id, None)
        self._note(workspace_id, environment_id, known)

    def _forget(self, now: float) -> None:
        for key in [key for key, known in self._known.items() if now - known.used_at > KEEP_SECONDS]:
            self._unlearn(*key, self._known.pop(key))
        for times in (self._listed_at, self._lanes_read_at):
            for old in [each for each, at in times.items() if now - at > KEEP_SECONDS]:
                del times[old]  # type: ignore[arg-type]


async def _nothing() -> None:
    """There is nothing to be done before a reading."""

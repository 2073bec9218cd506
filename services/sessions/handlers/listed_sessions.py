"""Pages of sessions, of which only those are read in full that this process has not met as they are now.

A page is found by the versions of its sessions' rows, and everything that is shown of a
session is a function of its row, of the saved version of its agent, which never changes,
and of the clock while it runs. So a version that was read before needs no other look.
"""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime

from kit.postgres import Tx
from services.sessions.handlers.saved_agents import SavedAgents
from services.sessions.handlers.session_messages import session_message
from services.sessions.handlers.session_pages import Listing
from services.sessions.store.session_row import SessionRow
from services.sessions.store.sessions import Position, SessionRecord, Sessions, Version

# For a process, over all workspaces.
MAX_SESSIONS = 512
MAX_BYTES = 8_000_000


@dataclass(frozen=True, slots=True)
class Listed:
    """A version of a session, ready to be shown."""

    position: Position
    # An encoded Session where the clock has no part in it, else what one is made from.
    shown: bytes | SessionRecord
    # About what keeping it takes.
    size: int

    def at(self, now: datetime) -> bytes:
        """The encoded Session that a listing of this moment shows."""
        return self.shown if isinstance(self.shown, bytes) else _encoded(self.shown, now)


class ListedSessions:
    """The least recently listed versions are forgotten first."""

    def __init__(self) -> None:
        self._saved_agents = SavedAgents()
        self._kept: OrderedDict[Version, Listed] = OrderedDict()
        self._bytes = 0

    async def page(self, tx: Tx, listing: Listing) -> tuple[list[Listed], bool]:
        """One page as it was at one moment, and whether the listing goes on behind it."""
        if listing.after is not None:
            # Who goes on from page to page mostly meets sessions that were not met before.
            return await self._whole(tx, listing)
        sessions = Sessions(tx)
        versions, more = listing.cut(
            await sessions.versions(listing.narrowed, ascending=listing.ascending, limit=listing.limit + 1)
        )
        known = self._recall(versions)
        missing = [version[0] for version in versions if version not in known]
        if missing:
            known |= await self._listed(tx, await sessions.with_versions(missing))
        page = [known[version] for version in versions if version in known]
        if len(page) < len(versions):
            # A row has changed in between, and may belong to another page by now.
            return await self._whole(tx, listing)
        return page, more

    async def _whole(self, tx: Tx, listing: Listing) -> tuple[list[Listed], bool]:
        """The same in one statement."""
        found = await Sessions(tx).page(
            listing.narrowed, listing.after, ascending=listing.reads_ascending, limit=listing.limit + 1
        )
        rows, more = listing.cut(found)
        known = await self._listed(tx, rows)
        return [known[version] for version, _ in rows], more

    def _recall(self, versions: list[Version]) -> dict[Version, Listed]:
        known: dict[Version, Listed] = {}
        for version in versions:
            listed = self._kept.get(version)
            if listed is not None:
                self._kept.move_to_end(version)
                known[version] = listed
        return known

    async def _listed(self, tx: Tx, rows: list[tuple[Version, SessionRow]]) -> dict[Version, Listed]:
        found = self._recall([version for version, _ in rows])
        unknown = [each for each in rows if each[0] not in found]
        records = await self._saved_agents.records(tx, [row for _, row in unknown])
        for (version, _), record in zip(unknown, records, strict=True):
            found[version] = _ready(record)
            self._keep(version, found[version])
        return found

    def _keep(self, version: Version, listed: Listed) -> None:
        # Another listing may have read the same meanwhile.
        if version not in self._kept:
            self._kept[version] = listed
            self._bytes += listed.size
        while len(self._kept) > MAX_SESSIONS or self._bytes > MAX_BYTES:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.size


def _ready(record: SessionRecord) -> Listed:
    row = record.row
    encoded = _encoded(record, row.updated_at)
    shown = encoded if row.running_since is None else record
    return Listed(Position(row.created_at, row.id), shown, len(encoded))


def _encoded(record: SessionRecord, now: datetime) -> bytes:
    return session_message(record, now).SerializeToString()

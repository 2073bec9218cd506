"""Pages of sessions, of which only those are read in full that this process has not met as they are now.

A page is found by the versions of its sessions' rows, and everything that is shown of a
session is a function of its row, of the saved version of its agent, which never changes,
and of the clock while it runs. So a version that was read before needs no other look.
"""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime

from kit.postgres import Tx
from managed_agents.sessions.v1.sessions_pb2 import Session
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
    """A version of a session, ready to be shown; not to be changed."""

    position: Position
    # As a message where the clock has no part in it, else as what a message is made from.
    shown: Session | SessionRecord
    # About what keeping it takes.
    size: int

    def at(self, now: datetime) -> Session:
        """The session as a listing of this moment shows it."""
        return self.shown if isinstance(self.shown, Session) else session_message(self.shown, now)


class ListedSessions:
    """The least recently listed versions are forgotten first."""

    def __init__(self) -> None:
        self._saved_agents = SavedAgents()
        self._kept: OrderedDict[Version, Listed] = OrderedDict()
        self._bytes = 0

    async def page(self, tx: Tx, listing: Listing) -> tuple[list[Listed], bool]:
        """One page as it was at one moment, and whether the listing goes on behind it."""
        sessions = Sessions(tx)
        versions, more = listing.cut(
            await sessions.versions(
                listing.narrowed, listing.after, ascending=listing.reads_ascending, limit=listing.limit + 1
            )
        )
        known = self._recall(versions)
        missing = [version[0] for version in versions if version not in known]
        if missing:
            known |= await self._read(tx, await sessions.with_versions(missing))
            if not all(version in known for version in versions):
                # A row has changed in between, and may belong to another page by now: all of it in one statement.
                rows, more = listing.cut(
                    await sessions.page(
                        listing.narrowed, listing.after, ascending=listing.reads_ascending, limit=listing.limit + 1
                    )
                )
                versions, known = [version for version, _ in rows], await self._read(tx, rows)
        return [known[version] for version in versions], more

    def _recall(self, versions: list[Version]) -> dict[Version, Listed]:
        known: dict[Version, Listed] = {}
        for version in versions:
            listed = self._kept.get(version)
            if listed is not None:
                self._kept.move_to_end(version)
                known[version] = listed
        return known

    async def _read(self, tx: Tx, rows: list[tuple[Version, SessionRow]]) -> dict[Version, Listed]:
        records = await self._saved_agents.records(tx, [row for _, row in rows])
        found = {version: _listed(record) for (version, _), record in zip(rows, records, strict=True)}
        for version, listed in found.items():
            self._keep(version, listed)
        return found

    def _keep(self, version: Version, listed: Listed) -> None:
        if version not in self._kept:
            self._kept[version] = listed
            self._bytes += listed.size
        while len(self._kept) > MAX_SESSIONS or self._bytes > MAX_BYTES:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.size


def _listed(record: SessionRecord) -> Listed:
    row = record.row
    message = session_message(record, row.updated_at)
    return Listed(
        Position(row.created_at, row.id), message if row.running_since is None else record, message.ByteSize()
    )

"""What is attached to sessions, and the copies of files that sessions mount.

The array of resources is a column of the session, written under the session's lock. A copy is a row of its own that
names the same bytes as its source, made in the transaction that attaches it: while the source's row is held, nobody
takes the bytes away.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import orjson

from kit.postgres import Tx


@dataclass(frozen=True, slots=True)
class CopyOf:
    """A copy to be made."""

    file_id: str
    source_id: str
    # Where it stands in the sandbox.
    path: str


class ResourceStore:
    """Statements of one transaction."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def read(self, session_id: str) -> tuple[str, int] | None:
        """The resources of a session as JSON, and its revision; of the session that it belongs to for a thread."""
        return await self._tx.maybe_one(
            """
            SELECT coalesce((
                SELECT r.resources FROM sessions r WHERE r.workspace_id = %(workspace_id)s AND r.id = s.root_id
            ), s.resources), s.revision
            FROM sessions s WHERE s.workspace_id = %(workspace_id)s AND s.id = %(id)s AND s.deleted_at IS NULL
            """,
            {"id": session_id},
        )

    async def write(self, session_id: str, resources: str) -> None:
        """Replaces the resources of a locked session, and has its threads hear of it."""
        await self._tx.execute(
            "UPDATE sessions SET resources = %(resources)s WHERE workspace_id = %(workspace_id)s AND id = %(id)s",
            {"id": session_id, "resources": resources},
        )
        # Whoever guesses where a thread stands is to look again.
        await self._tx.execute(
            """
            UPDATE sessions SET resources = %(resources)s, revision = revision + 1, version = version + 1
            WHERE workspace_id = %(workspace_id)s AND root_id = %(id)s
            """,
            {"id": session_id, "resources": resources},
        )

    async def copy_files(self, session_id: str, copies: Sequence[CopyOf], now: datetime) -> set[str]:
        """Makes copies for a session; the ids of the sources that there are. The others are left out."""
        found = await self._tx.all(
            """
            WITH wanted AS (
                SELECT file_id, source_id, path
                FROM json_to_recordset(%(copies)s::json) AS w(file_id text, source_id text, path text)
            ), held AS (
                SELECT * FROM files
                WHERE workspace_id = %(workspace_id)s AND id IN (SELECT source_id FROM wanted)
                  AND purpose <> 'artifact' AND archived_at IS NULL AND bytes_removed_at IS NULL
                  AND (expires_at IS NULL OR expires_at > %(now)s)
                FOR SHARE
            )
            INSERT INTO files (
                workspace_id, id, purpose, name, media_type, size_bytes, sha256, downloadable, session_id, path,
                preview, preview_truncated, created_at, updated_at
            )
            SELECT h.workspace_id, w.file_id, 'mount', h.name, h.media_type, h.size_bytes, h.sha256, h.downloadable,
                   %(session_id)s, w.path, h.preview, h.preview_truncated, %(now)s, %(now)s
            FROM wanted w JOIN held h ON h.id = w.source_id
            RETURNING id
            """,
            {
                "session_id": session_id,
                "now": now,
                "copies": orjson.dumps(
                    [{"file_id": each.file_id, "source_id": each.source_id, "path": each.path} for each in copies]
                ).decode(),
            },
        )
        return {row[0] for row in found}

    async def that_may_run(self, session_ids: Sequence[str]) -> dict[tuple[str, str], str]:
        """The resources of those sessions, of any workspace, that can still have a turn."""
        rows = await self._tx.all(
            """
            SELECT workspace_id, id, resources FROM sessions -- platform-wide: what vault keeps for any session
            WHERE id = ANY(%(ids)s) AND deleted_at IS NULL AND archived_at IS NULL
              AND status NOT IN ('terminated', 'timed_out')
            """,
            {"ids": list(session_ids)},
        )
        return {(row[0], row[1]): row[2] for row in rows}

    async def archive_copy(self, session_id: str, file_id: str, now: datetime) -> None:
        """Takes a detached copy out of listings and reads."""
        await self._tx.execute(
            """
            UPDATE files SET archived_at = %(now)s, bytes_removed_at = coalesce(bytes_removed_at, %(now)s)
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND session_id = %(session_id)s
              AND purpose = 'mount' AND archived_at IS NULL
            """,
            {"id": file_id, "session_id": session_id, "now": now},
        )

"""The table `files`."""

from dataclasses import dataclass
from datetime import datetime

from kit.postgres import Tx
from services.sessions.domain.file import StoredFile
from services.sessions.domain.file_errors import ArtifactNotFound, FileNotFound

# Where a page begins: behind this one, in the order of the page.
Position = tuple[datetime, str]


@dataclass(frozen=True, slots=True)
class _Saved(StoredFile):
    created: bool


@dataclass(frozen=True, slots=True)
class _Workspace:
    workspace_id: str


class FileStore:
    """Files of the workspace that the transaction belongs to."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def save(self, file: StoredFile) -> tuple[StoredFile, bool]:
        """Inserts the row, or refreshes the one with its path, which keeps its id; and whether it is new.

        Whoever calls this holds the blob (`operations/blob_holds.py`), so that the row never is without it.
        """
        saved = await self._tx.one(
            """
            INSERT INTO files (
                workspace_id, id, purpose, name, media_type, size_bytes, sha256, downloadable, session_id, path,
                preview, preview_truncated, created_at, updated_at, expires_at
            )
            VALUES (
                %(workspace_id)s, %(id)s, %(purpose)s, %(name)s, %(media_type)s, %(size_bytes)s, %(sha256)s,
                %(downloadable)s, %(session_id)s, %(path)s, %(preview)s, %(preview_truncated)s, %(created_at)s,
                %(updated_at)s, %(expires_at)s
            )
            ON CONFLICT (workspace_id, session_id, purpose, path) WHERE path <> '' AND archived_at IS NULL
            DO UPDATE SET
                name = excluded.name, media_type = excluded.media_type, size_bytes = excluded.size_bytes,
                sha256 = excluded.sha256, downloadable = excluded.downloadable, preview = excluded.preview,
                preview_truncated = excluded.preview_truncated, expires_at = excluded.expires_at,
                bytes_removed_at = NULL,
                updated_at = CASE
                    WHEN (files.sha256, files.name, files.media_type)
                       = (excluded.sha256, excluded.name, excluded.media_type)
                    THEN files.updated_at ELSE excluded.updated_at
                END
            RETURNING id, purpose, name, media_type, size_bytes, sha256, downloadable, session_id, path, preview,
                preview_truncated, created_at, updated_at, expires_at, archived_at, (xmax = 0) AS created
            """,
            {name: getattr(file, name) for name in StoredFile.__slots__},
            row=_Saved,
        )
        return saved, saved.created

    async def load(self, file_id: str) -> StoredFile:
        """The file; FileNotFound for an artifact, an archived one and one that never was."""
        found = await self._tx.maybe_one(
            """
            SELECT id, purpose, name, media_type, size_bytes, sha256, downloadable, session_id, path, preview,
                preview_truncated, created_at, updated_at, expires_at, archived_at
            FROM files
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND archived_at IS NULL AND purpose <> 'artifact'
            """,
            {"id": file_id},
            row=StoredFile,
        )
        return _present(found, file_id)

    async def load_artifact(self, session_id: str, artifact_id: str) -> StoredFile:
        """One artifact of the session."""
        found = await self._tx.maybe_one(
            """
            SELECT id, purpose, name, media_type, size_bytes, sha256, downloadable, session_id, path, preview,
                preview_truncated, created_at, updated_at, expires_at, archived_at
            FROM files
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND session_id = %(session_id)s
              AND archived_at IS NULL AND purpose = 'artifact'
            """,
            {"id": artifact_id, "session_id": session_id},
            row=StoredFile,
        )
        if found is None:
            raise ArtifactNotFound(f"Artifact not found: {artifact_id}", artifact_id=artifact_id)
        return found

    async def archive(self, file_id: str, now: datetime) -> StoredFile:
        """Takes the file out of every reader's sight, and lets go of its bytes."""
        found = await self._tx.maybe_one(
            """
            UPDATE files SET archived_at = %(now)s, bytes_removed_at = coalesce(bytes_removed_at, %(now)s)
            WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND archived_at IS NULL AND purpose <> 'artifact'
            RETURNING id, purpose, name, media_type, size_bytes, sha256, downloadable, session_id, path, preview,
                preview_truncated, created_at, updated_at, expires_at, archived_at
            """,
            {"id": file_id, "now": now},
            row=StoredFile,
        )
        return _present(found, file_id)

    async def older(self, now: datetime, limit: int, before: Position | None) -> list[StoredFile]:
        """Files from newest to oldest."""
        created_at, file_id = before or (None, "")
        return await self._tx.all(
            """
            SELECT id, purpose, name, media_type, size_bytes, sha256, downloadable, session_id, path, NULL AS preview,
                false AS preview_truncated, created_at, updated_at, expires_at, archived_at
            FROM files
            WHERE workspace_id = %(workspace_id)s AND archived_at IS NULL AND purpose <> 'artifact'
              AND (expires_at IS NULL OR expires_at > %(now)s)
              AND (created_at, id) < (coalesce(%(created_at)s::timestamptz, 'infinity'), %(id)s)
            ORDER BY created_at DESC, id DESC
            LIMIT %(limit)s
            """,
            {"now": now, "limit": limit, "created_at": created_at, "id": file_id},
            row=StoredFile,
        )

    async def newer(self, now: datetime, limit: int, after: Position | None) -> list[StoredFile]:
        """Files from oldest to newest."""
        created_at, file_id = after or (None, "")
        return await self._tx.all(
            """
            SELECT id, purpose, name, media_type, size_bytes, sha256, downloadable, session_id, path, NULL AS preview,
                false AS preview_truncated, created_at, updated_at, expires_at, archived_at
            FROM files
            WHERE workspace_id = %(workspace_id)s AND archived_at IS NULL AND purpose <> 'artifact'
              AND (expires_at IS NULL OR expires_at > %(now)s)
              AND (created_at, id) > (coalesce(%(created_at)s::timestamptz, '-infinity'), %(id)s)
            ORDER BY created_at, id
            LIMIT %(limit)s
            """,
            {"now": now, "limit": limit, "created_at": created_at, "id": file_id},
            row=StoredFile,
        )

    async def older_of(self, session_id: str, now: datetime, limit: int, before: Position | None) -> list[StoredFile]:
        """Files of one session that is there, from newest to oldest."""
        created_at, file_id = before or (None, "")
        return await self._tx.all(
            """
            SELECT id, purpose, name, media_type, size_bytes, sha256, downloadable, session_id, path, NULL AS preview,
                false AS preview_truncated, created_at, updated_at, expires_at, archived_at
            FROM files
            WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND archived_at IS NULL
              AND session_id <> '' AND purpose <> 'artifact' AND (expires_at IS NULL OR expires_at > %(now)s)
              AND (created_at, id) < (coalesce(%(created_at)s::timestamptz, 'infinity'), %(id)s)
            ORDER BY created_at DESC, id DESC
            LIMIT %(limit)s
            """,
            {"session_id": session_id, "now": now, "limit": limit, "created_at": created_at, "id": file_id},
            row=StoredFile,
        )

    async def newer_of(self, session_id: str, now: datetime, limit: int, after: Position | None) -> list[StoredFile]:
        """Files of one session that is there, from oldest to newest."""
        created_at, file_id = after or (None, "")
        return await self._tx.all(
            """
            SELECT id, purpose, name, media_type, size_bytes, sha256, downloadable, session_id, path, NULL AS preview,
                false AS preview_truncated, created_at, updated_at, expires_at, archived_at
            FROM files
            WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND archived_at IS NULL
              AND session_id <> '' AND purpose <> 'artifact' AND (expires_at IS NULL OR expires_at > %(now)s)
              AND (created_at, id) > (coalesce(%(created_at)s::timestamptz, '-infinity'), %(id)s)
            ORDER BY created_at, id
            LIMIT %(limit)s
            """,
            {"session_id": session_id, "now": now, "limit": limit, "created_at": created_at, "id": file_id},
            row=StoredFile,
        )

    async def named(self, file_ids: list[str], now: datetime) -> list[StoredFile]:
        """Those of the files that are there, from newest to oldest."""
        return await self._tx.all(
            """
            SELECT id, purpose, name, media_type, size_bytes, sha256, downloadable, session_id, path, NULL AS preview,
                false AS preview_truncated, created_at, updated_at, expires_at, archived_at
            FROM files
            WHERE workspace_id = %(workspace_id)s AND id = ANY(%(ids)s) AND archived_at IS NULL
              AND purpose <> 'artifact' AND (expires_at IS NULL OR expires_at > %(now)s)
            ORDER BY created_at DESC, id DESC
            """,
            {"ids": file_ids, "now": now},
            row=StoredFile,
        )

    async def artifacts(self, session_id: str, limit: int, before: Position | None) -> list[StoredFile]:
        """Artifacts of one session, from newest to oldest, with their previews."""
        created_at, file_id = before or (None, "")
        return await self._tx.all(
            """
            SELECT id, purpose, name, media_type, size_bytes, sha256, downloadable, session_id, path, preview,
                preview_truncated, created_at, updated_at, expires_at, archived_at
            FROM files
            WHERE workspace_id = %(workspace_id)s AND session_id = %(session_id)s AND archived_at IS NULL
              AND session_id <> '' AND purpose = 'artifact'
              AND (created_at, id) < (coalesce(%(created_at)s::timestamptz, 'infinity'), %(id)s)
            ORDER BY created_at DESC, id DESC
            LIMIT %(limit)s
            """,
            {"session_id": session_id, "limit": limit, "created_at": created_at, "id": file_id},
            row=StoredFile,
        )

    async def has_session(self, session_id: str) -> bool:
        """Whether the workspace has the session, in whatever state."""
        found = await self._tx.maybe_one(
            "SELECT 1 FROM sessions WHERE workspace_id = %(workspace_id)s AND id = %(id)s AND deleted_at IS NULL",
            {"id": session_id},
        )
        return found is not None

    async def kept_bytes(self) -> int:
        """How many bytes the rows of the workspace count for."""
        found = await self._tx.one(
            """
            SELECT coalesce(sum(size_bytes), 0)::bigint FROM files
            WHERE workspace_id = %(workspace_id)s AND bytes_removed_at IS NULL
            """
        )
        return found[0]

    async def let_go_of_expired(self, now: datetime, limit: int) -> int:
        """Lets go of the bytes of files whose time is over; how many. For the sweep."""
        return await self._tx.execute(
            """
            -- platform-wide: sweep
            UPDATE files SET bytes_removed_at = %(now)s
            WHERE (workspace_id, id) IN (
                SELECT workspace_id, id FROM files
                WHERE expires_at IS NOT NULL AND expires_at <= %(now)s AND bytes_removed_at IS NULL
                LIMIT %(limit)s FOR UPDATE SKIP LOCKED
            )
            """,
            {"now": now, "limit": limit},
        )

    async def let_go_of_deleted(self, now: datetime, limit: int) -> int:
        """Archives what nobody can reach since its session was deleted; how many. For the sweep.

        Outputs stay: they are listed with all files, and are what the session was for.
        """
        return await self._tx.execute(
            """
            -- platform-wide: sweep
            UPDATE files SET archived_at = %(now)s, bytes_removed_at = %(now)s
            WHERE (workspace_id, id) IN (
                SELECT files.workspace_id, files.id
                FROM files
                JOIN sessions ON sessions.workspace_id = files.workspace_id AND sessions.id = files.session_id
                WHERE files.purpose IN ('artifact', 'mount') AND files.archived_at IS NULL
                  AND sessions.deleted_at IS NOT NULL
                LIMIT %(limit)s FOR UPDATE OF files SKIP LOCKED
            )
            """,
            {"now": now, "limit": limit},
        )

    async def workspaces(self) -> list[str]:
        """Every workspace that ever had a file, or has a skill; for the sweep."""
        found = await self._tx.all(
            """
            -- platform-wide: sweep. One look at an index per workspace.
            WITH RECURSIVE known AS (
                (SELECT workspace_id FROM files ORDER BY workspace_id LIMIT 1)
                UNION ALL
                SELECT (SELECT workspace_id FROM files WHERE workspace_id > known.workspace_id
                        ORDER BY workspace_id LIMIT 1)
                FROM known WHERE known.workspace_id IS NOT NULL
            )
            SELECT workspace_id FROM known WHERE workspace_id IS NOT NULL
            UNION
            SELECT workspace_id FROM skills
            """,
            row=_Workspace,
        )
        return [each.workspace_id for each in found]


def _present(found: StoredFile | None, file_id: str) -> StoredFile:
    if found is None:
        raise FileNotFound(f"File not found: {file_id}", file_id=file_id)
    return found

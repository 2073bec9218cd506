"""Which blobs rows name, in every table that does, and the lock that orders rows against the sweep."""

from dataclasses import dataclass

from kit.postgres import Tx


@dataclass(frozen=True, slots=True)
class _Named:
    sha256: str


class BlobReferences:
    """The names of blobs. The sweep looks across workspaces, since all share what has the same bytes."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def hold(self, sha256: str) -> None:
        """Keeps the sweep from the blob until the transaction ends."""
        await self._tx.execute("SELECT pg_advisory_xact_lock_shared(hashtextextended(%(sha256)s, 450))", _of(sha256))

    async def claim(self, sha256: str) -> bool:
        """Keeps everyone else from the blob until the transaction ends; False where somebody holds it."""
        taken = await self._tx.one(
            "SELECT pg_try_advisory_xact_lock(hashtextextended(%(sha256)s, 450)) AS taken", _of(sha256), row=_Taken
        )
        return taken.taken

    async def named(self, sha256: list[str]) -> set[str]:
        """Those of the blobs that a row names. A table that names blobs belongs into this statement."""
        found = await self._tx.all(
            """
            -- platform-wide: workspaces share what has the same bytes
            SELECT sha256 FROM files WHERE sha256 = ANY(%(sha256)s) AND bytes_removed_at IS NULL
            UNION
            SELECT sha256 FROM skill_versions WHERE sha256 = ANY(%(sha256)s)
            UNION SELECT sha256 FROM skill_versions WHERE sha256 = ANY(%(sha256)s)
            """,
            {"sha256": sha256},
            row=_Named,
        )
        return {each.sha256 for each in found}


@dataclass(frozen=True, slots=True)
class _Taken:
    taken: bool


def _of(sha256: str) -> dict[str, str]:
    return {"sha256": sha256}

"""The tables `skills` and `skill_versions`.

A skill always has a version: both rows come in one transaction, and the last one goes only with its skill. Writers of
one skill wait for each other at its row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import LiteralString

import orjson

from kit.postgres import Tx
from services.sessions.domain.skill_errors import (
    SkillNameTaken,
    SkillNotFound,
    SkillVersionNotFound,
    SkillVersionRequired,
)

LATEST = "latest"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_VERSION_DIGITS = 18


@dataclass(frozen=True, slots=True)
class SkillVersion:
    """One package of a skill."""

    id: str
    skill_id: str
    name: str
    description: str
    version: int
    created_at: datetime
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill with its newest version."""

    id: str
    display_name: str
    created_at: datetime
    updated_at: datetime
    latest: SkillVersion


@dataclass(frozen=True, slots=True)
class Package:
    """What a version is made of."""

    name: str
    description: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Row:
    id: str
    display_name: str
    created_at: datetime
    updated_at: datetime
    version_id: str
    name: str
    description: str
    version: int
    version_created_at: datetime
    size_bytes: int
    sha256: str

    def skill(self) -> Skill:
        """The two objects that the row is of."""
        latest = SkillVersion(
            self.version_id,
            self.id,
            self.name,
            self.description,
            self.version,
            self.version_created_at,
            self.size_bytes,
            self.sha256,
        )
        return Skill(self.id, self.display_name, self.created_at, self.updated_at, latest)


_SKILL: LiteralString = """
    SELECT s.id, s.display_name, s.created_at, s.updated_at, v.id AS version_id, s.name, v.description, v.version,
           v.created_at AS version_created_at, v.size_bytes, v.sha256
    FROM skills s
    JOIN LATERAL (
        SELECT id, description, version, created_at, size_bytes, sha256 FROM skill_versions
        WHERE workspace_id = %(workspace_id)s AND skill_id = s.id
        ORDER BY version DESC LIMIT 1
    ) v ON true
    WHERE s.workspace_id = %(workspace_id)s
"""
_VERSION: LiteralString = """
    SELECT v.id, v.skill_id, s.name, v.description, v.version, v.created_at, v.size_bytes, v.sha256
    FROM skill_versions v
    JOIN skills s ON s.workspace_id = v.workspace_id AND s.id = v.skill_id
    WHERE v.workspace_id = %(workspace_id)s
"""


class SkillStore:
    """Skills of the workspace that the transaction belongs to."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def insert(self, skill_id: str, display_name: str, name: str, now: datetime) -> None:
        """Saves a skill, which needs a version in the same transaction."""
        added = await self._tx.execute(
            """
            INSERT INTO skills (workspace_id, id, created_at, updated_at, name, display_name)
            VALUES (%(workspace_id)s, %(id)s, %(now)s, %(now)s, %(name)s, %(display_name)s)
            ON CONFLICT ON CONSTRAINT skills_name_unique DO NOTHING
            """,
            {"id": skill_id, "now": now, "name": name, "display_name": display_name},
        )
        if not added:
            raise SkillNameTaken(
                f"A skill named {name} exists already. Upload the package as a new version of it, delete it first, or"
                " choose another name in SKILL.md.",
                field="files",
                skill_name=name,
                details=orjson.dumps({"error_code": "skill_name_taken", "skill_name": name}).decode(),
            )

    async def add_version(self, version_id: str, skill_id: str, package: Package, now: datetime) -> None:
        """Saves the newest version of a locked or new skill."""
        await self._tx.execute(
            """
            INSERT INTO skill_versions (
                workspace_id, id, skill_id, created_at, version, description, sha256, size_bytes
            )
            SELECT %(workspace_id)s, %(id)s, %(skill_id)s, %(now)s,
                   greatest(%(version)s, coalesce(max(version) + 1, 0)), %(description)s, %(sha256)s, %(size)s
            FROM skill_versions WHERE workspace_id = %(workspace_id)s AND skill_id = %(skill_id)s
            """,
            {
                "id": version_id,
                "skill_id": skill_id,
                "now": now,
                "version": (now - _EPOCH) // timedelta(microseconds=1),
                "description": package.description,
                "sha256": package.sha256,
                "size": package.size_bytes,
            },
        )

    async def touch(self, skill_id: str, now: datetime) -> None:
        """Tells when the skill was last changed."""
        await self._tx.execute(
            "UPDATE skills SET updated_at = %(now)s WHERE workspace_id = %(workspace_id)s AND id = %(id)s",
            {"id": skill_id, "now": now},
        )

    async def load(self, skill_id: str) -> Skill:
        """One skill."""
        row = await self._tx.maybe_one(f"{_SKILL} AND s.id = %(id)s", {"id": skill_id}, row=_Row)
        if row is None:
            raise skill_not_found(skill_id)
        return row.skill()

    async def lock(self, skill_id: str) -> str:
        """Keeps other writers from the skill until the transaction ends; its name."""
        row = await self._tx.maybe_one(
            "SELECT name FROM skills WHERE workspace_id = %(workspace_id)s AND id = %(id)s FOR UPDATE",
            {"id": skill_id},
        )
        if row is None:
            raise skill_not_found(skill_id)
        return row[0]

    async def page(self, *, limit: int, before: tuple[datetime, str] | None) -> list[Skill]:
        """Skills from newest to oldest, beginning behind `before`."""
        created_at, skill_id = before or (None, "")
        rows = await self._tx.all(
            f"""{_SKILL}
              AND (s.created_at, s.id) < (coalesce(%(before)s::timestamptz, 'infinity'), %(before_id)s)
            ORDER BY s.created_at DESC, s.id DESC
            LIMIT %(limit)s
            """,
            {"limit": limit, "before": created_at, "before_id": skill_id},
            row=_Row,
        )
        return [row.skill() for row in rows]

    async def delete(self, skill_id: str) -> None:
        """Removes a skill with its versions."""
        deleted = await self._tx.execute(
            "DELETE FROM skills WHERE workspace_id = %(workspace_id)s AND id = %(id)s", {"id": skill_id}
        )
        if not deleted:
            raise skill_not_found(skill_id)

    async def version(self, skill_id: str, version: str) -> SkillVersion:
        """One version, by its id, its number or `latest`."""
        number = int(version) if version.isascii() and version.isdigit() and len(version) <= _MAX_VERSION_DIGITS else -1
        found = await self._tx.maybe_one(
            f"""{_VERSION}
              AND v.skill_id = %(skill_id)s
              AND (%(latest)s OR v.id = %(version)s OR v.version = %(number)s)
            ORDER BY v.version DESC LIMIT 1
            """,
            {"skill_id": skill_id, "version": version, "number": number, "latest": version == LATEST},
            row=SkillVersion,
        )
        if found is None:
            await self.load(skill_id)
            raise SkillVersionNotFound(
                f"The skill {skill_id} has no version {version}.", skill_id=skill_id, version=version
            )
        return found

    async def versions(self, skill_id: str, *, limit: int, before: int | None) -> list[SkillVersion]:
        """Versions of a skill from newest to oldest, beginning behind the number `before`."""
        found = await self._tx.all(
            f"""{_VERSION}
              AND v.skill_id = %(skill_id)s AND (%(before)s::bigint IS NULL OR v.version < %(before)s)
            ORDER BY v.version DESC
            LIMIT %(limit)s
            """,
            {"skill_id": skill_id, "limit": limit, "before": before},
            row=SkillVersion,
        )
        if not found:
            await self.load(skill_id)
        return found

    async def delete_version(self, skill_id: str, version_id: str) -> None:
        """Removes one version of a locked skill that has another."""
        deleted = await self._tx.execute(
            """
            DELETE FROM skill_versions
            WHERE workspace_id = %(workspace_id)s AND skill_id = %(skill_id)s AND id = %(id)s
              AND EXISTS (
                SELECT 1 FROM skill_versions
                WHERE workspace_id = %(workspace_id)s AND skill_id = %(skill_id)s AND id <> %(id)s
              )
            """,
            {"skill_id": skill_id, "id": version_id},
        )
        if not deleted:
            raise SkillVersionRequired(
                f"{version_id} is the only version of the skill {skill_id}, which needs one. Delete the skill instead.",
                skill_id=skill_id,
                version=version_id,
            )

    async def resolve(self, wanted: Sequence[tuple[str, str]]) -> list[SkillVersion | None]:
        """The version of each `(skill id, version)`; None where there is none. One statement for all."""
        rows = await self._tx.all(
            """
            SELECT w.position, v.id, v.skill_id, s.name, v.description, v.version, v.created_at, v.size_bytes, v.sha256
            FROM unnest(%(ids)s::text[], %(versions)s::text[]) WITH ORDINALITY AS w(skill_id, version, position)
            JOIN skills s ON s.workspace_id = %(workspace_id)s AND s.id = w.skill_id
            JOIN LATERAL (
                SELECT id, skill_id, description, version, created_at, size_bytes, sha256 FROM skill_versions
                WHERE workspace_id = %(workspace_id)s AND skill_id = w.skill_id
                  AND (w.version = 'latest' OR id = w.version OR version::text = w.version)
                ORDER BY version DESC LIMIT 1
            ) v ON true
            ORDER BY w.position LIMIT 10000
            """,
            {"ids": [skill_id for skill_id, _ in wanted], "versions": [version for _, version in wanted]},
        )
        found: list[SkillVersion | None] = [None] * len(wanted)
        for position, *columns in rows:
            found[position - 1] = SkillVersion(*columns)
        return found


def skill_not_found(skill_id: str) -> SkillNotFound:
    """The refusal of an id that the workspace does not have."""
    return SkillNotFound(f"Skill not found: {skill_id[:256]}", skill_id=skill_id[:256])

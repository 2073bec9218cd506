"""The skills of a new session, with each reference resolved to the version that the session keeps.

An agent names skills by id, and by a version or `latest`. What a session runs with is settled when it is made: later
versions concern later sessions. The session's document says of each skill what its prompt needs, and the folder under
which its files are found, which is the skill's name unless an agent of the same session has another version of it.
"""

from collections.abc import Iterator
from typing import Any

from kit.postgres import Tx
from services.sessions.domain.skill_errors import SkillNotFound, SkillVersionNotFound
from services.sessions.store.skills import SkillStore, SkillVersion

CUSTOM = "custom"
# Of a version's id, enough to tell two of one skill apart.
_SUFFIX_CHARACTERS = 10

Document = dict[str, Any]


async def with_skills(tx: Tx, document: Document) -> Document:
    """The document of a session's agent with its skills resolved, and those of its roster; as it is without any."""
    references = list(_references(document))
    if not references:
        return document
    for path, reference in references:
        if reference["type"] != CUSTOM:
            raise SkillNotFound(
                f"{path} names {reference['skill_id']}, a skill of type {reference['type']}; this platform has the"
                " skills that were uploaded to it, of type custom.",
                field=f"{path}.skill_id",
                skill_id=reference["skill_id"],
            )
    wanted = [(reference["skill_id"], reference["version"]) for _, reference in references]
    versions = await SkillStore(tx).resolve(wanted)
    names = _Names()
    resolved = iter(
        [
            _resolved(path, reference, version, names)
            for (path, reference), version in zip(references, versions, strict=True)
        ]
    )
    return _rebuilt(document, resolved)


def _references(document: Document) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every reference, in the order in which `_rebuilt` puts the answers back."""
    for index, reference in enumerate(document.get("skills") or ()):
        yield f"agent.skills.{index}", reference
    for at, member in enumerate(_roster(document)):
        for index, reference in enumerate(member.get("skills") or ()):
            yield f"agent.multiagent.agents.{at}.skills.{index}", reference


def _rebuilt(document: Document, resolved: Iterator[dict[str, Any]]) -> Document:
    changed = dict(document)
    if document.get("skills"):
        changed["skills"] = [next(resolved) for _ in document["skills"]]
    if any(member.get("skills") for member in _roster(document)):
        members = [
            member | {"skills": [next(resolved) for _ in member["skills"]]} if member.get("skills") else member
            for member in _roster(document)
        ]
        changed["multiagent"] = document["multiagent"] | {"agents": members}
    return changed


def _roster(document: Document) -> list[Document]:
    return (document.get("multiagent") or {}).get("agents") or []


def _resolved(path: str, reference: Document, version: SkillVersion | None, names: "_Names") -> Document:
    skill_id, wanted = reference["skill_id"], reference["version"]
    if version is None:
        kind = SkillNotFound if wanted == "latest" else SkillVersionNotFound
        told = "" if wanted == "latest" else f", or not its version {wanted}"
        raise kind(f"{path}: there is no skill {skill_id} in this workspace{told}.", field=path, skill_id=skill_id)
    return {
        "type": CUSTOM,
        "skill_id": skill_id,
        "version": version.id,
        "name": version.name,
        "description": version.description,
        "directory": names.directory_of(version),
    }


class _Names:
    """Which folder each version has; one folder holds one version."""

    def __init__(self) -> None:
        self._versions: dict[str, str] = {}

    def directory_of(self, version: SkillVersion) -> str:
        """The skill's name, for the first version of it."""
        if self._versions.setdefault(version.name, version.id) == version.id:
            return version.name
        return f"{version.name}-{version.id[-_SUFFIX_CHARACTERS:].lower()}"

"""The skills of a session's agents, under /mnt/session/skills.

A session keeps the versions that it was made with, so a folder is complete or not there at all: a package is unpacked
beside its place and moved there in one step. All agents of the session find theirs in the same folder; the first turn
that the coordinator has puts those of its roster there as well. What a package holds is judged again before it is
written: the bytes came from elsewhere.
"""

import asyncio
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from kit import failpoints
from kit.archives import ArchiveRefused, Limits, PackedFile, read_zip
from kit.errors import DomainError, NotFound
from kit.telemetry import log
from managed_agents.sessions.v1.skills_pb2 import DownloadSkillVersionRequest
from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.workspace.ground import Ground
from services.worker.runner.workspace.mount import Mount
from services.worker.tools import VisibleRoot

SKILLS = "/mnt/session/skills"
# As the sessions service takes packages, and some more for what packing them adds.
LIMITS = Limits()
MAX_ARCHIVE_BYTES = LIMITS.total_bytes + 4 * 1024 * 1024
_AT_ONCE = 4
_SECONDS = 60.0
_INCOMING = ".incoming-"
# Somebody else may still be at it until then.
_ABANDONED_SECONDS = 600.0
# How a document without any skill is told without reading it.
_HAS_SKILLS = b'"skills":[{'
_INTRODUCTION = (
    "You have skills: packages of instructions for certain tasks, each with a SKILL.md and further files beside it."
    " When a task fits one, read its SKILL.md before you begin, and follow it. Your skills:"
)


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill at the version that the session keeps."""

    skill_id: str
    version: str
    name: str
    description: str
    directory: str

    @property
    def path(self) -> str:
        """Where the agent finds it."""
        return f"{SKILLS}/{self.directory}"


@lru_cache(maxsize=256)
def skills_of(document_json: bytes) -> tuple[tuple[Skill, ...], tuple[Skill, ...]]:
    """The skills of an agent, and those of its roster with them; the same bytes are parsed once."""
    document: dict[str, Any] = orjson.loads(document_json)
    own = _read(document)
    roster = (document.get("multiagent") or {}).get("agents") or ()
    others = (skill for member in roster for skill in _read(member))
    return own, tuple(dict.fromkeys((*own, *others)))


def _read(document: dict[str, Any]) -> tuple[Skill, ...]:
    return tuple(
        Skill(each["skill_id"], each["version"], each["name"], each["description"], each["directory"])
        for each in document.get("skills") or ()
        # Sessions of a build that could not run skills have none.
        if each.get("directory")
    )


class SkillMount(Mount):
    """Fetches packages through SkillsService."""

    name = "skills"

    def __init__(self, skills: Any) -> None:
        """`skills` is the stub of SkillsService."""
        self._skills = skills

    def applies(self, grant: TurnGrant) -> bool:
        """Whether any agent of the session has one."""
        document = grant.session.agent.document_json
        return _HAS_SKILLS in document and bool(skills_of(document)[1])

    def roots(self, grant: TurnGrant) -> Sequence[VisibleRoot]:
        """Skills are for reading."""
        return (VisibleRoot(SKILLS, writable=False),)

    def prompt_notes(self, grant: TurnGrant) -> Sequence[str]:
        """Which skills this agent has."""
        own = skills_of(grant.session.agent.document_json)[0]
        if not own:
            return ()
        lines = [f"- {skill.name} ({skill.path}/SKILL.md): {skill.description}" for skill in own]
        return ("\n".join((_INTRODUCTION, *lines)),)

    async def prepare(self, ground: Ground) -> None:
        """Put what is missing in its place."""
        wanted = skills_of(ground.grant.session.agent.document_json)[1]
        missing = await asyncio.to_thread(_missing, ground.folder, wanted)
        slots = asyncio.Semaphore(_AT_ONCE)
        failures: list[tuple[Skill, Exception]] = []

        async def fetch(skill: Skill) -> None:
            async with slots:
                try:
                    await self._fetch(ground.folder, skill)
                except (DomainError, OSError, ArchiveRefused) as failure:
                    failures.append((skill, failure))

        async with asyncio.TaskGroup() as group:
            for skill in missing:
                group.create_task(fetch(skill))
        _tell(ground, failures)

    async def _fetch(self, folder: Path, skill: Skill) -> None:
        data = bytearray()
        digest = ""
        request = DownloadSkillVersionRequest(skill_id=skill.skill_id, version=skill.version)
        async for part in self._skills.DownloadSkillVersion(request, timeout_seconds=_SECONDS):
            digest = part.version.sha256 or digest
            data += part.data
            if len(data) > MAX_ARCHIVE_BYTES:
                raise ArchiveRefused("The package is larger than any that was taken.")
        await asyncio.to_thread(_unpack, folder, skill, bytes(data), digest)
        await failpoints.point("runner.skills.unpacked")


def _missing(folder: Path, wanted: Sequence[Skill]) -> list[Skill]:
    """The skills whose folder is not there. Leftovers of a pass that was cut short are removed."""
    root = _open_root(folder)
    try:
        there: dict[str, os.stat_result] = {}
        with os.scandir(root) as entries:
            for entry in entries:
                # Another runner of this session may have moved it to its place meanwhile.
                with suppress(FileNotFoundError):
                    if entry.is_dir():
                        there[entry.name] = entry.stat(follow_symlinks=False)
        for name, status in there.items():
            if name.startswith(_INCOMING) and status.st_mtime < time.time() - _ABANDONED_SECONDS:
                shutil.rmtree(name, dir_fd=root, ignore_errors=True)
        return [skill for skill in wanted if skill.directory not in there or not _is_there(root, skill.directory)]
    finally:
        os.close(root)


def _unpack(folder: Path, skill: Skill, data: bytes, digest: str) -> None:
    if hashlib.sha256(data).hexdigest() != digest:
        raise ArchiveRefused("The package arrived damaged.")
    files = [_below(file) for file in read_zip(data, LIMITS)]
    root = _open_root(folder)
    incoming = f"{_INCOMING}{secrets.token_hex(8)}"
    try:
        os.mkdir(incoming, 0o700, dir_fd=root)
        try:
            for file in files:
                _write(root, incoming, file)
            os.rename(incoming, skill.directory, src_dir_fd=root, dst_dir_fd=root)
        except OSError:
            shutil.rmtree(incoming, dir_fd=root, ignore_errors=True)
            # Another runner of this session, on a folder that both share, was faster.
            if not _is_there(root, skill.directory):
                raise
    finally:
        os.close(root)


def _below(file: PackedFile) -> PackedFile:
    """The file without the folder that every package has around it."""
    _, slash, rest = file.name.partition("/")
    if not slash:
        raise ArchiveRefused("The package has files beside its folder.")
    return PackedFile(rest, file.data, file.executable)


def _write(root: int, incoming: str, file: PackedFile) -> None:
    """Write one file, folder by folder, through descriptors that follow no link."""
    *folders, name = file.name.split("/")
    at = _open_folder(incoming, root)
    try:
        for part in folders:
            with suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=at)
            inner = _open_folder(part, at)
            os.close(at)
            at = inner
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        target = os.open(name, flags, 0o755 if file.executable else 0o644, dir_fd=at)
        with os.fdopen(target, "wb") as stream:
            stream.write(file.data)
    finally:
        os.close(at)


def _open_root(folder: Path) -> int:
    """The folder of skills, made if need be, reached through no link."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in SKILLS.strip("/").split("/"):
        try:
            with suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=at)
            inner = _open_folder(part, at)
        finally:
            os.close(at)
        at = inner
    return at


def _open_folder(name: str, at: int) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)


def _is_there(root: int, name: str) -> bool:
    with suppress(OSError):
        os.close(_open_folder(name, root))
        return True
    return False


def _tell(ground: Ground, failures: Sequence[tuple[Skill, Exception]]) -> None:
    """One event for all that failed. A skill that was deleted stays so, anything else is tried again next turn."""
    if not failures:
        return
    for skill, failure in failures:
        log.warning("a skill could not be mounted", session_id=ground.session_id, skill=skill.name, error=repr(failure))
    gone = sorted(skill.name for skill, failure in failures if isinstance(failure, NotFound))
    others = sorted(skill.name for skill, failure in failures if not isinstance(failure, NotFound))
    told = []
    if gone:
        told.append(f"These skills of the agent were deleted: {', '.join(gone)}.")
    if others:
        told.append(f"These skills of the agent could not be mounted now: {', '.join(others)}.")
    ground.tell("skill_mount_failed", " ".join(told), again=bool(others))

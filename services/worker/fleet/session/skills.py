"""The skills of a session's agent, put where it finds them: `skills/` in its workspace, and read-only in its system.

A package came from elsewhere: it is judged whole before a byte of it is written, and written folder by folder through
no link, beside its place, then moved there. One that can't be had keeps no session from working; it is told.
"""

import asyncio
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from kit.archives import ArchiveRefused, Limits, PackedFile, check_names, clean_name, read_zip
from services.worker.fleet.errors import Refused, Unreachable
from services.worker.fleet.reporter import Reporter
from services.worker.fleet.session.api import SessionApi
from services.worker.sandbox.folders import remove_tree

READ_ONLY = "/mnt/session/skills"
IN_WORKSPACE = "/workspace/skills"
LIMITS = Limits()
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def wanted(session: dict[str, Any]) -> list[tuple[str, str]]:
    """Id and version of each skill of the session's agent."""
    agent = session.get("agent")
    skills = agent.get("skills") if isinstance(agent, dict) else None
    return [
        (str(each["skill_id"]), str(each.get("version") or "latest"))
        for each in skills or ()
        if isinstance(each, dict) and each.get("skill_id")
    ]


async def place(api: SessionApi, session: dict[str, Any], folder: Path, reporter: Reporter) -> list[str]:
    """Fetch and place them all; what the agent is to be told of those that failed."""
    notes: list[str] = []
    for skill_id, version in wanted(session):
        try:
            name, data = await api.skill(skill_id, version)
            await asyncio.to_thread(unpack, folder, name, data)
        except (Refused, Unreachable, ArchiveRefused, OSError, LookupError, TypeError) as failed:
            reporter.warning("a skill could not be placed", skill=skill_id, reason=str(failed))
            notes.append(f"[The skill {skill_id} could not be brought to this machine: {failed}]")
    return notes


def unpack(folder: Path, name: str, data: bytes) -> None:
    """Put a package into both places, whole. ArchiveRefused where it breaks a rule, OSError where there is no place."""
    if "/" in name or clean_name(name) != name or name.startswith("."):
        raise ArchiveRefused(f"The name {name[:100]!r} is none of a folder.")
    files = [_below(file) for file in read_zip(data, LIMITS)]
    check_names(file.name for file in files)
    for place_ in (READ_ONLY, IN_WORKSPACE):
        root = _open_place(folder, place_)
        incoming = f".incoming-{secrets.token_hex(8)}"
        try:
            os.mkdir(incoming, 0o700, dir_fd=root)
            for file in files:
                _write(root, incoming, file)
            _replace(folder, place_, root, name, incoming)
        except OSError:
            shutil.rmtree(incoming, dir_fd=root, ignore_errors=True)
            raise
        finally:
            os.close(root)


def _replace(folder: Path, place_: str, root: int, name: str, incoming: str) -> None:
    try:
        os.rename(incoming, name, src_dir_fd=root, dst_dir_fd=root)
        return
    except OSError:
        # An earlier version of it, or something of the agent's.
        old = f".replaced-{secrets.token_hex(8)}"
        os.rename(name, old, src_dir_fd=root, dst_dir_fd=root)
    os.rename(incoming, name, src_dir_fd=root, dst_dir_fd=root)
    with suppress(OSError):
        remove_tree(Path(f"{folder}{place_}") / old)


def _below(file: PackedFile) -> PackedFile:
    """The file without the folder that every package has around it."""
    _, slash, rest = file.name.partition("/")
    if not slash:
        raise ArchiveRefused("The package has files beside its folder.")
    return PackedFile(rest, file.data, file.executable)


def _open_place(folder: Path, inside: str) -> int:
    at = os.open(folder, _FOLDER)
    for part in inside.strip("/").split("/"):
        try:
            with suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=at)
            inner = os.open(part, _FOLDER, dir_fd=at)
        finally:
            os.close(at)
        at = inner
    return at


def _write(root: int, incoming: str, file: PackedFile) -> None:
    *folders, name = file.name.split("/")
    at = os.open(incoming, _FOLDER, dir_fd=root)
    try:
        for part in folders:
            with suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=at)
            inner = os.open(part, _FOLDER, dir_fd=at)
            os.close(at)
            at = inner
        with open(os.open(name, _CREATE, 0o755 if file.executable else 0o644, dir_fd=at), "wb") as stream:
            stream.write(file.data)
    finally:
        os.close(at)

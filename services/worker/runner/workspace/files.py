"""Files that are attached to a session, under /mnt/session/uploads.

All that are missing are fetched in one pass, several at a time. What was put where is recorded in the session's folder
with its size and time, so that nothing is fetched twice, and what was detached is taken out.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from kit.errors import DomainError, NotFound
from kit.telemetry import log
from managed_agents.sessions.v1.files_pb2 import DownloadFileRequest
from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.workspace.attachments import Attachment, attachments_of
from services.worker.runner.workspace.ground import Ground
from services.worker.runner.workspace.mount import Mount
from services.worker.runner.workspace.placing import Incoming, Record, look, remove_file, tidy

UPLOADS = "/mnt/session/uploads"
_AT_ONCE = 8
_SECONDS = 60.0
# As many paths are named in a message or note.
_MOST_NAMED = 20
_FIRST_REVISION = 1


class FileMount(Mount):
    """Fetches files through FilesService."""

    name = "files"

    def __init__(self, files: Any) -> None:
        """`files` is the stub of FilesService."""
        self._files = files

    def applies(self, grant: TurnGrant) -> bool:
        """Also for a session that was changed: the last of its files may have been detached."""
        return bool(attachments_of(grant, "file")) or grant.session_revision > _FIRST_REVISION

    def prompt_notes(self, grant: TurnGrant) -> Sequence[str]:
        """Where the files are."""
        paths = [each.mount_path for each in attachments_of(grant, "file")]
        if not paths:
            return ()
        lines = [f"- {path}" for path in paths[:100]]
        return ("These files were given to you, read-only:\n" + "\n".join(lines),)

    async def prepare(self, ground: Ground) -> None:
        """Fetch what is missing, take out what was detached."""
        wanted = {each.mount_path: each for each in ground.attachments("file")}
        record = Record(ground.folder, self.name)
        there = await asyncio.to_thread(record.read)
        if not wanted and not there:
            return
        await asyncio.to_thread(tidy, ground.folder)
        gone = [path for path in there if path not in wanted]
        missing = await asyncio.to_thread(_missing, ground, wanted, there)
        for path in gone:
            await asyncio.to_thread(remove_file, ground.folder, path, up_to=UPLOADS)
            del there[path]
        failures: list[tuple[str, DomainError | OSError]] = []
        slots = asyncio.Semaphore(_AT_ONCE)

        async def fetch(attachment: Attachment) -> None:
            async with slots:
                try:
                    there[attachment.mount_path] = await self._fetch(ground, attachment)
                except (DomainError, OSError) as failure:
                    failures.append((attachment.mount_path, failure))

        try:
            async with asyncio.TaskGroup() as group:
                for attachment in missing:
                    group.create_task(fetch(attachment))
        finally:
            if gone or missing:
                await asyncio.to_thread(record.write, there)
        _tell(ground, failures)

    async def _fetch(self, ground: Ground, attachment: Attachment) -> list[Any]:
        request = DownloadFileRequest(file_id=attachment.fields["session_file_id"], for_session=True)
        incoming = await asyncio.to_thread(Incoming, ground.folder, attachment.mount_path)
        try:
            async for part in self._files.DownloadFile(request, timeout_seconds=_SECONDS):
                if part.WhichOneof("part") == "chunk":
                    await asyncio.to_thread(incoming.write, part.chunk)
            status = await asyncio.to_thread(incoming.keep)
        except BaseException:
            incoming.drop()
            raise
        return [attachment.fields["session_file_id"], status.st_size, status.st_mtime_ns]


def _missing(ground: Ground, wanted: dict[str, Attachment], there: dict[str, Any]) -> list[Attachment]:
    missing: list[Attachment] = []
    for path, attachment in wanted.items():
        status = look(ground.folder, path)
        entry = [attachment.fields["session_file_id"], status.st_size, status.st_mtime_ns] if status else None
        if entry is None or there.get(path) != entry:
            missing.append(attachment)
    return missing


def _tell(ground: Ground, failures: Sequence[tuple[str, DomainError | OSError]]) -> None:
    """One event for all that failed: a file that is gone stays so, anything else is tried again in the next turn."""
    if not failures:
        return
    gone = [path for path, failure in failures if isinstance(failure, NotFound)]
    others = [path for path, failure in failures if not isinstance(failure, NotFound)]
    for path, failure in failures:
        log.warning("a file could not be mounted", session_id=ground.session_id, path=path, error=repr(failure))
    told = []
    if gone:
        told.append(f"These attached files do not exist any more: {_named(gone)}.")
    if others:
        told.append(f"These attached files could not be mounted now: {_named(others)}.")
    ground.tell("file_mount_failed", " ".join(told), again=bool(others))


def _named(paths: Sequence[str]) -> str:
    more = len(paths) - _MOST_NAMED
    return ", ".join(sorted(paths)[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")

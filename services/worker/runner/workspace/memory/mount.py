"""Memory stores of a session: when their folders and the stores are made to agree.

At the start of a turn, after each tool that may have written, before the turn's end, and before a model request where
somebody was heard to have changed a store. Nobody is asked otherwise.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from nats.aio.msg import Msg

from kit.errors import DomainError
from kit.telemetry import log
from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.memory.keeper import Folder, Holder, Keeper
from services.worker.runner.workspace.attachments import Attachment, attachments_of
from services.worker.runner.workspace.ground import Ground
from services.worker.runner.workspace.memory.service import MemoryClient
from services.worker.runner.workspace.mount import Mount, ToolRun
from services.worker.tools import ToolOutcome, VisibleRoot

TYPE = "memory_store"
CHANGED = "memory.changed."
_MOST_HEARD = 10_000


class MemoryMount(Mount):
    """The folders of all memory stores that sessions of this runner have attached."""

    name = "memory"
    subjects = (f"{CHANGED}*",)

    def __init__(self, stub: Any) -> None:
        self._client = MemoryClient(stub)
        # What was heard last of each store: a number of ours, and the revision.
        self._heard: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._number = 0
        # How often everything had to be doubted.
        self._doubts = 0

    async def hear(self, message: Msg) -> None:
        """Somebody changed a store; revision 0 says that something happened to the store itself."""
        store_id = message.subject.removeprefix(CHANGED)
        with suppress(ValueError):
            self._number += 1
            self._heard[store_id] = (self._number, int(message.data or b"0"))
            self._heard.move_to_end(store_id)
            while len(self._heard) > _MOST_HEARD:
                self._heard.popitem(last=False)

    def doubt(self) -> None:
        """Something may have been missed: every folder looks at its store again."""
        self._doubts += 1

    def applies(self, grant: TurnGrant) -> bool:
        """Whether a store is attached."""
        return bool(attachments_of(grant, TYPE))

    def roots(self, grant: TurnGrant) -> Sequence[VisibleRoot]:
        """The folder of each store; one that is read-only is so for the shell too."""
        return [VisibleRoot(each.mount_path, not _read_only(each)) for each in attachments_of(grant, TYPE)]

    def prompt_notes(self, grant: TurnGrant) -> Sequence[str]:
        """What each store is, where, and what it is for."""
        attached = attachments_of(grant, TYPE)
        return ["\n".join((_INTRODUCTION, *map(_described, attached)))] if attached else []

    async def follow(self, ground: Ground) -> None:
        """At the start of a turn, and where a change was heard of, look at the store."""
        mine = _remembered(ground)
        turn = (ground.grant.epoch, self._doubts)
        begins = mine.turns.get(ground.grant.session.id) != turn
        if begins:
            # Also where it fails: what can't be reached is told once in a turn, and tools try again.
            mine.turns[ground.grant.session.id] = turn
        elif mine.failed:
            return
        mine.failed = True
        for each in ground.attachments(TYPE):
            if begins or self._is_behind(mine, each):
                mine.notes += await self._agree(ground, each, pull=True)
        mine.failed = False

    async def after_tool(self, ground: Ground, call: ToolRun, outcome: ToolOutcome) -> Sequence[str]:
        """Write through what the tool changed, and say what the store did not take."""
        mine = _remembered(ground)
        notes, mine.notes = mine.notes, []
        for each in ground.attachments(TYPE):
            try:
                notes += await self._agree(ground, each, pull=self._is_behind(mine, each))
            except (DomainError, OSError) as failed:
                log.warning("memory is not written yet", session_id=ground.session_id, error=repr(failed))
                notes.append(
                    f"[Memory: what changed in {each.mount_path} is not stored yet, since the store could not be "
                    "reached. It is tried again after the next tool and before the turn ends.]"
                )
        return notes

    async def before_idle(self, ground: Ground) -> None:
        """Write through what went on in the background, and what could not be written before."""
        mine = _remembered(ground)
        for each in ground.attachments(TYPE):
            notes = await self._agree(ground, each, pull=False)
            # No tool is going to run that could tell it, so the log does; the next turn's first tool tells the agent.
            mine.notes += notes
            for note in notes:
                ground.tell("unknown_error", note.strip("[]"))

    def _is_behind(self, mine: "_Remembered", attached: Attachment) -> bool:
        seen, revision = mine.seen.get(attached.id, (-1, 0))
        number, newest = self._heard.get(str(attached.fields["memory_store_id"]), (0, 0))
        # What the session itself wrote is heard too.
        return number > seen and not 0 < newest <= revision

    async def _agree(self, ground: Ground, attached: Attachment, *, pull: bool) -> list[str]:
        """One pass over one folder. It is not cut off by a stop of the turn: the next one would wait for it."""
        store_id = str(attached.fields["memory_store_id"])
        folder = Folder(ground.folder, attached.id, store_id, attached.mount_path, _read_only(attached))
        number = self._heard.get(store_id, (0, 0))[0]
        mine, keeper = _remembered(ground), Keeper(folder, self._client)
        holder = Holder(ground.grant.session.id, ground.grant.epoch)

        async def run() -> None:
            revision = await keeper.agree(holder, pull=pull)
            seen = number if pull else mine.seen.get(attached.id, (-1, 0))[0]
            mine.seen[attached.id] = (seen, revision)

        task = asyncio.create_task(run(), name=f"memory {attached.id}")
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda ended: _end_alone(mine, keeper, ended))
            raise
        return keeper.notes


@dataclass(slots=True)
class _Remembered:
    """What this process knows of a session's folders."""

    # The turns that have looked at the stores: of the session, and of its threads.
    turns: dict[str, tuple[int, int]] = field(default_factory=dict)
    failed: bool = False
    # By attachment: up to which number it has heard, and the revision that the folder has.
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    # What the agent was not told yet.
    notes: list[str] = field(default_factory=list)


def _remembered(ground: Ground) -> _Remembered:
    return ground.memory.setdefault(MemoryMount.name, _Remembered())


def _end_alone(mine: _Remembered, keeper: Keeper, task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (failure := task.exception()):
        log.warning("memory is not written yet", folder=keeper.folder.mount_path, error=repr(failure))
    mine.notes += keeper.notes


_INTRODUCTION = (
    "Memory stores are attached to this session as folders. What is in them outlives the session, and other sessions "
    "may read and change it too. Read what is there before you need it, and keep what should be remembered as small "
    "UTF-8 text files; every change is stored as soon as the tool that made it has run. A note in a tool's result "
    "tells when something could not be stored or was changed by somebody else meanwhile."
)


def _described(attached: Attachment) -> str:
    fields = attached.fields
    access = "read only" if _read_only(attached) else "read and write"
    parts = [
        f"- {attached.mount_path}: the memory store {fields.get('name') or fields['memory_store_id']!r}, {access}."
    ]
    if fields.get("description"):
        parts.append(f"  What it holds: {fields['description']}")
    if fields.get("instructions"):
        parts.append(f"  How to use it: {fields['instructions']}")
    return "\n".join(parts)


def _read_only(attached: Attachment) -> bool:
    return attached.fields.get("access") == "read_only"

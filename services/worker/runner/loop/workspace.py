"""The mounts of a turn: when each is called, and what a failure of one comes to.

A session that nothing applies to pays for nothing but the question. Whatever a mount raises becomes a session.error:
a turn never fails because of what is attached to its session.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import orjson

from kit.errors import DomainError
from kit.failpoints import FailpointHit
from kit.telemetry import log, tracer
from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.loop.context import Call
from services.worker.runner.loop.stopping import Stopped, StopSignal
from services.worker.runner.outside import is_self_hosted
from services.worker.runner.workspace.ground import Ground
from services.worker.runner.workspace.mount import Mount, MountFailed
from services.worker.runner.workspace.placing import identity_of
from services.worker.tools import ToolOutcome, VisibleRoot

# Tools after which files may be other than before.
CHANGING_TOOLS = frozenset({"bash", "write", "edit"})
_MAX_KNOWN = 2_000
# A turn's end waits no longer for its mounts; a hurried one no longer than that.
_CLOSING_SECONDS = 120.0
_HURRIED_SECONDS = 10.0

Write = Callable[[str, Mapping[str, Any]], object]
# What is attached to a session now, as (resources_json, session_revision).
ReadAttachments = Callable[[str], Awaitable[tuple[bytes, int]]]


class Folders(Protocol):
    """Where the folders of sessions are."""

    def folder(self, session_id: str, environment: Mapping[str, Any], roots: Sequence[VisibleRoot] = ()) -> Path:
        """The session's folder on the host, made with these roots if need be."""
        ...


@dataclass(slots=True)
class _Known:
    """A session's folder as this process prepared it."""

    # By session or thread: the revision of it that was prepared. Each has one of its own.
    revisions: dict[str, int] = field(default_factory=dict)
    # Tells a folder that was made anew.
    identity: str = ""
    memory: dict[str, Any] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Workspaces:
    """The mounts of a runner, and which folders they have prepared."""

    def __init__(self, folders: Folders, mounts: Sequence[Mount] = (), read: ReadAttachments | None = None) -> None:
        self.folders = folders
        self.mounts = tuple(mounts)
        self.read = read
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def of(self, grant: TurnGrant, write: Write, stop: StopSignal) -> "Workspace":
        """The workspace of a turn."""
        return Workspace(self, grant, write, stop)

    def forget(self, session_id: str) -> None:
        """The session is gone, or its folder is to be prepared anew."""
        self._known.pop(session_id, None)

    def known(self, session_id: str) -> _Known:
        """What this process knows of a session's folder."""
        known = self._known.setdefault(session_id, _Known())
        self._known.move_to_end(session_id)
        while len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return known


class Workspace:
    """One turn's view. Used from the turn's task alone."""

    def __init__(self, shared: Workspaces, grant: TurnGrant, write: Write, stop: StopSignal) -> None:
        self._shared = shared
        self._grant = grant
        self._write = write
        self._stop = stop
        self._revision = self._noticed = grant.session_revision
        # An attempt before this one may have run tools whose traces nobody has looked at.
        self._touched = grant.attempt > 1
        self._tried_revision = -1
        self._seconds = _CLOSING_SECONDS
        self._choose()

    def _choose(self) -> None:
        # A worker's machine has what the worker puts there.
        known = () if is_self_hosted(self._grant) else self._shared.mounts
        mounts = [mount for mount in known if mount.applies(self._grant)]
        self._preparing = [mount for mount in mounts if type(mount).prepare is not Mount.prepare]
        self._following = [mount for mount in mounts if type(mount).follow is not Mount.follow]
        self._watching = [mount for mount in mounts if type(mount).after_tool is not Mount.after_tool]
        self._finishing = [mount for mount in mounts if type(mount).before_idle is not Mount.before_idle]
        self.roots = tuple(root for mount in mounts for root in mount.roots(self._grant))
        self.prompt_notes = tuple(note for mount in mounts for note in mount.prompt_notes(self._grant))
        self._folder: Path | None = None

    def notice(self, revision: int) -> None:
        """What the service said last of the session's revision; 0 where it said nothing."""
        self._noticed = max(self._noticed, revision)

    async def ready(self) -> None:
        """Before each model request and tool: see to it that what is attached is in the folder.

        What failed is told once, and tried again by the next turn.
        """
        if self._noticed > self._revision and self._shared.read is not None:
            await self._guarded("attachments", self._read_again)
        if self._preparing and self._tried_revision != self._revision:
            await self._prepare()
        if self._following and (ground := self._ground(self._shared.known(self._session_id))) is not None:
            for mount in self._following:
                with tracer().start_as_current_span(f"{mount.name}.follow"):
                    await self._guarded(mount.name, partial(mount.follow, ground), ground)

    async def _prepare(self) -> None:
        self._tried_revision = self._revision
        known = self._shared.known(self._session_id)
        await self._take(known.lock)
        try:
            ground = self._ground(known)
            if ground is None:
                return
            turn_id, identity = self._grant.session.id, identity_of(ground.folder)
            if known.identity != identity:
                known.revisions.clear()
                known.memory.clear()
                known.identity = identity
            if known.revisions.get(turn_id) == self._revision:
                return
            for mount in self._preparing:
                with tracer().start_as_current_span(f"{mount.name}.prepare"):
                    await self._guarded(mount.name, partial(mount.prepare, ground), ground)
            known.revisions[turn_id] = -1 if ground.incomplete else self._revision
        finally:
            known.lock.release()

    async def _take(self, lock: asyncio.Lock) -> None:
        """Another turn of the session may prepare for long: a stop cuts the wait off."""
        taken = False
        try:
            with self._stop.scope():
                taken = await lock.acquire()
        except Stopped:
            if taken:
                lock.release()
            raise

    async def after_tool(self, call: Call, outcome: ToolOutcome) -> Sequence[str]:
        """After each tool: what its result should say beside what the tool said."""
        if call.name not in CHANGING_TOOLS:
            return ()
        self._touched = True
        notes: list[str] = []
        if self._watching and (ground := self._ground(self._shared.known(self._session_id))) is not None:
            for mount in self._watching:
                notes += await self._guarded(mount.name, partial(mount.after_tool, ground, call, outcome), ground) or ()
        return notes

    def begin_tool(self, call: Call) -> None:
        """A tool is about to run; it may be cut off."""
        self._touched = self._touched or call.name in CHANGING_TOOLS

    async def before_idle(self) -> None:
        """Before the turn's end is committed."""
        if not self._touched or not self._finishing:
            return
        # Who was told to stop, or is told so meanwhile, has no time for more than the most.
        seconds, self._seconds = (_HURRIED_SECONDS if self._stop.kind else self._seconds), _HURRIED_SECONDS
        ground = self._ground(self._shared.known(self._session_id))
        if ground is None:
            return
        try:
            async with asyncio.timeout(seconds):
                for mount in self._finishing:
                    with tracer().start_as_current_span(f"{mount.name}.finish"):
                        await self._guarded(mount.name, partial(mount.before_idle, ground), ground)
        except TimeoutError:
            ground.tell("unknown_error", f"The session's files were not finished within {seconds:.0f} s.")
        self._touched = False

    @property
    def _session_id(self) -> str:
        return self._grant.root_session_id or self._grant.session.id

    def _ground(self, known: _Known) -> Ground | None:
        """None where the session's sandbox has no folder here: its tools then say why."""
        if self._folder is None:
            environment = orjson.loads(self._grant.environment_json or b"{}")
            try:
                self._folder = self._shared.folders.folder(self._session_id, environment, self.roots)
            except Exception:
                log.exception("a session's folder cannot be opened", session_id=self._session_id)
                return None
        return Ground(self._grant, self._folder, self._write, known.memory)

    async def _read_again(self) -> None:
        assert self._shared.read is not None
        resources, revision = await self._shared.read(self._grant.session.id)
        self._revision = self._noticed = max(self._noticed, revision)
        changed = TurnGrant()
        changed.CopyFrom(self._grant)
        changed.session.resources_json = resources
        changed.session_revision = self._revision
        self._grant = changed
        self._choose()

    async def _guarded(self, name: str, step: Callable[[], Awaitable[Any]], ground: Ground | None = None) -> Any:
        """What the step returns; None where it failed, which the session is told."""
        try:
            # A stop that is known cuts nothing off any more: what runs then is the end of the turn.
            with nullcontext() if self._stop.kind else self._stop.scope():
                return await step()
        except (Stopped, asyncio.CancelledError, FailpointHit):
            raise
        except MountFailed as failed:
            error_type, told, again = failed.error_type, failed.message, failed.again
        except DomainError as refused:
            log.warning("a mount could not reach what it needs", mount=name, error=repr(refused))
            error_type, told, again = "unknown_error", f"The session's {name} could not be reached: {refused}", True
        except Exception:
            log.exception("a mount failed", mount=name, session_id=self._session_id)
            error_type, told, again = "unknown_error", f"The session's {name} failed inside the platform.", True
        if ground is not None:
            ground.tell(error_type, told, again=again)
        return None

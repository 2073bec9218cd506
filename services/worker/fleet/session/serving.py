"""A worker of the session protocol: takes sessions, gives each its folder and sandbox, and hands them back."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

from services.worker.fleet.errors import OptionUnusable, Refused, Unreachable
from services.worker.fleet.metrics import Metrics
from services.worker.fleet.options import Options
from services.worker.fleet.platform import Platform, settled
from services.worker.fleet.reporter import Reporter
from services.worker.fleet.session import skills
from services.worker.fleet.session.api import SessionApi, Work, WorkApi
from services.worker.fleet.session.folders import HeldFolder, LeftFolder, SessionBusy, SessionFolders
from services.worker.fleet.session.lease import Lease
from services.worker.fleet.session.memory import Memories, MountRefused, attached
from services.worker.fleet.session.run import SessionRun
from services.worker.fleet.session.sandbox import FleetProvider
from services.worker.fleet.stopping import Stopping
from services.worker.tools import VisibleRoot

SESSION = "session"
_FLUSH_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _Parts:
    """What every session is served with."""

    options: Options
    key: str | None
    platform: Platform
    stopping: Stopping
    metrics: Metrics
    reporter: Reporter


class SessionWorker:
    """One worker."""

    def __init__(self, parts: _Parts, api: WorkApi, folders: SessionFolders, provider: FleetProvider) -> None:
        self._parts = parts
        self._api = api
        self._folders = folders
        self._provider = provider

    @classmethod
    async def open(
        cls,
        options: Options,
        key: str | None,
        environment: Mapping[str, str],
        platform: Platform,
        stopping: Stopping,
        metrics: Metrics,
        reporter: Reporter,
    ) -> "SessionWorker":
        """Find out what this machine can do, and what an earlier worker left on it. Raises OptionUnusable."""
        assert options.environment_id is not None
        try:
            folders = await asyncio.to_thread(SessionFolders, options.workdir.resolve(), options.worker_id)
            left = await asyncio.to_thread(folders.left)
        except OSError as error:
            raise OptionUnusable(f"--workdir: {options.workdir} cannot be used: {error.strerror}.") from None
        passed = {name: environment[name] for name in options.pass_env if name in environment}
        provider = FleetProvider(folders.root, kind=options.sandbox, allow_hosts=options.allow_hosts, passed=passed)
        try:
            await asyncio.to_thread(provider.require_usable)
        except BaseException:
            await provider.aclose()
            raise
        for each in left:
            _report(each, reporter, "a killed worker left this folder; its session will get a fresh one")
        parts = _Parts(options, key, platform, stopping, metrics, reporter)
        return cls(parts, WorkApi(platform, options.environment_id, options.worker_id), folders, provider)

    @property
    def sandbox(self) -> str:
        """What holds commands back."""
        kind = self._provider.isolation.kind
        return "none" if kind == "process" else kind

    async def take(self, wait_seconds: float) -> Work | None:
        """The next item, taken off the queue. What this program knows nothing of is put away at once."""
        work = await self._api.poll(wait_seconds)
        if work is None:
            return None
        try:
            await self._api.ack(work)
        except Refused as refused:
            self._parts.reporter.warning("an item could not be taken", item=work.id, reason=refused.message)
            await self._stop(work)
            return None
        except BaseException:
            # Asked to stop at this moment: it may be off the queue already, and nobody would look for it for a while.
            await asyncio.shield(self._stop(work))
            raise
        if work.kind != SESSION:
            self._parts.reporter.debug("an item of another kind is skipped", item=work.id, kind=work.kind)
            await self._stop(work)
            return None
        return work

    async def serve(self, work: Work) -> None:
        """A session from the first heartbeat to the last."""
        parts, began = self._parts, time.monotonic()
        lease = Lease(
            self._api,
            work,
            heartbeat_seconds=parts.options.heartbeat_seconds,
            metrics=parts.metrics,
            reporter=parts.reporter,
        )
        beating = asyncio.create_task(lease.keep(), name=f"heartbeats of {work.id}")
        outcome = "failed"
        try:
            await self._serve(work, lease)
            outcome = "completed"
        except (Refused, Unreachable, MountRefused, SessionBusy, OSError, ValueError, LookupError, TypeError) as failed:
            parts.reporter.error("a session could not be served", session=work.session_id, reason=str(failed))
        finally:
            if lease.is_ours:
                # The lease is kept until nothing of the session runs here any more.
                await self._stop(work)
            else:
                outcome = "lost"
            await settled(beating)
            parts.metrics.ended(SESSION, outcome, time.monotonic() - began)
            parts.reporter.info(
                "session done", session=work.session_id, item=work.id, seconds=round(time.monotonic() - began, 1)
            )

    async def _serve(self, work: Work, lease: Lease) -> None:
        parts = self._parts
        api = SessionApi(parts.platform, work.session_id, work.token)
        parts.reporter.info("session taken", session=work.session_id, item=work.id)
        session = await api.session()
        if session.get("status") == "terminated":
            return
        stores = attached(session)
        held = await asyncio.to_thread(self._folders.hold, work.session_id)
        memories = Memories(api, work.session_id, stores, seconds=parts.options.memory_seconds, reporter=parts.reporter)
        try:
            if held.left is not None:
                _report(
                    held.left, parts.reporter, "a killed worker left this folder; the session goes on in a fresh one"
                )
                await memories.rescue(held.left.path)
        except BaseException:
            held.abandon()
            raise
        await self._in_folder(api, session, held, memories, lease)

    async def _in_folder(
        self, api: SessionApi, session: dict[str, object], held: HeldFolder, memories: Memories, lease: Lease
    ) -> None:
        parts, ended = self._parts, False
        roots = memories.roots
        if skills.wanted(session):
            roots.append(VisibleRoot(skills.READ_ONLY, writable=False))
        try:
            folder = await asyncio.to_thread(self._provider.folder, held.session_id, roots)
            notes = await skills.place(api, session, folder, parts.reporter)
            notes += await memories.agree(folder, pull=True)
            sandbox = self._provider.open(held.session_id, {}, roots)
            run = SessionRun(
                api,
                sandbox,
                memories,
                held,
                lease,
                stopping=parts.stopping,
                max_idle_seconds=parts.options.max_idle_seconds,
                notes=notes,
                metrics=parts.metrics,
                reporter=parts.reporter,
            )
            try:
                await run.run()
            finally:
                ended = run.ended
                # First, so that nothing writes any more when memory is read.
                await sandbox.close()
        finally:
            await self._bring_home(held, memories, ended=ended)

    async def _bring_home(self, held: HeldFolder, memories: Memories, *, ended: bool) -> None:
        try:
            async with asyncio.timeout(_FLUSH_SECONDS):
                await memories.agree(held.path, pull=False)
        except TimeoutError:
            self._parts.reporter.warning("memory is not stored yet; it stays here", session=held.session_id)
            await asyncio.to_thread(held.release)
            return
        await asyncio.to_thread(memories.clear, held.path)
        await asyncio.to_thread(lambda: held.release(remove=ended and not memories.behind))

    async def _stop(self, work: Work) -> None:
        try:
            await self._api.stop(work)
        except Refused as refused:
            # It has stopped already, or is gone.
            if refused.status not in (404, 409):
                self._parts.reporter.warning("an item could not be stopped", item=work.id, reason=str(refused))
        except Unreachable as away:
            self._parts.reporter.warning(
                "an item could not be stopped; it ends with its lease", item=work.id, reason=str(away)
            )

    async def aclose(self) -> None:
        """Release the machine."""
        await self._provider.aclose()


def _report(left: LeftFolder, reporter: Reporter, text: str) -> None:
    reporter.warning(text, session=left.session_id, folder=str(left.path), call=left.call_id, worker=left.worker_id)

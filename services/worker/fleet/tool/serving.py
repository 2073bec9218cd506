"""A worker of the tool protocol: the workdir, the sandbox, and what claims and runs items in them."""

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping

from services.worker.fleet.confine import Confined, PathRefused
from services.worker.fleet.ground import Ground
from services.worker.fleet.metrics import Metrics
from services.worker.fleet.options import Options
from services.worker.fleet.platform import Platform
from services.worker.fleet.reporter import Reporter
from services.worker.fleet.stopping import Stopping
from services.worker.fleet.tool.commands import SPILLS, Commands
from services.worker.fleet.tool.kinds import Kinds
from services.worker.fleet.tool.queue import Item, WorkQueue
from services.worker.fleet.tool.run import ItemRun

# Output that was too long for an answer is kept for so long.
_SPILLS_KEPT_SECONDS = 7 * 86_400.0


class ToolWorker:
    """One worker."""

    def __init__(
        self,
        options: Options,
        ground: Ground,
        files: Confined,
        commands: Commands,
        queue: WorkQueue,
        kinds: Kinds,
        metrics: Metrics,
        reporter: Reporter,
    ) -> None:
        self._options = options
        self._ground = ground
        self._files = files
        self._commands = commands
        self._queue = queue
        self._kinds = kinds
        self._metrics = metrics
        self._reporter = reporter

    @classmethod
    async def open(
        cls,
        options: Options,
        key: str | None,
        environment: Mapping[str, str],
        platform: Platform,
        _stopping: Stopping,
        metrics: Metrics,
        reporter: Reporter,
    ) -> "ToolWorker":
        """Find out what this machine can do. Raises OptionUnusable."""
        files = Confined(options.workdir)
        try:
            ground = await asyncio.to_thread(Ground, files.root, options.sandbox, options.allow_hosts)
            try:
                ground.require_usable()
            except BaseException:
                await ground.aclose()
                raise
        except BaseException:
            files.close()
            raise
        await asyncio.to_thread(_remove_old_spills, files)
        passed = {name: environment[name] for name in options.pass_env if name in environment}
        commands = Commands(ground, files, passed)
        commands.prepare()
        kinds = Kinds(files, commands, longest_seconds=options.longest_seconds)
        queue = WorkQueue(platform, worker_id=options.worker_id, environment_id=options.environment_id, key=key)
        return cls(options, ground, files, commands, queue, kinds, metrics, reporter)

    @property
    def sandbox(self) -> str:
        """What holds commands back."""
        return self._ground.isolation.kind if self._ground.confined else "none"

    async def take(self, wait_seconds: float) -> Item | None:
        """Claim the next item."""
        return await self._queue.claim(wait_seconds)

    async def serve(self, item: Item) -> None:
        """Run an item to its end."""
        began = time.monotonic()
        self._kinds.expect(item.kind)
        facts = {"item": item.id, "kind": item.kind, "session": item.session_id}
        self._reporter.debug("claimed", attempt=item.attempt, **facts)
        await ItemRun(
            item,
            queue=self._queue,
            kinds=self._kinds,
            heartbeat_seconds=self._options.heartbeat_seconds,
            metrics=self._metrics,
            reporter=self._reporter,
        ).run()
        self._reporter.info("done", seconds=round(time.monotonic() - began, 3), **facts)

    async def aclose(self) -> None:
        """Release the machine."""
        await self._commands.aclose()
        await self._ground.aclose()
        self._files.close()


def _remove_old_spills(files: Confined) -> None:
    """Output files that nobody will ask for any more."""
    limit = time.time() - _SPILLS_KEPT_SECONDS
    with contextlib.suppress(PathRefused, OSError), files.folder(SPILLS) as folder:
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime < limit:
                    os.unlink(name, dir_fd=folder)

"""The platform as the nemesis sees it: processes that can be killed or paused, and what its database says of turns."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, LiteralString

import grpc
import orjson
import psycopg

from cli.data_folder import DataFolder
from kit.embedded.nats import EmbeddedNats
from kit.embedded.postgres import EmbeddedPostgres
from kit.testing import await_until
from managed_agents.worker.v1.runner_pb2 import DescribeRunnerRequest
from managed_agents.worker.v1.runner_pb2_grpc import RunnerServiceStub
from tests.support.platform import Platform
from tests.support.rows import database_of

LEASE_SECONDS = 2
RUNNERS = ("runner", "runner-2")
SERVICES = ("gateway", "sessions", "vault", "scheduler", "queue", *RUNNERS)
SERVERS = ("postgres", "nats")
# Moments in which a turn can stand, as its log shows them.
MOMENTS: dict[str, LiteralString] = {
    "mid request": """
        SELECT t.holder FROM sessions.turns t
        JOIN sessions.sessions s ON s.id = t.session_id
        JOIN sessions.events e ON e.session_id = s.id AND e.seq = s.last_seq
        WHERE t.holder <> '' AND e.type = 'span.model_request_start'""",
    "mid tool": """
        SELECT t.holder FROM sessions.turns t
        WHERE t.holder <> '' AND 'agent.tool_use' = (
            SELECT e.type FROM sessions.events e
            WHERE e.session_id = t.session_id
            AND e.type IN ('agent.tool_use', 'agent.tool_result', 'session.status_running')
            ORDER BY e.seq DESC LIMIT 1)""",
}
_BACK_SECONDS = 90
_LOOK_SECONDS = 0.05
_MODULES = {"runner": "services.worker.runner", "queue": "services.worker.queue"}


class Ground:
    """One platform over several lives: after the death of the whole it starts again on the same port and folder."""

    def __init__(self, data_dir: Path, *, failpoints: str = "", environment: Mapping[str, str] | None = None) -> None:
        self._environment = {"MANAGED_AGENTS_LEASE_SECONDS": str(LEASE_SECONDS), **(environment or {})}
        if failpoints:
            self._environment["MANAGED_AGENTS_FAILPOINTS"] = failpoints
        self.data_dir = data_dir
        self.platform = self._start(None)

    def _start(self, port: int | None) -> Platform:
        arguments = ("--runners", str(len(RUNNERS)))
        return Platform(self.data_dir, environment=self._environment, arguments=arguments, port=port)

    def start_again(self) -> None:
        """After the death of the supervisor."""
        self.platform.process.wait(30)
        self.platform = self._start(self.platform.port)

    def pid(self, name: str) -> int | None:
        """The process of a service or server, if it lives."""
        if name == "postgres":
            return EmbeddedPostgres(self.data_dir / "postgres").pid()
        if name == "nats":
            return EmbeddedNats(self.data_dir / "nats").pid()
        module = _MODULES.get(name.partition("-")[0], f"services.{name}")
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and self._is(entry, name, module):
                return int(entry.name)
        return None

    def _is(self, entry: Path, name: str, module: str) -> bool:
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            return False
        mine = f"MANAGED_AGENTS_DATA_DIR={self.data_dir}".encode() in environment
        socket = f"/{name}.sock".encode()
        listens = name == "gateway" or any(
            pair.startswith(b"MANAGED_AGENTS_LISTEN=") and pair.endswith(socket) for pair in environment
        )
        return mine and listens and module.encode() in command

    def signal(self, name: str, number: int) -> int | None:
        """Send a signal; the pid that it went to."""
        pid = self.pid(name)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pid

    async def until_back(self, name: str, killed: int | None) -> None:
        """Wait for the successor of a killed process, and for the whole to serve."""
        await seen(lambda: self.pid(name) not in (None, killed), _BACK_SECONDS, f"{name} is started again")
        await self.until_ready()

    async def until_ready(self) -> None:
        """Wait for the gateway to say that it is ready."""
        process = self.platform.process
        await seen(
            lambda: process.poll() is not None or self.platform.is_ready(), _BACK_SECONDS, "the platform is ready"
        )
        assert process.poll() is None, self.platform.output()

    def holders(self, moment: str) -> list[str]:
        """Names of the runner processes that hold a turn which stands in such a moment."""
        with database_of(self.platform) as rows:
            found = rows.execute(MOMENTS[moment]).fetchall()
        names = {self.runner_id(name): name for name in RUNNERS} if found else {}
        return [names[holder] for (holder,) in found if holder in names]

    def held_by(self, runner_id: str) -> int:
        """How many turns a runner holds."""
        with database_of(self.platform) as rows:
            return rows.execute("SELECT count(*) FROM sessions.turns WHERE holder = %s", [runner_id]).fetchone()[0]

    def idle(self, session_id: str) -> bool:
        """Whether a session has neither a turn nor input that waits for one."""
        with database_of(self.platform) as rows:
            found = rows.execute("SELECT status, unread FROM sessions.sessions WHERE id = %s", [session_id]).fetchone()
        return found == ("idle", "[]")

    def has_unpublished(self) -> bool:
        """Whether something is committed that the relay has not got rid of."""
        with database_of(self.platform) as rows:
            return rows.execute("SELECT EXISTS (SELECT FROM sessions.outbox)").fetchone() == (True,)

    def appends(self) -> dict[str, tuple[str, int]]:
        """By event: which runner wrote it, and under which epoch, as runners say themselves when they log it all."""
        found: dict[str, tuple[str, int]] = {}
        for name in RUNNERS:
            for path in (self.data_dir / "logs").glob(f"{name}.log*"):
                for line in path.read_text(errors="replace").splitlines():
                    if '"event":"append"' in line and line.endswith("}"):
                        told = orjson.loads(line)
                        found.update((event_id, (name, told["epoch"])) for event_id in told["ids"])
        return found

    def runner_id(self, name: str) -> str:
        """What a runner calls itself; empty where it can't be asked."""
        folder = DataFolder(self.data_dir)
        token = folder.internal_token.read_text().strip()
        with grpc.insecure_channel(f"unix:{folder.run / f'{name}.sock'}") as channel:
            try:
                answer = RunnerServiceStub(channel).DescribeRunner(
                    DescribeRunnerRequest(), timeout=2, metadata=(("authorization", f"Bearer {token}"),)
                )
            except grpc.RpcError:
                return ""
        return answer.runner_id

    def kill_everything(self) -> None:
        """As a power cut would, but for the disk."""
        self.platform.process.kill()
        for name in (*SERVICES, *SERVERS):
            self.signal(name, signal.SIGKILL)

    def stop(self) -> None:
        """An orderly end, or whatever end there is."""
        try:
            assert self.platform.stop() == 0
        finally:
            if self.platform.process.poll() is None:
                self.kill_everything()

    def workspace(self, session_id: str) -> Path | None:
        """The folder that the session's tools see as their own."""
        return next(self.data_dir.glob(f"*/{session_id}/workspace"), None)


async def seen(condition: Callable[[], Any], timeout: float, message: str) -> Any:
    """`await_until` for conditions that block and cost something: in a thread, and not all the time."""

    async def look() -> Any:
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            return await asyncio.to_thread(condition)
        except psycopg.OperationalError:
            return None

    return await await_until(look, timeout, message)

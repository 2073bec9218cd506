"""The MCP servers of a runner's sessions: who has some open, for how long, and who may hear of them.

A session's connections are kept between its turns, until the session has been idle for as long as its sandbox may be,
was deleted, or has its turns at another runner. They are told of and closed over the bus, on a subject of the session
that only runners listen to which hold something for it; so asking after a session that nobody holds is answered by
the bus at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

import orjson
from nats.aio.msg import Msg

from kit.addresses import NO_PRIVATE_HOSTS, PrivateHosts
from kit.nats import Nats
from kit.telemetry import log
from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.mcp.credentials import Credentials, Owner
from services.worker.runner.mcp.reach import Reach
from services.worker.runner.mcp.rotation import answer
from services.worker.runner.mcp.session import Limits, SessionServers
from services.worker.runner.mcp.spec import Servers
from services.worker.runner.mcp.turn import LimitOutput, TurnServers
from services.worker.runner.secrets import SessionSecrets

SUBJECT = "mcp.sessions.{}"
ROTATED_SUBJECT = "vault.rotated.*"
# As long as sandboxes are kept.
IDLE_SECONDS = 300.0
_SWEEP_SECONDS = 15.0


@dataclass(slots=True, eq=False)
class _Held:
    """What this runner holds for one session or thread."""

    servers: SessionServers
    # Whose sandbox and vaults they are; the session itself, or that of the thread.
    root_id: str
    subscription: Any = None
    listening: asyncio.Task[None] | None = None


class McpServers:
    """All that a runner holds. `vault` is the stub of InjectionService."""

    def __init__(
        self,
        vault: Any,
        *,
        runner_id: str,
        limits: Limits | None = None,
        private: PrivateHosts = NO_PRIVATE_HOSTS,
        idle_seconds: float = IDLE_SECONDS,
        bus: Callable[[], Nats | None] = lambda: None,
        secrets_of: Callable[[str], SessionSecrets | None] = lambda _: None,
    ) -> None:
        """`secrets_of` tells what a session's sandbox is told of its vaults."""
        self._vault = vault
        self._secrets_of = secrets_of
        self._runner_id = runner_id
        self._limits = limits or Limits()
        self._private = private
        self._idle_seconds = idle_seconds
        self._bus = bus
        self._held: dict[str, _Held] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def begin_turn(
        self,
        grant: TurnGrant,
        servers: Servers,
        *,
        host: Callable[[], Any],
        taken: Collection[str],
        tell: Callable[[str, str, str], None],
        limit: LimitOutput,
    ) -> TurnServers:
        """The servers of an agent, for one turn. `host` gives the session's sandbox."""
        held = self._hold(grant)
        environment = orjson.loads(grant.environment_json or b"{}")
        held.servers.configure(servers.servers, Reach.of(environment, self._private), host)
        return TurnServers(servers, held.servers, taken, tell, limit)

    async def rotated(self, workspace_id: str, vault_id: str = "") -> dict[str, SessionServers]:
        """Secrets of a vault were rotated: whoever may have been connected with one connects anew. Who does, by id."""
        reconnecting: dict[str, SessionServers] = {}
        for session_id, held in list(self._held.items()):
            owner = held.servers.credentials.owner
            if owner.workspace_id == workspace_id and (vault_id in owner.vault_ids if vault_id else owner.vault_ids):
                held.servers.reconnect()
                reconnecting[session_id] = held.servers
        return reconnecting

    async def hear_of_rotation(self, message: Msg) -> None:
        """A message of the vault on `vault.rotated.<workspace_id>`: JSON that may name the vault."""
        try:
            told = orjson.loads(message.data) if message.data else {}
        except ValueError:
            told = {}
        vault_id = told.get("vault_id") if isinstance(told, dict) else ""
        reconnecting = await self.rotated(message.subject.rpartition(".")[2], vault_id or "")
        # Not here: the subscription's next message would wait for it.
        self._soon(answer(message, self._runner_id, reconnecting))

    async def close(self, session_id: str) -> None:
        """Close what the session and its threads have open."""
        for key, held in list(self._held.items()):
            if session_id in (key, held.root_id):
                await self._let_go(key)

    async def aclose(self) -> None:
        """Close everything."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        await asyncio.gather(*(self._let_go(key) for key in list(self._held)), return_exceptions=True)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _hold(self, grant: TurnGrant) -> _Held:
        session_id, root_id = grant.session.id, grant.root_session_id or grant.session.id
        owner = Owner(grant.workspace_id, root_id, tuple(grant.session.vault_ids))
        held = self._held.get(session_id)
        if held is not None and held.servers.credentials.owner == owner:
            self._announce(session_id)
            return held
        if held is not None:
            self._held.pop(session_id)
            self._soon(self._end(held))
        secrets = self._secrets_of(root_id) if owner.vault_ids else None
        credentials = Credentials(self._vault, owner, self._runner_id, secrets)
        made = _Held(SessionServers(credentials, self._limits), root_id)
        self._held[session_id] = made
        made.listening = asyncio.create_task(self._listen(session_id, made), name=f"listen for {session_id}")
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name="mcp sweeper")
        return made

    async def _listen(self, session_id: str, held: _Held) -> None:
        bus = self._bus()
        if bus is None:
            return

        async def hear(message: Msg) -> None:
            await self._hear(session_id, message)

        try:
            subscription = await bus.subscribe(SUBJECT.format(session_id), hear)
        except Exception as failed:
            # Nobody can ask after it then, and another runner closes its own when it is idle.
            log.warning("a session's servers can't be asked after", session_id=session_id, error=repr(failed))
            return
        if self._held.get(session_id) is held:
            held.subscription = subscription
            self._announce(session_id)
        else:
            await _unsubscribe(subscription)

    def _announce(self, session_id: str) -> None:
        """Another runner that still holds connections of the session is to close them."""
        bus = self._bus()
        if bus is not None:
            self._soon(_publish(bus, SUBJECT.format(session_id), orjson.dumps({"taken_by": self._runner_id})))

    async def _hear(self, session_id: str, message: Msg) -> None:
        held = self._held.get(session_id)
        if held is None:
            return
        if message.reply:
            await message.respond(orjson.dumps({"servers": held.servers.descriptions()}))
            return
        told = orjson.loads(message.data)
        if told.get("taken_by") != self._runner_id and not held.servers.users:
            # Not here: this task is the subscription's own, and ends with it.
            self._soon(self._let_go(session_id))

    async def _let_go(self, session_id: str) -> None:
        held = self._held.pop(session_id, None)
        if held is not None:
            await self._end(held)

    async def _end(self, held: _Held) -> None:
        if held.listening is not None:
            await asyncio.wait({held.listening})
        if held.subscription is not None:
            await _unsubscribe(held.subscription)
        await held.servers.close()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, self._idle_seconds))
            limit = loop.time() - self._idle_seconds
            for session_id, held in list(self._held.items()):
                if not held.servers.users and held.servers.used_at < limit:
                    self._soon(self._let_go(session_id))

    def _soon(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _publish(bus: Nats, subject: str, payload: bytes) -> None:
    await bus.publish(subject, payload)


async def _unsubscribe(subscription: Any) -> None:
    try:
        await subscription.unsubscribe()
    except Exception as failed:
        log.debug("not unsubscribed", error=repr(failed))

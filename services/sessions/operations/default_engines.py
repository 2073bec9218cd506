"""The loop engine that a workspace's settings choose for sessions that name none.

    engines = DefaultEngines(reader_of(vault))             # without a reader: builtin, for everyone
    default = await engines.of(workspace_id)

What vault says is believed for REFRESH_SECONDS, or until `forget` hears of a save; where vault can't be asked then, the
former answer still serves. Without one there is none to go by, and the refusal asks to try again: a session must not
be frozen on an engine that its workspace did not choose.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from kit.errors import DomainError, Internal
from kit.nats import Nats
from kit.rpc.client import Channel
from kit.rpc.context import CallContext
from kit.telemetry import log
from managed_agents.vault.v1.vault_pb2 import GetLoopEngineRequest
from managed_agents.vault.v1.vault_pb2_grpc import SettingsServiceStub
from services.sessions.domain.loop_engine import BUILTIN, EngineChoice, settings_choice

REFRESH_SECONDS = 15.0
# What vault knows this service by.
PRINCIPAL = "sessions"
_ASK_SECONDS = 5.0

ReadEngine = Callable[[str], Awaitable[EngineChoice]]


def engine_reader(vault: Channel) -> ReadEngine:
    """Reads the engine from the settings of a workspace."""
    settings = vault.stub(SettingsServiceStub)

    async def read(workspace_id: str) -> EngineChoice:
        context = CallContext(workspace_id=workspace_id, principal_id=PRINCIPAL)
        try:
            answer = await settings.GetLoopEngine(
                GetLoopEngineRequest(), context=context, timeout_seconds=_ASK_SECONDS, retry=True
            )
        except Internal as error:
            if error.metadata.get("grpc_code") != "UNIMPLEMENTED":
                raise
            # A vault of a former build, whose settings know no other engine.
            return BUILTIN
        return settings_choice(answer.provider, orjson.loads(answer.options_json or b"{}"))

    return read


@dataclass(slots=True)
class _Known:
    engine: EngineChoice
    read_at: float


class DefaultEngines:
    """The defaults of all workspaces, as this replica knows them."""

    def __init__(self, read: ReadEngine | None = None) -> None:
        self._read = read
        self._known: dict[str, _Known] = {}
        # Grows with each `forget`: an answer that was asked for before is not believed for long.
        self._saves = 0

    async def of(self, workspace_id: str) -> EngineChoice:
        """The default of a workspace."""
        if self._read is None:
            return BUILTIN
        known = self._known.get(workspace_id)
        if known is None or time.monotonic() - known.read_at >= REFRESH_SECONDS:
            known = await self._ask(workspace_id, known, self._read)
        return known.engine

    def forget(self) -> None:
        """Ask vault before the next use: settings were saved, and those of the default workspace are for everyone."""
        self._saves += 1
        for known in self._known.values():
            known.read_at = -REFRESH_SECONDS

    def follow(self, nats: Nats) -> Callable[[], Awaitable[None]]:
        """Begins to hear of saves. One that is missed while the bus is away is made up for by the reconnect."""

        async def saved(_message: Any) -> None:
            self.forget()

        async def begin() -> None:
            await nats.subscribe_eventually("settings.saved.*", saved)
            nats.on_reconnect(self.forget)

        return begin

    async def _ask(self, workspace_id: str, former: _Known | None, read: ReadEngine) -> _Known:
        asked_at, saves = time.monotonic(), self._saves
        try:
            engine = await read(workspace_id)
        except DomainError as error:
            if former is None:
                raise
            log.warning("vault can't be asked for the engine, going on with the former answer", reason=error.reason)
            engine = former.engine
        known = _Known(engine, asked_at if saves == self._saves else -REFRESH_SECONDS)
        self._known[workspace_id] = known
        return known

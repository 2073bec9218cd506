"""SealingService: versions of the master key, for the operator."""

from __future__ import annotations

from typing import Any

from kit.postgres import Database
from kit.telemetry import log
from managed_agents.vault.v1 import vaults_pb2 as pb
from managed_agents.vault.v1 import vaults_pb2_grpc
from services.vault.domain.sealing import Sealer
from services.vault.handlers.callers import require_operator
from services.vault.operations.rewrapping import Rewrapper
from services.vault.store.sealed import SealedStore


class SealingHandler(vaults_pb2_grpc.SealingServiceServicer):
    """Adds versions; the rewrapper of each replica does the rest."""

    def __init__(self, database: Database, sealer: Sealer, rewrapper: Rewrapper) -> None:
        self._database = database
        self._sealer = sealer
        self._rewrapper = rewrapper

    async def RotateMasterKey(self, request: Any, context: Any) -> pb.RotateMasterKeyResponse:
        """Adds a version, and begins to seal everything with it."""
        require_operator()
        key_id = await self._sealer.keys.add_version()
        log.info("the master key has a new version", version=key_id.hex())
        self._rewrapper.wake()
        return pb.RotateMasterKeyResponse(state=await self._state())

    async def GetSealingState(self, request: Any, context: Any) -> pb.GetSealingStateResponse:
        """How far it is."""
        require_operator()
        return pb.GetSealingStateResponse(state=await self._state())

    async def _state(self) -> pb.SealingState:
        keys = self._sealer.keys
        async with self._database.platform_read() as tx:
            sealed, waiting = await SealedStore(tx).count(await self._sealer.current_prefix())
        return pb.SealingState(
            provider=keys.name,
            key_id=(await keys.current_key_id()).hex(),
            versions=await keys.version_count(),
            sealed_rows=sealed,
            rows_to_rewrap=waiting,
        )

"""Asks vault whether a session may name these vaults.

Whoever creates a session asks before its transaction begins and hands the refusal in, so
that no connection waits on another service, and a repeated creation is answered as the
first was, whatever became of the vaults meanwhile.
"""

import re
from collections.abc import Awaitable, Callable, Sequence

from kit.errors import InvalidArgument
from kit.rpc.client import Channel
from managed_agents.vault.v1.vaults_pb2 import CheckVaultsRequest
from managed_agents.vault.v1.vaults_pb2_grpc import VaultsServiceStub
from services.sessions.domain.session_errors import VaultNotFound

_INDEX = re.compile(r"\[(\d+)\]")
# The refusal of the first vault that a session may not name; None where it may name all of them.
CheckVaults = Callable[[Sequence[str]], Awaitable[InvalidArgument | None]]


def vault_checker(vault: Channel | None) -> CheckVaults:
    """Asks the vault service; where there is none, there is no vault either."""
    if vault is None:
        return no_vaults
    vaults = vault.stub(VaultsServiceStub)

    async def check(vault_ids: Sequence[str]) -> InvalidArgument | None:
        try:
            await vaults.CheckVaults(CheckVaultsRequest(vault_ids=vault_ids), retry=True)
        except InvalidArgument as refusal:
            # As the fields of a session are named everywhere else.
            refusal.field = refusal.field and _INDEX.sub(r".\1", refusal.field)
            return refusal
        return None

    return check


async def no_vaults(vault_ids: Sequence[str]) -> InvalidArgument | None:
    """Refuses the first of them."""
    return VaultNotFound(f"Vault not found: {vault_ids[0]}.", field="vault_ids.0", vault_id=vault_ids[0])

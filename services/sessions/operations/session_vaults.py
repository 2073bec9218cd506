"""Asks vault whether a session may name these vaults.

Whoever creates a session asks before its transaction begins and hands the refusal in, so
that no connection waits on another service, and a repeated creation is answered as the
first was, whatever became of the vaults meanwhile.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace

from kit.errors import InvalidArgument
from kit.rpc.client import Channel
from managed_agents.vault.v1.vaults_pb2 import CheckVaultsRequest
from managed_agents.vault.v1.vaults_pb2_grpc import VaultsServiceStub
from services.sessions.domain.session import NewSession
from services.sessions.domain.session_errors import VaultNotFound

_INDEX = re.compile(r"\[(\d+)\]")
# The request with what vault says of its vaults, and the refusal of the first that it may not name; None for none.
CheckVaults = Callable[[NewSession], Awaitable[tuple[NewSession, InvalidArgument | None]]]


def vault_checker(vault: Channel | None) -> CheckVaults:
    """Asks the vault service; where there is none, there is no vault either."""
    if vault is None:
        return no_vaults
    vaults = vault.stub(VaultsServiceStub)

    async def check(new: NewSession) -> tuple[NewSession, InvalidArgument | None]:
        try:
            answer = await vaults.CheckVaults(CheckVaultsRequest(vault_ids=new.vault_ids), retry=True)
        except InvalidArgument as refusal:
            # As the fields of a session are named everywhere else.
            refusal.field = refusal.field and _INDEX.sub(r".\1", refusal.field)
            return new, refusal
        return replace(new, vaults_with_variables=frozenset(answer.with_variables)), None

    return check


async def no_vaults(new: NewSession) -> tuple[NewSession, InvalidArgument | None]:
    """Refuses the first of them."""
    vault_id = new.vault_ids[0]
    return new, VaultNotFound(f"Vault not found: {vault_id}.", field="vault_ids.0", vault_id=vault_id)

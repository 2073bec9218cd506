"""`managed-agents keys rotate`: a new version of the vault's master key, and waiting until all is sealed with it.

The vault does the work, whoever waits; a vault that is killed meanwhile goes on when it is back. So the command waits
through a restart, and an interrupted command is taken up with `--resume`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cli import config
from cli.config import PREFIX
from cli.data_folder import DataFolder
from cli.errors import CommandFailed
from kit.errors import DomainError, Unavailable
from kit.rpc.client import Channel
from kit.rpc.context import CallContext
from managed_agents.vault.v1 import vaults_pb2 as pb
from managed_agents.vault.v1.vaults_pb2_grpc import SealingServiceStub

OPERATOR = CallContext("", principal_id="operator")
LOOK_SECONDS = 0.2
# How long a vault may be away before nobody waits for it any more.
PATIENCE_SECONDS = 120.0


async def rotate(data_dir: Path, *, resume: bool, wait: bool, as_json: bool, say: Callable[[str], None]) -> None:
    """Add a version unless one is to be waited for, and wait until no stored secret is left under another."""
    channel = _channel(data_dir)
    try:
        vault = channel.stub(SealingServiceStub)
        if resume:
            state = await _state(vault)
        else:
            state = (await vault.RotateMasterKey(pb.RotateMasterKeyRequest(), context=OPERATOR)).state
            say(f"The master key has a new version, {state.key_id}; former ones still open.")
        while wait and state.rows_to_rewrap:
            await asyncio.sleep(LOOK_SECONDS)
            state = await _state(vault)
    except DomainError as error:
        raise CommandFailed(str(error.message)) from error
    finally:
        await channel.close()
    _tell(state, as_json=as_json, say=say)


async def _state(vault: Any) -> pb.SealingState:
    """How far it is; a vault that is being started anew is waited for."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return (await vault.GetSealingState(pb.GetSealingStateRequest(), context=OPERATOR)).state
        except Unavailable:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(LOOK_SECONDS)


def _channel(data_dir: Path) -> Channel:
    """To the vault of the environment's address, else to the one that runs in this data folder."""
    address, token_file = config.vault()
    if address:
        return Channel(address, token=_read(Path(token_file)) if token_file else None)
    folder = DataFolder(data_dir)
    if folder.holder() is None:
        raise CommandFailed(
            f"No platform runs in {folder.path}. Start it with `managed-agents up`, name its folder with --data-dir, "
            f"or the vault's address in {PREFIX}VAULT_ADDRESS (and {PREFIX}INTERNAL_TOKEN_FILE)."
        )
    return Channel(f"unix:{folder.run / 'vault.sock'}", token=_read(folder.internal_token))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise CommandFailed(f"{path} can't be read: {error.strerror}.") from None


def _tell(state: pb.SealingState, *, as_json: bool, say: Callable[[str], None]) -> None:
    if as_json:
        told = {
            "key_id": state.key_id,
            "provider": state.provider,
            "versions": state.versions,
            "sealed_rows": state.sealed_rows,
            "rows_to_rewrap": state.rows_to_rewrap,
        }
        print(json.dumps(told))
    elif state.rows_to_rewrap:
        say(f"{state.rows_to_rewrap} of {state.sealed_rows} stored secrets are still under a former version.")
    else:
        say(f"All {state.sealed_rows} stored secrets are sealed under version {state.key_id}.")

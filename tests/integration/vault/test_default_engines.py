"""The engine that settings choose: told to the sessions service alone, with its secret headers sealed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest

from kit.errors import PermissionDenied
from kit.rpc.context import CallContext
from managed_agents.vault.v1 import vault_pb2 as pb
from services.vault.app import MIGRATIONS, SCHEMA
from tests.integration.vault.test_settings import DOCUMENT, PERSON, RUNNER, save, vault

OPTIONS = {
    "url": "https://agent.example.com/step",
    "headers": {"Authorization": "Bearer ${CANARY_OF_THE_HEADER}", "X-Tenant": "acme"},
    "max_rounds": 3,
}
ENGINE = {"loop_engine": {"provider": "http", "options": OPTIONS}}


def sessions(workspace_id: str = "wrkspc_default") -> CallContext:
    return CallContext(workspace_id, "req_1", "sessions")


async def test_it_is_told_whole_to_the_sessions_service_and_masked_to_everybody_else(
    make_database: Any, tmp_path: Path
) -> None:
    dsn = await make_database(SCHEMA, MIGRATIONS)
    async with vault(dsn, tmp_path) as stub:
        asked = pb.GetLoopEngineRequest()
        assert await stub.GetLoopEngine(asked, context=sessions()) == pb.GetLoopEngineResponse(provider="builtin")
        saved = await stub.SaveSettings(save(DOCUMENT | ENGINE), context=PERSON)
        assert b"CANARY" not in saved.SerializeToString()
        # What the default workspace says holds for those that say nothing.
        for workspace_id in ("wrkspc_default", "wrkspc_other"):
            told = await stub.GetLoopEngine(asked, context=sessions(workspace_id))
            assert (told.provider, orjson.loads(told.options_json)) == ("http", OPTIONS)
        for caller in (PERSON, RUNNER, CallContext("wrkspc_default", "req_1", "sessions_2")):
            with pytest.raises(PermissionDenied):
                await stub.GetLoopEngine(asked, context=caller)
    options = "-c managed_agents.workspace=*"
    async with await psycopg.AsyncConnection.connect(dsn, options=f"-c search_path={SCHEMA} {options}") as connection:
        rows = await (await connection.execute("SELECT document::text, secrets FROM settings")).fetchall()
    assert rows and b"CANARY" not in b"".join(text.encode() + bytes(sealed) for text, sealed in rows)

"""What opens the storage of a workspace: sealed, and told to the sessions service alone."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from kit.errors import PermissionDenied
from kit.rpc.context import CallContext
from managed_agents.vault.v1 import vault_pb2 as pb
from services.vault.app import MIGRATIONS, SCHEMA
from tests.integration.vault.test_settings import DOCUMENT, PERSON, RUNNER, save, vault

SECRET = "canary-of-the-bucket-0123456789"
SESSIONS = CallContext("wrkspc_default", "req_1", "sessions")
OPTIONS = {"bucket": "files", "endpoint": "https://storage.test", "access_key_id": "AKID", "secret_access_key": SECRET}
STORAGE = {"storage": {"artifacts": {"provider": "s3", "options": OPTIONS}}}


async def test_a_bucket_is_opened_for_the_sessions_service_alone(make_database, tmp_path: Path) -> None:
    dsn = await make_database(SCHEMA, MIGRATIONS)
    async with vault(dsn, tmp_path) as stub:
        before = await stub.GetStorageAccess(pb.GetStorageAccessRequest(), context=SESSIONS)
        assert before == pb.GetStorageAccessResponse(provider="local")
        saved = await stub.SaveSettings(save(DOCUMENT | STORAGE), context=PERSON)
        assert SECRET.encode() not in saved.SerializeToString()
        opened = await stub.GetStorageAccess(pb.GetStorageAccessRequest(), context=SESSIONS)
        assert (opened.provider, opened.bucket, opened.region) == ("s3", "files", "us-east-1")
        assert (opened.endpoint, opened.access_key_id) == ("https://storage.test", "AKID")
        assert opened.secret_access_key == SECRET
        for caller in (PERSON, RUNNER, CallContext("wrkspc_default", "req_1", "sessions_2")):
            with pytest.raises(PermissionDenied):
                await stub.GetStorageAccess(pb.GetStorageAccessRequest(), context=caller)
    options = "-c managed_agents.workspace=*"
    async with await psycopg.AsyncConnection.connect(dsn, options=f"-c search_path={SCHEMA} {options}") as connection:
        rows = await (await connection.execute("SELECT document::text, secrets FROM settings")).fetchall()
    assert rows and SECRET.encode() not in b"".join(text.encode() + bytes(sealed) for text, sealed in rows)

"""Vaults and credentials over real gRPC and Postgres: what is kept, shown, refused, erased, told and repeated."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql

from kit.errors import AlreadyExists, DomainError, FailedPrecondition, InvalidArgument, NotFound
from kit.ids import is_id
from kit.waiting import within
from managed_agents.sessions.v1.common_pb2 import Idempotency
from managed_agents.vault.v1 import vaults_pb2 as pb
from services.vault.app import MIGRATIONS, SCHEMA
from tests.integration.vault.driver import (
    PERSON,
    RUNNER,
    STRANGER,
    Vault,
    bearer,
    encoded,
    ids,
    variable,
    vault,
)

CANARY = "canary-of-the-vault-tests-7391"


@pytest.fixture
async def dsn(make_database) -> str:
    return await make_database(SCHEMA, MIGRATIONS)


@pytest.fixture
async def service(dsn: str, tmp_path: Path) -> AsyncIterator[Vault]:
    async with vault(dsn, tmp_path) as running:
        yield running


async def reason_of(call: Any) -> tuple[str, str | None]:
    with pytest.raises(DomainError) as refusal:
        await call
    return refusal.value.reason, refusal.value.field


async def dump(dsn: str) -> str:
    """Every value of every table of the vault, as text."""
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        tables = await connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'vault' ORDER BY 1"
        )
        found = []
        for (table,) in await tables.fetchall():
            rows = await connection.execute(sql.SQL("SELECT to_jsonb(t)::text FROM {} t").format(sql.Identifier(table)))
            found += [row[0] for row in await rows.fetchall()]
    return "\n".join(found)


async def test_a_vault_lives_changes_and_ends(service: Vault) -> None:
    made = await service.create("one", metadata={"team": "a", "tier": "b"})
    assert is_id("vlt", made.id) and json.loads(made.metadata_json) == {"team": "a", "tier": "b"}
    patch = pb.UpdateVaultRequest(vault_id=made.id, patch_json=encoded({"name": "two", "metadata": {"tier": None}}))
    changed = (await service.vaults.UpdateVault(patch, context=PERSON)).vault
    assert (changed.display_name, json.loads(changed.metadata_json)) == ("two", {"team": "a"})
    assert (await service.vaults.GetVault(pb.GetVaultRequest(vault_id=made.id), context=PERSON)).vault == changed

    archived = (await service.vaults.ArchiveVault(pb.ArchiveVaultRequest(vault_id=made.id), context=PERSON)).vault
    again = (await service.vaults.ArchiveVault(pb.ArchiveVaultRequest(vault_id=made.id), context=PERSON)).vault
    assert archived.archived_at and again == archived
    assert await reason_of(service.vaults.GetVault(pb.GetVaultRequest(vault_id=made.id), context=PERSON)) == (
        "VAULT_NOT_FOUND",
        None,
    )
    assert (await reason_of(service.vaults.UpdateVault(patch, context=PERSON)))[0] == "VAULT_NOT_FOUND"
    assert (await reason_of(service.add(made.id, bearer())))[0] == "VAULT_NOT_FOUND"
    await service.vaults.DeleteVault(pb.DeleteVaultRequest(vault_id=made.id), context=PERSON)
    with pytest.raises(NotFound):
        await service.vaults.DeleteVault(pb.DeleteVaultRequest(vault_id=made.id), context=PERSON)


async def test_another_workspace_meets_what_does_not_exist(service: Vault) -> None:
    held = await service.create()
    credential = await service.add(held.id, bearer())
    calls = [
        service.vaults.GetVault(pb.GetVaultRequest(vault_id=held.id), context=STRANGER),
        service.vaults.ArchiveVault(pb.ArchiveVaultRequest(vault_id=held.id), context=STRANGER),
        service.vaults.DeleteVault(pb.DeleteVaultRequest(vault_id=held.id), context=STRANGER),
        service.vaults.ListCredentials(pb.ListCredentialsRequest(vault_id=held.id), context=STRANGER),
        service.vaults.ListAuditEvents(pb.ListAuditEventsRequest(vault_id=held.id), context=STRANGER),
        service.get(credential, context=STRANGER),
        service.add(held.id, bearer("https://other.example.com"), context=STRANGER),
    ]
    for call in calls:
        with pytest.raises(NotFound) as refusal:
            await call
        assert (refusal.value.reason, refusal.value.message) == ("VAULT_NOT_FOUND", f"Vault not found: {held.id}")
    own = await service.create(context=STRANGER)
    foreign = pb.GetCredentialRequest(vault_id=own.id, credential_id=credential.id)
    assert (await reason_of(service.vaults.GetCredential(foreign, context=STRANGER)))[0] == "CREDENTIAL_NOT_FOUND"
    assert not (await service.vaults.ListVaults(pb.ListVaultsRequest(limit=5), context=STRANGER)).vaults[1:]


@pytest.mark.parametrize("held", ["vaults", "credentials"])
async def test_a_listing_pages_both_ways_in_its_own_view(service: Vault, held: str) -> None:
    holder = await service.create("holder")
    made = []
    for number in range(5):
        if held == "vaults":
            made.append((await service.create(f"v{number}")).id)
        else:
            made.append((await service.add(holder.id, bearer(f"https://{number}.example.com"))).id)
    if held == "vaults":
        await service.vaults.ArchiveVault(pb.ArchiveVaultRequest(vault_id=made[2]), context=PERSON)
        await service.vaults.DeleteVault(pb.DeleteVaultRequest(vault_id=holder.id), context=PERSON)
    else:
        request = pb.ArchiveCredentialRequest(vault_id=holder.id, credential_id=made[2])
        await service.vaults.ArchiveCredential(request, context=PERSON)

    async def page(cursor: str = "", *, archived: bool = True, limit: int = 2) -> tuple[list[str], str, str]:
        if held == "vaults":
            request = pb.ListVaultsRequest(limit=limit, cursor=cursor, include_archived=archived)
            found = await service.vaults.ListVaults(request, context=PERSON)
            return [each.id for each in found.vaults], found.next_cursor, found.previous_cursor
        request = pb.ListCredentialsRequest(vault_id=holder.id, limit=limit, cursor=cursor, include_archived=archived)
        found = await service.vaults.ListCredentials(request, context=PERSON)
        return [each.id for each in found.credentials], found.next_cursor, found.previous_cursor

    newest = made[::-1]
    first, after, before = await page()
    assert (first, before) == (newest[:2], "")
    second, last, back = await page(after)
    assert second == newest[2:4]
    assert await page(last) == (newest[4:], "", (await page(last))[2])
    assert (await page(back))[0] == newest[:2] and (await page(back))[2] == ""
    assert (await page((await page(last))[2]))[0] == newest[2:4]
    assert (await page(archived=False, limit=10))[0] == [each for each in newest if each != made[2]]
    for call in (page(after, archived=False), page("rubbish"), page(after[:-1])):
        assert await reason_of(call) == ("INVALID_CURSOR", "page")


@pytest.mark.parametrize(
    ("body", "key", "kind"),
    [
        (variable("KEY", CANARY, "api.example.com"), "KEY", "environment_variable"),
        (bearer(token=CANARY), "https://mcp.example.com/a", "static_bearer"),
        (
            {
                "auth": {
                    "type": "mcp_oauth",
                    "mcp_server_url": "https://mcp.example.com/b/",
                    "access_token": CANARY,
                    "refresh": {
                        "client_id": "client",
                        "refresh_token": f"{CANARY}-refresh",
                        "token_endpoint": "https://auth.example.com/token",
                        "token_endpoint_auth": {"type": "client_secret_post", "client_secret": f"{CANARY}-client"},
                    },
                }
            },
            "https://mcp.example.com/b/",
            "mcp_oauth",
        ),
    ],
)
async def test_a_secret_goes_in_and_is_never_seen_again(
    service: Vault, dsn: str, body: dict[str, Any], key: str, kind: str, capfd: Any
) -> None:
    holder = await service.create()
    made = await service.add(holder.id, body, repeat=Idempotency(key="k", fingerprint=b"f", keep_seconds=60))
    assert (made.key, made.type, made.value_hint, made.secret_version) == (key, kind, "****7391", 1)
    rotated = await service.rotate(made, f"{CANARY}-new", actor="a person", metadata={"reason": "test"})
    assert (rotated.secret_version, bool(rotated.rotated_at), rotated.value_hint) == (2, True, "****-new")
    listing = await service.vaults.ListCredentials(pb.ListCredentialsRequest(vault_id=holder.id), context=PERSON)
    events = await service.audit(holder.id)
    shown = b"".join(each.SerializeToString() for each in (made, rotated, listing, *events))
    assert [event.action for event in events] == ["rotated", "created"]
    assert (events[0].actor, json.loads(events[0].metadata_json)) == ("a person", {"reason": "test"})

    stored, written = await dump(dsn), capfd.readouterr()
    for secret in (CANARY, f"{CANARY}-new", f"{CANARY}-refresh", f"{CANARY}-client"):
        for form in (secret, b64encode(secret.encode()).decode().rstrip("="), secret.encode().hex(), quote(secret)):
            assert form.encode() not in shown and form not in stored and form not in written.out + written.err


async def test_archiving_erases_and_ends(service: Vault, dsn: str) -> None:
    holder = await service.create()
    made = await service.add(holder.id, variable("KEY", unrestricted=True))
    request = ids(pb.ArchiveCredentialRequest, made)
    archived = (await service.vaults.ArchiveCredential(request, context=PERSON)).credential
    assert archived.archived_at and not archived.value_hint
    assert (await service.vaults.ArchiveCredential(request, context=PERSON)).credential == archived
    assert await service.get(made) == archived
    assert (await reason_of(service.rotate(made, "x")))[0] == "CREDENTIAL_ARCHIVED"
    assert (await reason_of(service.update(made, {"name": "x"})))[0] == "CREDENTIAL_ARCHIVED"
    used = ids(pb.MarkCredentialUsedRequest, made)
    assert (await reason_of(service.vaults.MarkCredentialUsed(used, context=PERSON)))[0] == "CREDENTIAL_ARCHIVED"
    # Its key is free again.
    fresh = await service.add(holder.id, variable("KEY", unrestricted=True))
    await service.vaults.ArchiveVault(pb.ArchiveVaultRequest(vault_id=holder.id), context=PERSON)
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        rows = await connection.execute("SELECT id, sealed, value_hint FROM credentials ORDER BY id")
        assert await rows.fetchall() == [(made.id, None, ""), (fresh.id, None, "")]
    assert not (await service.resolve(holder.id, target="INJECTION_TARGET_KIND_PROCESS")).injections


async def test_deleting_leaves_the_audit_with_the_vault(service: Vault) -> None:
    holder = await service.create()
    made = await service.add(holder.id, bearer())
    used = ids(pb.MarkCredentialUsedRequest, made)
    used.use_json = encoded({"actor": "somebody"})
    marked = (await service.vaults.MarkCredentialUsed(used, context=PERSON)).credential
    assert marked.last_used_at
    await service.vaults.DeleteCredential(ids(pb.DeleteCredentialRequest, made), context=PERSON)
    assert (await reason_of(service.get(made)))[0] == "CREDENTIAL_NOT_FOUND"
    assert (await reason_of(service.audit(holder.id, made.id)))[0] == "CREDENTIAL_NOT_FOUND"
    events = await service.audit(holder.id)
    assert [(each.action, each.actor) for each in events] == [
        ("deleted", "key_1"),
        ("used", "somebody"),
        ("created", "key_1"),
    ]
    assert [each.action for each in await service.audit(holder.id, limit=1)] == ["deleted"]


async def test_a_vault_holds_twenty_and_each_key_once(service: Vault) -> None:
    holder = await service.create()
    names = [f"KEY_{number}" for number in range(24)]
    outcomes = await asyncio.gather(
        *(service.add(holder.id, variable(name)) for name in [*names, *names[:4]]), return_exceptions=True
    )
    refusals = sorted(each.reason for each in outcomes if isinstance(each, DomainError))
    made = [each for each in outcomes if isinstance(each, pb.Credential)]
    assert len(made) == 20 == len({each.key for each in made}) and set(refusals) <= {
        "VAULT_FULL",
        "CREDENTIAL_KEY_TAKEN",
    }
    with pytest.raises(AlreadyExists):
        await service.add(holder.id, variable(made[0].key))
    with pytest.raises(FailedPrecondition):
        await service.add(holder.id, variable("ANOTHER"))
    await service.vaults.ArchiveCredential(ids(pb.ArchiveCredentialRequest, made[0]), context=PERSON)
    await service.add(holder.id, variable("ANOTHER"))


async def test_an_update_changes_what_may_change(service: Vault) -> None:
    holder = await service.create()
    made = await service.add(holder.id, variable("KEY", "first-secret-00000001", "a.example.com"))
    location = {"type": "environment_variable", "injection_location": {"body": False}}
    changed = await service.update(made, {"display_name": None, "auth": location})
    assert (changed.in_header, changed.in_body, changed.HasField("display_name")) == (True, False, False)
    assert (changed.secret_version, list(changed.networking.allowed_hosts)) == (1, ["a.example.com"])
    policy = {"type": "environment_variable", "networking": {"type": "unrestricted"}, "secret_value": "second"}
    changed = await service.update(made, {"auth": policy, "metadata": {"a": "b"}})
    assert (changed.secret_version, changed.networking.type, changed.in_body) == (2, "unrestricted", False)
    found = await service.resolve(holder.id, target="INJECTION_TARGET_KIND_PROCESS")
    assert [(each.name, each.value, each.secret_version) for each in found.injections] == [("KEY", "second", 2)]
    off = {"type": "environment_variable", "injection_location": {"header": False}}
    assert await reason_of(service.update(made, {"auth": off})) == ("INVALID_REQUEST", "auth.injection_location")
    for body, field in (
        ({"auth": {"type": "static_bearer"}}, "auth.type"),
        ({"auth": {"type": "environment_variable", "secret_name": "OTHER"}}, "auth.secret_name"),
        ({"variable_name": "OTHER"}, "variable_name"),
    ):
        assert await reason_of(service.update(made, body)) == ("IMMUTABLE_FIELD", field)
    noted = [(each.action, json.loads(each.metadata_json)) for each in await service.audit(holder.id)]
    assert noted == [
        ("rotated", {"changed": "metadata, networking"}),
        ("updated", {"changed": "display_name, injection_location"}),
        ("created", {}),
    ]


async def test_an_update_is_audited_with_what_it_changed_and_nothing_of_what_it_holds(service: Vault) -> None:
    holder = await service.create()
    made = await service.add(holder.id, variable("KEY", "first-secret-00000001", "a.example.com"))
    away = {"type": "environment_variable", "networking": {"type": "limited", "allowed_hosts": ["b.example.com"]}}
    for body, expected in (
        ({"auth": away}, {"changed": "networking"}),
        ({"auth": away}, {}),
        ({"metadata": {"note": "canary-of-metadata"}}, {"changed": "metadata"}),
        ({"auth": {"type": "environment_variable", "secret_value": "canary-of-a-value"}}, {}),
    ):
        await service.update(made, body)
        newest = (await service.audit(holder.id))[0]
        assert (newest.credential_id, json.loads(newest.metadata_json)) == (made.id, expected)
    access = await service.add(
        holder.id,
        {
            "display_name": "Access",
            "auth": {
                "type": "mcp_oauth",
                "access_token": "a-token-00000001",
                "mcp_server_url": "https://a.example/mcp",
            },
        },
    )
    await service.update(access, {"auth": {"type": "mcp_oauth", "expires_at": "2099-01-01T00:00:00Z"}})
    assert json.loads((await service.audit(holder.id))[0].metadata_json) == {"changed": "expires_at"}


async def test_a_repeated_write_is_answered_as_the_first(service: Vault, dsn: str) -> None:
    holder = await service.create()
    repeat = Idempotency(key="key:abc", fingerprint=b"\1" * 32, keep_seconds=600)
    first = await service.add(holder.id, bearer(), repeat=repeat)
    assert await service.add(holder.id, bearer(), repeat=repeat) == first
    other = Idempotency(key="key:abc", fingerprint=b"\2" * 32, keep_seconds=600)
    assert (await reason_of(service.add(holder.id, bearer(), repeat=other)))[0] == "IDEMPOTENCY_KEY_REUSED"
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        rows = await (await connection.execute("SELECT key, fingerprint FROM idempotency")).fetchall()
    assert len(rows) == 1 and "abc" not in rows[0][0] and bytes(rows[0][1]) != b"\1" * 32


async def test_vaults_of_a_session_are_checked(service: Vault) -> None:
    live, gone = await service.create(), await service.create()
    await service.vaults.ArchiveVault(pb.ArchiveVaultRequest(vault_id=gone.id), context=PERSON)

    async def check(*vault_ids: str, context: Any = PERSON) -> None:
        await service.vaults.CheckVaults(pb.CheckVaultsRequest(vault_ids=vault_ids), context=context)

    await check()
    await check(live.id, live.id)
    assert await reason_of(check(live.id, gone.id)) == ("VAULT_ARCHIVED", "vault_ids[1]")
    for unknown in ("vlt_nothing", "", "x\0y"):
        assert await reason_of(check(unknown)) == ("VAULT_NOT_FOUND", "vault_ids[0]")
    with pytest.raises(InvalidArgument):
        await check(live.id, context=STRANGER)


async def test_events_and_hints_leave(dsn: str, tmp_path: Path, nats_url: str, nats: Any) -> None:
    heard: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()

    async def hear(message: Any) -> None:
        await heard.put((message.subject, json.loads(message.data)))

    context = PERSON.for_workspace(f"wrkspc_{tmp_path.name}")
    await nats.subscribe(f"vault.*.{context.workspace_id}", hear)
    await nats.flush()
    async with vault(dsn, tmp_path, nats_url=nats_url) as service:
        holder = await service.create(context=context)
        made = await service.add(holder.id, bearer(), context=context)
        await service.vaults.RotateCredential(
            pb.RotateCredentialRequest(vault_id=holder.id, credential_id=made.id, rotation_json=b'{"value":"v"}'),
            context=context,
        )
        await service.vaults.ArchiveVault(pb.ArchiveVaultRequest(vault_id=holder.id), context=context)
        found = [await within(heard.get(), 30) for _ in range(6)]
    hints = [body for subject, body in found if subject.startswith("vault.rotated.")]
    events = [body["data"] for subject, body in found if subject.startswith("vault.events.")]
    assert hints == [
        {"vault_id": holder.id, "credential_id": made.id},
        {"vault_id": holder.id, "credential_id": ""},
    ]
    workspace = {"workspace_id": context.workspace_id}
    assert events == [
        {"type": "vault.created", "id": holder.id, **workspace},
        {"type": "vault_credential.created", "id": made.id, "vault_id": holder.id, **workspace},
        {"type": "vault_credential.archived", "id": made.id, "vault_id": holder.id, **workspace},
        {"type": "vault.archived", "id": holder.id, **workspace},
    ]


async def test_a_rotation_tells_what_did_not_come_back_and_stays(
    dsn: str, tmp_path: Path, nats_url: str, nats: Any
) -> None:
    context = PERSON.for_workspace(f"wrkspc_{tmp_path.name}")

    async def play(message: Any) -> None:
        """A runner with two sessions, one of which has lost its server."""
        if message.reply:
            await message.respond(encoded({"runner_id": "runner_1", "sessions": 2}))
            failed = [{"session_id": "sess_1", "server": "github", "error": "it answered 401."}]
            await message.respond(encoded({"runner_id": "runner_1", "failed": failed}))

    async def idle(message: Any) -> None:
        await message.respond(encoded({"runner_id": "runner_2", "sessions": 0}))

    async with vault(dsn, tmp_path, nats_url=nats_url) as service:
        made = await service.add((await service.create(context=context)).id, bearer(), context=context)

        async def rotate(value: str) -> pb.Credential:
            request = ids(pb.RotateCredentialRequest, made)
            request.rotation_json = encoded({"value": value})
            return (await service.vaults.RotateCredential(request, context=context)).credential

        assert not (await rotate("nobody-listens")).warnings
        for runner in (play, idle):
            await nats.subscribe(f"vault.rotated.{context.workspace_id}", runner)
        await nats.flush()
        rotated = await rotate("the-new-one")
    assert list(rotated.warnings) == ["Session sess_1 did not come back to its MCP server github: it answered 401."]
    assert rotated.secret_version == 3


async def test_runners_may_not_be_impersonated(service: Vault) -> None:
    with pytest.raises(DomainError) as refusal:
        await service.resolve("vlt_1", context=PERSON, target="INJECTION_TARGET_KIND_PROCESS")
    assert refusal.value.code == "PERMISSION_DENIED" and RUNNER.principal_id.startswith("runner_")

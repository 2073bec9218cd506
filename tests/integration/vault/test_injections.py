"""What leaves the vault: only for runners, only what a policy allows for the target; only that counts as used."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from kit.errors import Internal, InvalidArgument, PermissionDenied
from managed_agents.vault.v1 import injections_pb2 as injections
from managed_agents.vault.v1 import vaults_pb2 as pb
from services.vault.app import MIGRATIONS, SCHEMA
from tests.integration.vault.driver import PERSON, RUNNER, Vault, bearer, ids, variable, vault

PROCESS = {"target": injections.INJECTION_TARGET_KIND_PROCESS}


def egress(host: str, port: int = 443) -> dict[str, Any]:
    return {"target": injections.INJECTION_TARGET_KIND_EGRESS, "host": host, "port": port}


def server(url: str) -> dict[str, Any]:
    return {"target": injections.INJECTION_TARGET_KIND_MCP_SERVER, "url": url}


@pytest.fixture
async def dsn(make_database) -> str:
    return await make_database(SCHEMA, MIGRATIONS)


@pytest.fixture
async def service(dsn: str, tmp_path: Path) -> AsyncIterator[Vault]:
    async with vault(dsn, tmp_path) as running:
        yield running


async def change(dsn: str, statement: LiteralString, *values: Any) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(statement, values)


def values(found: injections.ResolveInjectionsResponse) -> dict[str, str]:
    return {each.name or each.type: each.value for each in found.injections}


async def test_a_process_gets_what_is_unrestricted_and_nothing_else(service: Vault) -> None:
    held = await service.create()
    free = await service.add(held.id, variable("FREE", "free-value", unrestricted=True))
    limited = await service.add(held.id, variable("LIMITED", "limited-value", "api.example.com"))
    empty = await service.add(held.id, variable("EMPTY"))
    await service.add(held.id, bearer())

    found = await service.resolve(held.id, **PROCESS)

    assert values(found) == {"FREE": "free-value"}
    assert {each.credential_id for each in found.denied} == {limited.id, empty.id}
    assert (await service.get(free)).last_used_at and not (await service.get(limited)).last_used_at
    (denial,) = await service.audit(held.id, limited.id, limit=1)
    told = json.loads(denial.metadata_json)
    assert (denial.action, denial.actor, denial.session_id) == ("runtime_denied", RUNNER.principal_id, "sess_1")
    assert told["target"] == "process" and b"limited-value" not in denial.metadata_json


@pytest.mark.parametrize(
    ("entry", "host", "port", "allowed"),
    [
        ("api.example.com", "api.example.com", 443, True),
        ("API.Example.com", "api.example.com", 8443, True),
        ("api.example.com", "API.EXAMPLE.COM.", 443, True),
        ("api.example.com", "xapi.example.com", 443, False),
        ("api.example.com", "api.example.com.evil.net", 443, False),
        ("api.example.com", "", 443, False),
        ("*.example.com", "a.example.com", 443, True),
        ("*.example.com", "a.b.example.com", 443, True),
        ("*.example.com", "example.com", 443, False),
        ("*.example.com", "evilexample.com", 443, False),
        ("api.example.com:8443", "api.example.com", 8443, True),
        ("api.example.com:8443", "api.example.com", 443, False),
        ("*.example.com:8443", "a.example.com", 8443, True),
        ("*.example.com:8443", "a.example.com", 80, False),
        ("192.0.2.1", "192.0.2.1", 443, True),
        ("192.0.2.1", "192.0.2.10", 443, False),
    ],
)
async def test_a_request_gets_what_its_host_may(
    service: Vault, entry: str, host: str, port: int, allowed: bool
) -> None:
    held = await service.create()
    made = await service.add(held.id, variable("KEY", "the-value", entry))
    found = await service.resolve(held.id, **egress(host, port))
    assert values(found) == ({"KEY": "the-value"} if allowed else {})
    assert [each.credential_id for each in found.denied] == ([] if allowed else [made.id])
    assert bool((await service.get(made)).last_used_at) == allowed


@pytest.mark.parametrize(
    "policy",
    [
        None,
        "",
        "{",
        "[]",
        "null",
        '{"type":"unrestricted","allowed_hosts":["*"]}',
        '{"type":"Unrestricted"}',
        '{"type":"limited"}',
        '{"type":"limited","allowed_hosts":["*"]}',
        '{"type":"limited","allowed_hosts":"*"}',
        '{"type":"limited","allowed_hosts":[""]}',
        '{"type":"limited","allowed_hosts":["*."]}',
        '{"type":"limited","allowed_hosts":["https://api.example.com"]}',
        '{"type":"limited","allowed_hosts":[]}',
    ],
)
async def test_a_policy_that_cant_be_read_denies_everything_before_anything_is_opened(
    service: Vault, dsn: str, policy: str | None
) -> None:
    held = await service.create()
    made = await service.add(held.id, variable("KEY", "the-value", unrestricted=True))
    # A seal that opens for nobody: to touch it at all would be an error.
    await change(dsn, "UPDATE credentials SET networking = %s, sealed = 'damaged'", policy)
    for target in (PROCESS, egress("api.example.com"), egress("localhost", 80)):
        found = await service.resolve(held.id, **target)
        assert not found.injections and [each.credential_id for each in found.denied] == [made.id]
    listed = await service.injections.ListInjections(
        injections.ListInjectionsRequest(session_id="sess_1", vault_ids=[held.id]), context=RUNNER
    )
    assert not listed.injections or list(listed.injections[0].allowed_hosts) == []
    assert not (await service.get(made)).last_used_at


async def test_a_server_gets_the_token_of_exactly_its_url(service: Vault) -> None:
    held = await service.create()
    made = await service.add(held.id, bearer("https://mcp.example.com/a", "the-token"))
    found = await service.resolve(held.id, **server("https://mcp.example.com/a"))
    assert [(each.type, each.value, each.vault_id) for each in found.injections] == [
        ("static_bearer", "the-token", held.id)
    ]
    for other in ("https://mcp.example.com/a/", "https://mcp.example.com/A", "http://mcp.example.com/a", ""):
        found = await service.resolve(held.id, **server(other))
        assert not found.injections and not found.denied, "a token for elsewhere doesn't apply, and is not refused"
    assert [each.action for each in await service.audit(held.id, made.id)] == ["created"]


async def test_the_first_vault_of_the_session_counts_also_where_it_is_denied(service: Vault) -> None:
    first, second = await service.create("first"), await service.create("second")
    await service.add(second.id, variable("KEY", "of-the-second", unrestricted=True))
    await service.add(second.id, bearer(token="second-token"))
    await service.add(first.id, variable("KEY", "of-the-first", unrestricted=True))
    await service.add(first.id, bearer(token="first-token"))
    url = server("https://mcp.example.com/a")
    assert values(await service.resolve(first.id, second.id, **PROCESS)) == {"KEY": "of-the-first"}
    assert values(await service.resolve(second.id, first.id, **PROCESS)) == {"KEY": "of-the-second"}
    assert values(await service.resolve(first.id, second.id, **url)) == {"static_bearer": "first-token"}
    assert values(await service.resolve(second.id, first.id, first.id, **url)) == {"static_bearer": "second-token"}
    third = await service.create("third")
    limited = await service.add(third.id, variable("KEY", "of-the-third", "api.example.com"))
    found = await service.resolve(third.id, first.id, **PROCESS)
    assert not found.injections and [each.credential_id for each in found.denied] == [limited.id]


async def test_what_there_is_is_listed_without_secrets(service: Vault) -> None:
    held = await service.create()
    body = variable("KEY", "the-value", "api.example.com", "*.example.org:8443")
    body["auth"]["injection_location"] = {"header": True}
    await service.add(held.id, body)
    await service.add(held.id, bearer(token="the-token"))
    request = injections.ListInjectionsRequest(session_id="sess_1", vault_ids=[held.id, "vlt_unknown"])
    found = await service.injections.ListInjections(request, context=RUNNER)
    (only,) = found.injections
    assert (only.name, only.value, only.in_headers, only.in_body, only.unrestricted) == ("KEY", "", True, False, False)
    assert list(only.allowed_hosts) == ["api.example.com", "*.example.org:8443"]
    assert b"the-" not in found.SerializeToString()


async def test_only_runners_of_the_workspace_are_served(service: Vault) -> None:
    held = await service.create()
    made = await service.add(held.id, variable("KEY", unrestricted=True))
    listing = injections.ListInjectionsRequest(vault_ids=[held.id])
    for call in (
        service.resolve(held.id, context=PERSON, **PROCESS),
        service.injections.ListInjections(listing, context=PERSON),
        service.refresh(made, context=PERSON),
    ):
        with pytest.raises(PermissionDenied):
            await call
    assert not (await service.resolve(held.id, context=RUNNER.for_workspace("wrkspc_other"), **PROCESS)).injections
    with pytest.raises(InvalidArgument):
        await service.resolve(held.id)
    with pytest.raises(InvalidArgument):
        await service.resolve(*(f"vlt_{number}" for number in range(51)), **PROCESS)


async def test_a_denial_is_noted_once_a_minute_for_the_same_target(service: Vault) -> None:
    held = await service.create()
    await service.add(held.id, variable("KEY", "the-value", "api.example.com"))
    for host in ("a.example.net", "a.example.net", "b.example.net"):
        await service.resolve(held.id, **egress(host))
    denials = [each for each in await service.audit(held.id) if each.action == "runtime_denied"]
    assert [json.loads(each.metadata_json)["host"] for each in denials] == ["b.example.net", "a.example.net"]


@pytest.mark.parametrize(
    "swap",
    [
        "UPDATE credentials SET sealed = (SELECT sealed FROM credentials WHERE key = 'OTHER') WHERE key = 'KEY'",
        "UPDATE credentials SET key = 'ANOTHER' WHERE key = 'KEY'",
        "UPDATE credentials SET id = 'vcrd_another' WHERE key = 'KEY'",
        "UPDATE credentials SET sealed = substr(sealed, 1, length(sealed) - 1) WHERE key = 'KEY'",
    ],
)
async def test_a_ciphertext_that_was_moved_or_changed_does_not_open(
    service: Vault, dsn: str, swap: LiteralString
) -> None:
    held = await service.create()
    await service.add(held.id, variable("KEY", "the-value", "api.example.com"))
    await service.add(held.id, variable("OTHER", "the-other", "elsewhere.example.com"))
    await change(dsn, swap)
    with pytest.raises(Internal) as refusal:
        await service.resolve(held.id, **egress("api.example.com"))
    assert refusal.value.reason == "SEAL_BROKEN" and "the-" not in refusal.value.message


async def test_a_token_that_moves_with_its_url_stays_shut(service: Vault, dsn: str) -> None:
    held = await service.create()
    await service.add(held.id, bearer(token="the-token"))
    await change(dsn, "UPDATE credentials SET key = 'https://evil.example.net/'")
    with pytest.raises(Internal):
        await service.resolve(held.id, **server("https://evil.example.net/"))


async def test_a_rotated_secret_is_what_is_handed_out(service: Vault) -> None:
    held = await service.create()
    made = await service.add(held.id, bearer(token="the-first"))
    await service.rotate(made, "the-second")
    (found,) = (await service.resolve(held.id, **server("https://mcp.example.com/a"))).injections
    assert (found.value, found.secret_version) == ("the-second", 2)
    # Somebody who still has the first one is told the second, without any renewal.
    assert (await service.refresh(made, version=1)).value == "the-second"
    await service.vaults.ArchiveCredential(ids(pb.ArchiveCredentialRequest, made), context=PERSON)
    assert not (await service.resolve(held.id, **server("https://mcp.example.com/a"))).injections

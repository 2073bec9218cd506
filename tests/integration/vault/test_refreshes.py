"""Renewing OAuth tokens against a real authorization server: once at a time, stored, and told where it fails."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kit.errors import DomainError, FailedPrecondition, InvalidArgument
from kit.rpc.client import channel
from kit.testing import await_until
from managed_agents.vault.v1 import injections_pb2 as injections
from managed_agents.vault.v1 import vaults_pb2 as pb
from managed_agents.vault.v1.injections_pb2_grpc import InjectionServiceStub
from services.vault.app import MIGRATIONS, SCHEMA
from tests.integration.vault.driver import PERSON, SECRET, Vault, ids, vault, vault_process
from tests.support.oauth import AuthorizationServer, authorization_server

SECRETS = ("access-token-number", "refresh-token-number", "the-client-secret")


@pytest.fixture
async def dsn(make_database) -> str:
    return await make_database(SCHEMA, MIGRATIONS)


@pytest.fixture
async def server() -> AsyncIterator[AuthorizationServer]:
    async with authorization_server() as running:
        yield running


@pytest.fixture
async def service(dsn: str, tmp_path: Path, server: AuthorizationServer) -> AsyncIterator[Vault]:
    async with vault(dsn, tmp_path, allowed_private_hosts=server.host) as running:
        yield running


def oauth(
    server: AuthorizationServer, auth: str = "none", *, ends_in: float | None = None, refresh: bool = True, **more: Any
) -> dict[str, Any]:
    block: dict[str, Any] = {
        "type": "mcp_oauth",
        "mcp_server_url": server.mcp_url,
        "access_token": server.access_token,
    }
    if ends_in is not None:
        block["expires_at"] = (datetime.now(UTC) + timedelta(seconds=ends_in)).isoformat()
    if refresh:
        given = {"type": auth} if auth == "none" else {"type": auth, "client_secret": "the-client-secret"}
        block["refresh"] = {
            "client_id": "a client",
            "refresh_token": server.refresh_token,
            "token_endpoint": server.token_endpoint,
            "token_endpoint_auth": given,
            **more,
        }
    return {"auth": block}


async def added(service: Vault, body: dict[str, Any]) -> pb.Credential:
    return await service.add((await service.create()).id, body)


async def resolved(service: Vault, made: pb.Credential) -> injections.Injection:
    target = injections.INJECTION_TARGET_KIND_MCP_SERVER
    (found,) = (await service.resolve(made.vault_id, target=target, url=made.key)).injections
    return found


@pytest.mark.parametrize("auth", ["none", "client_secret_basic", "client_secret_post"])
async def test_a_token_is_renewed_before_its_end_and_what_comes_is_stored(
    service: Vault, server: AuthorizationServer, auth: str
) -> None:
    made = await added(service, oauth(server, auth, ends_in=30, scope="read write", resource="urn:it"))
    first = await resolved(service, made)
    assert (first.value, first.secret_version) == ("access-token-number-1", 2)
    assert (await resolved(service, made)).value == first.value, "the new one is not near its end"

    (renewal,) = server.renewals
    form, header = renewal["form"], renewal["authorization"]
    assert (form["grant_type"], form["refresh_token"]) == ("refresh_token", "refresh-token-number-0")
    assert (form["scope"], form["resource"]) == ("read write", "urn:it")
    if auth == "client_secret_basic":
        assert b64decode(header.removeprefix("Basic ")) == b"a+client:the-client-secret" and "client_id" not in form
    else:
        assert (form["client_id"], header) == ("a client", "")
        assert form.get("client_secret") == ("the-client-secret" if auth == "client_secret_post" else None)

    shown = await service.get(made)
    assert shown.expires_at > datetime.now(UTC).isoformat() and shown.secret_version == 2
    assert not shown.rotated_at and shown.last_used_at
    # The refresh token that came along is the one that is spent next.
    again = await service.refresh(made, version=2)
    assert again.value == "access-token-number-2"
    assert server.renewals[1]["form"]["refresh_token"] == "refresh-token-number-1"
    assert [each.action for each in await service.audit(made.vault_id)] == ["refreshed", "refreshed", "created"]


async def test_a_refresh_token_that_stays_is_kept(service: Vault, server: AuthorizationServer) -> None:
    server.rotates, server.expires_in = False, None
    made = await added(service, oauth(server, ends_in=30))
    assert (await resolved(service, made)).value == "access-token-number-1"
    assert not (await service.get(made)).expires_at
    await service.refresh(made, version=2)
    assert [each["form"]["refresh_token"] for each in server.renewals] == ["refresh-token-number-0"] * 2


async def test_many_who_are_refused_at_once_cause_one_renewal(
    dsn: str, tmp_path: Path, server: AuthorizationServer
) -> None:
    server.hold = asyncio.Event()
    settings = {"allowed_private_hosts": server.host}
    async with vault(dsn, tmp_path, **settings) as one, vault(dsn, tmp_path, name="b", **settings) as other:
        made = await added(one, oauth(server))
        calls = [asyncio.create_task(replica.refresh(made)) for _ in range(10) for replica in (one, other)]
        await await_until(lambda: server.renewals)
        server.hold.set()
        found = await asyncio.gather(*calls)
    assert {(each.value, each.secret_version) for each in found} == {("access-token-number-1", 2)}
    assert len(server.renewals) == 1


async def test_one_who_is_late_is_told_what_is_stored(service: Vault, server: AuthorizationServer) -> None:
    made = await added(service, oauth(server))
    assert (await service.refresh(made)).secret_version == 2
    assert (await service.refresh(made)).secret_version == 2
    assert len(server.renewals) == 1


REFUSALS = {
    "a refusal": (
        (400, '{"error": "invalid_grant", "error_description": "refresh-token-number-0 is spent"}'),
        "failed",
    ),
    "a fault": ((503, "refresh-token-number-0"), "failed"),
    "no token": ((200, '{"token_type": "bearer"}'), "failed"),
    "no JSON": ((200, "access_token=access-token-number-1"), "failed"),
    "another kind": ((200, '{"access_token": "a", "token_type": "mac"}'), "failed"),
    "a token that is no header": ((200, '{"access_token": "a\\nb"}'), "failed"),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_a_failure_is_audited_told_once_and_answers_for_a_while(
    dsn: str, tmp_path: Path, nats_url: str, nats: Any, server: AuthorizationServer, name: str, capfd: Any
) -> None:
    server.refuse, status = REFUSALS[name]
    heard: list[dict[str, Any]] = []

    async def hear(message: Any) -> None:
        heard.append(json.loads(message.data)["data"])

    await nats.subscribe("vault.events.>", hear)
    await nats.flush()
    async with vault(dsn, tmp_path, nats_url=nats_url, allowed_private_hosts=server.host) as service:
        made = await added(service, oauth(server, "client_secret_post", ends_in=30))
        assert (await resolved(service, made)).value == "access-token-number-0", "what there is serves to its end"
        for _ in range(3):
            with pytest.raises(FailedPrecondition) as refusal:
                await service.refresh(made)
            assert refusal.value.reason == "CREDENTIAL_REFRESH_FAILED"
            assert not any(secret in refusal.value.message for secret in SECRETS)
        assert len(server.renewals) == 1, "a failure is repeated for some seconds without asking again"
        events = [each for each in await service.audit(made.vault_id) if each.action == "refresh_failed"]
        assert [json.loads(each.metadata_json)["status"] for each in events] == [status]
        assert not any(secret.encode() in events[0].metadata_json for secret in SECRETS)

        # Once the rest is over another attempt is made, and its success is one.
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            await connection.execute(
                "UPDATE credentials SET refresh_failed_at = refresh_failed_at - interval '1 minute'"
            )
        with pytest.raises(FailedPrecondition):
            await service.refresh(made)
        server.refuse = None
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            await connection.execute(
                "UPDATE credentials SET refresh_failed_at = refresh_failed_at - interval '1 minute'"
            )
        assert (await service.refresh(made)).value.startswith("access-token-number-")

        def told() -> list[dict[str, Any]]:
            # Of this credential: other tests are on the same bus.
            mine = [each for each in heard if each["id"] == made.id]
            return [each for each in mine if each["type"] == "vault_credential.refresh_failed"]

        await await_until(told)
    assert told() == [
        {
            "type": "vault_credential.refresh_failed",
            "id": made.id,
            "vault_id": made.vault_id,
            "workspace_id": "wrkspc_default",
        }
    ]
    written = capfd.readouterr()
    assert not any(secret in written.out + written.err for secret in SECRETS)


async def test_a_server_that_can_t_be_reached_is_a_failure(service: Vault, server: AuthorizationServer) -> None:
    body = oauth(server)
    body["auth"]["refresh"]["token_endpoint"] = "http://127.0.0.1:1/token"
    made = await added(service, body)
    with pytest.raises(FailedPrecondition) as refusal:
        await service.refresh(made)
    assert refusal.value.metadata["status"] == "connect_error"


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:{port}", "http://localhost:{port}", "http://[::1]:{port}", "http://0x7f000001:{port}"]
)
async def test_a_token_endpoint_inside_the_network_is_never_asked(
    dsn: str, tmp_path: Path, server: AuthorizationServer, address: str
) -> None:
    body = oauth(server)
    body["auth"]["refresh"]["token_endpoint"] = address.format(port=server.host.rpartition(":")[2]) + "/token"
    async with vault(dsn, tmp_path) as service:
        made = await added(service, body)
        with pytest.raises(FailedPrecondition):
            await service.refresh(made)
    assert server.renewals == []


async def test_a_redirect_is_not_followed(service: Vault, server: AuthorizationServer) -> None:
    async with authorization_server() as other:
        server.redirect = other.token_endpoint
        made = await added(service, oauth(server))
        with pytest.raises(FailedPrecondition):
            await service.refresh(made)
        assert other.renewals == [] and len(server.renewals) == 1


async def test_the_authorization_server_is_the_one_of_the_first_consent(
    service: Vault, server: AuthorizationServer
) -> None:
    made = await added(service, oauth(server, "client_secret_post"))
    elsewhere = "https://elsewhere.example.com/token"

    async def change(refresh: dict[str, Any], **more: Any) -> pb.Credential:
        return await service.update(made, {"auth": {"type": "mcp_oauth", "refresh": refresh, **more}})

    for refresh, more in (
        ({"token_endpoint": elsewhere}, {}),
        ({"token_endpoint": elsewhere, "refresh_token": "new"}, {}),
        ({"token_endpoint": elsewhere}, {"access_token": "new"}),
        ({"token_endpoint": elsewhere, "refresh_token": "new"}, {"access_token": "new"}),
    ):
        with pytest.raises(InvalidArgument) as refusal:
            await change(refresh, **more)
        assert refusal.value.reason == "AUTHORIZATION_SERVER_FIXED"
    assert (await change({"token_endpoint": server.token_endpoint})).refresh.token_endpoint == server.token_endpoint
    for name, value in (("client_id", "other"), ("resource", "urn:other")):
        with pytest.raises(InvalidArgument) as refusal:
            await change({name: value})
        assert refusal.value.reason == "IMMUTABLE_FIELD"
    secret = {"type": "client_secret_post", "client_secret": "new"}
    moved = {"token_endpoint": elsewhere, "refresh_token": "new", "token_endpoint_auth": secret}
    assert (await change(moved, access_token="new")).refresh.token_endpoint == elsewhere


async def test_new_tokens_of_a_client_outlive_a_renewal_of_the_former(
    service: Vault, server: AuthorizationServer
) -> None:
    server.hold = asyncio.Event()
    made = await added(service, oauth(server))
    waiting = asyncio.create_task(service.refresh(made))
    await await_until(lambda: server.renewals)
    refresh = {"refresh_token": "brought"}
    await service.update(made, {"auth": {"type": "mcp_oauth", "access_token": "brought-too", "refresh": refresh}})
    server.hold.set()
    assert (await waiting).value == "brought-too"
    assert (await resolved(service, made)).value == "brought-too"


async def test_a_rotation_of_the_client_secret_alone_loses_no_renewal(
    service: Vault, server: AuthorizationServer
) -> None:
    server.hold = asyncio.Event()
    made = await added(service, oauth(server, "client_secret_post"))
    waiting = asyncio.create_task(service.refresh(made))
    await await_until(lambda: server.renewals)
    auth = {"type": "client_secret_basic", "client_secret": "newer"}
    await service.update(made, {"auth": {"type": "mcp_oauth", "refresh": {"token_endpoint_auth": auth}}})
    server.hold.set()
    await waiting
    server.hold = None
    version = (await service.get(made)).secret_version
    assert (await service.refresh(made, version=version)).value == "access-token-number-2"
    form = server.renewals[1]["form"]
    assert (form["refresh_token"], form["client_secret"]) == ("refresh-token-number-1", "newer")


async def test_what_can_t_be_renewed_says_so(service: Vault, server: AuthorizationServer) -> None:
    made = await added(service, oauth(server, refresh=False, ends_in=30))
    assert (await resolved(service, made)).value == "access-token-number-0"
    with pytest.raises(FailedPrecondition):
        await service.refresh(made)
    assert server.renewals == []


async def test_where_renewing_is_off_a_credential_warns_and_nobody_is_asked(
    dsn: str, tmp_path: Path, server: AuthorizationServer
) -> None:
    async with vault(dsn, tmp_path, allowed_private_hosts=server.host, oauth_refresh="off") as service:
        made = await added(service, oauth(server, ends_in=30))
        assert len(made.warnings) == 1 and "MANAGED_AGENTS_OAUTH_REFRESH" in made.warnings[0]
        assert (await resolved(service, made)).value == "access-token-number-0"
        with pytest.raises(FailedPrecondition):
            await service.refresh(made)
        assert (await validate(service, made)).refresh_status == ""
    assert server.renewals == []
    async with vault(dsn, tmp_path, allowed_private_hosts=server.host) as service:
        assert not (await service.get(made)).warnings


async def validate(service: Vault, made: pb.Credential) -> pb.ValidateCredentialResponse:
    return await service.vaults.ValidateCredential(ids(pb.ValidateCredentialRequest, made), context=PERSON)


@pytest.mark.parametrize("as_events", [False, True])
async def test_a_token_that_works_is_valid(service: Vault, server: AuthorizationServer, as_events: bool) -> None:
    server.as_events = as_events
    made = await added(service, oauth(server))
    found = await validate(service, made)
    assert (found.status, found.has_refresh_token, found.failed_method, found.refresh_status) == ("valid", True, "", "")
    assert [method for method, _ in server.mcp_calls] == ["initialize", "notifications/initialized", "tools/list"]


async def test_a_token_that_is_refused_is_renewed_and_tried_again(service: Vault, server: AuthorizationServer) -> None:
    body = oauth(server)
    body["auth"]["access_token"] = "an-old-token-of-before"
    made = await added(service, body)
    found = await validate(service, made)
    assert (found.status, found.refresh_status, found.failed_method) == ("valid", "succeeded", "")
    assert (await resolved(service, made)).value == "access-token-number-1"


async def test_what_servers_say_is_told_without_secrets(service: Vault, server: AuthorizationServer) -> None:
    body = oauth(server, "client_secret_post")
    body["auth"]["access_token"] = "an-old-token-of-before"
    made = await added(service, body)
    server.refuse = (400, json.dumps({"error": "invalid_grant", "sent": "refresh-token-number-0", "x": "y" * 5000}))
    found = await validate(service, made)
    assert (found.status, found.refresh_status, found.failed_method) == ("invalid", "failed", "initialize")
    assert (found.mcp_answer.status_code, found.mcp_answer.content_type) == (401, "text/plain; charset=utf-8")
    assert found.mcp_answer.body == "unknown token ********" and not found.mcp_answer.body_truncated
    assert (found.refresh_answer.status_code, found.refresh_answer.body_truncated) == (400, True)
    assert "invalid_grant" in found.refresh_answer.body and "number-0" not in found.refresh_answer.body


async def test_what_nobody_can_tell_is_unknown(service: Vault, server: AuthorizationServer) -> None:
    made = await added(service, oauth(server))
    server.mcp_status, server.mcp_body = 503, "down"
    found = await validate(service, made)
    assert (found.status, found.mcp_answer.status_code, found.mcp_answer.body) == ("unknown", 503, "down")
    server.mcp_status = 403
    assert (await validate(service, made)).status == "invalid"
    lost = oauth(server)
    lost["auth"]["mcp_server_url"] = "http://127.0.0.1:1/mcp"
    found = await validate(service, await added(service, lost))
    assert (found.status, found.failed_method, found.HasField("mcp_answer")) == ("unknown", "initialize", False)
    with pytest.raises(DomainError) as refusal:
        await validate(
            service,
            await added(
                service, {"auth": {"type": "static_bearer", "token": "t", "mcp_server_url": "https://a.example"}}
            ),
        )
    assert refusal.value.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize("point", ["leased", "answered"])
async def test_a_killed_renewal_holds_nobody_up_for_long(
    dsn: str, tmp_path: Path, server: AuthorizationServer, point: str
) -> None:
    server.rotates = False
    settings = {"secret_key": SECRET, "allowed_private_hosts": server.host}
    async with vault(dsn, tmp_path, **settings) as service:
        made = await added(service, oauth(server))
        async with vault_process(dsn, tmp_path, failpoints=f"vault.refresh.{point}=kill", **settings) as process:
            other = channel(f"unix:{tmp_path}/process.sock")
            doomed = Vault(None, other.stub(InjectionServiceStub), None)
            await await_until(lambda: (tmp_path / "process.sock").exists(), timeout=30)
            with pytest.raises(DomainError):
                await doomed.refresh(made)
            await await_until(lambda: process.poll() is not None, timeout=20)
            await other.close()
        waiting = asyncio.create_task(service.refresh(made))
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            held = await connection.execute(
                "SELECT refresh_until > now(), refresh_until < now() + '13 s' FROM credentials"
            )
            assert await held.fetchone() == (True, True), "the lease of the dead one ends by itself"
            assert not waiting.done()
            await connection.execute("UPDATE credentials SET refresh_until = now() - interval '1 s'")
        assert (await waiting).value == f"access-token-number-{1 if point == 'leased' else 2}"
    assert len(server.renewals) == (1 if point == "leased" else 2)


async def test_a_renewal_is_stored_though_nobody_waits_for_it_any_more(
    dsn: str, tmp_path: Path, server: AuthorizationServer
) -> None:
    server.hold = asyncio.Event()
    async with vault(dsn, tmp_path, allowed_private_hosts=server.host) as service:
        made = await added(service, oauth(server))
        asking = asyncio.create_task(service.refresh(made))
        await await_until(lambda: server.renewals)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        server.hold.set()

        async def stored() -> bool:
            return (await service.get(made)).secret_version == 2

        await await_until(stored)
        assert (await resolved(service, made)).value == "access-token-number-1"


async def test_a_server_inside_the_network_is_never_tried(
    dsn: str, tmp_path: Path, server: AuthorizationServer
) -> None:
    async with vault(dsn, tmp_path) as service:
        found = await validate(service, await added(service, oauth(server)))
    assert (found.status, found.failed_method, found.HasField("mcp_answer")) == ("unknown", "initialize", False)
    assert server.mcp_calls == []


async def test_a_name_is_resolved_once_and_only_what_was_checked_is_connected_to(
    dsn: str, tmp_path: Path, server: AuthorizationServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    resolve = asyncio.BaseEventLoop.getaddrinfo

    async def rebinding(loop: Any, host: Any, port: Any, **more: Any) -> Any:
        if host != "rebinding.test":
            return await resolve(loop, host, port, **more)
        asked.append(host)
        # Public or allowed at the first look, and somewhere else at any other.
        return [(2, 1, 6, "", ("127.0.0.1" if len(asked) == 1 else "169.254.169.254", port))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", rebinding)
    port = server.host.rpartition(":")[2]
    body = oauth(server)
    body["auth"]["refresh"]["token_endpoint"] = f"http://rebinding.test:{port}/token"
    async with vault(dsn, tmp_path, allowed_private_hosts="rebinding.test") as service:
        made = await added(service, body)
        assert (await service.refresh(made)).value == "access-token-number-1"
        assert asked == ["rebinding.test"]
        with pytest.raises(FailedPrecondition):
            await service.refresh(made, version=2)
    assert len(server.renewals) == 1

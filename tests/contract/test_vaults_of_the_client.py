"""Every method that the published client has for vaults, with every parameter, under strict validation.

A method or a parameter that a new version of the client brings fails here until it has a case.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import anthropic
import pytest

from tests.contract.client_flow import WORKSPACE, Watched, methods_of
from tests.support.oauth import AuthorizationServer, authorization_server
from tests.support.platform import Platform, running_platform

METHODS = methods_of(anthropic.AsyncAnthropic(api_key="none").beta.vaults)
CASES: dict[str, Callable[[Flow], Awaitable[None]]] = {}
pytestmark = [pytest.mark.timeout(120)]


class Flow:
    """The client's vaults, watched, and a server behind them."""

    def __init__(self, client: anthropic.AsyncAnthropic, server: AuthorizationServer) -> None:
        self.seen: dict[str, set[str]] = {}
        self.vaults = Watched(client.beta.vaults, "", self.seen)
        self.server = server

    async def vault(self) -> Any:
        """A new one."""
        return await self.vaults.create(display_name="of the client")

    async def bearer(self, vault_id: str, number: int = 0) -> Any:
        """A new credential in it."""
        auth = {"type": "static_bearer", "mcp_server_url": f"https://{number}.example.com/mcp", "token": "a-token"}
        return await self.vaults.credentials.create(vault_id, auth=auth)

    def oauth(self, kind: str = "none", **more: Any) -> dict[str, Any]:
        """The block of an OAuth credential of the server."""
        secret = {} if kind == "none" else {"client_secret": "a-client-secret"}
        return {
            "type": "mcp_oauth",
            "mcp_server_url": self.server.mcp_url,
            "access_token": self.server.access_token,
            "expires_at": datetime.now(UTC) + timedelta(hours=1),
            "refresh": {
                "client_id": "a client",
                "refresh_token": self.server.refresh_token,
                "token_endpoint": self.server.token_endpoint,
                "token_endpoint_auth": {"type": kind, **secret},
                "resource": "urn:it",
                "scope": "read",
            },
            **more,
        }


def case(name: str) -> Callable[[Callable[[Flow], Awaitable[None]]], Callable[[Flow], Awaitable[None]]]:
    """Enters the case of a method."""

    def enter(function: Callable[[Flow], Awaitable[None]]) -> Callable[[Flow], Awaitable[None]]:
        CASES[name] = function
        return function

    return enter


@pytest.fixture(scope="module")
def vault_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform that may reach servers of this machine."""
    folder = tmp_path_factory.mktemp("vaults") / "data"
    with running_platform(folder, environment={"MANAGED_AGENTS_ALLOWED_PRIVATE_HOSTS": "127.0.0.1"}) as running:
        yield running


@pytest.fixture
async def flow(vault_platform: Platform) -> AsyncIterator[Flow]:
    """The client, unchanged but for its address."""
    client = anthropic.AsyncAnthropic(
        api_key="any", base_url=vault_platform.url, max_retries=0, timeout=60, _strict_response_validation=True
    )
    async with authorization_server() as server, client:
        yield Flow(client, server)


@pytest.mark.parametrize("method", METHODS)
async def test_a_method_of_the_client_passes_with_every_parameter(flow: Flow, method: str) -> None:
    assert method in CASES, f"no case for vaults.{method}"
    await CASES[method](flow)
    assert METHODS[method] - flow.seen.get(method, set()) == set()


@case("create")
async def create(flow: Flow) -> None:
    made = await flow.vaults.create(display_name="secrets", metadata={"team": "a"}, workspace_id=WORKSPACE)
    assert (made.type, made.display_name, made.metadata, made.archived_at) == ("vault", "secrets", {"team": "a"}, None)


@case("retrieve")
async def retrieve(flow: Flow) -> None:
    made = await flow.vault()
    assert await flow.vaults.retrieve(made.id, workspace_id=WORKSPACE) == made
    with pytest.raises(anthropic.NotFoundError) as refusal:
        await flow.vaults.retrieve("vlt_nothing")
    assert refusal.value.body["error"]["type"] == "not_found_error"


@case("update")
async def update(flow: Flow) -> None:
    made = await flow.vaults.create(display_name="secrets", metadata={"team": "a", "tier": "b"})
    changed = await flow.vaults.update(
        made.id, display_name="renamed", metadata={"tier": None, "new": "c"}, workspace_id=WORKSPACE
    )
    assert (changed.display_name, changed.metadata) == ("renamed", {"team": "a", "new": "c"})


@case("list")
async def list_vaults(flow: Flow) -> None:
    made = [await flow.vault() for _ in range(3)]
    await flow.vaults.archive(made[1].id)
    first = await flow.vaults.list(limit=2, include_archived=True, workspace_id=WORKSPACE)
    assert [vault.id for vault in first.data] == [made[2].id, made[1].id] and first.data[1].archived_at
    second = await flow.vaults.list(limit=2, include_archived=True, page=first.next_page)
    assert second.data[0].id == made[0].id
    live = [vault.id async for vault in flow.vaults.list(limit=2)]
    assert live[:2] == [made[2].id, made[0].id] and made[1].id not in live


@case("archive")
async def archive(flow: Flow) -> None:
    made = await flow.vault()
    assert (await flow.vaults.archive(made.id, workspace_id=WORKSPACE)).archived_at


@case("delete")
async def delete(flow: Flow) -> None:
    made = await flow.vault()
    gone = await flow.vaults.delete(made.id, workspace_id=WORKSPACE)
    assert (gone.id, gone.type) == (made.id, "vault_deleted")


@case("credentials.create")
async def create_credential(flow: Flow) -> None:
    vault = await flow.vault()
    networking = {"type": "limited", "allowed_hosts": ["api.example.com", "*.example.org", "192.0.2.1"]}
    made = await flow.vaults.credentials.create(
        vault.id,
        auth={
            "type": "environment_variable",
            "secret_name": "KEY",
            "secret_value": "a secret value",
            "networking": networking,
            "injection_location": {"header": True},
        },
        display_name="a key",
        metadata={"a": "b"},
        workspace_id=WORKSPACE,
    )
    assert (made.type, made.vault_id, made.display_name, made.metadata) == (
        "vault_credential",
        vault.id,
        "a key",
        {"a": "b"},
    )
    assert (made.auth.type, made.auth.secret_name) == ("environment_variable", "KEY")
    assert made.auth.networking.model_dump() == networking
    assert (made.auth.injection_location.header, made.auth.injection_location.body) == (True, False)
    for kind in ("none", "client_secret_basic", "client_secret_post"):
        oauth = await flow.vaults.credentials.create((await flow.vault()).id, auth=flow.oauth(kind))
        assert (oauth.auth.type, oauth.auth.refresh.token_endpoint_auth.type) == ("mcp_oauth", kind)
        assert (oauth.auth.refresh.scope, oauth.auth.refresh.resource) == ("read", "urn:it")
        assert not hasattr(oauth, "warnings"), "tokens are renewed here"


@case("credentials.retrieve")
async def retrieve_credential(flow: Flow) -> None:
    made = await flow.bearer((await flow.vault()).id)
    assert made.auth.mcp_server_url == "https://0.example.com/mcp"
    found = await flow.vaults.credentials.retrieve(made.id, vault_id=made.vault_id, workspace_id=WORKSPACE)
    assert found == made


@case("credentials.update")
async def update_credential(flow: Flow) -> None:
    vault = await flow.vault()
    made = await flow.vaults.credentials.create(vault.id, auth=flow.oauth("client_secret_basic"))
    changed = await flow.vaults.credentials.update(
        made.id,
        vault_id=vault.id,
        auth={
            "type": "mcp_oauth",
            "access_token": "another",
            "expires_at": datetime.now(UTC) + timedelta(hours=2),
            "refresh": {
                "refresh_token": "another",
                "scope": "",
                "token_endpoint_auth": {"type": "client_secret_post", "client_secret": "another"},
            },
        },
        display_name="renamed",
        metadata={"a": "b"},
        workspace_id=WORKSPACE,
    )
    assert (changed.display_name, changed.auth.refresh.scope) == ("renamed", None)
    assert changed.auth.refresh.token_endpoint_auth.type == "client_secret_basic", "how it is sent stays"
    assert changed.auth.expires_at > made.auth.expires_at
    with pytest.raises(anthropic.BadRequestError):
        await flow.vaults.credentials.update(
            made.id, vault_id=vault.id, auth={"type": "static_bearer", "token": "another"}
        )


@case("credentials.list")
async def list_credentials(flow: Flow) -> None:
    vault = await flow.vault()
    made = [await flow.bearer(vault.id, number) for number in range(3)]
    await flow.vaults.credentials.archive(made[1].id, vault_id=vault.id)
    first = await flow.vaults.credentials.list(vault.id, limit=2, include_archived=True, workspace_id=WORKSPACE)
    assert [each.id for each in first.data] == [made[2].id, made[1].id]
    second = await flow.vaults.credentials.list(vault.id, limit=2, include_archived=True, page=first.next_page)
    assert [each.id for each in second.data] == [made[0].id] and second.next_page is None
    live = [each.id async for each in flow.vaults.credentials.list(vault.id, limit=1)]
    assert live == [made[2].id, made[0].id]


@case("credentials.archive")
async def archive_credential(flow: Flow) -> None:
    made = await flow.bearer((await flow.vault()).id)
    assert (await flow.vaults.credentials.archive(made.id, vault_id=made.vault_id, workspace_id=WORKSPACE)).archived_at


@case("credentials.delete")
async def delete_credential(flow: Flow) -> None:
    made = await flow.bearer((await flow.vault()).id)
    gone = await flow.vaults.credentials.delete(made.id, vault_id=made.vault_id, workspace_id=WORKSPACE)
    assert (gone.id, gone.type) == (made.id, "vault_credential_deleted")


@case("credentials.mcp_oauth_validate")
async def validate_credential(flow: Flow) -> None:
    vault = await flow.vault()
    made = await flow.vaults.credentials.create(vault.id, auth=flow.oauth())
    validate = flow.vaults.credentials.mcp_oauth_validate
    found = await validate(made.id, vault_id=vault.id, workspace_id=WORKSPACE)
    assert (found.status, found.has_refresh_token, found.mcp_probe, found.refresh) == ("valid", True, None, None)
    flow.server.access_token = "the server has forgotten"
    flow.server.refuse = (400, '{"error": "invalid_grant"}')
    found = await validate(made.id, vault_id=vault.id)
    assert (found.status, found.mcp_probe.method, found.mcp_probe.http_response.status_code) == (
        "invalid",
        "initialize",
        401,
    )
    assert (found.refresh.status, found.refresh.http_response.body) == ("failed", '{"error": "invalid_grant"}')


async def test_a_conflict_is_final(flow: Flow) -> None:
    """The client retries 409 unless it is told not to."""
    vault = await flow.vault()
    await flow.bearer(vault.id)
    with pytest.raises(anthropic.ConflictError) as refusal:
        await flow.bearer(vault.id)
    assert refusal.value.response.headers["x-should-retry"] == "false"
    assert refusal.value.body["error"]["type"] == "invalid_request_error"

"""Vaults over REST as `api.md` shows them: two prefixes, two spellings, strict queries, and secrets that stay in."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

pytestmark = pytest.mark.asyncio(loop_scope="package")

PREFIXES = ("/v1/vaults", "/v1/credential-vaults")
SECRET = "ghp_canary_of_the_gateway"
FLAT = {
    "name": "github-token",
    "auth_type": "environment_variable",
    "variable_name": "GITHUB_TOKEN",
    "value": SECRET,
    "network": {"type": "limited", "allowed_hosts": ["api.github.com"]},
    "injection_locations": ["request_headers"],
}
NESTED = {
    "display_name": "Deploy key",
    "auth": {
        "type": "environment_variable",
        "secret_name": "DEPLOY_KEY",
        "secret_value": SECRET,
        "injection_location": {"header": True, "body": False},
    },
}
OAUTH = {
    "type": "mcp_oauth",
    "mcp_server_url": "https://mcp.example.com",
    "access_token": SECRET,
    "refresh": {
        "client_id": "c",
        "refresh_token": SECRET,
        "token_endpoint": "https://auth.example.com/token",
        "token_endpoint_auth": {"type": "none"},
    },
}


@pytest.fixture(params=PREFIXES)
def prefix(request: pytest.FixtureRequest) -> str:
    return request.param


async def posted(http: httpx2.AsyncClient, path: str, body: Any = None, status: int = 200, **headers: str) -> Any:
    answer = await http.post(path, json=body, headers=headers) if body is not None else await http.post(path)
    assert answer.status_code == status, answer.text
    assert SECRET not in answer.text
    return answer.json()


async def got(http: httpx2.AsyncClient, path: str, status: int = 200) -> Any:
    answer = await http.get(path)
    assert answer.status_code == status, answer.text
    assert SECRET not in answer.text
    return answer.json()


async def made(http: httpx2.AsyncClient, prefix: str, name: str = "v") -> str:
    return (await posted(http, prefix, {"name": name}))["id"]


async def test_both_prefixes_are_the_same_rows(http: httpx2.AsyncClient) -> None:
    for one, other in (PREFIXES, PREFIXES[::-1]):
        vault = await posted(http, one, {"name": "shared", "display_name": "shared"})
        assert vault["status"] == "active" and vault["name"] == vault["display_name"] == "shared"
        assert await got(http, f"{other}/{vault['id']}") == vault
        credential = await posted(http, f"{one}/{vault['id']}/credentials", FLAT)
        assert (await got(http, f"{other}/{vault['id']}/credentials"))["data"] == [credential]


async def test_the_flat_spelling_is_read_back_in_both(http: httpx2.AsyncClient, prefix: str) -> None:
    vault_id = await made(http, prefix)
    found = await posted(http, f"{prefix}/{vault_id}/credentials", FLAT)
    assert found["auth"] == {
        "type": "environment_variable",
        "secret_name": "GITHUB_TOKEN",
        "networking": FLAT["network"],
        "injection_location": {"header": True, "body": False},
    }
    for name in ("name", "auth_type", "variable_name", "network", "injection_locations"):
        assert found[name] == FLAT[name]
    assert (found["display_name"], found["value_hint"]) == ("github-token", "****eway")
    assert "value" not in found and "warnings" not in found


async def test_the_canonical_spelling_resolves_both_places(http: httpx2.AsyncClient, prefix: str) -> None:
    vault_id = await made(http, prefix)
    found = await posted(http, f"{prefix}/{vault_id}/credentials", NESTED)
    assert found["auth"]["injection_location"] == {"header": True, "body": False}
    assert found["auth"]["networking"] == {"type": "limited", "allowed_hosts": []}, "no policy allows nothing"
    plain = {"auth": {"type": "environment_variable", "secret_name": "OTHER", "secret_value": SECRET}}
    found = await posted(http, f"{prefix}/{vault_id}/credentials", plain)
    assert found["auth"]["injection_location"] == {"header": True, "body": True} and found["name"] is None
    bearer = {"auth_type": "bearer_token", "mcp_server_url": "https://mcp.example.com/x", "value": SECRET}
    found = await posted(http, f"{prefix}/{vault_id}/credentials", bearer)
    assert found["auth"] == {"type": "static_bearer", "mcp_server_url": "https://mcp.example.com/x"}
    assert (found["auth_type"], found["mcp_server_url"]) == ("bearer_token", "https://mcp.example.com/x")
    found = await posted(http, f"{prefix}/{vault_id}/credentials", {"auth": OAUTH})
    assert found["auth"]["refresh"]["token_endpoint_auth"] == {"type": "none"} and "warnings" not in found


REFUSED_CREDENTIALS: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "auth"),
    "both spellings": ({**NESTED, "value": "x"}, "value"),
    "both spellings of a type": ({**NESTED, "auth_type": "environment_variable"}, "auth_type"),
    "no type": ({"auth": {"secret_name": "A", "secret_value": "x"}}, "auth.type"),
    "a local name nested": ({"auth": {"type": "bearer_token", "token": "x"}}, "auth.type"),
    "a canonical name flat": ({**FLAT, "auth_type": "static_bearer"}, "auth_type"),
    "labels that disagree": ({**FLAT, "display_name": "other"}, "display_name"),
    "an unknown field": ({**NESTED, "colour": "red"}, "colour"),
    "an unknown nested field": ({"auth": {**NESTED["auth"], "colour": "red"}}, "auth.colour"),
    "a field of another type": ({"auth": {**NESTED["auth"], "token": "x"}}, "auth.token"),
    "no name": ({**FLAT, "variable_name": None}, "variable_name"),
    "a name that is none": ({**FLAT, "variable_name": "1 A"}, "variable_name"),
    "no value": ({key: value for key, value in FLAT.items() if key != "value"}, "value"),
    "an empty value": ({**FLAT, "value": ""}, "value"),
    "no place": ({**FLAT, "injection_locations": []}, "injection_locations"),
    "no place nested": (
        {"auth": {**NESTED["auth"], "injection_location": {"header": False}}},
        "auth.injection_location",
    ),
    "an unknown place": ({**FLAT, "injection_locations": ["cookies"]}, "injection_locations"),
    "a lone star": ({**FLAT, "network": {"type": "limited", "allowed_hosts": ["*"]}}, "network.allowed_hosts.0"),
    "an address": (
        {**FLAT, "network": {"type": "limited", "allowed_hosts": ["a", "https://b"]}},
        "network.allowed_hosts.1",
    ),
    "too many hosts": (
        {**FLAT, "network": {"type": "limited", "allowed_hosts": [f"h{n}" for n in range(17)]}},
        "network.allowed_hosts",
    ),
    "no hosts": ({**FLAT, "network": {"type": "limited"}}, "network.allowed_hosts"),
    "a policy that is none": ({**FLAT, "network": {"type": "open"}}, "network.type"),
    "hosts without limit": (
        {**FLAT, "network": {"type": "unrestricted", "allowed_hosts": ["a"]}},
        "network.allowed_hosts",
    ),
    "a server that is none": ({"auth": {**OAUTH, "mcp_server_url": "mcp.example.com"}}, "auth.mcp_server_url"),
    "a server with a user": ({"auth": {**OAUTH, "mcp_server_url": "https://a:b@c"}}, "auth.mcp_server_url"),
    "a token with a line": ({"auth": {**OAUTH, "access_token": "a\nb: c"}}, "auth.access_token"),
    "an end in the past": ({"auth": {**OAUTH, "expires_at": "2020-01-01T00:00:00Z"}}, "auth.expires_at"),
    "an end that is none": ({"auth": {**OAUTH, "expires_at": "tomorrow"}}, "auth.expires_at"),
    "a refresh without a server": (
        {"auth": {**OAUTH, "refresh": {**OAUTH["refresh"], "token_endpoint": None}}},
        "auth.refresh.token_endpoint",
    ),
    "a client without its secret": (
        {"auth": {**OAUTH, "refresh": {**OAUTH["refresh"], "token_endpoint_auth": {"type": "client_secret_post"}}}},
        "auth.refresh.token_endpoint_auth.client_secret",
    ),
}


async def test_a_credential_that_says_nothing_sound_is_refused_by_field(http: httpx2.AsyncClient) -> None:
    vault_id = await made(http, "/v1/vaults")
    for name, (body, field) in REFUSED_CREDENTIALS.items():
        error = (await posted(http, f"/v1/vaults/{vault_id}/credentials", body, 400))["error"]
        assert error["type"] == "invalid_request_error" and field in error["message"], name
    assert (await got(http, f"/v1/vaults/{vault_id}/credentials"))["data"] == []


REFUSED_QUERIES = (
    "include_archived=1",
    "include_archived=yes",
    "include_archived=",
    "include_archived=true&include_archived=false",
    "limit=0",
    "limit=101",
    "limit=x",
    "limit=",
    "limit=5&limit=5",
    "page=nonsense",
    "order=asc",
)


async def test_a_query_that_means_nothing_is_refused(http: httpx2.AsyncClient, prefix: str) -> None:
    for query in REFUSED_QUERIES:
        message = (await got(http, f"{prefix}?{query}", 400))["error"]["message"]
        if query == "order=asc":
            assert message == 'Unknown query parameter "order". This route accepts: include_archived, limit, page.'
        if query.startswith("limit"):
            assert ("1 to 100" in message) or ("once" in message), query


async def test_a_listing_shows_archived_vaults_on_demand_and_binds_cursors(
    http: httpx2.AsyncClient, prefix: str
) -> None:
    ids = [await made(http, prefix, f"v{number}") for number in range(3)]
    await posted(http, f"{prefix}/{ids[1]}/archive")
    assert [each["id"] for each in (await got(http, f"{prefix}?beta=true"))["data"]] == [ids[2], ids[0]]
    for plain in ("include_archived=false", "include_archived=false&include_archived=false"):
        assert [each["id"] for each in (await got(http, f"{prefix}?{plain}"))["data"]] == [ids[2], ids[0]]
    page = await got(http, f"{prefix}?include_archived=true&limit=2")
    assert [(each["id"], each["status"], bool(each["archived_at"])) for each in page["data"]] == [
        (ids[2], "active", False),
        (ids[1], "archived", True),
    ]
    assert page["prev_page"] is None
    second = await got(http, f"{prefix}?include_archived=true&limit=2&page={page['next_page']}")
    assert [each["id"] for each in second["data"]] == [ids[0]] and second["next_page"] is None
    back = await got(http, f"{prefix}?include_archived=true&limit=2&page={second['prev_page']}")
    assert back["data"] == page["data"]
    await got(http, f"{prefix}?limit=2&page={page['next_page']}", 400)
    await got(http, f"/v1/memory_stores?include_archived=true&page={page['next_page']}", 400)
    error = (await got(http, f"{prefix}/{ids[1]}", 404))["error"]
    assert (error["type"], error["code"]) == ("not_found", "vault_not_found")


async def test_a_credential_is_rotated_used_audited_and_ended(http: httpx2.AsyncClient, prefix: str) -> None:
    vault_id = await made(http, prefix)
    path = f"{prefix}/{vault_id}/credentials"
    credential = (await posted(http, path, FLAT))["id"]
    body = {"value": f"{SECRET}-2", "actor": "operator", "metadata": {"reason": "scheduled rotation"}}
    rotated = await posted(http, f"{path}/{credential}/rotate", body)
    assert rotated["rotated_at"] and rotated["value_hint"] == "****ay-2"
    for bad in ({}, {"value": ""}, {"value": 1}, {**body, "secret": "x"}, {**body, "metadata": {"a": 1}}):
        await posted(http, f"{path}/{credential}/rotate", bad, 400)
    assert (await posted(http, f"{path}/{credential}/mark-used"))["last_used_at"]
    await posted(http, f"{path}/{credential}/mark-used", {"actor": "somebody"})
    page = await got(http, f"{path}/{credential}/audit?limit=3")
    assert [(each["action"], each["actor"]) for each in page["data"]] == [
        ("used", "somebody"),
        ("used", "anonymous"),
        ("rotated", "operator"),
    ]
    assert page["data"][2]["metadata"] == {"reason": "scheduled rotation"}
    rest = await got(http, f"{path}/{credential}/audit?limit=3&page={page['next_page']}")
    assert [each["action"] for each in rest["data"]] == ["created"] and rest["next_page"] is None
    await got(http, f"{path}/{credential}/audit?action=used", 400)

    archived = await posted(http, f"{path}/{credential}/archive")
    assert archived["status"] == "archived" and archived["value_hint"] is None
    assert (await got(http, path))["data"] == []
    assert [each["id"] for each in (await got(http, f"{path}?include_archived=true"))["data"]] == [credential]
    error = (await posted(http, f"{path}/{credential}/rotate", {"value": "x"}, 400))["error"]
    assert error["code"] == "credential_archived"
    gone = await http.delete(f"{path}/{credential}")
    assert gone.json() == {"id": credential, "type": "vault_credential_deleted"}
    assert [each["action"] for each in (await got(http, f"{prefix}/{vault_id}/audit?limit=2"))["data"]] == [
        "deleted",
        "archived",
    ]


async def test_a_key_stands_once_in_a_vault(http: httpx2.AsyncClient) -> None:
    vault_id = await made(http, "/v1/vaults")
    await posted(http, f"/v1/vaults/{vault_id}/credentials", FLAT)
    answer = await http.post(f"/v1/vaults/{vault_id}/credentials", json=FLAT)
    assert answer.status_code == 409 and answer.headers["x-should-retry"] == "false"
    assert (answer.json()["error"]["type"], answer.json()["error"]["code"]) == ("conflict", "credential_key_taken")
    for number in range(19):
        body = {**FLAT, "variable_name": f"KEY_{number}"}
        await posted(http, f"/v1/vaults/{vault_id}/credentials", body)
    error = (await posted(http, f"/v1/vaults/{vault_id}/credentials", {**FLAT, "variable_name": "K"}, 400))["error"]
    assert error["code"] == "vault_full"


async def test_a_repeated_creation_is_answered_once(http: httpx2.AsyncClient) -> None:
    first = await posted(http, "/v1/vaults", {"name": "a"}, **{"idempotency-key": "one"})
    assert await posted(http, "/v1/vaults", {"name": "a"}, **{"idempotency-key": "one"}) == first
    path = f"/v1/vaults/{first['id']}/credentials"
    # As the published client repeats a request whose answer it lost.
    kept = await posted(http, path, FLAT, **{"x-stainless-retry-count": "0"})
    assert await posted(http, path, FLAT, **{"x-stainless-retry-count": "1"}) == kept
    assert len((await got(http, path))["data"]) == 1


REFUSED_VAULTS: tuple[dict[str, Any], ...] = (
    {},
    {"name": ""},
    {"name": " "},
    {"name": 1},
    {"name": "x" * 256},
    {"name": "a", "display_name": "b"},
    {"name": "a", "description": "b"},
    {"name": "a", "metadata": {"a": 1}},
    {"name": "a", "metadata": {str(number): "" for number in range(17)}},
    {"name": "a\nb"},
)


async def test_a_vault_that_says_nothing_sound_is_refused(http: httpx2.AsyncClient, prefix: str) -> None:
    for body in REFUSED_VAULTS:
        assert (await posted(http, prefix, body, 400))["error"]["type"] == "invalid_request_error", body


async def test_the_published_prefix_asks_for_the_same_beta_as_the_local_one(
    http: httpx2.AsyncClient, prefix: str
) -> None:
    answer = await http.get(prefix, headers={"anthropic-version": "2023-06-01"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "missing_anthropic_beta")
    both = {"anthropic-version": "2023-06-01", "anthropic-beta": "managed-agents-2026-04-01"}
    assert (await http.get(prefix, headers=both)).status_code == 200

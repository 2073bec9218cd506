"""Keys over a real gateway, vault, sessions service and bus: who is let in, and from when to when.

Where two gateways are needed, the second is one of its own: with its own connections to the vault and to NATS.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from kit.embedded.nats import EmbeddedNats
from kit.testing import await_until
from services.gateway.admission import keyring
from tests.integration.gateway.conftest import Gateway
from tests.integration.gateway.further import another

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest.fixture
def gateway(own_vault: Gateway) -> Gateway:
    """One that starts without a key, since the first one turns authentication on."""
    return own_vault


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vault that is slow on a busy machine is there all the same; who stops it sets this back."""
    monkeypatch.setattr(keyring, "ASK_SECONDS", 20.0)


KEYS = "/v1/api-keys"


@pytest_asyncio.fixture(loop_scope="package")
async def second(gateway: Gateway, nats_url: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with another(gateway, nats_url) as (client, _ring):
        yield client


async def make(http: httpx2.AsyncClient, key: str = "", **fields: Any) -> dict[str, Any]:
    answer = await http.post(KEYS, json={"name": "a key"} | fields, headers=bearer(key))
    assert answer.status_code == 200, answer.text
    return answer.json()


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


async def status(http: httpx2.AsyncClient, key: str = "", path: str = "/v1/agents") -> int:
    return (await http.get(path, headers=bearer(key))).status_code


async def test_the_first_key_turns_authentication_on_everywhere_at_once_and_the_last_one_off(
    http: httpx2.AsyncClient, second: httpx2.AsyncClient
) -> None:
    assert [await status(each) for each in (http, second)] == [200, 200]
    made = await make(http)
    assert await status(http) == 401
    await await_until(lambda: _is(second, 401))
    assert [await status(each, made["secret_key"]) for each in (http, second)] == [200, 200]
    removed = await second.delete(f"{KEYS}/{made['id']}", headers=bearer(made["secret_key"]))
    assert removed.json() == {"id": made["id"], "type": "api_key_deleted"}
    assert await status(second) == 200
    await await_until(lambda: _is(http, 200))


async def _is(http: httpx2.AsyncClient, expected: int, key: str = "") -> bool:
    return await status(http, key) == expected


async def _seconds_of_a_revocation(http: httpx2.AsyncClient, other: httpx2.AsyncClient, admin: str) -> float:
    """How long a key that is revoked at one gateway opens another."""
    member = await make(http, admin, role="member")
    assert await status(other, member["secret_key"]) == 200
    await http.delete(f"{KEYS}/{member['id']}", headers=bearer(admin))
    revoked_at = time.monotonic()
    await await_until(lambda: _is(other, 401, member["secret_key"]))
    taken = time.monotonic() - revoked_at
    assert await status(http, member["secret_key"]) == 401
    return taken


async def _is_refused_within_a_second(http: httpx2.AsyncClient, other: httpx2.AsyncClient, admin: str) -> bool:
    """Whether it is at the best of some tries: a single one also takes what else the machine does."""
    for _ in range(5):
        if await _seconds_of_a_revocation(http, other, admin) < 1.0:
            return True
    return False


async def test_a_revoked_key_is_refused_by_every_gateway_within_a_second(
    http: httpx2.AsyncClient, second: httpx2.AsyncClient
) -> None:
    admin = (await make(http))["secret_key"]
    assert await _is_refused_within_a_second(http, second, admin)


async def test_a_revoked_key_is_refused_within_a_second_without_nats(
    http: httpx2.AsyncClient, gateway: Gateway
) -> None:
    admin = (await make(http))["secret_key"]
    async with another(gateway, "nats://127.0.0.1:9") as (deaf, _ring):
        assert await _is_refused_within_a_second(http, deaf, admin)


async def test_without_vault_and_nats_known_keys_hold_for_a_while_and_then_nobody_is_let_in(
    http: httpx2.AsyncClient, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyring, "ASK_SECONDS", 3.0)
    monkeypatch.setattr(keyring, "TRUST_SECONDS", 60.0)
    admin = (await make(http))["secret_key"]
    async with another(gateway, "nats://127.0.0.1:9") as (alone, _ring):
        assert await status(alone, admin) == 200
        began = time.monotonic()
        await gateway.services.pop("vault").stop()
        assert await status(alone, admin) == 200
        # A key that was never seen can't be judged, and is told so.
        assert await status(alone, "ma_unseen") == 503
        while time.monotonic() - began <= 1.0:
            assert await status(alone, admin) == 200
        # The while is over now.
        monkeypatch.setattr(keyring, "TRUST_SECONDS", 1.0)
        await await_until(lambda: _is(alone, 503, admin), timeout=20.0)
        assert await status(alone) == 503


async def test_after_an_announcement_nothing_old_counts_even_while_the_vault_is_away(
    http: httpx2.AsyncClient, gateway: Gateway, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyring, "ASK_SECONDS", 3.0)
    admin = (await make(http))["secret_key"]
    async with another(gateway, nats_url) as (client, ring):
        assert await status(client, admin) == 200
        await gateway.services.pop("vault").stop()
        ring.forget()
        assert await status(client, admin) == 503


async def test_announcements_are_heard_again_after_nats_was_away(
    http: httpx2.AsyncClient, gateway: Gateway, tmp_path: Any
) -> None:
    server = EmbeddedNats(tmp_path / "nats")
    async with another(gateway, server.start()) as (client, _ring):
        admin = (await make(http))["secret_key"]
        await await_until(lambda: _is(client, 200, admin))
        server.stop()
        member = await make(http, admin, role="member")
        assert await status(client, member["secret_key"]) == 200
        await http.delete(f"{KEYS}/{member['id']}", headers=bearer(admin))
        await await_until(lambda: _is(client, 401, member["secret_key"]))


async def _stream(http: httpx2.AsyncClient, session_id: str, key: str, opened: asyncio.Event) -> None:
    """Follow a session until its stream ends by itself."""
    path = f"/v1/sessions/{session_id}/events/stream"
    async with http.stream("GET", path, headers=bearer(key), timeout=30) as answer:
        assert answer.status_code == 200
        async for _chunk in answer.aiter_bytes():
            opened.set()


async def _opened(http: httpx2.AsyncClient, session_id: str, key: str = "") -> asyncio.Task[None]:
    """A task that follows a session, once it does."""
    opened = asyncio.Event()
    task = asyncio.create_task(_stream(http, session_id, key, opened))
    waiting = asyncio.create_task(opened.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    assert not task.done(), "the stream was refused, or ended at once"
    return task


@pytest.mark.parametrize("is_deaf", [False, True])
async def test_an_open_stream_ends_once_its_key_is_revoked_and_no_other_does(
    http: httpx2.AsyncClient, gateway: Gateway, nats_url: str, is_deaf: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = (await http.post("/v1/agents", json={"name": "a", "model": "default", "system": "s"})).json()["id"]
    session = (await http.post("/v1/sessions", json={"agent": agent})).json()["id"]
    async with another(gateway, nats_url) as (client, ring):
        nobody = await _opened(client, session)
        admin = (await make(http))["secret_key"]
        async with asyncio.timeout(10):
            await nobody
        if is_deaf:
            # What is announced is lost from here on.
            monkeypatch.setattr(ring, "forget", lambda: None)
        member = await make(http, admin, role="read_only")
        theirs = await _opened(client, session, member["secret_key"])
        ours = await _opened(client, session, admin)
        await http.delete(f"{KEYS}/{member['id']}", headers=bearer(admin))
        async with asyncio.timeout(10):
            await theirs
        assert not ours.done()
        ours.cancel()
        await asyncio.gather(ours, return_exceptions=True)


async def test_keys_are_listed_without_their_secrets(http: httpx2.AsyncClient) -> None:
    made = await make(http, owner_name="Ada")
    secret = made.pop("secret_key")
    assert made == {
        "id": made["id"],
        "type": "api_key",
        "name": "a key",
        "source": "managed",
        "key_prefix": f"{secret[:9]}...{secret[-4:]}",
        "status": "active",
        "role": "admin",
        "owner_name": "Ada",
        "workspace_id": "wrkspc_default",
        "created_at": made["created_at"],
        "updated_at": made["created_at"],
        "last_used_at": None,
        "archived_at": None,
    }
    listed = (await http.get(KEYS, headers=bearer(secret))).json()
    assert listed == {"data": [made], "prev_page": None, "next_page": None}


async def test_a_list_of_keys_has_pages(http: httpx2.AsyncClient) -> None:
    admin = (await make(http))["secret_key"]
    made = [(await make(http, admin, name=f"{n}"))["name"] for n in range(4)]
    first = (await http.get(KEYS, params={"limit": 2}, headers=bearer(admin))).json()
    query = {"limit": 10, "page": first["next_page"]}
    rest = (await http.get(KEYS, params=query, headers=bearer(admin))).json()
    assert [key["name"] for key in first["data"] + rest["data"]] == [*made[::-1], "a key"]
    other = await http.get(KEYS, params={**query, "workspace_id": "wrkspc_b"}, headers=bearer(admin))
    assert other.json()["error"]["code"] == "invalid_cursor"


async def test_the_last_use_is_told_later_and_once_for_many_requests(
    http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, gateway: Gateway, nats_url: str
) -> None:
    monkeypatch.setattr(keyring, "USES_SECONDS", 0.2)
    admin = await make(http)
    asked: list[int] = []
    async with another(gateway, nats_url) as (client, ring):
        sync = ring._sync

        async def counted(uses: Any) -> None:
            asked.append(len(uses))
            await sync(uses)

        monkeypatch.setattr(ring, "_sync", counted)
        began = time.monotonic()
        for _ in range(20):
            assert await status(client, admin["secret_key"]) == 200

        async def last_used() -> str | None:
            return (await http.get(KEYS, headers=bearer(admin["secret_key"]))).json()["data"][0]["last_used_at"]

        await await_until(last_used)
        told = [count for count in asked if count]
        assert len(told) <= 1 + (time.monotonic() - began) / 0.2
        assert set(told) == {1}


async def test_what_was_not_told_yet_is_told_when_a_gateway_stops(
    http: httpx2.AsyncClient, gateway: Gateway, nats_url: str
) -> None:
    admin = (await make(http))["secret_key"]
    member = await make(http, admin, role="member")
    async with another(gateway, nats_url) as (client, _ring):
        assert await status(client, member["secret_key"]) == 200
    listed = (await http.get(KEYS, headers=bearer(admin))).json()["data"]
    assert next(key for key in listed if key["id"] == member["id"])["last_used_at"]


async def test_the_configured_key_is_listed_and_only_read(gateway: Gateway, nats_url: str) -> None:
    configured = "ma_configured_key_of_some_length"
    async with another(gateway, nats_url, api_key=configured) as (client, _ring):
        assert await status(client) == 401
        listed = (await client.get(KEYS, headers=bearer(configured))).json()["data"]
        assert [(key["id"], key["source"], key["key_prefix"]) for key in listed] == [
            ("key_config_env", "config_env", "ma_con...ngth")
        ]
        refused = await client.delete(f"{KEYS}/key_config_env", headers=bearer(configured))
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "api_key_read_only")
        # With an administrator in the configuration, the first managed key may be anybody's.
        member = await make(client, configured, role="member")
        assert await status(client, member["secret_key"]) == 200


@pytest.mark.parametrize("path", ["/v1/agents", "/v1/nothing", "/v1", "/v1/x/nothing", "/api/agents/a/eve/v1/session"])
async def test_both_schemes_are_refused_while_authentication_is_on(http: httpx2.AsyncClient, path: str) -> None:
    def both(key: str) -> dict[str, str]:
        return {"x-api-key": key, "anthropic-version": "2023-06-01", **bearer(key)}

    assert (await http.get("/v1/x/runtime", headers=both("any"))).status_code == 200
    admin = (await make(http))["secret_key"]
    refused = await http.get(path, headers=both(admin))
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "ambiguous_credential")
    assert (await http.get(path)).status_code == 401
    assert (await http.get(path, headers=bearer("ma_wrong"))).status_code == 401


@pytest.mark.parametrize("header", ["anthropic-workspace-id", "workspace_id"])
async def test_a_workspace_header_must_name_the_keys_own(http: httpx2.AsyncClient, header: str) -> None:
    admin = (await make(http))["secret_key"]
    other = (await make(http, admin, workspace_id="wrkspc_b"))["secret_key"]
    for key, named, expected in (
        (admin, "wrkspc_default", 200),
        (admin, "wrkspc_b", 403),
        (other, "wrkspc_b", 200),
        (other, "wrkspc_default", 403),
    ):
        answer = await http.get("/v1/agents", headers={header: named, **bearer(key)})
        assert answer.status_code == expected
        if expected == 403:
            assert answer.json()["error"]["code"] == "workspace_mismatch"


@pytest.mark.parametrize("host", ["api.example", "10.0.0.7:3000", "127.0.0.1"])
async def test_the_key_decides_whatever_the_host_is_called(http: httpx2.AsyncClient, host: str) -> None:
    admin = (await make(http))["secret_key"]
    headers = {"host": host, "x-forwarded-host": "elsewhere.example", **bearer(admin)}
    assert (await http.get("/v1/agents", headers=headers)).status_code == 200


async def test_a_worker_key_is_issued_listed_and_revoked(http: httpx2.AsyncClient, second: httpx2.AsyncClient) -> None:
    environment = (await http.post("/v1/environments", json={"name": "e", "hosting_type": "self_hosted"})).json()["id"]
    path = f"/v1/environments/{environment}/worker-keys"
    issued = (await http.post(path, json={"name": "laptop", "metadata": {"rack": "4"}})).json()
    secret = issued.pop("secret_key")
    assert secret.startswith("mawk_") and issued["key_prefix"] == f"{secret[:11]}...{secret[-4:]}"
    assert (issued["status"], issued["metadata"], issued["environment_id"]) == ("active", {"rack": "4"}, environment)
    assert (await http.get(path)).json()["data"] == [issued]
    # It narrows what may be done also while no API key exists, and nothing but work is within.
    assert [await status(each, secret) for each in (http, second)] == [403, 403]
    revoked = (await http.post(f"{path}/{issued['id']}/revoke", json={})).json()
    assert revoked["status"] == "revoked" and revoked["revoked_at"]
    await await_until(lambda: _is(second, 401, secret))
    assert await status(http, secret) == 401
    for unknown in (f"/v1/environments/env_unknown/worker-keys/{issued['id']}/revoke", f"{path}/wkey_unknown/revoke"):
        assert (await http.post(unknown, json={})).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": "x" * 81},
        {"name": "w", "expires_at": "soon"},
        {"name": "w", "metadata": []},
        {"name": "w", "metadata": {"a": 1}},
    ],
)
async def test_a_malformed_worker_key_is_refused(http: httpx2.AsyncClient, body: dict[str, Any]) -> None:
    environment = (await http.post("/v1/environments", json={"name": "e"})).json()["id"]
    assert (await http.post(f"/v1/environments/{environment}/worker-keys", json=body)).status_code == 400


async def test_limits_follow_the_keys(gateway: Gateway, nats_url: str) -> None:
    async with another(gateway, nats_url, inbound_rate_limit_read=3) as (client, _ring):
        assert {await status(client) for _ in range(6)} == {200}
        admin = await make(client)
        secret = admin["secret_key"]
        assert [await status(client, secret) for _ in range(4)] == [200, 200, 200, 429]
        refused = await client.get("/v1/agents", headers=bearer(secret))
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert refused.json()["error"]["code"] == "inbound_rate_limited"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert (refused.headers["x-ratelimit-limit"], refused.headers["x-ratelimit-remaining"]) == ("3", "0")
        assert [await status(client, "ma_wrong") for _ in range(5)] == [401] * 5
        assert {await status(client, secret, "/v1/x/health") for _ in range(5)} == {200}
        # Throttled before admission and before routing.
        gated = {"x-api-key": secret}
        assert (await client.get("/v1/nothing", headers=gated)).status_code == 429
        assert (await client.delete(f"{KEYS}/{admin['id']}", headers=bearer(secret))).status_code == 200
        assert {await status(client) for _ in range(6)} == {200}

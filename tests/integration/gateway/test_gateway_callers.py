"""Who may use the session gateway: keys, cookies of browsers, origins, limits. Whoever is not the creator sees nothing.

One platform with keys for the whole file; a real gateway, vault and sessions service.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from kit.testing.swept import SweptDatabases
from tests.integration.gateway.conftest import Gateway
from tests.integration.gateway.further import another
from tests.integration.gateway.gate import Gate, confirmation, ground_of, over

pytestmark = pytest.mark.asyncio(loop_scope="module")
ORIGIN = {"origin": "http://127.0.0.1"}
FOREIGN = "https://app.example.com"


class Ground:
    """The gateway, and keys of it."""

    def __init__(self, gateway: Gateway, gate: Gate, admin: str) -> None:
        self.gateway, self.gate, self.admin = gateway, gate, admin

    async def key(self, **fields: Any) -> tuple[str, str]:
        """A further key: its id and secret."""
        headers = {"authorization": f"Bearer {self.admin}"}
        made = (await self.gate.http.post("/v1/api-keys", json={"name": "k"} | fields, headers=headers)).json()
        return made["id"], made["secret_key"]

    async def revoke(self, key_id: str) -> None:
        """Nobody comes in by it any more."""
        headers = {"authorization": f"Bearer {self.admin}"}
        assert (await self.gate.http.delete(f"/v1/api-keys/{key_id}", headers=headers)).status_code == 200


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(swept_databases: SweptDatabases, nats_url: str) -> AsyncIterator[Ground]:
    async with ground_of(swept_databases, nats_url) as (gateway, gate):
        admin = (await gate.http.post("/v1/api-keys", json={"name": "admin"})).json()["secret_key"]
        yield Ground(gateway, gate, admin)


@pytest_asyncio.fixture(loop_scope="module")
async def here(ground: Ground) -> Gate:
    """The gateway as the holder of a key of role member sees it."""
    _, secret = await ground.key(role="member")
    return await ground.gate.door(headers=bearer(secret)).fresh()


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


async def begun(door: Gate) -> str:
    """A session with a run that is over."""
    asked = door.begin()
    await door.says("Hi.")
    return (await asked).events[0]["sessionId"]


async def cookie(here: Gate, user: str = "", **headers: str) -> Gate:
    """The door of a browser: its ticket came from a server, and it has nothing but its cookie."""
    made = await here.http.post(f"{here.base}/tickets", json={"user": user} if user else {}, headers=here.headers)
    assert made.status_code == 200, made.text
    browser = httpx2.AsyncClient(base_url=here.http.base_url, timeout=20)
    own = {"origin": str(here.http.base_url).rstrip("/")} | headers
    answered = await browser.post(f"{here.base}/cookie", json={"ticket": made.json()["ticket"]}, headers=own)
    assert answered.status_code == 200, answered.text
    jar = {"cookie": answered.headers["set-cookie"].partition(";")[0]}
    return here.door(http=browser, headers=own | jar)


@pytest_asyncio.fixture(loop_scope="module")
async def browser(here: Gate) -> AsyncIterator[Gate]:
    door = await cookie(here, "ada")
    yield door
    await door.http.aclose()


async def test_without_a_sound_credential_nothing_is_served(here: Gate) -> None:
    session_id = await begun(here)
    for headers in ({}, bearer("ma_wrong"), {"cookie": "managed_agents_browser=rubbish"}):
        door = here.door(headers=headers)
        for answered in (
            await door.send({"message": "a"}),
            await door.send({"message": "a"}, session_id),
            await door.watch(session_id, until=over),
        ):
            assert answered.code == (401, "invalid_credential")
            # Whoever has a cookie is not told to get a key.
            assert ("cookie" in answered.error["message"]) is ("cookie" in headers)
        assert (await door.cancel(session_id)).status_code == 401


async def test_who_may_not_use_agents_has_no_access(here: Gate, ground: Ground) -> None:
    _, reader = await ground.key(role="read_only")
    assert (await here.door(headers=bearer(reader)).send({"message": "a"})).code == (403, "permission_denied")


async def test_a_session_belongs_to_its_creator(here: Gate, ground: Ground) -> None:
    asked = here.begin()
    (call,) = await here.waits(confirmation())
    first = (await asked).events[0]
    session_id, run_id = first["sessionId"], first["runId"]
    _, secret = await ground.key(role="admin")
    stranger = here.door(headers=bearer(secret))
    response = {"inputResponses": [{"requestId": call, "optionId": "approve"}]}
    for answered in (
        await stranger.send({"message": "a"}, session_id),
        await stranger.send(response, session_id),
        await stranger.send({"turnId": run_id}, session_id),
        await stranger.send({"turnId": run_id}),
        await stranger.watch(session_id, until=over),
    ):
        assert answered.code == (404, "session_not_found")
    assert (await stranger.cancel(session_id)).status_code == 404
    read = await stranger.http.get(f"{here.base}/session/{session_id}/runs/{run_id}", headers=stranger.headers)
    assert read.json()["error"]["code"] == "session_not_found"
    # The same words, whether or not there is such a session.
    seen = await stranger.watch(session_id, until=over)
    never = await stranger.watch(session_id[:-4] + "ZZZZ", until=over)
    assert seen.error["message"].replace(session_id, "") == never.error["message"].replace(session_id[:-4] + "ZZZZ", "")


async def test_keys_of_repeats_are_each_creators_own(here: Gate, ground: Ground) -> None:
    asked = here.begin("Mine.", idempotency_key="k")
    await here.says()
    first = (await asked).events[0]
    _, secret = await ground.key(role="member")
    other = here.door(headers=bearer(secret))
    asked = other.begin("Mine.", idempotency_key="k")
    await other.says()
    assert (await asked).events[0]["sessionId"] != first["sessionId"]


async def test_a_revoked_key_ends_its_open_streams(here: Gate, ground: Ground) -> None:
    key_id, secret = await ground.key(role="member")
    door = here.door(headers=bearer(secret))
    session_id = await begun(door)
    watching = asyncio.create_task(door.watch(session_id, until=lambda told: False))
    asked = door.begin("More.", session_id)
    grant = await door.granted()
    await door.watch(session_id, until=lambda told: told["index"] == 3)
    await ground.revoke(key_id)
    assert (await watching).types[-1] == "started" and (await asked).types == ["started"]
    assert (await door.watch(session_id, until=over)).status == 401
    # The run itself is none of its clients' business.
    await door.says(grant=grant)


async def test_requests_of_one_credential_are_limited_as_everywhere(here: Gate, ground: Ground, nats_url: str) -> None:
    async with another(ground.gateway, nats_url, inbound_rate_limit_write=2) as (http, _ring):
        door = here.door(http=http)
        statuses = [(await door.send({"message": "a"}, "sess_x")).status for _ in range(3)]
        refused = await door.send({"message": "a"})
        assert statuses == [404, 404, 429] and refused.code == (429, "inbound_rate_limited")
        assert int(refused.headers["retry-after"]) > 0


async def test_a_browser_has_its_cookie_for_a_ticket_and_holds_no_key(here: Gate, browser: Gate) -> None:
    session_id = await begun(browser)
    assert (await browser.watch(session_id, until=over)).types[-1] == "completed"
    assert "authorization" not in browser.headers
    # Its sessions are that person's, not those of the key's holder.
    assert (await here.watch(session_id, until=over)).status == 404
    assert (await browser.watch(await begun(here), until=over)).status == 404


async def test_persons_behind_one_key_see_nothing_of_each_other(here: Gate, browser: Gate) -> None:
    session_id = await begun(browser)
    other, again = await cookie(here, "bob"), await cookie(here, "ada")
    assert (await other.watch(session_id, until=over)).status == 404
    assert (await again.watch(session_id, until=over)).types[-1] == "completed"
    asked = browser.begin("Mine.", idempotency_key="k")
    await browser.says()
    first = (await asked).events[0]
    asked = other.begin("Mine.", idempotency_key="k")
    await other.says()
    assert (await asked).events[0]["sessionId"] != first["sessionId"]
    for door in (other, again):
        await door.http.aclose()


async def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_sites(here: Gate) -> None:
    async def attributes(origin: str) -> set[str]:
        made = await here.http.post(f"{here.base}/tickets", headers=here.headers)
        headers = {"origin": origin, "host": "gw.example.com"}
        answered = await here.http.post(f"{here.base}/cookie", json={"ticket": made.json()["ticket"]}, headers=headers)
        assert answered.status_code == 200 and answered.headers["cache-control"] == "no-store"
        return {part.strip() for part in answered.headers["set-cookie"].split(";")[1:]}

    plain = await attributes("http://gw.example.com")
    assert plain == {f"Path={here.base}/", "Max-Age=3600", "HttpOnly", "SameSite=Strict"}
    assert await attributes("https://gw.example.com") == plain | {"Secure"}


async def test_a_ticket_is_spent_once_and_only_where_it_is_good(here: Gate) -> None:
    made = (await here.http.post(f"{here.base}/tickets", headers=here.headers)).json()["ticket"]
    own = {"origin": str(here.http.base_url).rstrip("/")}
    elsewhere = here.door(agent_id=await here.agent())
    for base in (elsewhere.base, here.door(preview=True).base):
        refused = await here.http.post(f"{base}/cookie", json={"ticket": made}, headers=own)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_ticket")
    statuses = await asyncio.gather(
        *(here.http.post(f"{here.base}/cookie", json={"ticket": made}, headers=own) for _ in range(4))
    )
    assert sorted(each.status_code for each in statuses) == [200, 401, 401, 401]
    rubbish = await here.http.post(f"{here.base}/cookie", json={"ticket": "rubbish"}, headers=own)
    assert rubbish.json()["error"]["code"] == "invalid_ticket"


async def test_a_cookie_reaches_its_agent_on_its_route_and_nothing_else(here: Gate, browser: Gate) -> None:
    other = browser.door(agent_id=await here.agent())
    assert (await other.send({"message": "a"})).code == (403, "permission_denied")
    assert (await browser.door(preview=True).send({"message": "a"})).code == (403, "permission_denied")
    assert (await browser.http.get("/v1/agents", headers=browser.headers)).status_code == 401
    refused = await browser.http.post(f"{here.base}/tickets", json={"user": "eve"}, headers=browser.headers)
    assert refused.json()["error"]["code"] == "permission_denied"


async def test_a_page_of_a_foreign_origin_can_not_use_the_cookie(browser: Gate) -> None:
    session_id = await begun(browser)
    for origin in (FOREIGN, "null", "http://127.0.0.1:1", ""):
        headers = {name: value for name, value in browser.headers.items() if name != "origin"}
        forged = browser.door(headers=headers | ({"origin": origin} if origin else {}))
        assert (await forged.send({"message": "a"}, session_id)).code == (403, "origin_refused")
        assert (await forged.cancel(session_id)).status_code == 403
        if origin:
            assert (await forged.watch(session_id, until=over)).status == 403


async def test_an_origin_that_the_operator_allows_may_use_it(ground: Ground, here: Gate, nats_url: str) -> None:
    async with another(ground.gateway, nats_url, cors_origins=FOREIGN) as (http, _ring):
        door = here.door(http=http)
        preflight = {
            "origin": FOREIGN,
            "access-control-request-method": "POST",
            "access-control-request-headers": "content-type,idempotency-key",
        }
        answered = await http.options(f"{here.base}/session", headers=preflight)
        assert answered.status_code == 200
        assert answered.headers["access-control-allow-origin"] == FOREIGN
        assert answered.headers["access-control-allow-credentials"] == "true"
        made = (await http.post(f"{here.base}/tickets", headers=here.headers)).json()["ticket"]
        exchanged = await http.post(f"{here.base}/cookie", json={"ticket": made}, headers={"origin": FOREIGN})
        parts = {part.strip() for part in exchanged.headers["set-cookie"].split(";")}
        assert {"SameSite=None", "Secure", "Partitioned", "HttpOnly"} <= parts
        jar = {"cookie": exchanged.headers["set-cookie"].partition(";")[0], "origin": FOREIGN}
        allowed = door.door(headers=jar)
        told = await allowed.watch(await begun(allowed), until=over)
        assert told.types[-1] == "completed" and "session-id" in told.headers["access-control-expose-headers"]
        others = await http.options(f"{here.base}/session", headers=preflight | {"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in others.headers


async def test_by_default_no_foreign_page_may_read_an_answer(here: Gate) -> None:
    preflight = {"origin": FOREIGN, "access-control-request-method": "POST"}
    answered = await here.http.options(f"{here.base}/session", headers=preflight)
    assert "access-control-allow-origin" not in answered.headers


async def test_a_cookie_lasts_no_longer_than_the_key_behind_it(here: Gate, ground: Ground) -> None:
    key_id, secret = await ground.key(role="member")
    door = await cookie(here.door(headers=bearer(secret)), "ada")
    session_id = await begun(door)
    watching = asyncio.create_task(door.watch(session_id, until=lambda told: False))
    asked = door.begin("More.", session_id)
    grant = await door.granted()
    await ground.revoke(key_id)
    assert (await watching).types[:3] == ["started", "text-delta", "completed"]
    await asked
    assert (await door.watch(session_id, until=over)).code == (401, "invalid_credential")
    await here.says(grant=grant)
    await door.http.aclose()

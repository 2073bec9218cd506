"""The example page of the session gateway in a real browser: send, watch, approve, cancel, reload, and never a key."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import pytest
from playwright.async_api import Page, expect

from kit.testing import await_until
from tests.support.api import api, tool
from tests.support.browser import page
from tests.support.platform import Platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]
ASKING = [{"type": "agent_toolset_20260401", "default_config": {"permission_policy": {"type": "always_ask"}}}]
WORDS = re.compile(r"t0 t1 ")
expect.set_options(timeout=15_000)


async def say(made: Page, text: str) -> None:
    """A message, by the keyboard alone."""
    await made.get_by_label("Message").focus()
    await made.keyboard.type(text)
    await made.keyboard.press("Enter")


async def test_a_person_talks_to_an_agent(platform: Platform) -> None:
    async with api(platform.url) as client, page() as made:
        agent_id = await client.agent(tools=ASKING)
        answered = await made.goto(f"{platform.url}/examples/session-gateway?agent={agent_id}")
        assert answered is not None and "script-src 'self'" in answered.headers["content-security-policy"]
        log, status = made.locator("#log"), made.get_by_role("status")
        await _watches_and_reloads(made, log, status)
        await _approves(made, log, status)
        await _cancels(made, log, status)
        # A session is one conversation: all of it is still there, each thing once.
        await made.reload()
        await expect(status).to_have_text("Cancelled.")
        assert await log.locator("li h2", has_text="You").count() == 3
        assert await log.locator("li h2", has_text="Cancelled").count() == 1
        (session,) = (await client.call("GET", f"/v1/sessions?agent_id={agent_id}"))["data"]
        assert session["status"] == "idle"


async def _watches_and_reloads(made: Page, log: Any, status: Any) -> None:
    await say(made, "LEN:40 DELAY:100")
    await expect(status).to_have_text("The agent works.")
    await expect(made.get_by_role("button", name="Send")).to_be_disabled()
    await expect(log).to_contain_text(WORDS)
    assert "t39" not in await log.inner_text()
    # In the middle of the answer: what was said is there again, and the rest arrives.
    await made.reload()
    await expect(log).to_contain_text(WORDS)
    assert "t39" not in await log.inner_text()
    await expect(log).to_contain_text("t39")
    await expect(status).to_have_text("Done.")
    whole = " ".join(f"t{number}" for number in range(40))
    assert (await log.locator("li p").last.inner_text()).split() == whole.split()


async def _approves(made: Page, log: Any, status: Any) -> None:
    await say(made, tool("bash", command="echo approved by a person"))
    await expect(status).to_have_text("The agent waits for you.")
    approve = made.get_by_role("group", name="Allow bash?").get_by_role("button", name="Approve")
    await expect(made.get_by_label("Waiting for you")).to_contain_text("echo approved by a person")
    # It has the focus, so that Enter alone approves.
    await expect(approve).to_be_focused()
    await made.reload()
    await expect(approve).to_be_focused()
    await made.keyboard.press("Enter")
    await expect(status).to_have_text("Done.")
    await expect(made.get_by_label("Waiting for you")).to_be_empty()


async def _cancels(made: Page, log: Any, status: Any) -> None:
    await say(made, "LEN:200 DELAY:100")
    await expect(log.locator("li p").last).to_contain_text(WORDS)
    await made.keyboard.press("Tab")
    cancel = made.get_by_role("button", name="Cancel")
    await expect(cancel).to_be_focused()
    await made.keyboard.press("Enter")
    await expect(status).to_have_text("Cancelled.")
    await expect(cancel).to_be_disabled()


async def test_nothing_that_a_person_wrote_is_lost_or_taken_for_a_decision(platform: Platform) -> None:
    async with api(platform.url) as client, page() as made:
        agent_id = await client.agent()
        # As on a page that comes over plain HTTP from another machine.
        await made.add_init_script("delete Crypto.prototype.randomUUID")
        address = f"{platform.url}/examples/session-gateway?agent="
        status, text = made.get_by_role("status"), made.get_by_label("Message")
        await made.goto(address + "agent_none")
        await say(made, "Hello")
        await expect(status).to_have_text("The request was refused.")
        await expect(text).to_have_value("Hello")
        # A session that is not there any more: the next message begins another.
        await made.goto(address + agent_id)
        await made.evaluate("keep('sess_gone')")
        await made.reload()
        await expect(status).to_have_text("The request was refused.")
        # Whatever answered, it was no session gateway; the message is sent again.
        await made.route("**/session", lambda route: route.fulfill(status=503), times=1)
        await say(made, "LEN:3")
        await expect(status).to_have_text("Done.")
        await made.route("**/cancel", lambda route: route.abort())
        await made.evaluate("tell(`/session/${sessionId}/cancel`, {})")
        await expect(status).to_have_text("No connection. Try again.")
        await text.fill("A draft")
        asked = {"type": "confirmation", "tool": "bash", "options": [{"id": "approve", "label": "Approve"}]}
        await made.evaluate("input => ask({ requestId: 'sevt_1', input })", asked)
        await expect(made.get_by_role("button", name="Approve")).to_be_visible()
        await expect(text).to_be_focused()


async def test_a_page_gets_a_cookie_for_a_ticket_and_never_holds_a_key(platform: Platform) -> None:
    async with api(platform.url) as client, page() as made:
        agent_id = await client.agent()
        key = (await client.call("POST", "/v1/api-keys", {"name": "server"}))["secret_key"]
        bearer = {"authorization": f"Bearer {key}"}
        try:
            await _with_a_cookie(platform.url, agent_id, bearer, made)
        finally:
            async with httpx2.AsyncClient(base_url=platform.url) as admin:
                for each in (await admin.get("/v1/api-keys", headers=bearer)).json()["data"]:
                    await admin.delete(f"/v1/api-keys/{each['id']}", headers=bearer)


async def _with_a_cookie(url: str, agent_id: str, bearer: dict[str, str], made: Page) -> None:
    address = f"{url}/examples/session-gateway?agent={agent_id}"
    await made.goto(address)
    await say(made, "LEN:3")
    await expect(made.locator("#log")).to_contain_text("401")
    # What an application's server does.
    async with httpx2.AsyncClient(base_url=url) as server:
        base = f"/api/agents/{agent_id}/eve/v1"
        ticket = (await server.post(f"{base}/tickets", json={"user": "ada"}, headers=bearer)).json()["ticket"]
    await made.goto("about:blank")
    await made.goto(f"{address}#ticket={ticket}")
    await await_until(lambda: "ticket" not in made.url)
    await say(made, "LEN:3")
    await expect(made.get_by_role("status")).to_have_text("Done.")
    await made.reload()
    await expect(made.get_by_role("status")).to_have_text("Done.")
    assert await made.evaluate("document.cookie") == ""
    (cookie,) = await made.context.cookies(f"{url}{base}/session")
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and cookie["path"] == f"{base}/"
    kept = await made.evaluate("JSON.stringify([{...sessionStorage}, {...localStorage}, location.href])")
    assert bearer["authorization"].split()[1] not in kept and ticket not in kept

"""A vendor and a key are saved over REST: the next turn uses both, no place shows the key, a restart keeps both."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import psycopg
import pytest

from tests.e2e.test_secrets import _everything_stored
from tests.support.api import Api, Reader, message
from tests.support.chat import said
from tests.support.platform import Platform, running_platform
from tests.support.rows import database_of
from tests.support.vendor import Vendor, vendor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
PATH = "/v1/x/settings"
FIRST, SECOND = "canary-first-0123456789", "canary-second-9876543210"


async def _turn(client: Api, session_id: str, text: str) -> list[str]:
    """What the model answers to a message."""
    seen = len(await client.log(session_id))
    await client.send(session_id, message(text))
    reader = Reader(client, session_id)
    assert await reader.follow(lambda event: event["type"] == "session.status_idle" and event["seq"] > seen)
    return [event["content"][0]["text"] for event in reader.events[seen:] if event["type"] == "agent.message"]


async def _save(client: Api, base_url: str, key: str, default_model: str) -> dict:
    document = (found := await client.call("GET", PATH))["saved_config"]
    document["model"] |= {"vendor": "openai", "base_url": base_url, "api_key": key, "default_model": default_model}
    await client.call("POST", f"{PATH}/validate", document)
    saved = await client.call("PUT", PATH, {"revision": found["revision"], "config": document})
    assert saved["effective_revision"] == saved["revision"] == found["revision"] + 1
    assert saved["restart_required"] is False and saved["secret_states"]["model"]["api_key"] == "configured"
    assert key == "********" or key not in str(saved)
    return saved


async def _change_over(platform: Platform, one: Vendor, other: Vendor) -> str:
    async with httpx2.AsyncClient(base_url=platform.url, timeout=30, trust_env=False) as http:
        client = Api(http)
        session_id = await client.session(await client.agent())
        # The demo model speaks, so a runner has an answer of the vault that it would trust for a while.
        assert len(await _turn(client, session_id, "Hello.")) == 1
        await _save(client, f"{one.url}/v1", FIRST, "m1")
        assert await _turn(client, session_id, "And now?") == ["one"]
        await _save(client, f"{other.url}/v1", SECOND, "m2")
        assert await _turn(client, session_id, "And now?") == ["other"]
        await _save(client, f"{one.url}/v1", "********", "m3")
        assert await _turn(client, session_id, "And again?") == ["one"]
        return session_id


def _check_requests(one: Vendor, other: Vendor) -> None:
    keys = [headers["authorization"] for headers in (*one.headers, *other.headers)]
    assert keys == [f"Bearer {FIRST}", *[f"Bearer {SECOND}"] * 2, f"Bearer {SECOND}"]
    assert [request["model"] for request in (*one.requests, *other.requests)] == ["m1", "m3", "m3", "m2"]


async def test_the_next_turn_uses_what_was_saved(tmp_path: Path) -> None:
    async with vendor(said("one")) as one, vendor(said("other")) as other:
        started = running_platform(tmp_path / "data")
        platform = await asyncio.to_thread(started.__enter__)
        try:
            session_id = await _change_over(platform, one, other)
            with database_of(platform) as rows:
                places = await asyncio.to_thread(_places, platform, rows)
        finally:
            await asyncio.to_thread(started.__exit__, None, None, None)
        again = running_platform(tmp_path / "data")
        platform = await asyncio.to_thread(again.__enter__)
        try:
            async with httpx2.AsyncClient(base_url=platform.url, timeout=30, trust_env=False) as http:
                assert await _turn(Api(http), session_id, "Still there?") == ["one"]
        finally:
            await asyncio.to_thread(again.__exit__, None, None, None)
        _check_requests(one, other)
    assert not [name for name, place in places.items() if FIRST in place or SECOND in place]
    saves = [line for line in places["the logs"].splitlines() if "runtime_settings_saved" in line]
    assert len(saves) == 3 and "model.api_key" in saves[0] and "model.api_key" not in saves[2]


def _places(platform: Platform, rows: psycopg.Connection) -> dict[str, str]:
    return {"the database": _everything_stored(rows), "the logs": platform.logs() + platform.output()}

"""No secret of the platform shows in logs, events, answers, command lines, or anywhere in a sandbox."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import psycopg
import pytest
from psycopg import sql

from tests.e2e.leftovers import processes_of
from tests.support.api import Api, Reader, message
from tests.support.chat import called, environment, said
from tests.support.platform import Platform, running_platform
from tests.support.rows import SCHEMAS, database_of
from tests.support.vendor import Answer, vendor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
MODEL_KEY, API_KEY = "canary-model-0123456789", "canary-api-9876543210"
# What an agent that looks for secrets would run.
SEARCH = "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; ls -la / /tmp ~; cat /work/* /root/* 2>/dev/null; true"


def _everything_stored(rows: psycopg.Connection) -> str:
    tables = rows.execute(
        "SELECT schemaname, tablename FROM pg_tables WHERE schemaname = ANY(%s)", [SCHEMAS]
    ).fetchall()
    found = []
    for schema, table in tables:
        read = sql.SQL("SELECT t::text FROM {} t").format(sql.Identifier(schema, table))
        found += [row[0] for row in rows.execute(read).fetchall()]
    return "\n".join(found)


def _secrets(platform: Platform) -> dict[str, str]:
    folder = platform.data_dir
    return {
        "the model's key": MODEL_KEY,
        "the API key": API_KEY,
        "the master key": (folder / "secret.key").read_text().strip(),
        "the token between services": (folder / "internal.token").read_text().strip(),
        "the token of NATS": (folder / "nats" / "token").read_text().strip(),
    }


async def test_canaries_are_found_nowhere(tmp_path: Path) -> None:
    refused = Answer(401, [f'{{"error": {{"message": "bad key {MODEL_KEY}"}}}}'.encode()])
    answers = (called("bash", command=SEARCH), said("done"), refused)
    async with vendor(*answers) as scripted:
        variables = {**environment(scripted, MODEL_KEY), "MANAGED_AGENTS_API_KEY": API_KEY}
        started = running_platform(tmp_path / "data", environment=variables)
        platform = await asyncio.to_thread(started.__enter__)
        try:
            await _look_everywhere(platform)
        finally:
            await asyncio.to_thread(started.__exit__, None, None, None)
        assert scripted.headers[0]["authorization"] == f"Bearer {MODEL_KEY}"


async def _look_everywhere(platform: Platform) -> None:
    headers = {"authorization": f"Bearer {API_KEY}"}
    async with httpx2.AsyncClient(base_url=platform.url, headers=headers, timeout=30, trust_env=False) as http:
        client = Api(http)
        session_id = await client.session(await client.agent())
        reader = Reader(client, session_id)
        for text in ("Look around.", "Now fail."):
            await client.send(session_id, message(text))
            assert await reader.follow(lambda event: event["type"] == "session.status_idle")
        (result,) = [event for event in reader.events if event["type"] == "agent.tool_result"]
        assert "HOME=/workspace" in result["content"][0]["text"]
        assert [event for event in reader.events if event["type"] == "session.error"]
        refused = await http.get("/v1/agents", headers={"authorization": "Bearer canary-wrong-5555555555"})
        assert refused.status_code == 401
        with database_of(platform) as rows:
            places = {
                "the log of the session": str(reader.events),
                "a refusal": refused.text,
                "the database": _everything_stored(rows),
            }
        await _hosts_do_not_matter(http)
    places["the logs"] = platform.logs() + platform.output()
    places["the command lines"] = "\n".join(processes_of(platform.data_dir))
    assert "canary-wrong" not in "".join(places.values())
    shown = [
        (name, place) for name, secret in _secrets(platform).items() for place in places if secret in places[place]
    ]
    assert not shown
    assert not [place for place in _environments("services.worker.runner") if MODEL_KEY in place or API_KEY in place]


async def _hosts_do_not_matter(http: httpx2.AsyncClient) -> None:
    """The credential decides, whatever a proxy says of hosts."""
    for headers in ({"host": "example.com"}, {"x-forwarded-host": "other.example"}, {"forwarded": "host=a.example"}):
        assert (await http.get("/v1/agents", headers=headers)).status_code == 200


def _environments(module: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if module.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append((entry / "environ").read_bytes().decode(errors="replace"))
        except OSError:
            continue
    assert found
    return found

"""What streams promise over a whole platform: no first event missed, no cut noticed, any gateway will do."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import orjson
import pytest

from kit.testing import await_until, free_port
from tests.support.api import Api, Event, Reader, api, message, tool
from tests.support.platform import Platform
from tests.support.rows import database_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
RUNS = 200
PREVIEWS = "?event_deltas[]=agent.message&event_deltas[]=agent.thinking"


def _is_idle(event: Event) -> bool:
    return event["type"] == "session.status_idle"


def _frames(body: bytes) -> list[tuple[str, dict]]:
    found = []
    for frame in body.split(b"\n\n"):
        fields = dict(line.decode().split(": ", 1) for line in frame.split(b"\n") if line and line[:1] != b":")
        if fields:
            found.append((fields["event"], orjson.loads(fields["data"])))
    return found


async def test_a_call_that_sends_and_follows_never_misses_the_first_events(platform: Platform) -> None:
    async with api(platform.url) as client:
        agent_id = await client.agent(tools=[])

        async def once() -> None:
            session_id = await client.session(agent_id)
            body = {"content": "hello", "stream": True}
            answer = await client.http.post(f"/v1/sessions/{session_id}/messages", json=body)
            types = [name for name, _ in _frames(answer.content)]
            assert types[:2] == ["user.message", "session.status_running"], types
            assert "agent.message" in types and types[-1] == "session.status_idle", types

        for _ in range(RUNS // 4):
            await asyncio.gather(*(once() for _ in range(4)))


@contextmanager
def _second_gateway(platform: Platform) -> Iterator[str]:
    """Another gateway over the same services."""
    environment, port = _environment_of_gateway(platform), str(free_port())
    environment["MANAGED_AGENTS_PORT"] = port
    environment.pop("MANAGED_AGENTS_SUPERVISOR_FD", None)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "services.gateway"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        try:
            return httpx2.get(f"{url}/v1/x/health?ready=true").status_code == 200
        except httpx2.TransportError:
            return False

    try:
        await_until(is_ready, timeout=60)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _environment_of_gateway(platform: Platform) -> dict[str, str]:
    mine = f"MANAGED_AGENTS_DATA_DIR={platform.data_dir}"
    for entry in Path("/proc").iterdir():
        try:
            if b"services.gateway" not in (entry / "cmdline").read_bytes().split(b"\0"):
                continue
            pairs = [os.fsdecode(pair) for pair in (entry / "environ").read_bytes().split(b"\0") if pair]
        except OSError:
            continue
        if mine in pairs:
            return dict(pair.split("=", 1) for pair in pairs)
    raise AssertionError("no gateway runs")


async def test_a_client_that_moves_between_gateways_after_each_event_gets_each_once(platform: Platform) -> None:
    second = _second_gateway(platform)
    url = await asyncio.to_thread(second.__enter__)
    try:
        async with api(platform.url) as one, api(url) as other:
            session_id = await one.session(await one.agent())
            writer = Reader(one, session_id)

            async def write() -> None:
                while writer.last_seq < 50:
                    await one.send(session_id, message(tool("bash", command="echo hello")))
                    await writer.follow(_is_idle)

            writing = asyncio.create_task(write())
            readers = {one: Reader(one, session_id), other: Reader(other, session_id)}
            events: list[Event] = []
            while not writing.done() or len(events) < writer.last_seq:
                # One connection per event, each at the other gateway.
                one_of_two = readers[(one, other)[len(events) % 2]]
                one_of_two.events = events
                await one_of_two.follow(lambda _: True)
            await writing
            assert len(events) >= 50
            assert [event["id"] for event in events] == [event["id"] for event in await one.log(session_id)]
    finally:
        await asyncio.to_thread(second.__exit__, None, None, None)


async def test_a_client_that_hangs_up_changes_nothing_for_its_session(platform: Platform) -> None:
    async with api(platform.url) as client:
        session_id = await client.session(await client.agent())
        body = {"content": "LEN:20 DELAY:20", "stream": True}
        async with client.http.stream("POST", f"/v1/sessions/{session_id}/messages", json=body) as answer:
            await anext(answer.aiter_raw())
        reader = Reader(client, session_id)
        assert await reader.follow(_is_idle)
        (said,) = [event for event in reader.events if event["type"] == "agent.message"]
        assert said["content"][0]["text"].split() == [f"t{number}" for number in range(20)]
        assert not [event for event in reader.events if event["type"] in ("user.interrupt", "session.error")]


@pytest.mark.parametrize("text", ["LEN:200 DELAY:20", "THINK: LEN:200 DELAY:20"])
async def test_an_interrupt_leaves_no_preview_without_an_end(platform: Platform, text: str) -> None:
    async with api(platform.url) as client:
        session_id = await client.session(await client.agent())
        begun: list[str] = []
        ended: list[str] = []
        last = ""
        path = f"/v1/sessions/{session_id}/events/stream{PREVIEWS}"
        async with client.http.stream("GET", path, headers={"last-event-id": "0"}) as answer:
            unread, deltas = b"", 0
            pieces = answer.aiter_raw()
            await client.send(session_id, message(text))
            while last != "session.status_idle":
                unread += await anext(pieces)
                whole, _, unread = unread.rpartition(b"\n\n")
                for name, event in _frames(whole):
                    last = name
                    if name == "event_start":
                        begun.append(event["event"]["id"])
                    elif name == "event_delta":
                        deltas += 1
                        if deltas == 5:
                            await client.send(session_id, {"type": "user.interrupt"})
                    else:
                        ended.append(event["id"])
        log = await client.log(session_id)
        request_ends = [event for event in log if event["type"] == "span.model_request_end"]
        assert begun and (set(begun) <= set(ended) or request_ends)
        (partial,) = [event for event in log if event["type"] == "agent.message"]
        assert partial["content"][0]["text"].startswith("t0 t1 ") and partial["id"] in begun
        assert not [event for event in log if event["type"] == "session.error"]


async def test_every_previewed_event_is_announced_once_on_one_long_stream(platform: Platform) -> None:
    async with api(platform.url) as client:
        session_id = await client.session(await client.agent())
        path, unread = f"/v1/sessions/{session_id}/events/stream{PREVIEWS}", b""
        async with client.http.stream("GET", path, headers={"last-event-id": "0"}) as answer:
            pieces = answer.aiter_raw()
            for turn in range(1, 4):
                await client.send(session_id, message("THINK: LEN:5 DELAY:10"))
                while unread.count(b"event: session.status_idle") < turn:
                    unread += await anext(pieces)
        frames = _frames(unread)
        begun = [event["event"]["id"] for name, event in frames if name == "event_start"]
        said = [event["id"] for name, event in frames if name in ("agent.thinking", "agent.message")]
        assert begun == said and len(said) == 6


async def test_a_log_that_was_quiet_for_a_year_is_still_replayed(platform: Platform) -> None:
    async with api(platform.url) as client:
        session_id = await client.session(await client.agent())
        live = Reader(client, session_id)
        await client.send(session_id, message("hello"))
        assert await live.follow(_is_idle)
        with database_of(platform) as rows:
            for statement in (
                "UPDATE sessions.events SET created_at = created_at - interval '1 year' WHERE session_id = %s",
                "UPDATE sessions.sessions SET updated_at = updated_at - interval '1 year' WHERE id = %s",
            ):
                rows.execute(statement, [session_id])
        late = Reader(client, session_id)
        assert await late.follow(_is_idle)
        assert late.events == live.events


async def test_a_session_is_running_as_long_as_its_tool_runs(platform: Platform) -> None:
    async with api(platform.url) as client:
        session_id = await client.session(await client.agent())
        reader = Reader(client, session_id)
        await client.send(session_id, message(tool("bash", command="sleep 2; echo done")))
        assert await reader.follow(lambda event: event["type"] == "agent.tool_use")
        following = asyncio.create_task(reader.follow(_is_idle))
        while not following.done():
            status = await client.status(session_id)
            assert status == "running" or [event for event in await client.log(session_id) if _is_idle(event)]
            await asyncio.wait({following}, timeout=0.1)
        types = [event["type"] for event in reader.events]
        assert types.count("session.status_idle") == 1
        assert types.index("agent.tool_result") < types.index("session.status_idle")


async def _running(client: Api) -> list[str]:
    return [one["id"] for one in (await client.call("GET", "/v1/sessions?statuses[]=running"))["data"]]


async def test_work_that_nobody_follows_is_found_and_ended_without_a_stream(platform: Platform) -> None:
    async with api(platform.url) as client:
        session_id = await client.session(await client.agent())
        await client.send(session_id, message(tool("bash", command="sleep 4903 & sleep 4903")))
        await await_until(lambda: len(_sleepers()) >= 2, timeout=30)
        assert session_id in await _running(client)
        await client.send(session_id, {"type": "user.interrupt"})
        await await_until(lambda: not _sleepers(), timeout=30)
        reader = Reader(client, session_id)
        assert await reader.follow(_is_idle)
        assert session_id not in await _running(client)


def _sleepers() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().split(b"\0")[:2] == [b"sleep", b"4903"]:
                found.append(entry.name)
        except OSError:
            continue
    return found


async def test_a_call_that_waits_for_its_answer_waits_for_days(platform: Platform) -> None:
    asking = {"type": "agent_toolset_20260401", "default_config": {"permission_policy": {"type": "always_ask"}}}
    async with api(platform.url) as client:
        session_id = await client.session(await client.agent(tools=[asking]))
        reader = Reader(client, session_id)
        await client.send(session_id, message(tool("bash", command="echo allowed")))
        assert await reader.follow(_is_idle)
        with database_of(platform) as rows:
            older = "UPDATE sessions.sessions SET updated_at = updated_at - interval '3 days' WHERE id = %s"
            rows.execute(older, [session_id])
        assert await client.status(session_id) == "requires_action"
        (call_id,) = reader.events[-1]["stop_reason"]["event_ids"]
        await client.send(session_id, {"type": "user.tool_confirmation", "tool_use_id": call_id, "result": "allow"})
        assert await reader.follow(_is_idle)
        (result,) = [event for event in reader.events if event["type"] == "agent.tool_result"]
        assert result["content"][0]["text"].strip() == "allowed" and not result["is_error"]

"""Proves what happens to a trial, and to the others, when an agent fails, hangs, floods, or sends it elsewhere."""

import asyncio
import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from cli.rehearse.faults import Unusable
from cli.rehearse.running import Wanted, run
from tests.integration.rehearse.agents import EXAMPLES, Served, agent_that, answer
from tests.unit.rehearse.domains import FILES, write

REPLY = orjson.dumps({"reply": "Hi."})


@pytest.fixture
def domain(tmp_path: Path) -> Path:
    return write(tmp_path / "lockers", {**FILES, "tasks/take.yaml": TASK, "tasks/other.yaml": TASK})


TASK = "turns: [Hello., Goodbye.]\nend: [{unchanged: {table: lockers}}]\n"


async def _run(domain: Path, agent: Served, tmp_path: Path, **options: Any) -> dict[str, Any]:
    file = tmp_path / "report.json"
    sufficient = await run(Wanted(domain, agent.url, json_file=file, **options))
    report = json.loads(file.read_text())
    assert report["sufficient"] is sufficient
    return report


def _told(report: dict[str, Any], task: str = "take", trial: int = 0) -> str:
    (found,) = [each for each in report["tasks"] if each["id"] == task]
    failures = found["trials"][trial]["failures"]
    assert [failure["kind"] for failure in failures] == ["runtime"]
    return failures[0]["told"]


async def test_a_status_is_shown_with_its_body(domain: Path, tmp_path: Path) -> None:
    async def fails(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await answer(writer, b'{"error": "out of memory"}', "503 Service Unavailable")

    async with agent_that(fails) as agent:
        report = await _run(domain, agent, tmp_path)
    assert _told(report) == 'the agent answered with status 503: {"error": "out of memory"}'
    assert report["failed"] == 2 and len(agent.bodies) == 2, "a step is never sent twice"


async def test_every_status_of_two_hundred_is_an_answer(domain: Path, tmp_path: Path) -> None:
    async def created(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await answer(writer, REPLY, "201 Created")

    async with agent_that(created) as agent:
        assert (await _run(domain, agent, tmp_path))["failed"] == 0


async def test_a_redirect_is_not_followed(domain: Path, tmp_path: Path) -> None:
    async def elsewhere(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await answer(writer, b"", "307 Temporary Redirect", "location: /other")

    async with agent_that(elsewhere) as agent:
        report = await _run(domain, agent, tmp_path)
    assert _told(report) == "the agent answered with status 307: an empty body"
    assert len(agent.bodies) == 2


async def test_what_is_not_json_and_what_says_nothing_end_the_trial(domain: Path, tmp_path: Path) -> None:
    async def odd(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await answer(writer, b"<p>hi</p>" if "take" in body["session_id"] else b'{"ok": true}')

    async with agent_that(odd) as agent:
        report = await _run(domain, agent, tmp_path)
    assert _told(report) == "the agent's answer is not JSON: <p>hi</p>"
    assert _told(report, "other") == 'the agent\'s answer has neither reply nor tool_calls: {"ok": true}'


async def test_a_hung_agent_fails_its_trial_and_stalls_no_other(domain: Path, tmp_path: Path) -> None:
    beginnings = [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"]

    async def hangs(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        task, _, trial = body["session_id"].partition("#")
        if task.endswith("/take"):
            writer.write(beginnings[int(trial)])
            await asyncio.Event().wait()
        await answer(writer, REPLY)

    async with asyncio.timeout(30), agent_that(hangs) as agent:
        # More hang than run at once: each gives its place back.
        report = await _run(domain, agent, tmp_path, timeout_seconds=2, trials=3, concurrency=2)
    assert [_told(report, trial=number) for number in range(3)] == ["the agent gave no answer within 2 s"] * 3
    assert (report["passed"], report["failed"]) == (3, 3)


async def test_an_answer_that_drips_is_cut_at_the_timeout(domain: Path, tmp_path: Path) -> None:
    async def drips(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1\r\n \r\n")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with asyncio.timeout(30), agent_that(drips) as agent:
        report = await _run(domain, agent, tmp_path, timeout_seconds=0.3)
    assert "no answer within 0.3 s" in _told(report)


async def test_an_endless_answer_is_cut_at_its_bound(domain: Path, tmp_path: Path) -> None:
    async def floods(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 999999999999\r\n\r\n")
        while True:
            writer.write(b" " * 65536)
            await writer.drain()

    async with asyncio.timeout(30), agent_that(floods) as agent:
        report = await _run(domain, agent, tmp_path)
    assert _told(report) == "the agent's answer is larger than 4,194,304 bytes"


async def test_a_broken_connection_and_nobody_there_are_told(domain: Path, tmp_path: Path) -> None:
    async def breaks(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{")
        raise ConnectionError

    async with agent_that(breaks) as agent:
        assert _told(await _run(domain, agent, tmp_path)).startswith("the agent can't be reached or broke off: ")
    nobody = Served("http://127.0.0.1:9/step")
    assert _told(await _run(domain, nobody, tmp_path)).startswith("the agent can't be reached or broke off: ")


async def test_requests_are_what_the_protocol_says(domain: Path, tmp_path: Path) -> None:
    async def calls_once(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        calls = [{"id": "c1", "name": "hours", "arguments": {}}]
        await answer(writer, REPLY if "tool_results" in body else orjson.dumps({"tool_calls": calls}))

    async with agent_that(calls_once) as agent:
        report = await _run(domain, agent, tmp_path, tasks=("take",))
    assert [sorted(body) for body in agent.bodies] == [
        ["message", "session_id", "system", "tools"],
        ["session_id", "system", "tool_results", "tools"],
    ] * 2
    assert agent.bodies[1]["tool_results"] == [{"id": "c1", "ok": True, "result": {"open": 8, "close": 20}}]
    assert {body["session_id"] for body in agent.bodies} == {f"{report['run_id']}/take#0"}
    for head in agent.heads:
        assert head.startswith("POST /step HTTP/1.1\r\n")
        names = {line.partition(":")[0].lower() for line in head.splitlines()[1:] if line}
        assert "content-type: application/json" in head.lower()
        assert not names & {"authorization", "cookie", "idempotency-key"}


async def test_a_cookie_of_one_trial_is_not_sent_in_another(domain: Path, tmp_path: Path) -> None:
    async def gives(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await answer(writer, REPLY, "200 OK", "set-cookie: session=of-somebody; Path=/")

    async with agent_that(gives) as agent:
        await _run(domain, agent, tmp_path, concurrency=1)
    assert len(agent.heads) == 4 and not any("cookie" in head.lower() for head in agent.heads)


async def test_what_follows_a_question_mark_is_sent_and_not_reported(domain: Path, tmp_path: Path) -> None:
    async def replies(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await answer(writer, REPLY)

    async with agent_that(replies) as agent:
        plain, agent.url = agent.url, f"{agent.url}?key=canary"
        report = await _run(domain, agent, tmp_path)
    assert agent.heads[0].startswith("POST /step?key=canary HTTP")
    assert report["agent"] == plain and "canary" not in json.dumps(report)


async def test_no_two_runs_share_a_session(domain: Path, tmp_path: Path) -> None:
    async def replies(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await answer(writer, REPLY)

    async with agent_that(replies) as agent:
        for _ in range(5):
            await _run(domain, agent, tmp_path, trials=3)
    steps = [body["session_id"] for body in agent.bodies]
    assert len(set(steps)) == 5 * 2 * 3 and len(steps) == 2 * len(set(steps))


async def test_a_header_is_sent_and_its_secret_is_in_no_report(
    domain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def echoes(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        told = agent.heads[-1].lower().partition("authorization: bearer ")[2].partition("\r\n")[0]
        await answer(writer, f"refused: {told}".encode(), "401 Unauthorized")

    monkeypatch.setenv("AGENT_TOKEN", "canary-of-the-agent")
    async with agent_that(echoes) as agent:
        junit = tmp_path / "junit.xml"
        report = await _run(domain, agent, tmp_path, headers=("Authorization=Bearer ${AGENT_TOKEN}",), junit_file=junit)
    assert "authorization: bearer canary-of-the-agent" in agent.heads[0].lower()
    assert _told(report) == "the agent answered with status 401: refused: ${AGENT_TOKEN}"
    assert "canary" not in json.dumps(report) + junit.read_text() + "".join(capsys.readouterr())


async def test_an_agent_of_the_platform_is_looked_up_and_asked_with_the_key_and_named_steps(
    domain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def platform(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await answer(writer, orjson.dumps({"reply": "Your key is canary-of-the-platform."}) if body else b"{}")

    monkeypatch.setenv("MANAGED_AGENTS_API_KEY", "canary-of-the-platform")
    async with agent_that(platform) as served:
        file = tmp_path / "report.json"
        base_url = served.url.removesuffix("/step")
        assert await run(Wanted(domain, "agent_01abc", base_url, tasks=("take",), json_file=file))
    lookup, *steps = served.heads
    assert lookup.startswith("GET /v1/agents/agent_01abc HTTP")
    assert all(head.startswith("POST /v1/agents/agent_01abc/step HTTP") for head in steps)
    assert all("authorization: bearer canary-of-the-platform" in head.lower() for head in served.heads)
    names = [head.lower().partition("idempotency-key: ")[2].partition("\r\n")[0] for head in steps]
    session = served.bodies[1]["session_id"].lower()
    assert names == [f"{session}/1", f"{session}/2"]
    report = file.read_text()
    assert "canary" not in report and "Your key is ${MANAGED_AGENTS_API_KEY}." in report


async def test_an_agent_that_the_platform_does_not_have_is_unusable(domain: Path) -> None:
    async def platform(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await answer(writer, b'{"error": {"message": "No such agent."}}', "404 Not Found")

    async with agent_that(platform) as served:
        with pytest.raises(Unusable, match=r"refused with 404: No such agent\."):
            await run(Wanted(domain, "agent_01abc", served.url.removesuffix("/step")))
    assert len(served.heads) == 1


async def test_equal_answers_give_equal_bytes_apart_from_ids_and_times(tmp_path: Path) -> None:
    async def books_wrongly(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        # Slower or quicker, in no order: what differs between two runs must not show.
        await asyncio.sleep(hash(body["session_id"]) % 5 / 1000)
        order = {"guest": "G-1", "room": "11", "guests": 2, "nights": 1, "rate": 50.5}
        calls = [{"id": "c1", "name": "book_room", "arguments": order}]
        await answer(writer, REPLY if "tool_results" in body else orjson.dumps({"tool_calls": calls}))

    found = []
    for seed in (None, 3):
        async with agent_that(books_wrongly) as agent:
            report = await _run(EXAMPLES / "hotel-desk", agent, tmp_path, trials=3, concurrency=4, seed=seed)
        found.append(orjson.dumps(_without_ids_and_times(report), option=orjson.OPT_INDENT_2))
    assert found[0] == found[1]


def _without_ids_and_times(told: Any) -> Any:
    if isinstance(told, list):
        return [_without_ids_and_times(item) for item in told]
    if not isinstance(told, dict):
        return told
    apart = ("run_id", "session_id", "started_at", "seconds", "seed", "agent")
    return {name: _without_ids_and_times(value) for name, value in told.items() if name not in apart}

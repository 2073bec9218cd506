"""Outcome definitions and what sessions were found to be, over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
import orjson
import pytest
import pytest_asyncio

from kit.rpc.client import channel
from kit.rpc.context import CallContext
from tests.integration.gateway.conftest import Gateway
from tests.integration.sessions.turn_driver import WORKSPACE, Replica, end, event

pytestmark = pytest.mark.asyncio(loop_scope="package")

AGENT = {"name": "assistant", "model": "default", "system": "You are helpful."}
READINESS = {
    "name": "Release readiness",
    "objective": "The agent should produce a concise release-readiness summary.",
    "criteria": ["Mentions tests", "Mentions risks"],
}
OUTCOME = {
    "type": "user.define_outcome",
    "description": "Ship it",
    "rubric": {"type": "text", "content": "It returns 200"},
}


async def create(http: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    """A definition."""
    answer = await http.post("/v1/outcomes", json=READINESS | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def session(http: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    """A session."""
    agent = (await http.post("/v1/agents", json=AGENT)).json()["id"]
    answer = await http.post("/v1/sessions", json={"agent": agent} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def told(text: str) -> dict[str, Any]:
    """A session whose log says something."""
    return {"initial_events": [{"type": "user.message", "content": text}]}


def refusal(answer: httpx2.Response) -> tuple[int, str, str]:
    """Status, code and message of a refusal."""
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["message"]


async def test_life_of_a_definition(http: httpx2.AsyncClient) -> None:
    created = await create(http, pass_threshold=0.5, metadata={"team": "a"})
    assert created["id"].startswith("out_")
    shown = {key: created[key] for key in ("type", "name", "objective", "criteria", "pass_threshold", "status")}
    assert shown == {"type": "outcome", **READINESS, "pass_threshold": 0.5, "status": "active"}
    assert (created["description"], created["archived_at"], created["metadata"]) == (None, None, {"team": "a"})
    path = f"/v1/outcomes/{created['id']}"
    assert (await http.get(path)).json() == created
    change = {"description": "d", "criteria": ["One"], "pass_threshold": 1, "metadata": {"team": None, "tier": "1"}}
    changed = (await http.put(path, json=change)).json()
    kept = {"name": created["name"], "objective": created["objective"], "metadata": {"tier": "1"}}
    assert {key: changed[key] for key in (*kept, *change)} == {**change, **kept}
    assert changed["updated_at"] > created["updated_at"]
    assert (await http.put(path, json={"description": "d"})).json() == changed
    cleared = (await http.put(path, json={"description": None, "objective": None, "criteria": None})).json()
    assert (cleared["description"], cleared["objective"], cleared["criteria"]) == (None, "", [])
    archived = (await http.post(f"{path}/archive")).json()
    assert archived["status"] == "archived" and archived["archived_at"]
    assert (await http.post(f"{path}/archive")).json() == archived
    assert (await http.get(path)).json() == archived
    assert refusal(await http.put(path, json={"name": "n"}))[:2] == (400, "outcome_archived")


async def test_a_definition_needs_no_more_than_a_name(http: httpx2.AsyncClient) -> None:
    created = (await http.post("/v1/outcomes", json={"name": "n"})).json()
    assert (created["objective"], created["criteria"], created["pass_threshold"]) == ("", [], 0.8)


async def test_pages_of_definitions(http: httpx2.AsyncClient) -> None:
    made = [(await create(http, name=f"n{number}"))["id"] for number in range(5)]
    await http.post(f"/v1/outcomes/{made[0]}/archive")
    seen, page = [], ""
    while True:
        answer = (await http.get("/v1/outcomes", params={"limit": 2, **({"page": page} if page else {})})).json()
        assert answer["prev_page"] is None
        seen += [each["id"] for each in answer["data"]]
        if not (page := answer["next_page"]):
            break
    assert seen == made[:0:-1]
    everything = (await http.get("/v1/outcomes?include_archived=true")).json()["data"]
    assert [each["id"] for each in everything] == made[::-1]
    first = (await http.get("/v1/outcomes?limit=1")).json()["next_page"]
    mixed = await http.get("/v1/outcomes", params={"page": first, "include_archived": "true"})
    assert refusal(mixed)[:2] == (400, "invalid_cursor")
    assert refusal(await http.get("/v1/outcomes?status=active"))[:2] == (400, "unknown_query_parameter")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": None}, "name"),
        ({"name": ""}, "name"),
        ({"name": "  "}, "name"),
        ({"name": "n" * 257}, "name"),
        ({"name": 1}, "name"),
        ({"description": "d" * 2049}, "description"),
        ({"objective": "o" * 10_001}, "objective"),
        ({"objective": "\0"}, "objective"),
        ({"criteria": "Mentions tests"}, "criteria"),
        ({"criteria": [""]}, "criteria.0"),
        ({"criteria": ["ok", " "]}, "criteria.1"),
        ({"criteria": ["c" * 2001]}, "criteria.0"),
        ({"criteria": ["c"] * 101}, "criteria"),
        ({"criteria": [{"text": "c"}]}, "criteria.0"),
        ({"pass_threshold": -0.01}, "pass_threshold"),
        ({"pass_threshold": 1.01}, "pass_threshold"),
        ({"pass_threshold": "1"}, "pass_threshold"),
        ({"pass_threshold": True}, "pass_threshold"),
        ({"metadata": {"k": 1}}, "metadata"),
        ({"weight": 1}, "weight"),
    ],
)
async def test_malformed_definitions_write_nothing(
    http: httpx2.AsyncClient, change: dict[str, Any], field: str
) -> None:
    body = {**READINESS, **change}
    status, _, message = refusal(await http.post("/v1/outcomes", json=body))
    assert (status, field in message) == (400, True), message
    assert (await http.get("/v1/outcomes")).json()["data"] == []
    made = await create(http)
    status, _, message = refusal(await http.put(f"/v1/outcomes/{made['id']}", json=change))
    assert (status, field in message) == (400, True), message
    assert (await http.get(f"/v1/outcomes/{made['id']}")).json() == made


async def test_what_is_not_there(http: httpx2.AsyncClient) -> None:
    made, there = await create(http), await session(http)
    record = {"outcome_id": made["id"], "status": "passed"}
    for method, path, body in (
        ("GET", "/v1/outcomes/out_none", None),
        ("PUT", "/v1/outcomes/out_none", {"name": "n"}),
        ("POST", "/v1/outcomes/out_none/archive", None),
        ("POST", f"/v1/sessions/{there['id']}/outcomes", {**record, "outcome_id": "out_none"}),
        ("POST", f"/v1/sessions/{there['id']}/outcomes/evaluate", {"outcome_id": "out_none"}),
    ):
        answer = await http.request(method, path, json=body)
        assert refusal(answer)[:2] == (404, "outcome_not_found"), path
        assert answer.json()["error"]["type"] == "not_found"
    for method, path, body in (
        ("GET", "/v1/sessions/sess_none/outcomes", None),
        ("POST", "/v1/sessions/sess_none/outcomes", record),
        ("POST", "/v1/sessions/sess_none/outcomes/evaluate", {"outcome_id": made["id"]}),
    ):
        assert refusal(await http.request(method, path, json=body))[:2] == (404, "session_not_found"), path
    await http.delete(f"/v1/sessions/{there['id']}")
    gone = await http.get(f"/v1/sessions/{there['id']}/outcomes")
    assert refusal(gone)[:2] == (404, "session_not_found")


async def test_records_of_a_session(http: httpx2.AsyncClient) -> None:
    made, there, other = await create(http), await session(http), await session(http)
    path = f"/v1/sessions/{there['id']}/outcomes"
    body = {
        "outcome_id": made["id"],
        "status": "passed",
        "score": 0.92,
        "summary": "The run met release-readiness criteria.",
    }
    recorded = (await http.post(path, json=body)).json()
    assert {key: recorded[key] for key in (*body, "type", "session_id", "evaluator", "criteria", "metadata")} == {
        **body,
        "type": "session_outcome",
        "session_id": there["id"],
        "evaluator": "caller",
        "criteria": [],
        "metadata": {},
    }
    bare = (await http.post(path, json={"outcome_id": made["id"], "status": "failed"})).json()
    assert (bare["score"], bare["summary"]) == (None, None)
    listed = (await http.get(path)).json()
    assert listed == {"data": [bare, recorded], "prev_page": None, "next_page": None}
    first = (await http.get(f"{path}?limit=1")).json()
    assert first["data"] == [bare]
    second = (await http.get(path, params={"limit": 1, "page": first["next_page"]})).json()
    assert (second["data"], second["next_page"]) == ([recorded], None)
    assert (await http.get(f"/v1/sessions/{other['id']}/outcomes")).json()["data"] == []
    crossed = await http.get(f"/v1/sessions/{other['id']}/outcomes", params={"page": first["next_page"]})
    assert refusal(crossed)[:2] == (400, "invalid_cursor")
    await http.post(f"/v1/outcomes/{made['id']}/archive")
    assert refusal(await http.post(path, json=body))[:2] == (400, "outcome_archived")
    assert (await http.get(path)).json() == listed


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"outcome_id": None}, "outcome_id"),
        ({"status": None}, "status"),
        ({"status": "satisfied"}, "status"),
        ({"score": 1.5}, "score"),
        ({"score": "1"}, "score"),
        ({"summary": "s" * 10_001}, "summary"),
        ({"note": "n"}, "note"),
    ],
)
async def test_malformed_records_write_nothing(http: httpx2.AsyncClient, change: dict[str, Any], field: str) -> None:
    made, there = await create(http), await session(http)
    path = f"/v1/sessions/{there['id']}/outcomes"
    body = {"outcome_id": made["id"], "status": "passed", **change}
    status, _, message = refusal(await http.post(path, json=body))
    assert (status, field in message) == (400, True), message
    assert (await http.get(path)).json()["data"] == []


@pytest.mark.parametrize(
    ("text", "threshold", "status", "score"),
    [
        ("All tests pass and there are two risks.", 1, "passed", 1.0),
        ("Testing went well.", 1, "inconclusive", 0.5),
        ("Testing went well.", 0.5, "passed", 0.5),
        ("Nothing to see.", 0.5, "failed", 0.0),
        ("Nothing to see.", 0, "passed", 0.0),
    ],
)
async def test_the_evaluator_scores_the_transcript(
    http: httpx2.AsyncClient, text: str, threshold: float, status: str, score: float
) -> None:
    made, there = await create(http, pass_threshold=threshold), await session(http, **told(text))
    path = f"/v1/sessions/{there['id']}/outcomes"
    found = (await http.post(f"{path}/evaluate", json={"outcome_id": made["id"]})).json()
    assert (found["status"], found["score"], found["evaluator"]) == (status, score, "transcript")
    assert [entry["criterion"] for entry in found["criteria"]] == READINESS["criteria"]
    assert sum(entry["matched"] for entry in found["criteria"]) == score * 2
    again = (await http.post(f"{path}/evaluate", json={"outcome_id": made["id"]})).json()
    assert {**again, "id": "", "created_at": ""} == {**found, "id": "", "created_at": ""}
    assert (await http.get(path)).json()["data"] == [again, found]


async def test_the_evaluator_reads_a_log_of_any_length(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    there, made = await session(http), await create(http)
    filler = [{"type": "user.message", "content": f"line {number}"} for number in range(500)]
    for events in (filler, [{"type": "user.message", "content": "tests"}], filler, [*filler, *filler]):
        await http.post(f"/v1/sessions/{there['id']}/events", json={"events": events})
    await http.post(f"/v1/sessions/{there['id']}/messages", json={"content": "the risk"})
    found = await http.post(f"/v1/sessions/{there['id']}/outcomes/evaluate", json={"outcome_id": made["id"]})
    assert found.json()["status"] == "passed"


async def test_the_objective_serves_where_there_are_no_criteria(http: httpx2.AsyncClient) -> None:
    there = await session(http, **told("A concise release-readiness summary."))
    made = await create(http, criteria=[])
    path = f"/v1/sessions/{there['id']}/outcomes/evaluate"
    found = (await http.post(path, json={"outcome_id": made["id"]})).json()
    assert (found["status"], [entry["criterion"] for entry in found["criteria"]]) == (
        "passed",
        [READINESS["objective"]],
    )
    empty = await create(http, criteria=[], objective="")
    assert refusal(await http.post(path, json={"outcome_id": empty["id"]}))[0] == 400
    assert refusal(await http.post(path, json={}))[0] == 400
    assert refusal(await http.post(path, json={"outcome_id": made["id"], "model": "m"}))[:2] == (400, "unknown_field")


async def test_repeats_answer_as_the_first_did(http: httpx2.AsyncClient) -> None:
    there = await session(http, **told("tests and risks"))
    for path, body in (
        ("/v1/outcomes", READINESS),
        (f"/v1/sessions/{there['id']}/outcomes", {"status": "passed"}),
        (f"/v1/sessions/{there['id']}/outcomes/evaluate", {}),
    ):
        if body is not READINESS:
            body = {**body, "outcome_id": (await create(http))["id"]}
        headers = {"idempotency-key": path}
        first, again = [(await http.post(path, json=body, headers=headers)).json() for _ in range(2)]
        assert first["id"] == again["id"]
    assert len((await http.get(f"/v1/sessions/{there['id']}/outcomes")).json()["data"]) == 2


@pytest_asyncio.fixture(loop_scope="package")
async def published(fresh_gateway: Gateway) -> AsyncIterator[Any]:
    async with anthropic.AsyncAnthropic(
        base_url=fresh_gateway.url, api_key="any", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


async def test_the_published_client_sees_an_outcome_through(fresh_gateway: Gateway, published: Any) -> None:
    """Declared at creation, measured by a runner of the test's own, revised, declared anew and interrupted."""
    beta = published.beta
    agent = await beta.agents.create(name="a", model="default", system="s")
    made = await beta.sessions.create(agent=agent.id, environment_id="env_default", initial_events=[OUTCOME])
    assert made.status == "running"
    (shown,) = made.outcome_evaluations
    assert (shown.result, shown.iteration, shown.description, shown.completed_at) == ("pending", 0, "Ship it", None)
    async with _replica(fresh_gateway) as replica, replica.runner() as runner:
        await _measure(replica, await runner.granted(), "needs_revision", "satisfied")
        session = await beta.sessions.retrieve(made.id)
        (shown,) = session.outcome_evaluations
        assert (shown.result, shown.iteration, shown.explanation) == ("satisfied", 1, "because")
        assert shown.completed_at is not None
        sent = await beta.sessions.events.send(made.id, events=[{**OUTCOME, "max_iterations": 20}])
        declared = sent.data[0]
        assert (declared.type, declared.max_iterations) == ("user.define_outcome", 20)
        assert declared.outcome_id.startswith("outc_") and declared.processed_at is not None
        with pytest.raises(anthropic.BadRequestError) as second:
            await beta.sessions.events.send(made.id, events=[OUTCOME])
        assert second.value.body["error"]["code"] == "outcome_active"
        grant = await runner.granted()
        await beta.sessions.events.send(made.id, events=[{"type": "user.interrupt"}])
        assert (await replica.append(grant, end=end("INTERRUPTED"))).ended
    log = [each async for each in beta.sessions.events.list(made.id)]
    ends = [each for each in log if each.type == "span.outcome_evaluation_end"]
    assert [(end.iteration, end.result) for end in ends] == [
        (0, "needs_revision"),
        (1, "satisfied"),
        (0, "interrupted"),
    ]
    assert ends[-1].outcome_evaluation_start_id == "" and ends[-1].usage.input_tokens == 0
    (listed,) = [each async for each in beta.sessions.list()]
    assert [each.result for each in listed.outcome_evaluations] == ["satisfied", "interrupted"]


@asynccontextmanager
async def _replica(gateway: Gateway) -> AsyncIterator[Replica]:
    connection = channel(gateway.sessions_address)
    try:
        yield Replica(connection, CallContext(workspace_id=WORKSPACE))
    finally:
        await connection.close()


async def _measure(replica: Replica, grant: Any, *results: str) -> None:
    """Evaluates as a runner does, and ends the turn."""
    (declared,) = [each for each in grant.context if each.type == "user.define_outcome"]
    outcome_id = orjson.loads(declared.body)["outcome_id"]
    usage = dict.fromkeys(
        ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"), 1
    )
    for iteration, result in enumerate(results):
        about = {"outcome_id": outcome_id, "iteration": iteration}
        start = event("span.outcome_evaluation_start", **about)
        verdict = {"result": result, "explanation": "because", "outcome_evaluation_start_id": start.id}
        events = [
            start,
            event("span.outcome_evaluation_ongoing", **about),
            event("span.outcome_evaluation_end", **about, **verdict, usage=usage),
        ]
        if result == "needs_revision":
            events.append(event("user.message", content=[{"type": "text", "text": "because"}], metadata=about))
        await replica.append(grant, *events)
    assert (await replica.append(grant, end=end())).ended

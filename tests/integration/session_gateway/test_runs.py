"""The session gateway over HTTP: repeats, conflicts, what a run is frozen on, and which version it runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.gateway.gate import AGENT, Gate, confirmation, over, question

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_the_same_key_gets_the_same_run_back(here: Gate) -> None:
    asked = here.begin("Once.", idempotency_key="k1")
    grant = await here.granted()
    # While it runs: no conflict, the same run.
    second = here.begin("Once.", idempotency_key="k1")
    await here.says("Here.", grant=grant)
    told, again = await asked, await second
    later = await here.send({"message": "Once."}, idempotency_key="k1")
    assert told.frames == again.frames == later.frames and told.types[-1] == "completed"
    assert later.headers["run-id"] == told.headers["run-id"]
    assert (await here.send({"message": "Twice."}, idempotency_key="k1")).code == (409, "idempotency_key_reused")
    log = await here.replica.log(grant.session.id)
    assert [each["type"] for each in log].count("user.message") == 1
    assert len(await here.sessions()) == 1


async def test_many_equal_starts_at_one_instant_are_one_run(here: Gate) -> None:
    starts = [here.begin("At once.", idempotency_key="k") for _ in range(8)]
    await here.says("Only once.")
    told = await asyncio.gather(*starts)
    assert len({tuple(each.frames) for each in told}) == 1
    assert len(await here.sessions()) == 1


async def test_a_repeat_of_a_run_that_was_paused_brings_all_of_it(here: Gate) -> None:
    asked = here.begin("Ask me.", idempotency_key="k")
    (call,) = await here.waits(question())
    paused = await asked
    session_id = paused.events[0]["sessionId"]
    assert (await here.send({"message": "Ask me."}, idempotency_key="k")).frames == paused.frames
    response = {"inputResponses": [{"requestId": call, "text": "x"}]}
    answered = asyncio.create_task(here.send(response, session_id, idempotency_key="a"))
    await here.says()
    rest = await answered
    assert (await here.send(response, session_id, idempotency_key="a")).frames == rest.frames
    assert (await here.send({"message": "Ask me."}, idempotency_key="k")).frames == paused.frames + rest.frames


async def test_a_second_message_while_a_turn_is_active_is_a_conflict(here: Gate) -> None:
    asked = here.begin()
    grant = await here.granted()
    session_id = grant.session.id
    assert (await here.send({"message": "More."}, session_id)).code == (409, "turn_active")
    await here.waits(confirmation(), grant=grant)
    await asked
    refused = await here.send({"message": "More."}, session_id)
    assert refused.code == (409, "turn_active") and refused.headers["x-should-retry"] == "false"
    log = await here.replica.log(session_id)
    assert [each["type"] for each in log].count("user.message") == 1


async def test_of_two_messages_at_one_instant_one_starts_a_run(here: Gate) -> None:
    asked = here.begin()
    await here.says()
    session_id = (await asked).events[0]["sessionId"]
    both = [here.begin(f"Message {number}.", session_id) for number in range(2)]
    grant = await here.granted()
    # The refusal comes while the other one runs.
    (refused,), _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    assert refused.result().code == (409, "turn_active")
    await here.says(grant=grant)
    told = await asyncio.gather(*both)
    assert sorted(each.status for each in told) == [200, 409]


async def test_what_is_not_there_is_not_found(here: Gate) -> None:
    assert (await here.door(agent_id="agent_x").send({"message": "a"})).code == (404, "agent_not_found")
    assert (await here.send({"message": "a"}, "sess_x")).code == (404, "session_not_found")
    assert (await here.send({"inputResponses": [{"requestId": "r", "text": "x"}]}, "sess_x")).status == 404
    assert (await here.cancel("sess_x")).status_code == 404
    assert (await here.watch("sess_x", until=over)).code == (404, "session_not_found")
    asked = here.begin()
    await here.says()
    first = (await asked).events[0]
    path = f"{here.base}/session/{first['sessionId']}/runs/"
    assert (await here.http.get(path + "run_x")).json()["error"]["code"] == "run_not_found"
    # A session is of one agent, and on one of the two routes.
    other = here.door(agent_id=await here.agent())
    for door in (other, here.door(preview=True)):
        assert (await door.watch(first["sessionId"], until=over)).status == 404
        assert (await door.send({"message": "a"}, first["sessionId"])).status == 404
        assert (await door.cancel(first["sessionId"])).status_code == 404
    # One that was begun elsewhere has no creator here.
    elsewhere = (await here.call("POST", "/v1/sessions", {"agent": here.agent_id}))["id"]
    assert (await here.watch(elsewhere, until=over)).status == 404


async def test_an_archived_agent_is_out_of_reach_and_its_sessions_can_still_be_read(here: Gate) -> None:
    asked = here.begin()
    await here.says()
    told = await asked
    await here.call("POST", f"/v1/agents/{here.agent_id}/archive", {})
    assert (await here.send({"message": "a"})).code == (404, "agent_not_found")
    session_id = told.events[0]["sessionId"]
    assert (await here.send({"message": "a"}, session_id)).code == (404, "agent_not_found")
    assert (await here.watch(session_id, until=over)).frames == told.frames


async def test_a_run_tells_the_engine_that_its_session_keeps(here: Gate) -> None:
    asked = here.begin()
    await here.says("Hi.")
    session_id = (await asked).events[0]["sessionId"]
    options = {"url": "https://agent.example.com/step", "headers": {"Authorization": "Bearer ${TOKEN}", "X-Team": "a"}}
    await here.call("POST", f"/v1/agents/{here.agent_id}", {"loop_engine": "http", "loop_engine_options": options})
    # Nobody here runs its turns; that a run has begun is enough.
    begun = await here.send({"message": "a"}, until=lambda told: told["type"] == "started")
    asked = here.begin("Again.", session_id)
    await here.says("Hi again.")
    for told in (begun.events[0], (await asked).events[0]):
        frozen = (await here.run(told["sessionId"], told["runId"]))["configuration"]
        session = await here.call("GET", f"/v1/sessions/{told['sessionId']}")
        assert frozen["agent"]["version"] == 2 and frozen["loop_engine"] == session["loop_engine"]
        assert frozen.get("loop_engine_options") == session.get("loop_engine_options")
        if told["sessionId"] == session_id:
            assert "loop_engine_options" not in frozen
            (change,) = [each for each in await here.replica.log(session_id) if each["type"] == "session.updated"]
            assert change["agent"]["loop_engine_options"]["headers"] == {"Authorization": "********", "X-Team": "a"}
        else:
            assert frozen["loop_engine_options"]["headers"] == {"Authorization": "********", "X-Team": "a"}


async def test_a_run_has_the_configuration_that_was_frozen_onto_it(here: Gate) -> None:
    asked = here.begin()
    await here.says("Hi.")
    first = (await asked).events[0]
    session_id = first["sessionId"]
    changed = {"system": "You are brief.", "name": "another name", "metadata": {"tier": "1"}}
    await here.call("POST", f"/v1/agents/{here.agent_id}", changed)
    asked = here.begin("Again.", session_id)
    grant = await here.granted()
    # The next run of the same session is that of the agent as it is now.
    assert grant.session.agent.version == 2 and b"You are brief." in grant.session.agent.document_json
    await here.says("Hi again.", grant=grant)
    second = (await asked).events[0]
    one, two = await here.run(session_id, first["runId"]), await here.run(session_id, second["runId"])
    assert one["configuration"]["system"] == AGENT["system"] and one["configuration"]["agent"]["version"] == 1
    assert two["configuration"]["system"] == "You are brief." and two["configuration"]["agent"]["version"] == 2
    assert one["status"] == two["status"] == "completed" and (one["output"], two["output"]) == ("Hi.", "Hi again.")
    for name in ("model", "tools", "environment", "resources", "vault_ids", "loop_engine", "route"):
        assert name in one["configuration"]
    assert (await here.call("GET", f"/v1/sessions/{session_id}"))["agent"]["version"] == 2
    log = await here.replica.log(session_id)
    (told,) = [each for each in log if each["type"] == "session.updated"]
    assert told["agent"]["version"] == 2 and told["agent"]["name"] == "another name"


async def test_the_plain_route_runs_what_is_published_and_the_preview_what_is_saved(here: Gate) -> None:
    path = f"/v1/agents/{here.agent_id}"
    published = await here.call("GET", f"{path}/publish")
    assert published == {
        "type": "agent_publication",
        "agent_id": here.agent_id,
        "version": 1,
        "published_at": None,
        "published_by": None,
    }

    async def version(door: Gate, session_id: str = "") -> tuple[int, str]:
        asked = door.begin("Which?", session_id)
        grant = await here.says()
        return grant.session.agent.version, (await asked).events[0]["sessionId"]

    await here.call("POST", path, {"system": "Two."})
    # Never published: the newest counts.
    assert (await version(here))[0] == 2
    assert (await here.call("POST", f"{path}/publish", {"version": 1}))["version"] == 1
    seen, session_id = await version(here)
    assert seen == 1
    preview = here.door(preview=True)
    newest, previewed = await version(preview)
    assert newest == 2
    await here.call("POST", path, {"system": "Three."})
    assert (await version(here, session_id))[0] == 1 and (await version(preview, previewed))[0] == 3
    told = await here.call("POST", f"{path}/publish")
    assert told["version"] == 3 and told["published_by"] == "anonymous" and told["published_at"]
    assert (await version(here, session_id))[0] == 3
    refused = await here.http.post(f"{path}/publish", json={"version": 9})
    assert refused.json()["error"]["code"] == "agent_version_not_found"


async def test_a_session_is_begun_with_what_its_agent_says(here: Gate) -> None:
    store = (await here.call("POST", "/v1/memory_stores", {"name": f"notes {here.agent_id}"}))["id"]
    environment = (await here.call("POST", "/v1/environments", {"name": f"place of {here.agent_id}"}))["id"]
    resources = [{"type": "memory_store", "memory_store_id": store, "mount_path": "/mnt/memory/notes"}]
    begun_with = {"environment_id": environment, "resources": resources}
    door = here.door(agent_id=await here.agent(gateway_session=begun_with))
    asked = door.begin()
    grant = await door.says()
    first = (await asked).events[0]
    assert grant.session.environment_id == environment and store.encode() in grant.session.resources_json
    frozen = (await door.run(first["sessionId"], first["runId"]))["configuration"]
    assert frozen["environment"]["id"] == environment and frozen["resources"][0]["memory_store_id"] == store
    await here.call("POST", f"/v1/memory_stores/{store}/archive", {})
    refused = await door.send({"message": "a"})
    assert refused.status in (400, 404) and refused.error["message"].startswith("gateway_session: There is no")


@pytest.mark.parametrize(
    ("begun_with", "field"),
    [
        ({"environment": "env_1"}, "gateway_session.environment"),
        ({"environment_id": 3}, "gateway_session.environment_id"),
        ({"vault_ids": [""]}, "gateway_session.vault_ids.0"),
        ({"resources": [{"type": "github_repository", "url": "https://x.example/a/b"}]}, "resources.0.type"),
        ({"resources": [{"type": "memory_store"}]}, "gateway_session.resources.0"),
    ],
)
async def test_what_sessions_can_not_be_begun_with_is_refused_when_it_is_saved(
    here: Gate, begun_with: Any, field: str
) -> None:
    answered = await here.http.post("/v1/agents", json=AGENT | {"gateway_session": begun_with})
    assert answered.status_code == 400 and field in answered.json()["error"]["message"], answered.text


async def test_the_session_has_its_text_in_parts_and_others_have_not(here: Gate) -> None:
    asked = here.begin()
    grant = await here.says()
    assert grant.session.text_parts
    await asked
    plain = (await here.call("POST", "/v1/sessions", {"agent": here.agent_id}))["id"]
    await here.call("POST", f"/v1/sessions/{plain}/events", {"events": [{"type": "user.message", "content": "x"}]})
    assert not (await here.says()).session.text_parts

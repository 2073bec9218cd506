"""Every route of the app × everyone who may come: what each gets. New routes are walked without being named here.

A route that needs something of its own says so in one of the tables below; what no table expects fails. The routes are
read from the table that the app itself is built from.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from kit.testing.swept import SweptDatabases
from services.gateway.app import all_operations
from services.gateway.operation import Operation
from tests.integration.gateway import tenants
from tests.integration.gateway.conftest import serving
from tests.integration.gateway.further import another
from tests.integration.gateway.tenants import (
    SESSION_WORK,
    UNKNOWN_END,
    Tenant,
    ask,
    example,
    filled,
    furnish,
    parameters,
)
from tests.unit.gateway.support import hub, settings

pytestmark = pytest.mark.timeout(180)
IN_MODULE = pytest.mark.asyncio(loop_scope="module")

OPERATIONS = all_operations(settings(), hub())
DOORS = ("/api/agents/{agent_id}/eve/v1", "/api/agents/{agent_id}/preview/eve/v1")
# Reached without a credential, and what anyone gets. The exchange of a ticket first looks where a request comes from.
OPEN = {
    ("GET", "/v1/x/health"): (200, "", ""),
    **{("POST", f"{door}/cookie"): (403, "permission_error", "origin_refused") for door in DOORS},
}
# For administrators of the default workspace.
OPERATOR = ("/v1/x/settings",)
# For administrators; all other routes are for readers where they read, and for members where they write.
ADMIN = ("/v1/api-keys", "/v1/environments/{environment_id}/worker-keys")
# Taken from workers as well.
WORK = "/v1/environments/{environment_id}/work"
# Taken from workers alone, once there are keys.
WORKERS_ONLY = {("GET", f"{WORK}/poll"), ("POST", f"{WORK}/{{work_id}}/ack"), ("POST", f"{WORK}/{{work_id}}/heartbeat")}
WORKERS: set[tuple[str, str]] = {
    ("GET", "/v1/environments/{environment_id}"),
    ("GET", WORK),
    ("GET", f"{WORK}/stats"),
    ("POST", f"{WORK}/{{work_id}}/stop"),
    *WORKERS_ONLY,
    *(("POST", f"/v1/x/worker/{step}") for step in ("claim", "accept", "heartbeat", "complete")),
}
# What a reader gets, where that is not 200: sessions of the session gateway are seen by who made them alone.
READS: dict[tuple[str, str], tuple[int, str, str]] = {
    ("GET", f"{door}/session/{{session_id}}/{end}"): (404, "not_found", "session_not_found")
    for door in DOORS
    for end in ("stream", "runs/{run_id}")
}
# Queries without which a route does not read.
QUERIES = {"/v1/x/mcp/status": "?session_id={session_id}"}
# Paths that hold an id and yet tell nobody's resource: `SHARED` ids.
SHARED_PATHS = {"/v1/models/{model_id:path}"}


def needs(operation: Operation) -> str:
    """The role that the rules want for a route, whatever it declares itself."""
    if operation.path.startswith(OPERATOR):
        return "operator"
    if operation.path.startswith(ADMIN):
        return "admin"
    return "read_only" if operation.method == "GET" else "member"


def name(operation: Operation) -> tuple[str, str]:
    return operation.method, operation.path


class Ground:
    """Two furnished workspaces, and keys of each kind in the first."""

    def __init__(self, http: httpx2.AsyncClient, ours: Tenant, theirs: Tenant, admin: str) -> None:
        self.http, self.ours, self.theirs, self.admin = http, ours, theirs, admin
        self.keys: dict[str, str] = {"administrator of another workspace": ours.secret}

    async def make_keys(self) -> None:
        """A key of each role, one that is revoked, and a worker's."""
        for role in ("member", "read_only"):
            self.keys[role] = (await self._post("/v1/api-keys", {"name": role, "role": role}))["secret_key"]
        revoked = await self._post("/v1/api-keys", {"name": "revoked"})
        await self.http.delete(f"/v1/api-keys/{revoked['id']}", headers=self.ours.headers)
        self.keys["revoked"] = revoked["secret_key"]
        path = f"/v1/environments/{self.ours.ids['environment_id']}/worker-keys"
        self.keys["worker"] = (await self._post(path, {"name": "w"}))["secret_key"]
        gone = await self._post(path, {"name": "gone"})
        await self._post(f"{path}/{gone['id']}/revoke", {})
        self.keys["revoked worker"] = gone["secret_key"]

    async def _post(self, path: str, body: Any) -> Any:
        answer = await self.http.post(path, json=body, headers=self.ours.headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def get(self, operation: Operation, key: str | None, ids: dict[str, str] | None = None) -> tuple[int, Any]:
        """What a request with this key gets, for ids of the first workspace unless others are given."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        ids = ids or self.ours.ids
        path = filled(operation.path + QUERIES.get(operation.path, ""), ids)
        return await ask(self.http, operation, path, example(operation, self.ours.ids), headers)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(swept_databases: SweptDatabases, nats_url: str) -> AsyncIterator[Ground]:
    """One for all tests here: nothing that they send is let through to change what is in it."""
    # The limits of a minute are proven elsewhere.
    async with (
        swept_databases.maker() as make,
        serving(make, nats_url) as gateway,
        another(gateway, nats_url, inbound_rate_limit="off") as (http, _ring),
    ):
        admin = (await http.post("/v1/api-keys", json={"name": "admin"})).json()["secret_key"]
        ours, theirs = await furnish(http, "wrkspc_a", admin), await furnish(http, "wrkspc_b", admin)
        ground = Ground(http, ours, theirs, admin)
        await ground.make_keys()
        yield ground


def verdict(answer: tuple[int, Any]) -> tuple[int, str, str]:
    """Status, type and code of a refusal."""
    status, body = answer
    error = body.get("error", {}) if isinstance(body, dict) else {}
    return status, error.get("type", ""), error.get("code", "")


UNAUTHENTICATED = (401, "authentication_error", "invalid_credential")
FORBIDDEN = (403, "permission_error", "permission_denied")


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: f"{each.method} {each.path}")
def test_every_route_declares_the_role_that_the_rules_want(operation: Operation) -> None:
    assert operation.role == needs(operation)
    assert operation.needs_credential == (name(operation) not in OPEN)
    assert operation.workers == (name(operation) in WORKERS)
    assert operation.workers_only == (name(operation) in WORKERS_ONLY)


@IN_MODULE
async def test_who_gets_in_where(ground: Ground) -> None:
    wrong: list[str] = []
    for operation in OPERATIONS:
        for who, expected in _expected(operation).items():
            key = None if who == "nobody" else ground.keys.get(who, "ma_wrong")
            got = verdict(await ground.get(operation, key))
            if got != expected:
                wrong.append(f"{operation.method} {operation.path} for {who}: {got}, not {expected}")
    assert not wrong, "\n".join(wrong)


def _expected(operation: Operation) -> dict[str, tuple[int, str, str]]:
    """What each caller gets that is not let through; a reader is let through where it reads."""
    if name(operation) in OPEN:
        return dict.fromkeys(("nobody", "wrong", "revoked", "worker", "read_only"), OPEN[name(operation)])
    expected = dict.fromkeys(("nobody", "wrong", "revoked", "revoked worker"), UNAUTHENTICATED)
    # Work routes are filled in with another environment than that of the worker's key.
    if name(operation) not in WORKERS or SESSION_WORK.search(operation.path):
        expected["worker"] = FORBIDDEN
    if needs(operation) == "read_only":
        expected["read_only"] = READS.get(name(operation), (200, "", ""))
    else:
        expected["read_only"] = FORBIDDEN
    if needs(operation) in ("admin", "operator"):
        expected["member"] = FORBIDDEN
    if needs(operation) == "operator":
        expected["administrator of another workspace"] = FORBIDDEN
    if name(operation) in WORKERS_ONLY:
        expected |= dict.fromkeys(("read_only", "member", "administrator of another workspace"), FORBIDDEN)
    return expected


@IN_MODULE
async def test_another_workspaces_resource_is_as_unknown_as_one_that_never_was(ground: Ground) -> None:
    wrong: list[str] = []
    for operation in OPERATIONS:
        named = parameters(operation.path + QUERIES.get(operation.path, ""))
        if not named or operation.path in SHARED_PATHS or name(operation) in (*WORKERS_ONLY, *OPEN):
            continue
        for ids in _foreign(named, ground):
            theirs = await ground.get(operation, ground.ours.secret, ids)
            never = await ground.get(operation, ground.ours.secret, _never(ids, ground))
            if theirs[0] != 404 or _anonymous(theirs, ids) != _anonymous(never, _never(ids, ground)):
                wrong.append(f"{operation.method} {operation.path}: {theirs}, and for an unknown id {never}")
    assert not wrong, "\n".join(wrong)


def _foreign(named: list[str], ground: Ground) -> list[dict[str, str]]:
    """Ids of the other workspace: all of them, and each one alone among our own."""
    ours, theirs = ground.ours.ids, ground.theirs.ids
    mixed = [{**ours, each: theirs[each]} for each in named if theirs[each] != ours[each]]
    return [dict(theirs), *mixed]


def _never(ids: dict[str, str], ground: Ground) -> dict[str, str]:
    never = tenants.unknown(ground.theirs.ids)
    return {each: never[each] if value == ground.theirs.ids[each] else value for each, value in ids.items()}


def _anonymous(answer: tuple[int, Any], ids: dict[str, str]) -> tuple[int, str]:
    """The answer without ids and request id."""
    status, body = answer
    shown = json.dumps({key: value for key, value in body.items() if key != "request_id"}) if body else ""
    for each in sorted(ids.values(), key=len, reverse=True):
        if len(each) > 10:
            shown = shown.replace(each, "ID")
    return status, shown


@IN_MODULE
async def test_no_list_shows_another_workspaces_resources(ground: Ground) -> None:
    theirs = [each for each in ground.theirs.ids.values() if each.count("_") and len(each) > 20]
    for operation in OPERATIONS:
        if operation.method != "GET" or operation.stream or operation.path in SHARED_PATHS:
            continue
        _status, body = await ground.get(operation, ground.ours.secret)
        shown = body if isinstance(body, bytes) else json.dumps(body).encode()
        assert not [each for each in theirs if each.encode() in shown], operation.path


def _bodies(ids: dict[str, str], ours: dict[str, str]) -> list[tuple[str, str, Any]]:
    """Requests that name resources outside of their path."""
    agent, file_id = ours["agent_id"], ids["file_id"]
    session = f"/v1/sessions/{ours['session_id']}"
    resources: list[Any] = [
        {"type": "file", "file_id": file_id, "mount_path": "/x"},
        {"type": "memory_store", "memory_store_id": ids["memory_store_id"]},
    ]
    coordinator = {"type": "coordinator", "agents": [{"type": "agent", "id": ids["agent_id"]}]}
    sound = {"name": "n", "model": "default", "system": "s"}
    skill = {"type": "custom", "skill_id": ids["skill_id"]}
    read = {"type": "agent_toolset_20260401"}
    return [
        ("POST", "/v1/sessions", {"agent": ids["agent_id"]}),
        ("POST", "/v1/sessions", {"agent": {"type": "agent", "id": ids["agent_id"], "version": 1}}),
        ("POST", "/v1/sessions", {"agent": agent, "environment_id": ids["environment_id"]}),
        ("POST", "/v1/sessions", {"agent": agent, "vault_ids": [ids["vault_id"]]}),
        *(("POST", "/v1/sessions", {"agent": agent, "resources": [each]}) for each in resources),
        *(("POST", f"{session}/resources", each) for each in resources[:1]),
        ("POST", "/v1/runs", {"agent": ids["agent_id"], "input": "x", "max_wait_seconds": 0}),
        ("POST", "/v1/runs", {"agent": agent, "input": "x", "session": {"environment_id": ids["environment_id"]}}),
        ("POST", "/v1/agents", sound | {"multiagent": coordinator}),
        ("POST", "/v1/agents", sound | {"skills": [skill], "tools": [read]}),
        ("POST", f"{session}/outcomes", {"outcome_id": ids["outcome_id"], "status": "passed"}),
        ("POST", f"{session}/outcomes/evaluate", {"outcome_id": ids["outcome_id"]}),
        ("POST", "/v1/x/worker/claim", {"worker_id": "w", "environment_id": ids["environment_id"]}),
        ("GET", f"/v1/sessions?agent_id={ids['agent_id']}", None),
        ("GET", f"/v1/sessions?memory_store_id={ids['memory_store_id']}", None),
        ("GET", f"/v1/files?scope_id={ids['session_id']}", None),
        ("GET", f"/v1/files?ids={file_id}", None),
        *(("GET", f"/v1/files?{side}_id={file_id}", None) for side in ("after", "before")),
        ("GET", f"/v1/memory_stores/{ours['memory_store_id']}/memory_versions?memory_id={ids['memory_id']}", None),
        ("GET", f"/v1/memory_stores/{ours['memory_store_id']}/memory_versions?session_id={ids['session_id']}", None),
        ("GET", f"/v1/memory_stores/{ours['memory_store_id']}/memory_versions?api_key_id={ids['key_id']}", None),
        ("GET", f"/v1/x/mcp/status?session_id={ids['session_id']}", None),
        ("POST", f"{session}/events", {"events": [{"type": "user.interrupt", "session_thread_id": ids["thread_id"]}]}),
    ]


@IN_MODULE
async def test_another_workspaces_ids_in_bodies_and_filters_are_unknown_too(ground: Ground) -> None:
    ours, theirs, never = ground.ours.ids, ground.theirs.ids, tenants.unknown(ground.theirs.ids)
    wrong: list[str] = []
    for (method, path, body), (_, path_of_none, body_of_none) in zip(
        _bodies(theirs, ours), _bodies(never, ours), strict=True
    ):
        foreign = await ground.http.request(method, path, json=body, headers=ground.ours.headers)
        unknown = await ground.http.request(method, path_of_none, json=body_of_none, headers=ground.ours.headers)
        one, other = _anonymous(_read(foreign), theirs), _anonymous(_read(unknown), never)
        # Agents are saved with whatever skills they name, which a session then looks for in its own workspace.
        is_taken = foreign.status_code == unknown.status_code == 200 and path == "/v1/agents"
        is_refused = foreign.status_code in (400, 404) or foreign.json().get("data") == []
        if not is_taken and (one != other or not is_refused):
            wrong.append(f"{method} {path} {body}: {foreign.status_code} {foreign.text}, not {unknown.text}")
    assert not wrong, "\n".join(wrong)


def _read(answer: httpx2.Response) -> tuple[int, Any]:
    return answer.status_code, answer.json()


@IN_MODULE
async def test_a_worker_or_a_reader_is_not_told_what_else_is_served(ground: Ground) -> None:
    for who, path, expected in (
        ("worker", "/v1/agents", 403),
        ("read_only", "/v1/agents", 405),
        ("worker", "/v1/nothing", 404),
        ("revoked", "/v1/nothing", 401),
    ):
        answer = await ground.http.patch(path, json={}, headers={"authorization": f"Bearer {ground.keys[who]}"})
        assert answer.status_code == expected, (who, path, answer.text)


def test_unknown_ids_look_like_ids() -> None:
    assert tenants.unknown({"agent_id": "agent_0123456789"}) == {"agent_id": f"agent_0123{UNKNOWN_END}"}

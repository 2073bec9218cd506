"""What a worker reaches through the item that it holds: its session, what is attached to that, and nothing else.

Every route of the app is tried with the sessions token of an item, with the key of an environment that holds one, and
with tokens that are over. What the tables here don't name must be refused.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from kit.testing import await_until
from services.gateway.app import all_operations
from services.gateway.operation import Operation
from tests.integration.gateway.conftest import Gateway
from tests.integration.gateway.further import another
from tests.integration.gateway.tenants import Tenant, ask, example, filled, furnish
from tests.unit.gateway.support import hub, settings

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="package")]

OPERATIONS = all_operations(settings(), hub())
WORK = "/v1/environments/{environment_id}/work"
SESSION = "/v1/sessions/{session_id}"
STORE = "/v1/memory_stores/{memory_store_id}"
MEMORIES = f"{STORE}/memories"
MEMORY = f"{MEMORIES}/{{memory_id}}"
SKILL = "/v1/skills/{skill_id}/versions/{version}"
# Through the session of an item.
OF_SESSION = {
    ("GET", SESSION),
    ("GET", f"{SESSION}/events"),
    ("POST", f"{SESSION}/events"),
    ("GET", f"{SESSION}/events/stream"),
    ("GET", f"{SESSION}/stream"),
}
OF_ITEM = {("POST", f"{WORK}/{{work_id}}/{act}") for act in ("ack", "heartbeat", "stop")}
READS_STORE = {("GET", STORE), ("GET", MEMORIES), ("GET", MEMORY)}
WRITES_STORE = {("POST", MEMORIES), ("POST", MEMORY), ("PUT", MEMORY), ("PATCH", MEMORY), ("DELETE", MEMORY)}
OF_SKILL = {("GET", SKILL), ("GET", f"{SKILL}/content")}
OF_KEY = {
    ("GET", f"{WORK}/poll"),
    ("GET", WORK),
    ("GET", f"{WORK}/stats"),
    ("GET", "/v1/environments/{environment_id}"),
}
POLL, STOP = ("GET", f"{WORK}/poll"), ("POST", f"{WORK}/{{work_id}}/stop")
# Of the other protocol: a key is theirs too, and this environment has none of it.
TOOL_PROTOCOL = "/v1/x/worker/"
OPEN = {("GET", "/v1/x/health")}


def name(operation: Operation) -> tuple[str, str]:
    return operation.method, operation.path


class Ground:
    """A workspace with a session that a worker serves, and what hangs on it."""

    def __init__(self, http: httpx2.AsyncClient, tenant: Tenant) -> None:
        self.http, self.tenant = http, tenant
        self.ids = dict(tenant.ids)
        self.key = self.token = ""
        # Like ours, and not attached to the session.
        self.others: dict[str, str] = {}

    async def post(self, path: str, body: Any, key: str = "") -> Any:
        answer = await self.http.post(path, json=body, headers={"authorization": f"Bearer {key or self.tenant.secret}"})
        assert answer.status_code == 200, f"{path}: {answer.text}"
        return answer.json()

    async def furnish(self) -> None:
        ids = self.ids
        ids["environment_id"] = (
            await self.post("/v1/environments", {"name": "own", "config": {"type": "self_hosted"}})
        )["id"]
        ids["work_environment_id"] = ids["environment_id"]
        keys = f"/v1/environments/{ids['environment_id']}/worker-keys"
        self.key = (await self.post(keys, {"name": "w"}))["secret_key"]
        self.others["memory_store_id"] = (await self.post("/v1/memory_stores", {"name": "others"}))["id"]
        self.others["session_id"] = ids["session_id"]
        skill = {"type": "custom", "skill_id": ids["skill_id"]}
        read = {"type": "agent_toolset_20260401"}
        agent = {"name": "a", "model": "default", "system": "s", "skills": [skill], "tools": [read]}
        ids["agent_id"] = (await self.post("/v1/agents", agent))["id"]
        reading = await self.post("/v1/memory_stores", {"name": "reading"})
        self.others["read_only"] = reading["id"]
        store = {"type": "memory_store", "memory_store_id": ids["memory_store_id"], "access": "read_write"}
        wanted = {
            "agent": ids["agent_id"],
            "environment_id": ids["environment_id"],
            "resources": [store, store | {"memory_store_id": reading["id"], "access": "read_only"}],
            "initial_events": [{"type": "user.message", "content": "x"}],
        }
        made = await self.post("/v1/sessions", wanted)
        ids["session_id"] = made["id"]
        [known] = made["agent"]["skills"] if isinstance(made["agent"], dict) else [{"version": ids["version"]}]
        ids["version"] = known["version"]

    async def hold(self) -> None:
        """A worker takes the item, and serves it."""
        path = f"/v1/environments/{self.ids['environment_id']}/work"
        found: list[Any] = []

        async def is_there() -> bool:
            answer = await self.http.get(f"{path}/poll?block_ms=999", headers={"authorization": f"Bearer {self.key}"})
            assert answer.status_code == 200, answer.text
            found[:] = [answer.json()]
            return found[0] is not None

        await await_until(is_there, timeout=30)
        secret = found[0]["secret"]
        self.token = json.loads(base64.urlsafe_b64decode(secret + "=" * (-len(secret) % 4)))["sessions_token"]
        self.ids["work_id"] = found[0]["id"]
        assert found[0]["data"] == {"type": "session", "id": self.ids["session_id"]}
        await self.post(f"{path}/{found[0]['id']}/ack", {}, self.key)

    async def status(self, operation: Operation, key: str, **ids: str) -> int:
        """What a request gets."""
        ids = {**self.ids, **ids}
        body = example(operation, ids)
        if name(operation) == ("POST", f"{SESSION}/events"):
            body = {"events": [{"type": "user.tool_result", "tool_use_id": "sevt_none"}]}
        path = filled(operation.path, ids) + ("?session_id=x" if operation.path == "/v1/x/mcp/status" else "")
        return (await ask(self.http, operation, path, body, {"authorization": f"Bearer {key}"}))[0]

    async def reached(self, key: str, without: set[tuple[str, str]] = frozenset(), **ids: str) -> set[tuple[str, str]]:  # type: ignore[assignment]
        """The routes that let this credential in, of those that are tried."""
        tried = [each for each in OPERATIONS if name(each) not in without]
        return {name(each) for each in tried if await self.status(each, key, **ids) not in (401, 403)}


@pytest_asyncio.fixture(loop_scope="package")
async def ground(fresh_gateway: Gateway, nats_url: str) -> AsyncIterator[Ground]:
    # The limits of a minute are proven elsewhere.
    async with another(fresh_gateway, nats_url, inbound_rate_limit="off") as (http, _ring):
        admin = (await http.post("/v1/api-keys", json={"name": "admin"})).json()["secret_key"]
        ground = Ground(http, await furnish(http, "wrkspc_a", admin))
        await ground.furnish()
        yield ground


async def test_each_credential_of_a_worker_reaches_what_it_is_for(ground: Ground) -> None:
    of_tools = {name(each) for each in OPERATIONS if each.path.startswith(TOOL_PROTOCOL)}
    # A poll hands the item out, and a stop ends it: they are tried where that is wanted.
    before = await ground.reached(ground.key, {POLL}, work_id="work_none")
    assert before - of_tools == (OF_KEY | OF_ITEM | OPEN) - {POLL}
    await ground.hold()
    by_key = await ground.reached(ground.key, {STOP})
    assert by_key - of_tools == (OF_KEY | OF_ITEM | OF_SESSION | OPEN) - {STOP}
    by_token = await ground.reached(ground.token, {STOP})
    assert by_token == (OF_ITEM | OF_SESSION | READS_STORE | WRITES_STORE | OF_SKILL | OPEN) - {STOP}
    await _only_what_is_attached(ground)
    await _nothing_but_answers(ground)
    await _dies_with_its_item(ground)


async def _only_what_is_attached(ground: Ground) -> None:
    """Another session, store, skill version or item is out of reach, and a store that is read-only is not written."""
    read_only = {"memory_store_id": ground.others["read_only"]}
    elsewhere = {
        "session_id": ground.others["session_id"],
        "memory_store_id": ground.others["memory_store_id"],
        "version": "latest",
        "work_id": ground.tenant.ids["work_id"],
    }
    by_token = OF_ITEM | OF_SESSION | READS_STORE | WRITES_STORE | OF_SKILL
    trials = [
        *((each, ground.token, elsewhere, True) for each in by_token),
        *((each, ground.key, elsewhere, True) for each in OF_SESSION),
        *((each, ground.token, read_only, True) for each in WRITES_STORE),
        *((each, ground.token, read_only, False) for each in READS_STORE),
    ]
    operations = {name(each): each for each in OPERATIONS}
    wrong = [
        (route, ids)
        for route, key, ids, refused in trials
        if (await ground.status(operations[route], key, **ids) == 403) != refused
    ]
    assert not wrong


async def _nothing_but_answers(ground: Ground) -> None:
    """A worker neither speaks for people nor gives itself leave."""
    headers = {"authorization": f"Bearer {ground.token}"}
    for event in (
        {"type": "user.message", "content": "x"},
        {"type": "user.tool_confirmation", "tool_use_id": "sevt_1", "result": "allow"},
        {"type": "user.interrupt"},
    ):
        path = f"/v1/sessions/{ground.ids['session_id']}/events"
        refused = await ground.http.post(path, json={"events": [event]}, headers=headers)
        assert refused.status_code == 403 and refused.json()["error"]["code"] == "worker_event_refused"


async def _dies_with_its_item(ground: Ground) -> None:
    """A token opens nothing once its item has ended, but for the word that it has."""
    path = f"/v1/environments/{ground.ids['environment_id']}/work/{ground.ids['work_id']}"
    stopped = await ground.http.post(f"{path}/stop", json={"force": True}, headers=ground.tenant.headers)
    assert stopped.status_code == 200, stopped.text

    async def is_over() -> bool:
        return await ground.reached(ground.token) == OF_ITEM | OPEN

    await await_until(is_over, timeout=10)
    headers = {"authorization": f"Bearer {ground.token}"}
    beat = await ground.http.post(f"{path}/heartbeat?expected_last_heartbeat=NO_HEARTBEAT", headers=headers)
    assert beat.status_code == 412
    for wrong in ("mast_wrong", ground.token + "x"):
        answer = await ground.http.get(path, headers={"authorization": f"Bearer {wrong}"})
        assert answer.status_code == 401


async def test_a_token_counts_also_while_nobody_needs_a_key(gateway: Gateway) -> None:
    """Where everyone may come in, a token still narrows a request, and a wrong one opens nothing."""
    async with httpx2.AsyncClient(base_url=gateway.url) as http:
        assert (await http.get("/v1/agents")).status_code == 200
        answer = await http.get("/v1/agents", headers={"authorization": "Bearer mast_wrong"})
        assert answer.status_code == 401

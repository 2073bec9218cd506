"""A workspace with one of everything that a route can name, made over REST, and requests for every route of the app."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from kit.testing import await_until
from services.gateway.operation import Operation

# Ids that routes name, and no tenant owns.
SHARED = {"model_id": "old"}
UNKNOWN_END = "ZZZZZZ"
_PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")
# The session protocol is spoken in an environment of its own.
SESSION_WORK = re.compile(r"/work(/|$)")
_PLACEHOLDER = re.compile(r"([A-Z]+)_ID")


@dataclass
class Tenant:
    """A workspace, the secret of its administrator, and the id of one resource for each parameter of a path."""

    workspace_id: str
    secret: str
    ids: dict[str, str] = field(default_factory=dict)

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.secret}"}


def parameters(path: str) -> list[str]:
    """The parameters of a path, each by a name of its own: two kinds of keys are called `key_id`, for one."""
    names = _PARAMETER.findall(path)
    if "worker-keys" in path:
        return ["worker_key_id" if name == "key_id" else name for name in names]
    if SESSION_WORK.search(path):
        return ["work_environment_id" if name == "environment_id" else name for name in names]
    return names


def filled(path: str, ids: Mapping[str, str]) -> str:
    """The path with ids in it; KeyError names a parameter that nobody has made a resource for."""
    names = iter(parameters(path))
    return _PARAMETER.sub(lambda _found: ids[next(names)], path)


def unknown(ids: Mapping[str, str]) -> dict[str, str]:
    """Ids of the same form that nobody has."""
    return {name: f"{value[:-6]}{UNKNOWN_END}" if name not in SHARED else value for name, value in ids.items()}


def example(operation: Operation, ids: Mapping[str, str]) -> Any:
    """A body that the route takes: the example that the document shows, with ids of the caller's own in it."""
    shape = operation.body or operation.upload
    if shape is None:
        return None
    return _with_ids(shape.model_config["json_schema_extra"]["examples"][0], ids)  # type: ignore[index,call-overload]


def _with_ids(value: Any, ids: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _with_ids(each, ids) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_ids(each, ids) for each in value]
    if isinstance(value, str) and (found := _PLACEHOLDER.fullmatch(value)):
        return ids[f"{found[1].lower()}_id"]
    return value


async def ask(http: httpx2.AsyncClient, operation: Operation, path: str, body: Any, headers: Any) -> tuple[int, Any]:
    """Status and body of an answer; of one that streams, the status."""
    method = operation.method
    async with (
        http.stream(method, path, json=body, headers=headers)
        if body is not None
        else http.stream(method, path, headers=headers) as answer
    ):
        content_type = answer.headers.get("content-type", "")
        if content_type.startswith("text/event-stream"):
            return answer.status_code, None
        content = await answer.aread()
        is_json = content_type.startswith("application/json")
        return answer.status_code, answer.json() if is_json else content


async def furnish(http: httpx2.AsyncClient, workspace_id: str, admin: str) -> Tenant:
    """Make the workspace, by the secret of an administrator of the default one, and all that is in it."""
    wanted = {"name": f"of {workspace_id}", "workspace_id": workspace_id}
    made = await http.post("/v1/api-keys", json=wanted, headers={"authorization": f"Bearer {admin}"})
    assert made.status_code == 200, made.text
    tenant = Tenant(workspace_id, made.json()["secret_key"], {**SHARED, "key_id": made.json()["id"]})

    async def post(path: str, body: Any) -> Any:
        answer = await http.post(path, json=body, headers=tenant.headers)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        return answer.json()

    async def get(path: str) -> Any:
        answer = await http.get(path, headers=tenant.headers)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        return answer.json()

    ids = tenant.ids
    agent = {"name": f"agent of {workspace_id}", "model": "default", "system": "s"}
    ids["agent_id"] = (await post("/v1/agents", agent))["id"]
    ids["environment_id"] = (await post("/v1/environments", {"name": f"environment of {workspace_id}"}))["id"]
    worker_keys = f"/v1/environments/{ids['environment_id']}/worker-keys"
    ids["worker_key_id"] = (await post(worker_keys, {"name": "w"}))["id"]
    ids["outcome_id"] = (await post("/v1/outcomes", {"name": "o", "criteria": ["c"]}))["id"]
    ids["vault_id"] = (await post("/v1/vaults", {"display_name": f"vault of {workspace_id}"}))["id"]
    networking = {"type": "limited", "allowed_hosts": ["api.example.com"]}
    auth = {"type": "environment_variable", "secret_name": "K", "secret_value": "v", "networking": networking}
    credential = await post(f"/v1/vaults/{ids['vault_id']}/credentials", {"display_name": "c", "auth": auth})
    ids["credential_id"] = credential["id"]
    ids["memory_store_id"] = (await post("/v1/memory_stores", {"name": f"store of {workspace_id}"}))["id"]
    store = f"/v1/memory_stores/{ids['memory_store_id']}"
    ids["memory_id"] = (await post(f"{store}/memories", {"path": "/a", "content": "b"}))["id"]
    ids["version_id"] = (await get(f"{store}/memory_versions"))["data"][0]["id"]
    ids["file_id"] = (await post("/v1/files", {"name": "f.txt", "media_type": "text/plain", "content": "x"}))["id"]
    manifest = "---\nname: greeter\ndescription: Says hello.\n---\n\nSay hello."
    skill = await post("/v1/skills", {"files": [{"name": "greeter/SKILL.md", "content": manifest}]})
    ids["skill_id"] = skill["id"]
    ids["version"] = (await get(f"/v1/skills/{skill['id']}/versions"))["data"][0]["version"]
    await _session(post, get, ids)
    path = f"/api/agents/{ids['agent_id']}/eve/v1/session"
    async with http.stream("POST", path, json={"message": "Hello"}, headers=tenant.headers) as run:
        ids["run_id"] = run.headers["run-id"]
    await _work(http, tenant, post)
    return tenant


async def _work(http: httpx2.AsyncClient, tenant: Tenant, post: Any) -> None:
    """A session that a worker is needed for, and its item."""
    ids = tenant.ids
    wanted = {"name": f"own machines of {tenant.workspace_id}", "config": {"type": "self_hosted"}}
    ids["work_environment_id"] = (await post("/v1/environments", wanted))["id"]
    message = {"type": "user.message", "content": "x"}
    wanted = {"agent": ids["agent_id"], "environment_id": ids["work_environment_id"], "initial_events": [message]}
    await post("/v1/sessions", wanted)
    path = f"/v1/environments/{ids['work_environment_id']}/work"
    found: list[Any] = []

    async def is_there() -> bool:
        found[:] = (await http.get(path, headers=tenant.headers)).json()["data"]
        return bool(found)

    await await_until(is_there, timeout=30)
    ids["work_id"] = found[0]["id"]


async def _session(post: Any, get: Any, ids: dict[str, str]) -> None:
    resource = {"type": "file", "file_id": ids["file_id"], "mount_path": "/data.txt"}
    wanted = {"agent": ids["agent_id"], "environment_id": ids["environment_id"], "resources": [resource]}
    session = f"/v1/sessions/{(await post('/v1/sessions', wanted))['id']}"
    ids["session_id"] = session.rpartition("/")[2]
    ids["resource_id"] = (await get(f"{session}/resources"))["data"][0]["id"]
    ids["thread_id"] = (await get(f"{session}/threads"))["data"][0]["id"]
    artifact = {"path": "/artifacts/a.md", "name": "a.md", "media_type": "text/markdown", "content": "a"}
    ids["artifact_id"] = (await post(f"{session}/artifacts", artifact))["id"]

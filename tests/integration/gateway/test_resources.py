"""Session resources over REST: every route, both projections, every refusal with its status and code."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

pytestmark = pytest.mark.asyncio(loop_scope="package")

PUBLISHED = {"anthropic-version": "2026-10-21", "anthropic-beta": "managed-agents-2026-04-01"}
REPOSITORY = {"type": "github_repository", "url": "https://github.com/owner/repo", "authorization_token": "ghp_canary"}
SHA = "0123456789abcdef0123456789abcdef01234567"


async def _created(http: httpx2.AsyncClient, *resources: dict[str, Any], **headers: str) -> dict[str, Any]:
    answer = await _create(http, *resources, **headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def _create(http: httpx2.AsyncClient, *resources: Any, **headers: str) -> httpx2.Response:
    agent = await http.post("/v1/agents", json={"name": "a", "model": "demo", "system": "s"})
    body = {"agent": agent.json()["id"], "resources": list(resources)}
    return await http.post("/v1/sessions", json=body, headers=headers)


async def _file(http: httpx2.AsyncClient) -> str:
    answer = await http.post("/v1/files", json={"name": "a.txt", "content": "hello", "encoding": "utf8"})
    return answer.json()["id"]


async def test_the_resources_of_a_creation_are_listed_at_once(http: httpx2.AsyncClient) -> None:
    file_id = await _file(http)
    file = {"type": "file", "file_id": file_id, "mount_path": "/uploads/input.txt"}
    session = await _created(http, file, {**REPOSITORY, "checkout": "main", "mount_path": "/workspace/r"})
    path = f"/v1/sessions/{session['id']}/resources"
    listed = (await http.get(path)).json()
    assert listed["data"] == session["resources"] and listed["next_page"] is None
    one, two = listed["data"]
    assert (one["file_id"], one["mount_path"]) == (file_id, "/uploads/input.txt")
    assert one["sandbox_path"] == "/mnt/session/uploads/uploads/input.txt"
    assert (two["url"], two["checkout"], two["mount_path"]) == (REPOSITORY["url"], "main", "/workspace/r")
    assert (await http.get(f"{path}/{two['id']}")).json() == two
    assert "canary" not in (await http.get(path)).text + (await http.get(f"/v1/sessions/{session['id']}")).text


async def test_the_published_projection(http: httpx2.AsyncClient) -> None:
    file_id = await _file(http)
    session = await _created(
        http,
        {"type": "file", "file_id": file_id, "mount_path": "/mnt/session/uploads/a.txt"},
        {**REPOSITORY, "checkout": "main"},
        {**REPOSITORY, "checkout": SHA, "mount_path": "/workspace/two"},
        **PUBLISHED,
    )
    file, branch, commit = session["resources"]
    assert file["file_id"] != file_id == file["source_file_id"]
    assert file["sandbox_path"] == "/mnt/session/uploads/a.txt"
    assert branch["checkout"] == {"type": "branch", "name": "main"}
    assert commit["checkout"] == {"type": "commit", "sha": SHA}
    local = (await http.get(f"/v1/sessions/{session['id']}/resources")).json()["data"]
    assert [each.get("checkout") for each in local] == [None, "main", SHA] and local[0]["file_id"] == file_id


@pytest.mark.parametrize("method", ["PATCH", "POST"])
async def test_a_token_is_rotated_and_nothing_else(http: httpx2.AsyncClient, method: str) -> None:
    session = await _created(http, REPOSITORY, {"type": "file", "file_id": await _file(http)})
    repository, file = (f"/v1/sessions/{session['id']}/resources/{each['id']}" for each in session["resources"])
    answer = await http.request(method, repository, json={"authorization_token": "ghp_canary_two"})
    assert answer.status_code == 200 and "canary" not in answer.text
    for path, body, code in (
        (repository, {"authorization_token": "x y canary"}, "invalid_request"),
        (repository, {}, "invalid_request"),
        (repository, {"authorization_token": "x", "checkout": "canary"}, "immutable_field"),
        (repository, {"mount_path": "/workspace/other"}, "immutable_field"),
        (file, {"authorization_token": "canary"}, "invalid_resource"),
    ):
        refused = await http.request(method, path, json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, code), refused.text
        assert refused.json()["error"]["type"] == "invalid_request_error" and "canary" not in refused.text


async def test_what_is_attached_later_is_last_and_can_be_detached(http: httpx2.AsyncClient) -> None:
    session = await _created(http, REPOSITORY)
    path = f"/v1/sessions/{session['id']}/resources"
    made = (await http.post(path, json={"type": "file", "file_id": await _file(http)})).json()
    assert [each["id"] for each in (await http.get(path)).json()["data"]] == [session["resources"][0]["id"], made["id"]]
    gone = await http.delete(f"{path}/{made['id']}")
    assert gone.json() == {"id": made["id"], "type": "session_resource_deleted"}
    for method in ("GET", "DELETE"):
        answer = await http.request(method, f"{path}/{made['id']}")
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found")
    assert (await http.get("/v1/sessions/sess_none/resources")).status_code == 404


async def test_a_memory_store_comes_and_goes_with_its_session(http: httpx2.AsyncClient) -> None:
    store = (await http.post("/v1/memory_stores", json={"name": "Notes"})).json()["id"]
    entry = {"type": "memory_store", "memory_store_id": store}
    session = await _created(http, entry)
    (resource,) = session["resources"]
    path = f"/v1/sessions/{session['id']}/resources"
    assert resource["mount_path"] == "/mnt/memory/notes" and resource["access"] == "read_write"
    for answer in (await http.post(path, json=entry), await http.delete(f"{path}/{resource['id']}")):
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["code"]) == (400, "invalid_request_error", "resource_fixed")
    listed = await http.get("/v1/sessions", params={"memory_store_id": store})
    assert [each["id"] for each in listed.json()["data"]] == [session["id"]]
    assert (await http.get("/v1/sessions", params={"memory_store_id": "memstore_none"})).json()["data"] == []


@pytest.mark.parametrize(
    ("resource", "code", "field"),
    [
        ({"type": "file", "file_id": "file_none"}, "file_not_found", "resources.0.file_id"),
        ({"type": "file", "file_id": "file_x", "mount_path": "a"}, "invalid_mount_path", "resources.0.mount_path"),
        ({"type": "file", "file_id": "file_x", "mount_path": "/"}, "invalid_mount_path", "resources.0.mount_path"),
        ({"type": "file", "file_id": "file_x", "mount_path": "/../a"}, "invalid_mount_path", "resources.0.mount_path"),
        ({"type": "memory_store", "memory_store_id": "memstore_x"}, "memory_store_not_found", "memory_store_id"),
        ({"type": "github_repository", "url": "ssh://x/y"}, "invalid_resource", "resources.0.url"),
        ({"type": "bucket"}, "invalid_request", "resources.0.type"),
    ],
)
async def test_a_refused_resource_leaves_no_session(
    http: httpx2.AsyncClient, resource: dict[str, Any], code: str, field: str
) -> None:
    answer = await _create(http, REPOSITORY, resource)
    answer = await _create(http, resource)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (400, "invalid_request_error", code)
    assert field in error["message"] or code.endswith("not_found")
    assert (await http.get("/v1/sessions")).json()["data"] == []


async def test_two_resources_in_one_place_are_refused(http: httpx2.AsyncClient) -> None:
    file = {"type": "file", "file_id": await _file(http), "mount_path": "/a"}
    for other in (file, {**file, "mount_path": "/a/b"}):
        answer = await _create(http, file, other)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "mount_path_taken")

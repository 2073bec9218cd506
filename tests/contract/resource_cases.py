"""Cases of the published client's methods for session resources: files, repositories and stores on real sessions."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from tests.contract.client_flow import WORKSPACE, Flow, case, user
from tests.support.api import tool

# Nothing listens there, and it may not be connected to anyway.
REPOSITORY = {
    "type": "github_repository",
    "url": "https://127.0.0.1:1/owner/repo",
    "authorization_token": "ghp_contract",
    "checkout": {"type": "branch", "name": "main"},
}


async def upload(flow: Flow, content: bytes = b"a,b\n1,2\n") -> str:
    """An uploaded file's id."""
    return (await flow.client.beta.files.upload(file=("data.csv", content, "text/csv"))).id


async def with_resources(flow: Flow) -> tuple[Any, str]:
    """A session with one resource of each kind, and the file that it was given."""
    file_id = await upload(flow)
    store = await flow.client.beta.memory_stores.create(name="Contract notes")
    session = await flow.session(
        resources=[
            {"type": "file", "file_id": file_id},
            REPOSITORY,
            {"type": "memory_store", "memory_store_id": store.id, "access": "read_only", "instructions": "Look."},
        ]
    )
    return session, file_id


@case("resources.list")
async def list_resources(flow: Flow) -> None:
    session, file_id = await with_resources(flow)
    found = [each async for each in flow.sessions.resources.list(session.id, limit=2, workspace_id=WORKSPACE)]
    assert [each.type for each in found] == ["file", "github_repository", "memory_store"]
    assert found == session.resources == (await flow.sessions.retrieve(session.id)).resources
    file, repository, store = found
    # The session has a copy of its own.
    assert file.file_id != file_id and file.mount_path == f"/mnt/session/uploads/{file_id}"
    assert (repository.url, repository.mount_path) == (REPOSITORY["url"], "/workspace/repo")
    assert (repository.checkout.type, repository.checkout.name) == ("branch", "main")
    assert (store.name, store.access, store.instructions) == ("Contract notes", "read_only", "Look.")
    assert store.mount_path == "/mnt/memory/contract-notes"
    first = await flow.sessions.resources.list(session.id, limit=1)
    second = await flow.sessions.resources.list(session.id, limit=1, page=first.next_page)
    assert [*first.data, *second.data] == found[:2]


@case("resources.add")
async def add_resource(flow: Flow) -> None:
    file_id = await upload(flow, b"added later")
    session = await flow.session()
    added = await flow.sessions.resources.add(
        session.id, type="file", file_id=file_id, mount_path="/later/data.txt", workspace_id=WORKSPACE
    )
    assert (added.type, added.mount_path) == ("file", "/later/data.txt")
    assert [each async for each in flow.sessions.resources.list(session.id)] == [added]
    events = await flow.turn(session.id, user(tool("bash", command="cat /mnt/session/uploads/later/data.txt")))
    (result,) = [event for event in events if event.type == "agent.tool_result"]
    assert result.content[0].text.startswith("added later")


@case("resources.retrieve")
async def retrieve_resource(flow: Flow) -> None:
    session, _ = await with_resources(flow)
    for resource in session.resources:
        found = await flow.sessions.resources.retrieve(resource.id, session_id=session.id, workspace_id=WORKSPACE)
        assert found == resource
    with pytest.raises(anthropic.NotFoundError):
        await flow.sessions.resources.retrieve("sesrsc_none", session_id=session.id)


@case("resources.update")
async def update_resource(flow: Flow) -> None:
    session, _ = await with_resources(flow)
    file, repository, _ = session.resources
    updated = await flow.sessions.resources.update(
        repository.id, session_id=session.id, authorization_token="ghp_rotated", workspace_id=WORKSPACE
    )
    assert updated.updated_at > repository.updated_at and "ghp_rotated" not in updated.to_json()
    with pytest.raises(anthropic.BadRequestError):
        await flow.sessions.resources.update(file.id, session_id=session.id, authorization_token="ghp_rotated")
    # What could not be cloned is an event of its own class, and the session goes on.
    events = await flow.turn(session.id, user(tool("bash", command="true")))
    (error,) = [event for event in events if event.type == "session.error"]
    assert (error.error.type, error.error.repository_url) == ("repository_clone_error", REPOSITORY["url"])
    assert error.error.retry_status.type == "retrying"


@case("resources.delete")
async def delete_resource(flow: Flow) -> None:
    session, _ = await with_resources(flow)
    file, repository, store = session.resources
    for resource in (file, repository):
        deleted = await flow.sessions.resources.delete(resource.id, session_id=session.id, workspace_id=WORKSPACE)
        assert (deleted.id, deleted.type) == (resource.id, "session_resource_deleted")
    with pytest.raises(anthropic.BadRequestError):
        await flow.sessions.resources.delete(store.id, session_id=session.id)
    assert [each.id async for each in flow.sessions.resources.list(session.id)] == [store.id]

"""Resources of sessions over a real database: recorded with the session, in order, all or nothing, told to runners."""

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from kit.errors import Unavailable
from kit.ids import is_id, new_id
from managed_agents.sessions.v1 import resources_pb2 as pb
from managed_agents.sessions.v1 import sessions_pb2
from managed_agents.sessions.v1.common_pb2 import Idempotency, Page
from services.sessions.domain.threads import Member
from services.sessions.handlers.resources import ResourcesHandlers
from services.sessions.handlers.sessions import SessionsHandlers
from services.sessions.operations.repository_tokens import RepositoryTokens
from services.sessions.store.threads import ThreadStore
from tests.integration.sessions.harness import MESSAGE, WORKSPACE, Harness, refusal

pytestmark = pytest.mark.asyncio(loop_scope="package")

REPOSITORY = {"type": "github_repository", "url": "https://github.com/owner/repo", "authorization_token": "ghp_one"}


class Tokens(RepositoryTokens):
    """Stands in for vault."""

    def __init__(self) -> None:
        super().__init__(None)
        self.kept: dict[str, str] = {}
        self.fails = False

    async def put(self, session_id: str, tokens: Any) -> None:
        if self.fails and tokens:
            raise Unavailable("vault is away")
        self.kept |= tokens

    async def drop(self, resource_ids: Sequence[str]) -> None:
        for resource_id in resource_ids:
            self.kept.pop(resource_id, None)


class Attached:
    """Drives the rpcs."""

    def __init__(self, h: Harness) -> None:
        self.h = h
        self.tokens = Tokens()
        h.sessions = SessionsHandlers(h.operations, tokens=self.tokens)
        self.rpcs = ResourcesHandlers(h.operations, self.tokens)

    async def file(self, *, workspace: str = WORKSPACE, purpose: str = "upload", expired: bool = False) -> str:
        """An uploaded file's row."""
        file_id = new_id("file")
        async with self.h.database.transaction(workspace) as tx:
            await tx.execute(
                """
                INSERT INTO files (workspace_id, id, purpose, name, media_type, size_bytes, sha256, session_id,
                                   created_at, updated_at, expires_at)
                VALUES (%(workspace_id)s, %(id)s, %(purpose)s, 'a.txt', 'text/plain', 3, repeat('0', 64),
                        %(session_id)s, now(), now(), CASE WHEN %(expired)s THEN now() - interval '1 hour' END)
                """,
                {
                    "id": file_id,
                    "purpose": purpose,
                    "session_id": "" if purpose == "upload" else "s",
                    "expired": expired,
                },
            )
        return file_id

    async def count_files(self) -> int:
        async with self.h.database.read(WORKSPACE) as tx:
            return (await tx.one("SELECT count(*) FROM files WHERE workspace_id = %(workspace_id)s"))[0]

    async def page(self, session_id: str, limit: int = 0, cursor: str = "", **options: Any) -> Any:
        request = pb.ListResourcesRequest(session_id=session_id, page=Page(limit=limit, cursor=cursor))
        return await self.h.call(self.rpcs.ListResources, request, **options)

    async def all(self, session_id: str, **options: Any) -> list[dict[str, Any]]:
        return orjson.loads((await self.page(session_id, **options)).resources_json)

    async def attach(self, session_id: str, idempotency: Idempotency | None = None, **body: Any) -> dict[str, Any]:
        request = pb.AttachResourceRequest(
            session_id=session_id, definition_json=orjson.dumps(body), idempotency=idempotency
        )
        return orjson.loads((await self.h.call(self.rpcs.AttachResource, request)).resource_json)

    async def detach(self, session_id: str, resource_id: str, **options: Any) -> None:
        request = pb.DetachResourceRequest(session_id=session_id, resource_id=resource_id)
        await self.h.call(self.rpcs.DetachResource, request, **options)

    async def rotate(self, session_id: str, resource_id: str, **body: Any) -> dict[str, Any]:
        request = pb.RotateResourceTokenRequest(
            session_id=session_id, resource_id=resource_id, patch_json=orjson.dumps(body)
        )
        return orjson.loads((await self.h.call(self.rpcs.RotateResourceToken, request)).resource_json)

    async def get(self, session_id: str, resource_id: str, **options: Any) -> dict[str, Any]:
        request = pb.GetResourceRequest(session_id=session_id, resource_id=resource_id)
        return orjson.loads((await self.h.call(self.rpcs.GetResource, request, **options)).resource_json)

    async def told(self, session_id: str) -> tuple[list[dict[str, Any]], int]:
        answer = await self.h.call(self.rpcs.ReadAttachments, pb.ReadAttachmentsRequest(session_id=session_id))
        return orjson.loads(answer.resources_json), answer.session_revision


@pytest.fixture
def attached(h: Harness) -> Attached:
    return Attached(h)


async def test_resources_are_recorded_with_the_session_in_their_order(h: Harness, attached: Attached) -> None:
    file_id = await attached.file()
    entries = [
        {"type": "file", "file_id": file_id},
        REPOSITORY,
        {"type": "file", "file_id": file_id, "mount_path": "/a"},
    ]
    session = await h.create(await h.agent(), resources=entries)
    listed = await attached.all(session.id)
    assert [each["type"] for each in listed] == ["file", "github_repository", "file"]
    assert listed == orjson.loads(session.resources_json) == orjson.loads((await h.get(session.id)).resources_json)
    assert all(is_id("sesrsc", each["id"]) and each["created_at"] for each in listed)
    assert await attached.get(session.id, listed[1]["id"]) == listed[1]
    assert "authorization_token" not in listed[1] and "ghp_one" not in orjson.dumps(listed).decode()
    assert attached.tokens.kept == {listed[1]["id"]: "ghp_one"}


async def test_a_file_is_copied_for_its_session(h: Harness, attached: Attached) -> None:
    file_id = await attached.file()
    one, other = [await h.create(await h.agent(), resources=[{"type": "file", "file_id": file_id}]) for _ in range(2)]
    copies = [(await attached.all(each.id))[0]["session_file_id"] for each in (one, other)]
    assert len({file_id, *copies}) == 3 and await attached.count_files() == 3
    async with h.database.read(WORKSPACE) as tx:
        rows = await tx.all(
            "SELECT purpose, session_id, path FROM files WHERE workspace_id = %(workspace_id)s AND id = ANY(%(ids)s)",
            {"ids": copies},
        )
    assert {(row[0], row[2]) for row in rows} == {("mount", f"/mnt/session/uploads/{file_id}")}
    assert {row[1] for row in rows} == {one.id, other.id}


@pytest.mark.parametrize("events", [[], [MESSAGE]])
async def test_a_refused_resource_leaves_nothing(h: Harness, attached: Attached, events: list) -> None:
    agent, good, gone = await h.agent(), await attached.file(), await attached.file(expired=True)
    foreign = await attached.file(workspace="wrkspc_other")
    artifact = await attached.file(purpose="artifact")
    for wrong in (gone, foreign, artifact, "file_none"):
        entries = [
            REPOSITORY,
            {"type": "file", "file_id": good},
            {"type": "file", "file_id": wrong, "mount_path": "/x"},
        ]
        refused = await refusal(h.create(agent, resources=entries, initial_events=events))
        assert (refused.reason, refused.field, refused.code) == (
            "FILE_NOT_FOUND",
            "resources.2.file_id",
            "INVALID_ARGUMENT",
        )
    refused = await refusal(h.create(agent, resources=[{"type": "memory_store", "memory_store_id": "memstore_x"}]))
    assert refused.reason == "MEMORY_STORE_NOT_FOUND"
    assert await h.count("sessions") == 0 and await attached.count_files() == 3 and attached.tokens.kept == {}


async def test_a_vault_that_is_away_refuses_the_session(h: Harness, attached: Attached) -> None:
    attached.tokens.fails = True
    refused = await refusal(h.create(await h.agent(), resources=[REPOSITORY]))
    assert refused.code == "UNAVAILABLE" and await h.count("sessions") == 0


async def test_pages_follow_the_positions_also_past_a_detached_one(h: Harness, attached: Attached) -> None:
    file_id = await attached.file()
    entries = [{"type": "file", "file_id": file_id, "mount_path": f"/{number}"} for number in range(5)]
    session = await h.create(await h.agent(), resources=entries)
    first = await attached.page(session.id, 2)
    shown = orjson.loads(first.resources_json)
    await attached.detach(session.id, shown[1]["id"])
    second = await attached.page(session.id, 2, first.page_info.next_cursor)
    third = await attached.page(session.id, 2, second.page_info.next_cursor)
    paths = [each["mount_path"] for page in (first, second, third) for each in orjson.loads(page.resources_json)]
    assert paths == ["/0", "/1", "/2", "/3", "/4"] and not third.page_info.next_cursor
    refused = await refusal(attached.page((await h.create(await h.agent())).id, 2, first.page_info.next_cursor))
    assert refused.reason == "INVALID_CURSOR"


async def test_attaching_and_detaching_raise_the_revision(h: Harness, attached: Attached) -> None:
    file_id = await attached.file()
    session = await h.create(await h.agent())
    before = (await attached.told(session.id))[1]
    made = await attached.attach(session.id, type="file", file_id=file_id, mount_path="/a")
    assert await attached.told(session.id) == ([made], before + 1)
    refused = await refusal(attached.attach(session.id, type="file", file_id=file_id, mount_path="/a/b"))
    assert refused.reason == "MOUNT_PATH_TAKEN"
    await attached.detach(session.id, made["id"])
    assert await attached.told(session.id) == ([], before + 2)
    assert (await refusal(attached.get(session.id, made["id"]))).reason == "RESOURCE_NOT_FOUND"
    # The place is free again.
    await attached.attach(session.id, type="file", file_id=file_id, mount_path="/a/b")


async def test_detaching_leaves_other_sessions_alone(h: Harness, attached: Attached) -> None:
    file_id = await attached.file()
    one, other = [await h.create(await h.agent(), resources=[{"type": "file", "file_id": file_id}]) for _ in range(2)]
    await attached.detach(one.id, (await attached.all(one.id))[0]["id"])
    assert await attached.all(one.id) == [] and len(await attached.all(other.id)) == 1


async def test_only_the_token_of_a_repository_is_rotated(h: Harness, attached: Attached) -> None:
    file_id = await attached.file()
    session = await h.create(await h.agent(), resources=[{**REPOSITORY, "authorization_token": None}])
    (repository,) = await attached.all(session.id)
    assert attached.tokens.kept == {} and not repository["authenticated"]
    after = await attached.rotate(session.id, repository["id"], authorization_token="ghp_two")
    assert attached.tokens.kept == {repository["id"]: "ghp_two"}
    assert after["authenticated"] and after["updated_at"] > repository["updated_at"]
    refused = await refusal(attached.rotate(session.id, repository["id"], url="https://x/y"))
    assert refused.reason == "IMMUTABLE_FIELD"
    file = await attached.attach(session.id, type="file", file_id=file_id)
    refused = await refusal(attached.rotate(session.id, file["id"], authorization_token="ghp_three"))
    assert refused.reason == "INVALID_RESOURCE"
    await attached.detach(session.id, repository["id"])
    assert attached.tokens.kept == {}


async def test_a_repeated_attachment_is_made_once(h: Harness, attached: Attached) -> None:
    session = await h.create(await h.agent())
    key = Idempotency(key="once", fingerprint=b"f", keep_seconds=60)
    one = await attached.attach(session.id, key, **REPOSITORY)
    assert await attached.attach(session.id, key, **REPOSITORY) == one
    assert len(await attached.all(session.id)) == 1 and len(attached.tokens.kept) == 1


async def test_limits_count_what_is_attached_already(h: Harness, attached: Attached) -> None:
    file_id = await attached.file()
    entries = [{"type": "file", "file_id": file_id, "mount_path": f"/{number}"} for number in range(100)]
    session = await h.create(await h.agent(), resources=entries)
    refused = await refusal(attached.attach(session.id, type="file", file_id=file_id, mount_path="/more"))
    assert refused.reason == "TOO_MANY_RESOURCES"
    await attached.attach(session.id, **REPOSITORY)


async def test_others_and_ended_sessions(h: Harness, attached: Attached) -> None:
    session = await h.create(await h.agent(), resources=[REPOSITORY])
    (resource,) = await attached.all(session.id)
    for call in (
        attached.page(session.id, workspace="wrkspc_other"),
        attached.get(session.id, resource["id"], workspace="wrkspc_other"),
        attached.detach(session.id, resource["id"], workspace="wrkspc_other"),
        attached.page("sess_none"),
        attached.page("sess_\x00"),
    ):
        assert (await refusal(call)).reason == "SESSION_NOT_FOUND"
    assert (await refusal(attached.get(session.id, "sesrsc_none"))).reason == "RESOURCE_NOT_FOUND"
    await h.call(h.sessions.StopSession, sessions_pb2.StopSessionRequest(session_id=session.id))
    for call in (
        attached.attach(session.id, **REPOSITORY, mount_path="/workspace/other"),
        attached.rotate(session.id, resource["id"], authorization_token="ghp_two"),
        attached.detach(session.id, resource["id"]),
    ):
        assert (await refusal(call)).reason == "SESSION_ENDED"
    assert attached.tokens.kept == {resource["id"]: "ghp_one"} and len(await attached.all(session.id)) == 1


async def test_threads_share_what_is_attached(h: Harness, attached: Attached) -> None:
    session = await h.create(await h.agent(), resources=[REPOSITORY])
    async with h.database.transaction(WORKSPACE) as tx:
        member = Member(session.agent.id, 1, "assistant")
        await ThreadStore(tx).insert(session.id, "sthr_1", member, h.operations.clock.now())
    before = (await attached.told("sthr_1"))[1]
    made = await attached.attach(session.id, **REPOSITORY, mount_path="/workspace/two")
    resources, revision = await attached.told("sthr_1")
    assert resources[-1] == made and revision == before + 1
    assert (await refusal(attached.page("sthr_1"))).reason == "SESSION_NOT_FOUND"

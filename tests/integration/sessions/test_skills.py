"""Skills in the sessions service: rows and packages together, under sweeps, failures, tenants and races."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kit import failpoints
from kit.clock import SystemClock
from kit.errors import DomainError
from kit.rpc.context import CallContext, use_context
from managed_agents.sessions.v1 import skills_pb2 as pb
from managed_agents.sessions.v1.common_pb2 import Page
from services.sessions.blobs.choice import Blobs
from services.sessions.handlers.skills import SkillsHandler
from services.sessions.operations.blob_holds import BlobSweep
from tests.integration.sessions.harness import WORKSPACE, Harness, refusal
from tests.support.skills import package

pytestmark = pytest.mark.asyncio(loop_scope="package")


class Skills:
    """The handler over a folder of blobs."""

    def __init__(self, h: Harness, folder: Path) -> None:
        self.h, self.folder = h, folder
        blobs = Blobs(folder)
        self.handler = SkillsHandler(h.database, SystemClock(), blobs)
        self._sweep = BlobSweep(h.database, SystemClock(), blobs, timedelta(0))

    async def call(self, method: str, request: Any, workspace: str = WORKSPACE) -> Any:
        with use_context(CallContext(workspace_id=workspace)):
            return await getattr(self.handler, method)(request, None)

    async def create(self, name: str = "greeter", *, workspace: str = WORKSPACE, **content: str) -> pb.Skill:
        async def messages() -> AsyncIterator[pb.CreateSkillRequest]:
            for path, data in package(name, **content).items():
                yield pb.CreateSkillRequest(upload=pb.SkillUpload(begins=path, data=data))

        return (await self.call("CreateSkill", messages(), workspace)).skill

    async def add(self, skill: pb.Skill, **content: str) -> pb.SkillVersion:
        async def messages() -> AsyncIterator[pb.CreateSkillVersionRequest]:
            yield pb.CreateSkillVersionRequest(skill_id=skill.id)
            for path, data in package(skill.name, **content).items():
                yield pb.CreateSkillVersionRequest(upload=pb.SkillUpload(begins=path, data=data))

        return (await self.call("CreateSkillVersion", messages())).version

    async def versions(self, skill: pb.Skill) -> list[pb.SkillVersion]:
        request = pb.ListSkillVersionsRequest(skill_id=skill.id, page=Page(limit=1000))
        return list((await self.call("ListSkillVersions", request)).versions)

    async def names(self, workspace: str = WORKSPACE) -> list[str]:
        request = pb.ListSkillsRequest(page=Page(limit=1000))
        return sorted(each.name for each in (await self.call("ListSkills", request, workspace)).skills)

    async def sweep(self) -> None:
        await self._sweep.sweep()

    def blobs(self) -> set[str]:
        return {path.name for path in self.folder.rglob("*") if path.is_file() and len(path.name) == 64}


@pytest_asyncio.fixture(loop_scope="package")
async def skills(h: Harness, tmp_path: Path) -> AsyncIterator[Skills]:
    yield Skills(h, tmp_path)
    failpoints.arm("")


async def test_the_sweep_keeps_what_a_version_names_and_nothing_else(skills: Skills) -> None:
    skill = await skills.create()
    second = await skills.add(skill, body="second")
    first = skill.latest_version.sha256
    assert skills.blobs() == {first, second.sha256}
    await skills.sweep()
    assert skills.blobs() == {first, second.sha256}
    await skills.call("DeleteSkillVersion", pb.DeleteSkillVersionRequest(skill_id=skill.id, version=second.id))
    await skills.sweep()
    assert skills.blobs() == {first}
    await skills.call("DeleteSkill", pb.DeleteSkillRequest(skill_id=skill.id))
    await skills.sweep()
    assert skills.blobs() == set()


@pytest.mark.parametrize("point", ["skills.stored", "skills.before_commit"])
async def test_an_upload_that_is_cut_off_leaves_no_row_and_its_bytes_are_swept(skills: Skills, point: str) -> None:
    kept = await skills.create("kept")
    failpoints.arm(f"{point}=raise")
    with pytest.raises(failpoints.FailpointHit):
        await skills.create("cut")
    with pytest.raises(failpoints.FailpointHit):
        await skills.add(kept, body="cut")
    failpoints.arm("")
    assert await skills.names() == ["kept"] and len(await skills.versions(kept)) == 1
    assert len(skills.blobs()) == 3
    await skills.sweep()
    assert skills.blobs() == {kept.latest_version.sha256}
    assert (await skills.create("cut")).name == "cut"


async def test_equal_packages_share_their_bytes_across_workspaces_and_each_keeps_its_own_rows(skills: Skills) -> None:
    ours, theirs = await skills.create(), await skills.create(workspace="wrkspc_other")
    assert ours.latest_version.sha256 == theirs.latest_version.sha256 and len(skills.blobs()) == 1
    for method, request in (
        ("GetSkill", pb.GetSkillRequest(skill_id=theirs.id)),
        ("DeleteSkill", pb.DeleteSkillRequest(skill_id=theirs.id)),
        ("GetSkillVersion", pb.GetSkillVersionRequest(skill_id=theirs.id, version="latest")),
        ("ListSkillVersions", pb.ListSkillVersionsRequest(skill_id=theirs.id, page=Page(limit=1))),
    ):
        assert (await refusal(skills.call(method, request))).reason == "SKILL_NOT_FOUND"
    await skills.call("DeleteSkill", pb.DeleteSkillRequest(skill_id=ours.id))
    await skills.sweep()
    assert len(skills.blobs()) == 1 and await skills.names("wrkspc_other") == ["greeter"] and not await skills.names()


async def test_of_uploads_of_one_name_at_once_one_wins(skills: Skills) -> None:
    answers = await asyncio.gather(*(skills.create(body=str(n)) for n in range(6)), return_exceptions=True)
    refused = [each for each in answers if isinstance(each, DomainError)]
    assert len(refused) == 5 and {each.reason for each in refused} == {"SKILL_NAME_TAKEN"}
    assert await skills.names() == ["greeter"]


async def test_versions_that_come_at_once_are_all_there_in_one_order(skills: Skills) -> None:
    skill = await skills.create()
    added = await asyncio.gather(*(skills.add(skill, body=str(n)) for n in range(8)))
    listed = await skills.versions(skill)
    numbers = [int(each.version) for each in listed]
    assert {each.id for each in added} < {each.id for each in listed} and len(listed) == 9
    assert numbers == sorted(set(numbers), reverse=True)
    found = await skills.call("GetSkill", pb.GetSkillRequest(skill_id=skill.id))
    assert found.skill.latest_version.id == listed[0].id


async def test_one_version_is_left_whoever_deletes(skills: Skills) -> None:
    skill = await skills.create()
    second = await skills.add(skill, body="second")

    def delete(version: str) -> Any:
        return skills.call("DeleteSkillVersion", pb.DeleteSkillVersionRequest(skill_id=skill.id, version=version))

    answers = await asyncio.gather(delete(skill.latest_version.id), delete(second.id), return_exceptions=True)
    refused = [each for each in answers if isinstance(each, DomainError)]
    assert [each.reason for each in refused] == ["SKILL_VERSION_REQUIRED"] and len(await skills.versions(skill)) == 1


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [pb.CreateSkillRequest(upload=pb.SkillUpload(data=b"of no file"))],
        [pb.CreateSkillRequest(upload=pb.SkillUpload(begins=f"a/{n}")) for n in range(1_200)],
        [pb.CreateSkillRequest(upload=pb.SkillUpload(begins="a/b", data=bytes(1024 * 1024)))] * 31,
    ],
)
async def test_streams_that_are_no_upload_are_refused(skills: Skills, messages: list[Any]) -> None:
    async def stream() -> AsyncIterator[pb.CreateSkillRequest]:
        for each in messages:
            message = pb.CreateSkillRequest()
            message.CopyFrom(each)
            yield message

    assert (await refusal(skills.call("CreateSkill", stream()))).reason == "INVALID_SKILL_PACKAGE"
    assert not await skills.names() and not skills.blobs()

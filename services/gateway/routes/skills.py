"""Skills and their versions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from managed_agents.sessions.v1 import skills_pb2 as pb
from managed_agents.sessions.v1.common_pb2 import Page
from managed_agents.sessions.v1.files_pb2 import DownloadFileStart, File

from ..admission.compatibility import BETA_HEADER
from ..errors import InvalidRequest
from ..operation import Call, Operation, integer, page, text
from ..operation.content import Content, NotModified, etag_of, is_known
from ..render.skills import (
    render_deleted_skill,
    render_deleted_version,
    render_page,
    render_skill,
    render_version,
)
from ..schemas.skills import (
    Skill,
    SkillCreate,
    SkillDeleted,
    SkillPage,
    SkillVersion,
    SkillVersionCreate,
    SkillVersionDeleted,
    SkillVersionPage,
    form,
)
from .skill_uploads import upload

TAG = "Skills"
# Clients of this age read `source` as a word.
EARLIER_BETA = "skills-2025-10-02"
DEFAULT_LIMIT = 20
MAX_LIMIT = 1000
MAX_LOCAL_LIMIT = 100


async def create_skill(call: Call) -> bytes:
    """POST /v1/skills."""
    answer = await upload(call, call.clients.skills.CreateSkill, pb.CreateSkillRequest(), takes_label=True)
    return _rendered(call, answer.skill)


async def list_skills(call: Call) -> bytes:
    """GET /v1/skills."""
    request = pb.ListSkillsRequest(page=_page(call), source=call.query["source"])
    answer = await call.ask(call.clients.skills.ListSkills, request)
    ids = [each.id for each in answer.skills]
    return render_page([_rendered(call, each) for each in answer.skills], ids, answer.page_info)


async def get_skill(call: Call) -> bytes:
    """GET /v1/skills/{skill_id}."""
    answer = await call.ask(call.clients.skills.GetSkill, pb.GetSkillRequest(skill_id=call.path["skill_id"]))
    return _rendered(call, answer.skill)


async def delete_skill(call: Call) -> bytes:
    """DELETE /v1/skills/{skill_id}."""
    await call.ask(call.clients.skills.DeleteSkill, pb.DeleteSkillRequest(skill_id=call.path["skill_id"]))
    return render_deleted_skill(call.path["skill_id"])


async def create_version(call: Call) -> bytes:
    """POST /v1/skills/{skill_id}/versions."""
    head = pb.CreateSkillVersionRequest(skill_id=call.path["skill_id"])
    answer = await upload(call, call.clients.skills.CreateSkillVersion, head, takes_label=False)
    return render_version(answer.version)


async def list_versions(call: Call) -> bytes:
    """GET /v1/skills/{skill_id}/versions."""
    request = pb.ListSkillVersionsRequest(skill_id=call.path["skill_id"], page=_page(call))
    answer = await call.ask(call.clients.skills.ListSkillVersions, request)
    ids = [each.id for each in answer.versions]
    return render_page([render_version(each) for each in answer.versions], ids, answer.page_info)


async def get_version(call: Call) -> bytes:
    """GET /v1/skills/{skill_id}/versions/{version}."""
    request = pb.GetSkillVersionRequest(skill_id=call.path["skill_id"], version=call.path["version"])
    answer = await call.ask(call.clients.skills.GetSkillVersion, request)
    return render_version(answer.version)


async def delete_version(call: Call) -> bytes:
    """DELETE /v1/skills/{skill_id}/versions/{version}."""
    request = pb.DeleteSkillVersionRequest(skill_id=call.path["skill_id"], version=call.path["version"])
    answer = await call.ask(call.clients.skills.DeleteSkillVersion, request)
    return render_deleted_version(answer.version_id)


async def download_version(call: Call) -> Any:
    """GET /v1/skills/{skill_id}/versions/{version}/content."""
    request = pb.DownloadSkillVersionRequest(skill_id=call.path["skill_id"], version=call.path["version"])
    answers = aiter(call.follow(call.clients.skills.DownloadSkillVersion, request))
    first = await anext(answers)
    version = first.version
    file = File(
        id=version.id,
        name=f"{version.name}.zip",
        media_type="application/zip",
        size_bytes=version.size_bytes,
        sha256=version.sha256,
    )
    if is_known(call.headers, etag_of(file)):
        await answers.aclose()
        return NotModified(file)
    start = DownloadFileStart(file=file, length=version.size_bytes)
    return Content(call, start, _chunks(first, answers), partial=False)


@dataclass(frozen=True, slots=True)
class _Chunk:
    chunk: bytes


async def _chunks(first: pb.DownloadSkillVersionResponse, answers: Any) -> AsyncIterator[_Chunk]:
    async with aclosing(answers):
        yield _Chunk(first.data)
        async for answer in answers:
            yield _Chunk(answer.data)


def _rendered(call: Call, skill: pb.Skill) -> bytes:
    is_earlier = EARLIER_BETA in call.headers.get(BETA_HEADER, "")
    return render_skill(skill, nested_source=call.published and not is_earlier)


def _page(call: Call) -> Page:
    limit = call.query["limit"] or DEFAULT_LIMIT
    if limit > MAX_LOCAL_LIMIT and not call.published:
        raise InvalidRequest(f"limit must be an integer from 1 to {MAX_LOCAL_LIMIT}.", field="limit")
    return Page(limit=limit, cursor=call.query["page"])


_LIMIT = integer(
    "limit",
    minimum=1,
    maximum=MAX_LIMIT,
    description=f"Page size, {DEFAULT_LIMIT} where it is left out. More than {MAX_LOCAL_LIMIT} is for callers of the"
    " published contract.",
)
_SKILL = "/v1/skills/{skill_id}"
_VERSIONS = f"{_SKILL}/versions"
_VERSION = f"{_VERSIONS}/{{version}}"
_UPLOAD = (
    "As multipart/form-data: the files in parts `files[]` with their folder in the filename, or one archive (.zip,"
    " .skill). Or as JSON. SKILL.md lies at the root of the folder; its front matter has name and description."
)

OPERATIONS = (
    Operation(
        "GET",
        "/v1/skills",
        list_skills,
        tag=TAG,
        summary="List skills, newest first",
        query=(_LIMIT, page(), text("source", max_length=32, description="`custom` or `anthropic`.")),
        response=SkillPage,
    ),
    Operation(
        "POST",
        "/v1/skills",
        create_skill,
        tag=TAG,
        summary="Upload a skill",
        description=_UPLOAD,
        upload=SkillCreate,
        form=form(with_label=True),
        response=Skill,
        idempotent_write=True,
    ),
    Operation("GET", _SKILL, get_skill, tag=TAG, summary="Retrieve a skill", response=Skill),
    Operation(
        "DELETE",
        _SKILL,
        delete_skill,
        tag=TAG,
        summary="Delete a skill with all its versions",
        response=SkillDeleted,
    ),
    Operation(
        "GET",
        _VERSIONS,
        list_versions,
        tag=TAG,
        summary="List the versions of a skill, newest first",
        query=(_LIMIT, page()),
        response=SkillVersionPage,
    ),
    Operation(
        "POST",
        _VERSIONS,
        create_version,
        tag=TAG,
        summary="Upload a new version",
        description=_UPLOAD,
        upload=SkillVersionCreate,
        form=form(with_label=False),
        response=SkillVersion,
        idempotent_write=True,
    ),
    Operation(
        "GET",
        _VERSION,
        get_version,
        tag=TAG,
        summary="Retrieve a version by its id, its number or `latest`",
        holders="skill",
        response=SkillVersion,
    ),
    Operation(
        "DELETE",
        _VERSION,
        delete_version,
        tag=TAG,
        summary="Delete a version that is not the only one",
        response=SkillVersionDeleted,
    ),
    Operation(
        "GET",
        f"{_VERSION}/content",
        download_version,
        tag=TAG,
        summary="Download the package of a version as a zip archive",
        holders="skill",
        content=True,
    ),
)

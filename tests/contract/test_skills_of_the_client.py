"""The published client's skills and their versions, every method with every parameter, on a real platform.

The client validates every response strictly, so a field of another type fails here.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
from anthropic.lib.tools._skills import download_session_skills

from tests.contract.client_flow import COMMON, TOOLSET, WORKSPACE, Watched, methods_of
from tests.support.skills import package, zipped


@pytest.fixture
async def client(platform_url: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=platform_url, api_key="unused", max_retries=0, _strict_response_validation=True
    ) as made:
        yield made


def files(name: str, **content: str) -> list[tuple[str, bytes]]:
    """The files of a package as the client takes them."""
    return list(package(name, **content).items())


@pytest.mark.parametrize("resource", ["skills", "beta.skills"])
async def test_every_method_passes_with_every_parameter(client: anthropic.AsyncAnthropic, resource: str) -> None:
    part: Any = client
    for name in resource.split("."):
        part = getattr(part, name)
    seen: dict[str, set[str]] = {}
    skills, slug = Watched(part, "", seen), resource.replace(".", "-")
    other: Any = {"workspace_id": WORKSPACE}

    skill = await skills.create(files=files(slug), display_name="Of the client", **other)
    assert (skill.display_name, skill.source.type, skill.type) == ("Of the client", "custom", "skill")
    assert (await skills.retrieve(skill.id, **other)) == skill
    second = await skills.versions.create(skill.id, files=[("a.zip", zipped(package(slug, body="second")))], **other)
    assert (second.name, second.skill_id, second.type) == (slug, skill.id, "skill_version")
    assert (await skills.versions.retrieve("latest", skill_id=skill.id, **other)) == second
    page = await skills.versions.list(skill.id, limit=1, **other)
    assert [each.id for each in page.data] == [second.id] and page.next_page
    rest = await skills.versions.list(skill.id, limit=1, page=page.next_page, **other)
    assert [each.id for each in rest.data] == [skill.latest_version_id] and not rest.has_next_page()
    if "versions.download" in methods_of(part):
        content = await skills.versions.download(skill.latest_version_id, skill_id=skill.id, **other)
        with zipfile.ZipFile(io.BytesIO(await content.read())) as archive:
            assert {name: archive.read(name) for name in archive.namelist()} == package(slug)

    one = await skills.create(files=files(f"{slug}-one"))
    assert one.display_name == f"{slug}-one"
    listed = await skills.list(limit=1, source="custom", **other)
    assert [each.id for each in listed.data] == [one.id]
    following = await skills.list(limit=1, page=listed.next_page, source="custom", **other)
    assert [each.id for each in following.data] == [skill.id]
    assert not [each async for each in skills.list(source="anthropic")]

    gone = await skills.versions.delete(second.id, skill_id=skill.id, **other)
    assert (gone.id, gone.type) == (second.id, "skill_version_deleted")
    for each in (skill, one):
        deleted = await skills.delete(each.id, **other)
        assert (deleted.id, deleted.type) == (each.id, "skill_deleted")
    for method, parameters in methods_of(part).items():
        assert seen[method] == parameters - COMMON - {"betas"}, method


async def test_refusals_have_the_classes_that_the_client_knows(client: anthropic.AsyncAnthropic) -> None:
    skill = await client.beta.skills.create(files=files("refusing"))
    with pytest.raises(anthropic.ConflictError) as taken:
        await client.beta.skills.create(files=files("refusing"))
    assert "skill_name_taken" in str(taken.value.body)
    with pytest.raises(anthropic.NotFoundError):
        await client.beta.skills.retrieve("skill_none")
    with pytest.raises(anthropic.NotFoundError):
        await client.beta.skills.versions.retrieve("skver_none", skill_id=skill.id)
    for bad in ([("refusing/readme.md", b"x")], [*files("refusing2"), ("refusing2/../x", b"x")]):
        with pytest.raises(anthropic.BadRequestError):
            await client.beta.skills.create(files=bad)
    await client.beta.skills.delete(skill.id)


async def test_an_agent_has_skills_and_a_worker_gets_those_of_the_session(
    client: anthropic.AsyncAnthropic, tmp_path: Any
) -> None:
    skill = await client.beta.skills.create(files=files("of-agent", body="first"))
    reference: Any = {"type": "custom", "skill_id": skill.id}
    agent = await client.beta.agents.create(
        name="skilled", model="default", system="Be brief.", tools=[TOOLSET], skills=[reference]
    )
    assert [each.version for each in agent.skills] == ["latest"]
    session = await client.beta.sessions.create(agent=agent.id, environment_id="env_default")
    assert [(each.skill_id, each.version) for each in session.agent.skills] == [(skill.id, skill.latest_version_id)]
    await client.beta.skills.versions.create(skill.id, files=files("of-agent", body="second"))
    # As the client's own worker does it.
    (folder,) = await download_session_skills(client, workdir=tmp_path, session=session)
    assert folder == tmp_path / "skills" / "of-agent"
    assert "first" in (folder / "SKILL.md").read_text() and (folder / "scripts" / "hello.sh").stat().st_mode & 0o100
    with pytest.raises(anthropic.NotFoundError):
        await client.beta.sessions.create(
            agent={"type": "agent_with_overrides", "id": agent.id, "skills": [reference | {"version": "skver_none"}]},
            environment_id="env_default",
        )


def test_the_methods_are_those_of_this_test() -> None:
    """A newer client with one more method fails here, not in silence."""
    made = anthropic.AsyncAnthropic(api_key="none")
    known = {
        *("create", "retrieve", "list", "delete"),
        *(f"versions.{name}" for name in ("create", "retrieve", "list", "delete")),
    }
    assert set(methods_of(made.skills)) == known
    assert set(methods_of(made.beta.skills)) == known | {"versions.download"}

"""Skills of an agent are in its sandbox and prompt, at the version that the session was made with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from kit.errors import DomainError
from managed_agents.sessions.v1 import agents_pb2, sessions_pb2
from managed_agents.sessions.v1 import skills_pb2 as pb
from managed_agents.sessions.v1.skills_pb2_grpc import SkillsServiceStub
from services.worker.runner.models.base import ModelAccess, ModelDelta, ModelRequest
from services.worker.runner.models.demo import DemoModel
from services.worker.sandbox import SandboxManager
from tests.integration.runner.harness import World, of, text_of
from tests.integration.runner.mounting import Mounting, refusal
from tests.integration.runner.played import TOOLSET
from tests.support.skills import package

SKILLS = "/mnt/session/skills"
DEMO = ModelAccess("demo", default_model="demo")


class Skilled(Mounting):
    """Uploads skills, and makes sessions of agents that have them."""

    def __init__(self, platform: World) -> None:
        super().__init__(platform)
        self.skills = self._channel.stub(SkillsServiceStub)

    async def upload_skill(self, name: str = "greeter", **content: str) -> pb.Skill:
        """A new skill."""

        async def messages() -> AsyncIterator[pb.CreateSkillRequest]:
            for path, data in package(name, **content).items():
                yield pb.CreateSkillRequest(upload=pb.SkillUpload(begins=path, data=data))

        return (await self.skills.CreateSkill(messages(), context=self._context)).skill

    async def upload_version(self, skill: pb.Skill, **content: str) -> pb.SkillVersion:
        """One more version of it."""

        async def messages() -> AsyncIterator[pb.CreateSkillVersionRequest]:
            yield pb.CreateSkillVersionRequest(skill_id=skill.id)
            for path, data in package(skill.name, **content).items():
                yield pb.CreateSkillVersionRequest(upload=pb.SkillUpload(begins=path, data=data))

        return (await self.skills.CreateSkillVersion(messages(), context=self._context)).version

    async def delete(self, skill: pb.Skill) -> None:
        """Delete a skill."""
        await self.skills.DeleteSkill(pb.DeleteSkillRequest(skill_id=skill.id), context=self._context)

    async def agent(self, *skills: dict[str, Any], name: str = "tester", **fields: Any) -> str:
        """An agent with these skills."""
        definition = {"name": name, "model": "default", "system": f"You are {name}.", "tools": [TOOLSET]}
        body = orjson.dumps(definition | {"skills": list(skills)} | fields)
        created = await self.platform.clients.agents.CreateAgent(agents_pb2.CreateAgentRequest(definition_json=body))
        return created.agent.id

    async def of_agent(self, agent: Any) -> sessions_pb2.Session:
        """A session of an agent."""
        request = sessions_pb2.CreateSessionRequest(definition_json=orjson.dumps({"agent": agent}))
        return (await self.platform.clients.sessions.CreateSession(request)).session

    async def with_skills(self, *skills: dict[str, Any]) -> sessions_pb2.Session:
        """A session of an agent with these skills."""
        return await self.of_agent(await self.agent(*skills))

    async def run(self, session_id: str, command: str) -> str:
        """Have a command run in a turn; what its result says."""
        return text_of(of(await self.bash(session_id, command), "agent.tool_result")[-1])


def custom(skill: pb.Skill, version: str | None = None) -> dict[str, Any]:
    """A reference to a skill."""
    return {"type": "custom", "skill_id": skill.id} | ({"version": version} if version else {})


class Listening(DemoModel):
    """The demo model, which remembers the system prompts that it was asked under."""

    def __init__(self, access: ModelAccess, heard: list[str]) -> None:
        super().__init__(access)
        self._heard = heard

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelDelta, None]:
        self._heard.append(request.system)
        return super().stream(request)


@pytest.fixture
async def skilled(platform: World) -> AsyncIterator[Skilled]:
    made = Skilled(platform)
    yield made
    await made.close()


def sandboxes(platform: World, kind: str = "auto") -> SandboxManager:
    return SandboxManager(platform.folder / "sandboxes", kind=kind)


def shown(session: sessions_pb2.Session) -> list[dict[str, Any]]:
    return orjson.loads(session.agent.document_json)["skills"]


async def test_an_agent_reads_and_runs_what_its_skill_brings(platform: World, skilled: Skilled) -> None:
    skill = await skilled.upload_skill()
    other = await skilled.upload_skill("unused")
    session = await skilled.with_skills(custom(skill))
    heard: list[str] = []
    model = Listening(DEMO, heard)
    async with platform.runner(model, sandboxes(platform)):
        told = await skilled.run(
            session.id, f"cat {SKILLS}/greeter/SKILL.md; {SKILLS}/greeter/scripts/hello.sh; ls {SKILLS}"
        )
    assert "Say hello." in told and "hello from greeter" in told and other.name not in told
    assert f"- greeter ({SKILLS}/greeter/SKILL.md): Says hello." in heard[0]


async def test_a_session_without_skills_hears_nothing_of_them(platform: World, skilled: Skilled) -> None:
    await skilled.upload_skill()
    session = await skilled.with_skills()
    heard: list[str] = []
    async with platform.runner(Listening(DEMO, heard), sandboxes(platform)):
        assert "No such file" in await skilled.run(session.id, f"ls {SKILLS} 2>&1; true")
    assert "skill" not in heard[0]


@pytest.mark.parametrize("kind", ["bubblewrap", "landlock", "process"])
async def test_file_tools_read_skills_and_nobody_writes_them(platform: World, skilled: Skilled, kind: str) -> None:
    session = (await skilled.with_skills(custom(await skilled.upload_skill()))).id
    path = f"{SKILLS}/greeter/SKILL.md"
    async with platform.runner(sandboxes=sandboxes(platform, kind)):
        for tool, value, works in (
            ("read", {"file_path": path}, True),
            ("grep", {"pattern": "Say", "path": SKILLS}, True),
            ("glob", {"pattern": "**/*.md", "path": SKILLS}, True),
            ("write", {"file_path": path, "content": "x"}, False),
            ("write", {"file_path": f"{SKILLS}/new/SKILL.md", "content": "x"}, False),
            ("edit", {"file_path": path, "old_string": "Say", "new_string": "x"}, False),
        ):
            await platform.say(session, f"TOOL:{tool}:{orjson.dumps(value).decode()}")
            result = of(await platform.until(session, seconds=30), "agent.tool_result")[-1]
            assert result["is_error"] is not works, text_of(result)
        if kind != "process":
            place = SKILLS if kind == "bubblewrap" else f"{platform.folder}/sandboxes/{session}{SKILLS}"
            await skilled.run(session, f"echo mine >> {place}/greeter/SKILL.md; rm -rf {place}/greeter; true")
    assert (platform.folder / f"sandboxes/{session}{path}").read_bytes() == package()["greeter/SKILL.md"]


async def test_a_session_keeps_the_version_it_was_made_with(platform: World, skilled: Skilled) -> None:
    skill = await skilled.upload_skill(body="first")
    first = skill.latest_version.id
    follows, pinned = await skilled.agent(custom(skill)), await skilled.agent(custom(skill, first))
    before = await skilled.of_agent(follows)
    second = await skilled.upload_version(skill, body="second", description="Says more.")
    after, still = await skilled.of_agent(follows), await skilled.of_agent(pinned)
    by_number = await skilled.with_skills(custom(skill, second.version))
    assert [shown(each)[0]["version"] for each in (before, after, still, by_number)] == [
        first,
        second.id,
        first,
        second.id,
    ]
    assert shown(after)[0] == custom(skill) | {
        "version": second.id,
        "name": "greeter",
        "description": "Says more.",
        "directory": "greeter",
    }
    async with platform.runner(sandboxes=sandboxes(platform)):
        for session, body in ((before, "first"), (after, "second"), (still, "first")):
            assert body in await skilled.run(session.id, f"tail -1 {SKILLS}/greeter/SKILL.md")


async def test_files_stay_when_their_skill_is_deleted_and_a_skill_that_is_gone_is_told(
    platform: World, skilled: Skilled
) -> None:
    skill, other = await skilled.upload_skill(), await skilled.upload_skill("other")
    mounted = await skilled.with_skills(custom(skill))
    late = await skilled.with_skills(custom(skill), custom(other))
    async with platform.runner(sandboxes=sandboxes(platform)):
        await skilled.run(mounted.id, "true")
        await skilled.delete(skill)
        assert "Say hello" in await skilled.run(mounted.id, f"cat {SKILLS}/greeter/SKILL.md")
        log = await skilled.bash(late.id, f"ls {SKILLS}")
    error = of(log, "session.error")[0]
    assert error["error"]["type"] == "skill_mount_failed" and "deleted: greeter" in error["error"]["message"]
    assert text_of(of(log, "agent.tool_result")[0]).strip() == "other"
    assert log[-1]["type"] == "session.status_idle" and log[-1]["stop_reason"]["type"] == "end_turn"
    refused = await refusal(skilled.with_skills(custom(skill)))
    assert refused.reason == "SKILL_NOT_FOUND"


async def test_an_unknown_skill_is_refused_before_there_is_a_session(platform: World, skilled: Skilled) -> None:
    skill = await skilled.upload_skill()
    for reference, reason in (
        ({"type": "custom", "skill_id": "skill_none"}, "SKILL_NOT_FOUND"),
        ({"type": "anthropic", "skill_id": "xlsx"}, "SKILL_NOT_FOUND"),
        (custom(skill, "skver_none"), "SKILL_VERSION_NOT_FOUND"),
        (custom(skill, "12345"), "SKILL_VERSION_NOT_FOUND"),
    ):
        agent = await skilled.agent(custom(skill), reference) if reference["skill_id"] != skill.id else None
        agent = agent or await skilled.agent(reference)
        refused = await refusal(skilled.of_agent(agent))
        assert isinstance(refused, DomainError) and refused.reason == reason
        override = {"type": "agent_with_overrides", "id": await skilled.agent(), "skills": [reference]}
        assert (await refusal(skilled.of_agent(override))).reason == reason
    listed = await platform.clients.sessions.ListSessions(sessions_pb2.ListSessionsRequest(page={"limit": 10}))
    assert not listed.sessions


async def test_the_agents_of_a_roster_have_skills_of_their_own(platform: World, skilled: Skilled) -> None:
    skill, special = await skilled.upload_skill(body="first"), await skilled.upload_skill("special")
    first = skill.latest_version.id
    second = await skilled.upload_version(skill, body="second")
    writer = await skilled.agent(custom(skill, first), custom(special), name="writer", description="Writes.")
    lead = await skilled.agent(custom(skill), name="lead", multiagent={"type": "coordinator", "agents": [writer]})
    session = await skilled.of_agent(lead)
    folder = f"greeter-{first[-10:].lower()}"
    assert [each["directory"] for each in shown(session)] == ["greeter"] and shown(session)[0]["version"] == second.id
    heard: list[str] = []
    async with platform.runner(Listening(DEMO, heard), sandboxes(platform)):
        inner = orjson.dumps(
            {"command": f"tail -1 {SKILLS}/{folder}/SKILL.md; {SKILLS}/special/scripts/hello.sh"}
        ).decode()
        call = orjson.dumps({"agent": "writer", "message": f"TOOL:bash:{inner}"}).decode()
        await platform.say(session.id, f"TOOL:start_thread:{call}")
        await platform.until(session.id, seconds=30)
    results = await asyncio.to_thread(_manifests, Path(f"{platform.folder}/sandboxes/{session.id}{SKILLS}"))
    assert sorted(text.strip().splitlines()[-1] for text in results) == ["Say hello.", "first", "second"]
    of_writer = next(each for each in heard if each.startswith("You are writer"))
    of_lead = next(each for each in heard if each.startswith("You are lead"))
    assert f"({SKILLS}/{folder}/SKILL.md)" in of_writer and "special" in of_writer
    assert f"({SKILLS}/greeter/SKILL.md)" in of_lead and "special" not in of_lead


def _manifests(folder: Path) -> list[str]:
    return [path.read_text() for path in folder.rglob("SKILL.md")]


async def test_twenty_skills_are_mounted_in_one_pass(platform: World, skilled: Skilled) -> None:
    made = await asyncio.gather(*(skilled.upload_skill(f"skill-{number}") for number in range(20)))
    session = await skilled.with_skills(*(custom(each) for each in made))
    async with platform.runner(sandboxes=sandboxes(platform)):
        told = await skilled.run(session.id, f"ls {SKILLS}/*/SKILL.md | wc -l")
    assert told.strip() == "20"

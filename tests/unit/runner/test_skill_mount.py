"""Packages that reach a runner are judged again: whatever a service sends, nothing is written outside of its folder."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import shutil
import stat
import tempfile
import time
import warnings
import zipfile
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.errors import NotFound, Unavailable
from managed_agents.sessions.v1.skills_pb2 import DownloadSkillVersionResponse, SkillVersion
from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.workspace.ground import Ground
from services.worker.runner.workspace.skills import SKILLS, SkillMount
from tests.support.skills import package, zipped


class Gone(NotFound):
    """The skill was deleted."""

    reason = "SKILL_NOT_FOUND"


class Served:
    """SkillsService, which sends what a test has it send."""

    def __init__(self, data: bytes | Exception, digest: str | None = None) -> None:
        self.data, self.digest, self.asked = data, digest, 0

    async def DownloadSkillVersion(
        self, request: Any, timeout_seconds: float = 0
    ) -> AsyncIterator[DownloadSkillVersionResponse]:
        self.asked += 1
        if isinstance(self.data, Exception):
            raise self.data
        digest = hashlib.sha256(self.data).hexdigest() if self.digest is None else self.digest
        yield DownloadSkillVersionResponse(version=SkillVersion(sha256=digest))
        for at in range(0, len(self.data), 1000):
            yield DownloadSkillVersionResponse(data=self.data[at : at + 1000])


def skill(name: str = "greeter", **fields: str) -> dict[str, str]:
    return {
        **{"type": "custom", "skill_id": f"skill_{name}", "version": "skver_1"},
        **{"name": name, "description": "Says hello.", "directory": name},
    } | fields


def ground_of(folder: Path, *skills: dict[str, str], told: list[Any] | None = None) -> Ground:
    grant = TurnGrant()
    grant.session.id = "sess_1"
    grant.session.agent.document_json = orjson.dumps({"name": "a", "skills": list(skills)})
    return Ground(grant, folder, lambda kind, fields: told.append((kind, fields)) if told is not None else None)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def raw_zip(*entries: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")
        for name, data in entries:
            archive.writestr(name, data)
    return buffer.getvalue()


async def test_a_skill_is_put_in_its_place_once(tmp_path: Path) -> None:
    served, told = Served(zipped(package())), []
    mount, ground = SkillMount(served), ground_of(tmp_path, skill(), told=told)
    for _ in range(2):
        await mount.prepare(ground)
    place = Path(f"{tmp_path}{SKILLS}/greeter")
    assert names(place) == ["SKILL.md", "scripts", "scripts/hello.sh"] and served.asked == 1 and not told
    assert (place / "SKILL.md").read_bytes() == package()["greeter/SKILL.md"]


def link(name: str, target: bytes) -> tuple[zipfile.ZipInfo, bytes]:
    entry = zipfile.ZipInfo(name)
    entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return entry, target


@pytest.mark.parametrize(
    "data",
    [
        raw_zip(("../../x", b"x")),
        raw_zip(("greeter/../../../x", b"x")),
        raw_zip(("/abs", b"x")),
        raw_zip(link("greeter/link", b"/etc"), ("greeter/link/x", b"x")),
        raw_zip(("greeter/a", b"1"), ("greeter/a", b"2")),
        raw_zip(("greeter/a", b"1"), ("greeter/a/b", b"2")),
        raw_zip(("loose", b"x")),
        raw_zip(("greeter/zeros", bytes(40_000_000))),
        b"no archive",
        b"",
    ],
)
async def test_a_bad_package_leaves_nothing_and_is_told(tmp_path: Path, data: bytes) -> None:
    told: list[Any] = []
    ground = ground_of(tmp_path / "s", skill(), told=told)
    (tmp_path / "s").mkdir()
    await SkillMount(Served(data)).prepare(ground)
    assert names(tmp_path) == ["s", "s/mnt", "s/mnt/session", "s/mnt/session/skills"]
    assert [(kind, fields["error"]["type"]) for kind, fields in told] == [("session.error", "skill_mount_failed")]


async def test_damaged_bytes_are_not_unpacked(tmp_path: Path) -> None:
    ground = ground_of(tmp_path, skill(), told=[])
    await SkillMount(Served(zipped(package()), digest="0" * 64)).prepare(ground)
    assert names(Path(f"{tmp_path}{SKILLS}")) == [] and ground.incomplete


@pytest.mark.parametrize(("failure", "again"), [(Gone("It is gone."), False), (Unavailable("Not now."), True)])
async def test_only_what_may_come_back_is_tried_again(tmp_path: Path, failure: Exception, again: bool) -> None:
    told: list[Any] = []
    ground = ground_of(tmp_path, skill(), told=told)
    if isinstance(failure, Unavailable):
        failure.reason = "UNAVAILABLE"
    await SkillMount(Served(failure)).prepare(ground)
    assert ground.incomplete is again and "greeter" in told[0][1]["error"]["message"]


async def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    (inside / "mnt").mkdir(parents=True)
    (inside / "mnt" / "session").symlink_to(outside)
    with pytest.raises(OSError):
        await SkillMount(Served(zipped(package()))).prepare(ground_of(inside, skill()))
    assert names(outside) == []


async def test_what_a_killed_pass_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    root = Path(f"{tmp_path}{SKILLS}")
    for name, age in ((".incoming-old", 3600.0), (".incoming-new", 0.0)):
        (root / name).mkdir(parents=True)
        os.utime(root / name, (time.time() - age,) * 2)
    await SkillMount(Served(zipped(package()))).prepare(ground_of(tmp_path, skill()))
    assert sorted(os.listdir(root)) == [".incoming-new", "greeter"]


async def test_two_runners_on_one_folder_agree(tmp_path: Path) -> None:
    mounts = [SkillMount(Served(zipped(package()))) for _ in range(4)]
    told: list[Any] = []
    await asyncio.gather(*(mount.prepare(ground_of(tmp_path, skill(), told=told)) for mount in mounts))
    assert os.listdir(f"{tmp_path}{SKILLS}") == ["greeter"] and not told


async def test_what_another_runner_moves_away_while_it_is_looked_at_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, listed = Path(f"{tmp_path}{SKILLS}"), os.scandir
    (root / ".incoming-other").mkdir(parents=True)

    def listed_too_early(folder: Any) -> Any:
        entries = [*listed(folder)]
        shutil.rmtree(root / ".incoming-other", ignore_errors=True)
        return nullcontext(entries)

    monkeypatch.setattr("os.scandir", listed_too_early)
    told: list[Any] = []
    await SkillMount(Served(zipped(package()))).prepare(ground_of(tmp_path, skill(), told=told))
    assert os.listdir(root) == ["greeter"] and not told


def test_nothing_is_asked_of_an_agent_without_skills(tmp_path: Path) -> None:
    assert not SkillMount(None).applies(ground_of(tmp_path).grant)
    assert SkillMount(None).applies(ground_of(tmp_path, skill()).grant)


_NAME = st.one_of(
    # What makes an archive here cuts a name at NUL and takes none for empty; tests of packages write NUL by hand.
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=10),
    st.sampled_from(["../x", "a/../../x", "/abs", "..", "a/b", "a", "A", "a/", "C:\\x", "a\\..\\x", "./a", "a//b"]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(_NAME, st.binary(max_size=20)), max_size=5), st.booleans())
def test_no_archive_writes_outside_of_its_folder(entries: list[tuple[str, bytes]], wrapped: bool) -> None:
    data = raw_zip(*((f"greeter/{name}" if wrapped else name, content) for name, content in entries))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "session"
        folder.mkdir()
        asyncio.run(SkillMount(Served(data)).prepare(ground_of(folder, skill())))
        found = names(Path(name))
        place = f"session{SKILLS}"
        frame = {"session", "session/mnt", "session/mnt/session", place, f"{place}/greeter"}
        assert all(each in frame or each.startswith(f"{place}/greeter/") for each in found)
        assert not any(path.is_symlink() for path in Path(name).rglob("*"))

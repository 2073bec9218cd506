"""Clones from a real git server: branches, tags, commits; each failure by its name; and no secret anywhere."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kit.addresses import AddressRefused, PrivateHosts, checked_url
from services.worker.runner.workspace.git import commands
from services.worker.runner.workspace.git.cloning import CloneLimits, Source, clone
from services.worker.runner.workspace.git.errors import RepositoryFailed
from tests.support.git_server import GitServer, Repository, git, git_server

LIMITS = CloneLimits(seconds=30, bytes=50_000_000, pauses=(0.01,))
TOKEN = "ghp_canary0123456789"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[GitServer]:
    async with git_server(tmp_path / "served") as running:
        yield running


@pytest.fixture
def repository(server: GitServer) -> Repository:
    made = Repository(server.root, "project")
    made.commit("README.md", "first\n")
    made.run("tag", "v1")
    made.run("tag", "-a", "v2", "-m", "annotated")
    made.commit("README.md", "second\n")
    made.run("branch", "feature/x", "HEAD~1")
    made.publish()
    return made


async def guard(url: str) -> list[str]:
    return list((await checked_url(url, allowed=PrivateHosts(frozenset({"127.0.0.1"})))).addresses)


async def cloned(server: GitServer, tmp_path: Path, checkout: Any = None, **options: Any) -> Path:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    source = Source(options.pop("url", server.url("project")), checkout, options.pop("token", ""))
    return await clone(source, folder, options.pop("guard", guard), options.pop("limits", LIMITS), **options)


async def failure(server: GitServer, tmp_path: Path, checkout: Any = None, **options: Any) -> RepositoryFailed:
    with pytest.raises(RepositoryFailed) as caught:
        await cloned(server, tmp_path, checkout, **options)
    return caught.value


def _of_process(pid: int) -> list[str]:
    try:
        return [Path(f"/proc/{pid}/{entry}").read_bytes().decode(errors="replace") for entry in ("environ", "cmdline")]
    except OSError:
        # It has ended already.
        return []


def _files_with(folder: Path, text: str) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]


async def test_the_default_branch_is_cloned_shallow(server: GitServer, repository: Repository, tmp_path: Path) -> None:
    path = await cloned(server, tmp_path)
    assert (path / "README.md").read_text() == "second\n"
    assert git("rev-list", "--count", "HEAD", cwd=path) == "1"
    assert git("status", "--short", "--branch", cwd=path) == "## main...origin/main"
    assert git("remote", "get-url", "origin", cwd=path) == server.url("project")


@pytest.mark.parametrize(
    ("checkout", "content", "head"),
    [
        ("main", "second\n", "main"),
        ("feature/x", "first\n", "feature/x"),
        ({"type": "branch", "name": "feature/x"}, "first\n", "feature/x"),
        ("v1", "first\n", "HEAD"),
        ("v2", "first\n", "HEAD"),
    ],
)
async def test_branches_and_tags(
    server: GitServer, repository: Repository, tmp_path: Path, checkout: Any, content: str, head: str
) -> None:
    path = await cloned(server, tmp_path, checkout)
    assert (path / "README.md").read_text() == content
    assert git("rev-parse", "--abbrev-ref", "HEAD", cwd=path) == head


@pytest.mark.parametrize("length", [40, 12, 7])
@pytest.mark.parametrize("as_object", [True, False])
async def test_commits(server: GitServer, repository: Repository, tmp_path: Path, length: int, as_object: bool) -> None:
    sha = repository.run("rev-parse", "HEAD~1")[:length]
    path = await cloned(server, tmp_path, {"type": "commit", "sha": sha} if as_object else sha)
    assert git("rev-parse", "HEAD", cwd=path) == repository.run("rev-parse", "HEAD~1")
    assert (path / "README.md").read_text() == "first\n"


async def test_an_empty_repository_is_an_empty_clone(server: GitServer, tmp_path: Path) -> None:
    made = Repository(server.root, "empty")
    git("clone", "--quiet", "--bare", str(made.work), str(made.bare), cwd=made.work)
    path = await cloned(server, tmp_path, url=server.url("empty"))
    assert sorted(os.listdir(path)) == [".git"]


@pytest.mark.parametrize(
    "checkout",
    [
        "nothing",
        {"type": "branch", "name": "nothing"},
        "0123456",
        {"type": "commit", "sha": "0" * 39 + "1"},
    ],
)
async def test_what_is_not_there_is_a_checkout_error(
    server: GitServer, repository: Repository, tmp_path: Path, checkout: Any
) -> None:
    assert (await failure(server, tmp_path, checkout)).kind == "repository_checkout_error"


@pytest.mark.parametrize(
    ("status", "kind", "tries"),
    [
        (401, "repository_authentication_error", 1),
        (403, "repository_forbidden_error", 1),
        (404, "repository_not_found_error", 1),
        (500, "repository_clone_error", 2),
        (418, "repository_clone_error", 1),
    ],
)
async def test_refusals_of_the_host_have_their_names(
    server: GitServer, repository: Repository, tmp_path: Path, status: int, kind: str, tries: int
) -> None:
    server.status = status
    assert (await failure(server, tmp_path)).kind == kind
    assert len(server.requests) == tries


async def test_a_host_that_fails_once_is_asked_again(server: GitServer, repository: Repository, tmp_path: Path) -> None:
    server.status, server.status_times = 503, 1
    assert ((await cloned(server, tmp_path)) / "README.md").exists()


async def test_a_transfer_that_is_cut_off_is_made_again_whole(
    server: GitServer, repository: Repository, tmp_path: Path
) -> None:
    repository.commit("large.bin", os.urandom(300_000).hex())
    repository.publish()
    server.cuts = 2
    path = await cloned(server, tmp_path, limits=CloneLimits(seconds=30, bytes=50_000_000, pauses=(0.01, 0.01)))
    assert server.cuts == 0 and len((path / "large.bin").read_text()) == 600_000
    assert git("fsck", "--full", cwd=path) == "" and git("status", "--short", cwd=path) == ""
    server.cuts = 2
    assert (await failure(server, tmp_path)).kind == "repository_clone_error"


async def test_a_missing_repository_and_a_wrong_token(
    server: GitServer, repository: Repository, tmp_path: Path
) -> None:
    assert (await failure(server, tmp_path, url=server.url("other"))).kind == "repository_not_found_error"
    server.token = TOKEN
    for token in ("", "ghp_wrong"):
        assert (await failure(server, tmp_path, token=token)).kind == "repository_authentication_error"


async def test_a_token_opens_and_is_seen_nowhere(
    server: GitServer, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.token = TOKEN
    seen: list[str] = []
    spawn = asyncio.create_subprocess_exec

    async def watched(*line: str, **options: Any) -> Any:
        seen.extend((*line, repr(options.get("env"))))
        process = await spawn(*line, **options)
        seen.extend(_of_process(process.pid))
        return process

    monkeypatch.setattr(commands.asyncio, "create_subprocess_exec", watched)
    path = await cloned(server, tmp_path, token=TOKEN)
    assert (path / "README.md").read_text() == "second\n"
    assert seen and not [each for each in seen if TOKEN in each]
    assert _files_with(tmp_path, TOKEN) == []
    assert TOKEN not in repr(Source(server.url("project"), None, TOKEN))
    # Nor the door that git went through.
    config = (path / ".git" / "config").read_text()
    assert config.count("127.0.0.1") == config.count(server.url("project"))


async def test_hooks_and_settings_of_the_user_do_nothing(
    server: GitServer, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    hooks = home / "hooks"
    hooks.mkdir(parents=True)
    mark = tmp_path / "mark"
    for name in ("post-checkout", "reference-transaction"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {mark}\n")
        (hooks / name).chmod(0o755)
    (home / ".gitconfig").write_text(
        f'[core]\n\thooksPath = {hooks}\n[url "http://elsewhere/"]\n\tinsteadOf = http://\n'
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(hooks))
    assert ((await cloned(server, tmp_path)) / "README.md").exists()
    assert not mark.exists()


async def test_git_can_reach_nothing_but_its_folder(server: GitServer, repository: Repository, tmp_path: Path) -> None:
    made = tmp_path / "confined"
    made.mkdir()
    outside = tmp_path / "outside.txt"
    outside.write_text("secret")
    runner = commands.Git(made, 1, file_bytes=1_000_000)
    ended = await runner.run("-c", f"alias.x=!cat {outside}; echo x > {tmp_path}/written; echo done", "x")
    assert "done" in ended.output and "secret" not in ended.output
    assert not (tmp_path / "written").exists()


async def test_a_redirect_is_followed_without_the_token_to_another_host(
    server: GitServer, repository: Repository, tmp_path: Path
) -> None:
    async with git_server(server.root) as other:
        server.redirect = f"http://127.0.0.1:{other.port}"
        path = await cloned(server, tmp_path, token=TOKEN)
        assert (path / "README.md").exists()
        assert server.authorizations[0] and not any(other.authorizations)
        server.redirect = f"http://localhost:{other.port}/x"
        assert (await failure(server, tmp_path)).kind == "repository_clone_error"


async def test_a_refused_address_is_never_connected_to(
    server: GitServer, repository: Repository, tmp_path: Path
) -> None:
    async def refuse(url: str) -> list[str]:
        return list((await checked_url(url)).addresses)

    failed = await failure(server, tmp_path, guard=refuse)
    assert failed.kind == "repository_clone_error" and not server.requests
    assert AddressRefused.reason == "ADDRESS_REFUSED"


async def test_size_and_time_end_a_clone(
    server: GitServer, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit("large.bin", os.urandom(200_000).hex())
    repository.publish()
    failed = await failure(server, tmp_path, limits=CloneLimits(seconds=30, bytes=100_000, pauses=()))
    assert failed.kind == "repository_clone_error" and "100000 bytes" in failed.message
    stuck = asyncio.Event()

    async def never(url: str) -> list[str]:
        await stuck.wait()
        return []

    failed = await failure(server, tmp_path, guard=never, limits=CloneLimits(seconds=0.5, bytes=10**8, pauses=()))
    assert failed.kind == "repository_clone_error" and "longer than" in failed.message


async def test_a_host_without_git_says_so(
    server: GitServer, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands.shutil, "which", lambda name: None)
    failed = await failure(server, tmp_path)
    assert failed.kind == "repository_clone_error" and "git is not installed" in failed.message

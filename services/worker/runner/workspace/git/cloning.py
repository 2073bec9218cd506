"""The steps of a clone, shallow where the host allows it, and what each failure is called.

A clone is made in a folder of its own, which is moved into its place when it is whole: whatever cuts it off leaves
nothing that looks like a repository.
"""

import asyncio
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.worker.runner.workspace.git.commands import Ended, Git
from services.worker.runner.workspace.git.errors import CHECKOUT, CLONE, RepositoryFailed
from services.worker.runner.workspace.git.gateway import GitGateway, Guard

_FULL_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_HASH = re.compile(r"[0-9a-f]{7,64}")
_WATCH_SECONDS = 1.0
_PAUSES_SECONDS = (1.0, 3.0)


@dataclass(frozen=True, slots=True)
class CloneLimits:
    """What one clone may take."""

    seconds: float = 300.0
    # Over the wire, and in its folder.
    bytes: int = 1024 * 1024 * 1024
    pauses: tuple[float, ...] = _PAUSES_SECONDS


@dataclass(frozen=True, slots=True)
class Source:
    """What to clone. `token` is a secret."""

    url: str
    # A name, an object of type branch or commit, or None for the default branch.
    checkout: str | Mapping[str, Any] | None
    token: str = ""

    def __repr__(self) -> str:
        return f"Source({self.url})"


async def clone(
    source: Source, folder: Path, guard: Guard, limits: CloneLimits, tls: ssl.SSLContext | None = None
) -> Path:
    """The repository, checked out below `folder`, which is empty. RepositoryFailed says what went wrong."""
    try:
        async with asyncio.timeout(limits.seconds):
            return await _watched(folder, limits.bytes, lambda: _tried(source, folder, guard, limits, tls))
    except TimeoutError:
        raise RepositoryFailed(CLONE, f"Cloning took longer than {limits.seconds:.0f} seconds.") from None


async def _tried(source: Source, folder: Path, guard: Guard, limits: CloneLimits, tls: ssl.SSLContext | None) -> Path:
    for attempt, pause in enumerate((*limits.pauses, None)):
        try:
            gateway = GitGateway(source.url, token=source.token, guard=guard, max_bytes=limits.bytes, tls=tls)
            async with gateway:
                return await _Clone(source, folder / f"attempt-{attempt}", gateway, limits).run()
        except RepositoryFailed as failed:
            if pause is None or not failed.transient:
                raise
            await asyncio.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


async def _watched(folder: Path, most: int, work: Callable[[], Awaitable[Path]]) -> Path:
    """The result of the work, which is ended where its folder grows too large."""
    working = asyncio.ensure_future(work())
    try:
        while not (await asyncio.wait({working}, timeout=_WATCH_SECONDS))[0]:
            if await asyncio.to_thread(_size, folder) > most:
                raise RepositoryFailed(CLONE, f"The repository takes more than {most} bytes of disk.")
        return working.result()
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def _size(folder: Path) -> int:
    total = 0
    for current, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(f"{current}/{name}").st_blocks * 512
            except OSError:
                continue
    return total


class _Clone:
    """One attempt."""

    def __init__(self, source: Source, folder: Path, gateway: GitGateway, limits: CloneLimits) -> None:
        (folder / "home").mkdir(parents=True)
        self._source = source
        self._gateway = gateway
        self._git = Git(folder, gateway.port, file_bytes=limits.bytes)
        self._path = folder / "repository"

    async def run(self) -> Path:
        """The repository's folder."""
        await self._do("init", "--quiet", "--template=", str(self._path), elsewhere=True)
        await self._do("remote", "add", "origin", self._gateway.url)
        await self._check_out()
        await self._do("remote", "set-url", "origin", self._source.url)
        # It names the gateway, which nobody can reach any more.
        (self._path / ".git" / "FETCH_HEAD").unlink(missing_ok=True)
        return self._path

    async def _check_out(self) -> None:
        checkout = self._source.checkout
        if checkout is None:
            await self._default_branch()
        elif isinstance(checkout, str):
            await self._named(checkout, and_hashes=True)
        elif checkout["type"] == "branch":
            await self._named(checkout["name"], and_hashes=False)
        else:
            await self._commit(checkout["sha"])

    async def _default_branch(self) -> None:
        told = await self._ask("ls-remote", "--symref", "origin", "HEAD")
        branch = next(
            (line[16:].partition("\t")[0] for line in told.splitlines() if line.startswith("ref: refs/heads/")), ""
        )
        if branch and any(not line.startswith("ref: ") for line in told.splitlines()):
            await self._branch(branch)
        elif told.strip():
            await self._commit(told.split()[0])
        # Else it is an empty repository: so is the clone.

    async def _named(self, name: str, *, and_hashes: bool) -> None:
        told = await self._ask("ls-remote", "origin", f"refs/heads/{name}", f"refs/tags/{name}")
        found = {line.partition("\t")[2] for line in told.splitlines()}
        if f"refs/heads/{name}" in found:
            await self._branch(name)
        elif f"refs/tags/{name}" in found:
            await self._fetch("--depth=1", f"+refs/tags/{name}:refs/tags/{name}")
            await self._do("checkout", "--quiet", "--detach", f"refs/tags/{name}")
        elif and_hashes and _HASH.fullmatch(name.lower()):
            await self._commit(name.lower())
        else:
            raise RepositoryFailed(CHECKOUT, f"The repository has no branch or tag {name}.")

    async def _branch(self, name: str) -> None:
        await self._fetch("--depth=1", f"+refs/heads/{name}:refs/remotes/origin/{name}")
        await self._do("checkout", "--quiet", "-B", name, "--track", f"refs/remotes/origin/{name}")

    async def _commit(self, sha: str) -> None:
        shallow = _FULL_HASH.fullmatch(sha) and await self._run("fetch", *_FETCH, "--depth=1", "origin", sha)
        if not shallow or shallow.code:
            # Hosts may give out only what their branches and tags name.
            self._raise_gateway_failure()
            await self._fetch("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
        if (await self._run("checkout", "--quiet", "--detach", f"{sha}^{{commit}}")).code:
            raise RepositoryFailed(CHECKOUT, f"The repository has no commit {sha}.")

    async def _fetch(self, *arguments: str) -> None:
        options = [each for each in arguments if each.startswith("--")]
        references = [each for each in arguments if not each.startswith("--")]
        await self._do("fetch", *_FETCH, *options, "origin", *references)

    async def _ask(self, *arguments: str) -> str:
        return (await self._do(*arguments)).output

    async def _do(self, *arguments: str, elsewhere: bool = False) -> Ended:
        ended = await self._run(*arguments, elsewhere=elsewhere)
        if ended.code:
            self._raise_gateway_failure()
            raise RepositoryFailed(CLONE, f"git {arguments[0]} failed: {self._shown(ended.complaint)}")
        return ended

    async def _run(self, *arguments: str, elsewhere: bool = False) -> Ended:
        return await self._git.run(*arguments, within=None if elsewhere else self._path)

    def _raise_gateway_failure(self) -> None:
        if self._gateway.failure is not None:
            raise self._gateway.failure

    def _shown(self, complaint: str) -> str:
        text = complaint.replace(self._gateway.url, self._source.url).strip().replace("\n", " ")
        return text[:500] or "it gave no reason"


_FETCH = ("--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head")

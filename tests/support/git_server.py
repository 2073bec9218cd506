"""A real git server over HTTP: `git http-backend` behind a small server that checks tokens. For tests."""

import asyncio
import base64
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

_ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "Test",
    "GIT_AUTHOR_EMAIL": "test@example.com",
    "GIT_COMMITTER_NAME": "Test",
    "GIT_COMMITTER_EMAIL": "test@example.com",
}


def git(*arguments: str, cwd: Path) -> str:
    """Run git as the owner of a repository would."""
    ended = subprocess.run(["git", *arguments], cwd=cwd, env=_ENVIRONMENT, check=True, capture_output=True, text=True)
    return ended.stdout.strip()


class Repository:
    """A bare repository that is served, and a working copy in which tests commit."""

    def __init__(self, root: Path, name: str) -> None:
        self.bare = root / f"{name}.git"
        self.work = root / f"{name}-work"
        self.work.mkdir(parents=True)
        git("init", "--quiet", "--initial-branch=main", cwd=self.work)

    def commit(self, path: str, content: str) -> str:
        """A commit that writes one file; its hash."""
        file = self.work / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        git("add", "--all", cwd=self.work)
        git("commit", "--quiet", "--message", f"Write {path}", cwd=self.work)
        return git("rev-parse", "HEAD", cwd=self.work)

    def run(self, *arguments: str) -> str:
        """Any git command in the working copy."""
        return git(*arguments, cwd=self.work)

    def publish(self) -> None:
        """Serve what was committed."""
        if not self.bare.exists():
            git("clone", "--quiet", "--bare", str(self.work), str(self.bare), cwd=self.work)
        git("push", "--quiet", "--mirror", str(self.bare), cwd=self.work)


class GitServer:
    """Serves the bare repositories below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = 0
        # What the token must be; empty asks for none.
        self.token = ""
        # Answered in place of everything while it is set, and how many times at most.
        self.status = 0
        self.status_times = 10**9
        # Packs wait for it while it is there.
        self.hold: asyncio.Event | None = None
        # How many packs more are cut off in their middle.
        self.cuts = 0
        self.requests: list[str] = []
        self.authorizations: list[str] = []
        self.redirect = ""

    def url(self, name: str) -> str:
        """What to clone."""
        return f"http://127.0.0.1:{self.port}/{name}.git"

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path_qs}")
        self.authorizations.append(request.headers.get("authorization", ""))
        if self.status and self.status_times > 0:
            self.status_times -= 1
            return web.Response(status=self.status)
        if self.redirect and request.method == "GET":
            return web.Response(status=301, headers={"location": f"{self.redirect}{request.path_qs}"})
        if self.token:
            expected = base64.b64encode(f"x-access-token:{self.token}".encode()).decode()
            if self.authorizations[-1] != f"Basic {expected}":
                return web.Response(status=401, headers={"www-authenticate": "Basic"})
        answer = await self._backend(request)
        if self.hold is not None and request.method == "POST":
            await self.hold.wait()
        if self.cuts and request.method == "POST" and len(answer.body) > 100_000:
            self.cuts -= 1
            return await self._half(request, answer)
        return answer

    async def _half(self, request: web.Request, answer: web.Response) -> web.StreamResponse:
        """The first half of an answer that says its whole length."""
        begun = web.StreamResponse(headers=answer.headers)
        begun.content_length = len(answer.body)
        await begun.prepare(request)
        await begun.write(answer.body[: len(answer.body) // 2])
        assert request.transport is not None
        request.transport.close()
        return begun

    async def _backend(self, request: web.Request) -> web.Response:
        body = await request.read()
        variables = _ENVIRONMENT | {
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query_string,
            "REQUEST_METHOD": request.method,
            "CONTENT_TYPE": request.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": request.headers.get("content-encoding", ""),
            "GIT_PROTOCOL": request.headers.get("git-protocol", ""),
            "REMOTE_ADDR": "127.0.0.1",
        }
        process = await asyncio.create_subprocess_exec(
            "git",
            "http-backend",
            env=variables,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        output, _ = await process.communicate(body)
        head, _, content = output.partition(b"\r\n\r\n")
        headers: dict[str, Any] = {}
        for line in head.decode().splitlines():
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        status = int(headers.pop("status", "200").split()[0])
        return web.Response(status=status, body=content, headers=headers)


@asynccontextmanager
async def git_server(root: Path) -> AsyncIterator[GitServer]:
    """A server on loopback."""
    server = GitServer(root)
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{tail:.*}", server._serve)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.port = runner.addresses[0][1]
    try:
        yield server
    finally:
        await runner.cleanup()

"""A platform's side of the worker protocols, small enough to be told what to answer.

    async with WorkServer() as server:
        item = server.put("exec", {"command": "echo hi"})
        ...                                       # a worker at server.url
        server.completed[item]["result"]

Its queue is honest: one holder per item, leases, strict accept. `refuse` and `cut` make the next calls of a route go
wrong, `hold` lets one wait for an event; every call is on record.
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from aiohttp import web

KEY = "mawk_" + "k" * 40
ENVIRONMENT = "env_01TESTENVIRONMENT0000000001"


class WorkServer:
    """One server on a free port."""

    def __init__(
        self, *, protocol: str | None = "tool", lease_seconds: float = 30.0, holds: bool = True, ssl: Any = None
    ) -> None:
        self.protocol = protocol
        self.lease_seconds = lease_seconds
        # Whether a claim waits for as long as it asks to.
        self.holds = holds
        self.calls: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.times: dict[str, list[float]] = defaultdict(list)
        self.items: dict[str, dict[str, Any]] = {}
        self.completed: dict[str, dict[str, Any]] = {}
        self.accepted: list[str] = []
        self.stopped: set[str] = set()
        self.clock_offset = datetime.timedelta(0)
        self._numbers = itertools.count(1)
        self._wake = asyncio.Event()
        self._wrongs: dict[str, deque[Any]] = defaultdict(deque)
        self._holds: dict[str, asyncio.Event] = {}
        self._ssl = ssl
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"{'https' if self._ssl else 'http'}://127.0.0.1:{self.port}"

    async def __aenter__(self) -> WorkServer:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        self.routes(app)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._ssl)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def routes(self, app: web.Application) -> None:
        """What is served."""
        app.router.add_get("/v1/environments/{id}", self._environment)
        for name, handler in (
            ("claim", self._claim),
            ("accept", self._accept),
            ("heartbeat", self._heartbeat),
            ("complete", self._complete),
        ):
            app.router.add_post(f"/v1/x/worker/{name}", self.guarded(name, handler))

    # What a test says.

    def put(self, kind: str, payload: Any, session_id: str = "sess_1") -> str:
        """Queue an item; its id."""
        item_id = f"work_{next(self._numbers):04d}"
        self.items[item_id] = {
            "id": item_id,
            "session_id": session_id,
            "environment_id": ENVIRONMENT,
            "kind": kind,
            "payload": payload,
            "status": "pending",
            "claimed_by": None,
            "attempt": 0,
        }
        self._wake.set()
        return item_id

    def refuse(self, route: str, status: int, code: str = "", message: str = "No.", times: int = 1) -> None:
        """Have the next calls of a route answered with an error."""
        self._wrongs[route].extend([(status, code, message)] * times)

    def cut(self, route: str, times: int = 1, *, after: bool = False) -> None:
        """Have the connection of the next calls cut; with `after` once their effect is there."""
        self._wrongs[route].extend(["cut after" if after else "cut"] * times)

    def hold(self, route: str) -> asyncio.Event:
        """Have calls of a route wait until the event is set."""
        return self._holds.setdefault(route, asyncio.Event())

    def count(self, route: str) -> int:
        """How often a route was called."""
        return len(self.times[route])

    # What a worker hears.

    def guarded(self, name: str, handler: Callable[..., Any]) -> Any:
        async def guard(request: web.Request) -> web.StreamResponse:
            body = await request.json() if request.can_read_body else {}
            headers = {key.lower(): value for key, value in request.headers.items()}
            self.calls.append((name, body, headers))
            self.times[name].append(time.monotonic())
            if name in self._holds:
                await self._holds[name].wait()
            wrong = self._wrongs[name].popleft() if self._wrongs[name] else None
            if wrong == "cut":
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            if isinstance(wrong, tuple):
                return error(*wrong)
            answer = await handler(request, body)
            if wrong == "cut after":
                assert request.transport is not None
                request.transport.abort()
            return answer

        return guard

    async def _environment(self, request: web.Request) -> web.Response:
        self.times["environment"].append(time.monotonic())
        wrong = self._wrongs["environment"].popleft() if self._wrongs["environment"] else None
        if isinstance(wrong, tuple):
            return error(*wrong)
        document = {"id": request.match_info["id"], "hosting_type": "self_hosted" if self.protocol else "local"}
        return web.json_response(document | ({"worker_protocol": self.protocol} if self.protocol else {}))

    async def _claim(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        deadline = time.monotonic() + (body.get("wait_ms", 0) / 1000 if self.holds else 0)
        while True:
            for item in self.items.values():
                lapsed = item["status"] == "claimed" and item["id"] not in self.accepted and self._lapsed(item)
                if item["status"] == "pending" or lapsed:
                    item |= {"status": "claimed", "claimed_by": body["worker_id"], "attempt": item["attempt"] + 1}
                    self._lease(item)
                    item["claimed_at"] = self._now()
                    return web.json_response({key: value for key, value in item.items() if key != "until"})
            self._wake.clear()
            if (left := deadline - time.monotonic()) <= 0:
                return web.Response(status=204)
            try:
                async with asyncio.timeout(left):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _accept(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        item = self._held(body)
        if isinstance(item, web.Response):
            return item
        if item["id"] in self.stopped:
            return error(409, "work_lease_lost", "The work is stopped.")
        if self._lapsed(item):
            return error(409, "work_lease_lost", "The lease has lapsed.")
        self.accepted.append(item["id"])
        return self._renewed(item)

    async def _heartbeat(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        item = self._held(body)
        if isinstance(item, web.Response):
            return item
        if item["id"] in self.stopped:
            return error(409, "work_lease_lost", "The session has ended.")
        return self._renewed(item)

    async def _complete(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        item = self._held(body)
        if isinstance(item, web.Response):
            return item
        item["status"] = "failed" if body.get("failed") else "completed"
        self.completed.setdefault(item["id"], body)
        return web.json_response({"ok": True})

    def _held(self, body: dict[str, Any]) -> Any:
        item = self.items.get(body.get("id", ""))
        if item is None:
            return error(404, "", "There is no such item.")
        if item["claimed_by"] != body.get("worker_id"):
            return error(409, "", "Another worker holds the item.")
        return item

    def _renewed(self, item: dict[str, Any]) -> web.Response:
        self._lease(item)
        return web.json_response({"ok": True, "lease_expires_at": item["lease_expires_at"]})

    def _lease(self, item: dict[str, Any]) -> None:
        item["until"] = time.monotonic() + self.lease_seconds
        item["lease_expires_at"] = self._now(self.lease_seconds)

    def _lapsed(self, item: dict[str, Any]) -> bool:
        return time.monotonic() > item["until"]

    def _now(self, later: float = 0.0) -> str:
        moment = datetime.datetime.now(datetime.UTC) + self.clock_offset + datetime.timedelta(seconds=later)
        return moment.isoformat().replace("+00:00", "Z")


def error(status: int, code: str = "", message: str = "No.", details: Any = None) -> web.Response:
    """A refusal in the platform's shape."""
    body: dict[str, Any] = {"type": "invalid_request_error", "message": message}
    body |= {"code": code} if code else {}
    body |= {"details": details} if details else {}
    return web.json_response({"type": "error", "error": body, "request_id": "req_1"}, status=status)

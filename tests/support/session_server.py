"""A platform's side of the session protocol, beside that of the tool protocol: sessions, their logs, memory, skills.

async with SessionServer() as server:
    session = server.session()
    call = session.call("bash", {"command": "echo hi"})
    server.queue(session)
    ...                                      # a worker at server.url
    session.results[call]
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from kit.archives import PackedFile, write_zip
from tests.support.work_server import ENVIRONMENT, WorkServer, error

_ids = itertools.count(1)


@dataclass
class Session:
    """One session and its log."""

    id: str
    token: str
    log: list[dict[str, Any]] = field(default_factory=list)
    status: str = "running"
    resources: list[dict[str, Any]] = field(default_factory=list)
    skills: list[dict[str, Any]] = field(default_factory=list)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def say(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Append an event."""
        event = {"id": f"sevt_{next(_ids):06d}", "type": kind, "seq": len(self.log) + 1, **fields}
        self.log.append(event)
        self.changed.set()
        return event

    def call(self, name: str, value: Any, permission: str = "allow", **fields: Any) -> str:
        """The model calls a tool; the id of the call."""
        return str(self.say("agent.tool_use", name=name, input=value, evaluated_permission=permission, **fields)["id"])

    def park(self, *calls: str) -> None:
        """Wait for results."""
        self.say("session.status_idle", stop_reason={"type": "requires_action", "event_ids": list(calls)})

    def rest(self) -> None:
        """The turn is over."""
        self.say("session.status_idle", stop_reason={"type": "end_turn"})

    def text(self, call: str) -> str:
        """What a call's result says."""
        return "".join(each["text"] for each in self.results[call]["content"])


@dataclass
class Item:
    """One item."""

    id: str
    session: Session | None
    kind: str = "session"
    state: str = "queued"
    beat: str = ""
    beats: int = 0
    until: float = 0.0
    acks: int = 0
    stops: list[dict[str, Any]] = field(default_factory=list)


class SessionServer(WorkServer):
    """The whole of it."""

    def __init__(self, *, ttl_seconds: float = 30.0, **options: Any) -> None:
        super().__init__(protocol="session", **options)
        self.ttl_seconds = ttl_seconds
        self.sessions: dict[str, Session] = {}
        self.work: dict[str, Item] = {}
        self.memories: dict[str, dict[str, dict[str, Any]]] = {}
        self.packages: dict[str, bytes] = {}
        # What each store was asked to write, in order.
        self.writes: list[tuple[str, str]] = []
        self._queued = asyncio.Event()

    def routes(self, app: web.Application) -> None:
        super().routes(app)
        base = "/v1/environments/{id}/work"
        add = app.router.add_route
        add("GET", f"{base}/poll", self.guarded("poll", self._poll))
        for verb, handler in (("ack", self._ack), ("heartbeat", self._beat), ("stop", self._stop)):
            add("POST", f"{base}/{{work}}/{verb}", self.guarded(f"work.{verb}", handler))
        add("GET", "/v1/sessions/{session}", self.guarded("session", self._session))
        add("GET", "/v1/sessions/{session}/events", self.guarded("events", self._events))
        add("POST", "/v1/sessions/{session}/events", self.guarded("send", self._send))
        add("GET", "/v1/sessions/{session}/events/stream", self.guarded("stream", self._stream))
        add("GET", "/v1/skills/{skill}/versions/{version}", self.guarded("skill", self._skill))
        add("GET", "/v1/skills/{skill}/versions/{version}/content", self.guarded("package", self._package))
        memories = "/v1/memory_stores/{store}/memories"
        add("GET", memories, self.guarded("memories", self._list_memories))
        add("POST", memories, self.guarded("memory.create", self._create_memory))
        add("GET", f"{memories}/{{memory}}", self.guarded("memory", self._get_memory))
        add("POST", f"{memories}/{{memory}}", self.guarded("memory.update", self._update_memory))
        add("DELETE", f"{memories}/{{memory}}", self.guarded("memory.delete", self._delete_memory))

    # What a test says.

    def session(self, **options: Any) -> Session:
        """Make a session."""
        number = next(_ids)
        session = Session(f"sess_{number:06d}", f"wst_{number:040d}", **options)
        session.say("user.message")
        self.sessions[session.id] = session
        return session

    def queue(self, session: Session | None, kind: str = "session") -> Item:
        """Put an item for it into the queue."""
        item = Item(f"work_{next(_ids):06d}", session, kind)
        self.work[item.id] = item
        self._queued.set()
        return item

    def skill(self, name: str, files: Sequence[PackedFile]) -> dict[str, Any]:
        """Make a skill; how an agent names it."""
        self.packages[f"skill_{name}"] = write_zip(files)
        return {"skill_id": f"skill_{name}", "version": "1", "type": "custom"}

    def store(self, name: str, texts: dict[str, str], access: str = "read_write") -> dict[str, Any]:
        """Make a memory store; how a session names it."""
        store_id = f"memstore_{name}"
        self.memories[store_id] = {}
        for path, text in texts.items():
            self.write_memory(store_id, path, text)
        resource = {"type": "memory_store", "memory_store_id": store_id, "access": access}
        return resource | {"mount_path": f"/mnt/memory/{name}", "name": name}

    def write_memory(self, store_id: str, path: str, text: str) -> dict[str, Any]:
        """As somebody else does it."""
        for memory in self.memories[store_id].values():
            if memory["path"] == path:
                memory |= {"content": text, "content_sha256": sha(text)}
                return memory
        memory = {"id": f"mem_{next(_ids):06d}", "type": "memory", "path": path}
        memory |= {"content": text, "content_sha256": sha(text)}
        self.memories[store_id][memory["id"]] = memory
        return memory

    def texts(self, store_id: str) -> dict[str, str]:
        """What a store holds."""
        return {each["path"]: each["content"] for each in self.memories[store_id].values()}

    # What a worker hears.

    async def _poll(self, request: web.Request, body: Any) -> web.Response:
        deadline = time.monotonic() + int(request.query.get("block_ms", "0")) / 1000
        while True:
            for item in self.work.values():
                if item.state in ("starting", "active") and item.until and time.monotonic() > item.until:
                    item.state, item.beat = "queued", ""
                if item.state == "queued":
                    item.state, item.until = "handed", 0.0
                    return web.json_response(self._item(item, secret=True))
            self._queued.clear()
            if (left := deadline - time.monotonic()) <= 0:
                return web.json_response(None)
            try:
                async with asyncio.timeout(left):
                    await self._queued.wait()
            except TimeoutError:
                continue

    def _item(self, item: Item, *, secret: bool = False) -> dict[str, Any]:
        token = item.session.token if item.session else "none"
        payload = base64.urlsafe_b64encode(json.dumps({"sessions_token": token}).encode()).decode().rstrip("=")
        data = {"type": item.kind, "id": item.session.id if item.session else "x"}
        found = {"id": item.id, "type": "work", "environment_id": ENVIRONMENT, "state": item.state, "data": data}
        return found | {"secret": payload if secret else None, "metadata": {}}

    async def _ack(self, request: web.Request, body: Any) -> web.Response:
        item = self.work[request.match_info["work"]]
        item.acks += 1
        item.state, item.until = "starting", time.monotonic() + self.ttl_seconds
        return web.json_response(self._item(item))

    async def _beat(self, request: web.Request, body: Any) -> web.Response:
        item = self.work.get(request.match_info["work"])
        if item is None:
            return error(404, "work_item_not_found", "There is no such item.")
        if item.state in ("starting", "active"):
            if request.query["expected_last_heartbeat"] != (item.beat or "NO_HEARTBEAT"):
                state = {"last_heartbeat": item.beat, "lease_extended": False, "state": item.state}
                return error(412, "heartbeat_precondition_failed", "Not yours.", {"current_state": state})
            item.beats += 1
            item.state, item.beat = "active", f"beat-{item.beats}"
            item.until = time.monotonic() + self.ttl_seconds
        extended = item.state == "active"
        return web.json_response(
            {
                "type": "work_heartbeat",
                "last_heartbeat": item.beat,
                "lease_extended": extended,
                "state": item.state,
                "ttl_seconds": self.ttl_seconds,
            }
        )

    async def _stop(self, request: web.Request, body: Any) -> web.Response:
        item = self.work[request.match_info["work"]]
        item.stops.append(body)
        if item.state == "stopped":
            return error(409, "work_already_stopped", "It has stopped.")
        item.state = "stopped"
        return web.json_response(self._item(item))

    def _of(self, request: web.Request) -> Session:
        session = self.sessions[request.match_info["session"]]
        if request.headers.get("authorization") != f"Bearer {session.token}":
            raise web.HTTPUnauthorized
        return session

    async def _session(self, request: web.Request, body: Any) -> web.Response:
        session = self._of(request)
        agent = {"id": "agent_1", "skills": session.skills}
        return web.json_response(
            {"id": session.id, "status": session.status, "agent": agent, "resources": session.resources}
        )

    async def _events(self, request: web.Request, body: Any) -> web.Response:
        # Pages are small, so that readers must go on.
        start = int(request.query.get("page", "0"))
        session = self._of(request)
        end = start + 3
        following = str(end) if end < len(session.log) else None
        return web.json_response({"data": session.log[start:end], "next_page": following})

    async def _send(self, request: web.Request, body: Any) -> web.Response:
        session = self._of(request)
        for event in body["events"]:
            call = event["tool_use_id"]
            if call in session.refused:
                return error(400, "tool_call_not_pending", session.refused[call])
            if call not in session.results:
                session.results[call] = event
                session.say("user.tool_result", **{key: value for key, value in event.items() if key != "type"})
        return web.json_response({"data": []})

    async def _stream(self, request: web.Request, body: Any) -> web.StreamResponse:
        session = self._of(request)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        seq = int(request.headers.get("last-event-id", len(session.log)))
        try:
            while True:
                session.changed.clear()
                for event in session.log[seq:]:
                    frame = f"id: {event['seq']}\nevent: {event['type']}\ndata: {json.dumps(event)}\n\n"
                    await response.write(frame.encode())
                    seq = event["seq"]
                if self._cut_streams:
                    return response
                try:
                    async with asyncio.timeout(0.2):
                        await session.changed.wait()
                except TimeoutError:
                    await response.write(b": ping\n\n")
        except (ConnectionError, asyncio.CancelledError):
            return response

    _cut_streams = False

    async def _skill(self, request: web.Request, body: Any) -> web.Response:
        skill = request.match_info["skill"]
        if skill not in self.packages:
            return error(404, "skill_not_found", "There is no such skill.")
        return web.json_response({"id": "skver_1", "name": skill.removeprefix("skill_"), "type": "skill_version"})

    async def _package(self, request: web.Request, body: Any) -> web.Response:
        return web.Response(body=self.packages[request.match_info["skill"]], content_type="application/zip")

    async def _list_memories(self, request: web.Request, body: Any) -> web.Response:
        found = list(self.memories[request.match_info["store"]].values())
        start, limit = int(request.query.get("page", "0")), int(request.query["limit"])
        shown = found[start : start + limit]
        if request.query.get("view") != "full":
            shown = [{key: value for key, value in each.items() if key != "content"} for each in shown]
        following = str(start + limit) if start + limit < len(found) else None
        return web.json_response({"data": shown, "next_page": following})

    async def _create_memory(self, request: web.Request, body: Any) -> web.Response:
        store = request.match_info["store"]
        for memory in self.memories[store].values():
            if memory["path"] == body["path"]:
                details = {"conflicting_memory_id": memory["id"]}
                return error(409, "memory_path_conflict", "The path is taken.", details)
        self.writes.append(("create", body["path"]))
        return web.json_response(self.write_memory(store, body["path"], body["content"]))

    async def _get_memory(self, request: web.Request, body: Any) -> web.Response:
        memory = self.memories[request.match_info["store"]].get(request.match_info["memory"])
        return web.json_response(memory) if memory else error(404, "memory_not_found", "There is no such memory.")

    async def _update_memory(self, request: web.Request, body: Any) -> web.Response:
        memory = self.memories[request.match_info["store"]].get(request.match_info["memory"])
        if memory is None:
            return error(404, "memory_not_found", "There is no such memory.")
        if body["precondition"]["content_sha256"] != memory["content_sha256"]:
            return error(409, "memory_precondition_failed", "It was changed.")
        self.writes.append(("update", memory["path"]))
        memory |= {"content": body["content"], "content_sha256": sha(body["content"])}
        return web.json_response(memory)

    async def _delete_memory(self, request: web.Request, body: Any) -> web.Response:
        memories = self.memories[request.match_info["store"]]
        memory = memories.get(request.match_info["memory"])
        if memory is None:
            return error(404, "memory_not_found", "There is no such memory.")
        if request.query.get("expected_content_sha256") != memory["content_sha256"]:
            return error(409, "memory_precondition_failed", "It was changed.")
        self.writes.append(("delete", memory["path"]))
        del memories[memory["id"]]
        return web.json_response({"id": memory["id"], "type": "memory_deleted"})


def sha(text: str) -> str:
    """The digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()

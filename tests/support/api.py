"""A plain client of the REST API for tests, and a reader that holds what streams deliver to their promise."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import orjson

TOOLS = [{"type": "agent_toolset_20260401"}]
CUSTOM_TOOL = {
    "type": "custom",
    "name": "lookup",
    "description": "Looks a word up.",
    "input_schema": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
}
Event = dict[str, Any]


class Refused(Exception):
    """The platform answered with an error."""

    def __init__(self, status: int, body: dict[str, Any], headers: httpx2.Headers) -> None:
        super().__init__(f"{status}: {body}")
        self.status, self.body, self.headers = status, body, headers


class Api:
    """Calls of one client. A refusal is raised as `Refused`."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> dict[str, Any]:
        """One request; underscores in the names of headers are hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        content = None if body is None else orjson.dumps(body)
        if content is not None:
            named["content-type"] = "application/json"
        answer = await self.http.request(method, path, content=content, headers=named)
        answered = orjson.loads(answer.content)
        if answer.status_code >= 400:
            raise Refused(answer.status_code, answered, answer.headers)
        return answered

    async def agent(self, **fields: Any) -> str:
        """A new agent with the built-in tools; its id."""
        definition = {"name": "tester", "model": "default", "system": "Do as you are told.", "tools": TOOLS, **fields}
        return (await self.call("POST", "/v1/agents", definition))["id"]

    async def session(self, agent_id: str, **fields: Any) -> str:
        """A new session; its id."""
        return (await self.call("POST", "/v1/sessions", {"agent": agent_id, **fields}))["id"]

    async def send(self, session_id: str, *events: Event, key: str = "") -> list[Event]:
        """Append client events; what was stored."""
        headers = {"idempotency_key": key or uuid.uuid4().hex}
        return (await self.call("POST", f"/v1/sessions/{session_id}/events", {"events": list(events)}, **headers))[
            "data"
        ]

    async def log(self, session_id: str, *, limit: int = 100) -> list[Event]:
        """The whole log, page by page."""
        events: list[Event] = []
        page = ""
        while True:
            query = f"?limit={limit}" + (f"&page={page}" if page else "")
            answer = await self.call("GET", f"/v1/sessions/{session_id}/events{query}")
            events += answer["data"]
            page = answer["next_page"]
            if not page:
                return events

    async def status(self, session_id: str) -> str:
        """What the session says of itself."""
        return (await self.call("GET", f"/v1/sessions/{session_id}"))["status"]


@asynccontextmanager
async def api(url: str, *, timeout: float = 20.0) -> AsyncIterator[Api]:
    """A client with connections of its own."""
    limits = httpx2.Limits(max_connections=200, max_keepalive_connections=50)
    async with httpx2.AsyncClient(base_url=url, timeout=timeout, limits=limits, trust_env=False) as http:
        yield Api(http)


def message(text: str) -> Event:
    """A user message as a client sends it."""
    return {"type": "user.message", "content": [{"type": "text", "text": text}]}


def tool(name: str, **arguments: Any) -> str:
    """A directive that makes the demo model call a tool."""
    return f"TOOL:{name}:{orjson.dumps(arguments).decode()}"


class Reader:
    """Follows one session from its first event, over as many connections as it takes.

    AssertionError at once when a frame is out of order, missing, doubled or mislabelled. An
    event comes a second time only to tell that the model has read it. That is told without an
    id, so a connection that is cut before the next id leaves the cursor before it: only then,
    and once a connection, is the same told again.
    """

    def __init__(self, client: Api, session_id: str) -> None:
        self._client = client
        self.session_id = session_id
        self.events: list[Event] = []
        self.connections = 0
        # By seq of an input: the connection that last told that it was read.
        self._told_read: dict[int, int] = {}

    @property
    def last_seq(self) -> int:
        """The cursor: the highest seq up to which nothing is missing."""
        return len(self.events)

    async def follow(self, until: Callable[[Event], bool], *, cut_after_bytes: int | None = None) -> bool:
        """One connection: True once an event fits `until`, False when the connection ended or was cut before."""
        headers = {"last-event-id": str(self.last_seq), "accept": "text/event-stream"}
        path = f"/v1/sessions/{self.session_id}/events/stream"
        async with self._client.http.stream("GET", path, headers=headers) as response:
            if response.status_code != 200:
                body = await response.aread()
                raise Refused(response.status_code, orjson.loads(body), response.headers)
            self.connections += 1
            unread, got = b"", 0
            async for piece in response.aiter_raw():
                left = len(piece) if cut_after_bytes is None else max(0, cut_after_bytes - got)
                got += len(piece)
                unread += piece[:left]
                *frames, unread = unread.split(b"\n\n")
                for frame in frames:
                    if (event := self._take(frame)) is not None and until(event):
                        return True
                if left < len(piece):
                    return False
        return False

    async def follow_over_failures(self, until: Callable[[Event], bool]) -> None:
        """As many connections as it takes, also while nobody answers."""
        while True:
            try:
                if await self.follow(until):
                    return
            except (httpx2.TransportError, Refused) as error:
                if isinstance(error, Refused) and error.status < 500:
                    raise

    def _take(self, frame: bytes) -> Event | None:
        lines = [line for line in frame.split(b"\n") if line and not line.startswith(b":")]
        if not lines:
            return None
        fields = dict(line.decode().split(": ", 1) for line in lines)
        if fields["event"] == "error":
            # The platform told why it ends this connection; the next one goes on after the cursor.
            return None
        event = orjson.loads(fields["data"])
        assert fields["event"] == event["type"], frame
        if "id" not in fields:
            self._take_update(event)
            return None
        assert int(fields["id"]) == event["seq"], frame
        assert event["seq"] == self.last_seq + 1, f"seq {event['seq']} came after {self.last_seq}"
        self.events.append(event)
        if event["processed_at"]:
            self._told_read[event["seq"]] = self.connections
        return event

    def _take_update(self, event: Event) -> None:
        seq = event["seq"]
        before, told = self.events[seq - 1], self._told_read.get(seq, 0)
        assert event["processed_at"] and told < self.connections, f"{seq} came twice"
        assert {**before, "processed_at": before["processed_at"] or event["processed_at"]} == event
        self._told_read[seq] = self.connections
        self.events[seq - 1] = event


def assert_same(delivered: list[Event], log: list[Event]) -> None:
    """What a stream brought is the log, but for messages that were read after they were delivered."""
    assert [event["seq"] for event in delivered] == list(range(1, len(delivered) + 1))
    for got, stored in zip(delivered, log, strict=True):
        if got["processed_at"] is None:
            got = {**got, "processed_at": stored["processed_at"]}
        assert got == stored

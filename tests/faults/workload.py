"""What clients do while things break: each drives one session, and remembers what it was told.

A client repeats a write with the same key until it is acknowledged; some writes it makes once and doesn't know what
became of them. It follows its session on one stream, over as many connections as it takes.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2

from kit.testing import await_until
from tests.support.api import Api, Event, Reader, Refused, message, tool

PAUSE_SECONDS = 0.1
SETTLE_SECONDS = 300
INTERRUPT = {"type": "user.interrupt"}
STATUS = ("session.status_running", "session.status_rescheduled", "session.status_idle")


@dataclass
class Told:
    """What one client knows of its session."""

    session_id: str
    acknowledged: list[Event] = field(default_factory=list)
    # Texts of messages whose fate is unknown.
    unsure: list[str] = field(default_factory=list)
    # Lines that tools were asked to append.
    lines: list[str] = field(default_factory=list)


async def patiently(attempt: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat a call while the platform is away; every other answer is final."""
    while True:
        try:
            return await attempt()
        except httpx2.TransportError:
            pass
        except Refused as refused:
            _judge(refused)
        # A client's own pace: there is nothing to wait for but the platform.
        await asyncio.sleep(PAUSE_SECONDS)


def _judge(refused: Refused) -> None:
    """An outage is told as such, with a time to come back; a conflict of two writes may be tried again."""
    if refused.status == 409 and refused.headers.get("x-should-retry") != "false":
        return
    if refused.status not in (503, 504):
        raise refused
    if refused.status == 503:
        assert int(refused.headers["retry-after"]) >= 0, refused


class Client:
    """One session's client."""

    def __init__(self, api: Api, chance: random.Random, agent_id: str) -> None:
        self._api = api
        self._chance = chance
        self._agent_id = agent_id
        self.turns = 0

    async def run(self, enough: Callable[[], bool]) -> None:
        """Work until it is enough, then leave the session idle and the stream read to its end."""
        key = uuid.uuid4().hex
        body = {"agent": self._agent_id}
        created = await patiently(lambda: self._api.call("POST", "/v1/sessions", body, idempotency_key=key))
        self.told = Told(created["id"])
        self.reader = Reader(self._api, created["id"])
        reading = asyncio.create_task(self._read())
        steps = (
            self._plain,
            self._slow,
            self._tool,
            self._tool,
            self._custom,
            self._interrupted,
            self._two,
            self._once,
        )
        try:
            while not enough():
                await self._chance.choice(steps)()
                self.turns += 1
            await self._settled(await self._say("the last"))
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self) -> None:
        while True:
            await patiently(lambda: self.reader.follow(lambda _: False))

    async def _send(self, *events: Event) -> list[Event]:
        key = uuid.uuid4().hex
        stored = await patiently(lambda: self._api.send(self.told.session_id, *events, key=key))
        self.told.acknowledged += stored
        return stored

    async def _say(self, text: str) -> Event:
        return (await self._send(message(f"{uuid.uuid4().hex} {text}")))[0]

    async def _settled(self, after: Event) -> Event:
        """The idle event that ended whatever `after` began, once every call is answered."""
        idle = await self._idle(after)
        while _waits(idle):
            idle = await self._idle(await self._answer(idle))
        return idle

    async def _idle(self, after: Event) -> Event:
        """The next idle event after `after`.

        A turn that was given up leaves its message to the next turn, which may call tools that nobody asked for now:
        the session then waits with `after` unread, until such a call is answered.
        """
        while True:
            try:
                found = await await_until(
                    lambda: self._idle_now(after),
                    SETTLE_SECONDS,
                    f"{self.told.session_id} is idle after seq {after['seq']}",
                )
            except AssertionError as failure:
                failure.add_note(await self._where())
                raise
            if found["seq"] > after["seq"]:
                return found
            await self._answer(found)

    def _idle_now(self, after: Event) -> Event | None:
        last = next((event for event in reversed(self.reader.events) if event["type"] in STATUS), None)
        if last is None or last["type"] != "session.status_idle":
            return None
        blocks = _waits(last) and self.reader.last_seq >= after["seq"] and not self._has_moved_on(last)
        return last if last["seq"] > after["seq"] or blocks else None

    def _has_moved_on(self, idle: Event) -> bool:
        """Whether this client has answered or interrupted since; the stream has yet to tell."""
        since = itertools.takewhile(lambda event: event["seq"] > idle["seq"], reversed(self.told.acknowledged))
        return any(event["type"] != "user.message" for event in since)

    async def _answer(self, idle: Event) -> Event:
        answer = {"type": "user.custom_tool_result", "custom_tool_use_id": idle["stop_reason"]["event_ids"][0]}
        answer["content"] = [{"type": "text", "text": uuid.uuid4().hex}]
        return (await self._send(answer))[0]

    async def _where(self) -> str:
        """What is known of a session that does not get on: the stream may hang, or the turn."""
        session = await self._api.call("GET", f"/v1/sessions/{self.told.session_id}")
        log = await self._api.log(self.told.session_id)
        told = [f"{event['seq']} {event['type']} {event['created_at']}" for event in log[-20:]]
        return f"status {session['status']}, the reader has {self.reader.last_seq} of\n" + "\n".join(told)

    def _line(self, then: str = "") -> str:
        line = uuid.uuid4().hex
        self.told.lines.append(line)
        return tool("bash", command=f"echo {line} >> runs.txt{then}")

    async def _plain(self) -> None:
        await self._settled(await self._say("hello"))

    async def _slow(self) -> None:
        await self._settled(await self._say("LEN:12 DELAY:50"))

    async def _tool(self) -> None:
        await self._settled(await self._say(self._line(self._chance.choice(("", "; sleep 0.5")))))

    async def _two(self) -> None:
        await self._say(self._line())
        await self._settled(await self._say("LEN:5 DELAY:20"))

    async def _once(self) -> None:
        text = f"{uuid.uuid4().hex} once"
        try:
            stored = await self._api.send(self.told.session_id, message(text))
            self.told.acknowledged += stored
        except (httpx2.TransportError, Refused) as error:
            if isinstance(error, Refused):
                _judge(error)
            self.told.unsure.append(text)
        else:
            await self._settled(stored[0])

    async def _interrupted(self) -> None:
        said = await self._say(self._chance.choice(("LEN:40 DELAY:50", self._line("; sleep 5"))))
        waits_for = self._chance.choice(("user.message", "session.status_running", "span.model_request_start"))
        await await_until(
            lambda: (
                any(event["seq"] >= said["seq"] for event in self.reader.events if event["type"] == waits_for)
                or (self.reader.events and self.reader.events[-1]["type"] == "session.status_idle")
            ),
            SETTLE_SECONDS,
            waits_for,
        )
        await self._send(INTERRUPT)
        await self._settled(said)

    async def _custom(self) -> None:
        idle = await self._idle(await self._say(tool("lookup", word="a") + " " + tool("lookup", word="b")))
        while _waits(idle):
            if self._chance.random() < 0.2:
                idle = await self._idle((await self._send(INTERRUPT))[0])
            else:
                idle = await self._idle(await self._answer(idle))


def _waits(idle: Event) -> bool:
    return idle["stop_reason"]["type"] == "requires_action"

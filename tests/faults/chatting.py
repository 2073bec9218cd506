"""A person at the session gateway who never gives up: sends with a key, reads, reconnects by index, decides."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import httpx2
import orjson

from tests.support.api import Api, tool

ENDS = ("completed", "failed", "cancelled")
# What a gateway says while something behind it is away, or was just killed.
AGAIN = (500, 502, 503, 504)
PAUSE_SECONDS = 0.1


class Person:
    """One session. `frames` has what was shown, by index; whatever comes twice has to be the same bytes."""

    def __init__(self, client: Api, chance: random.Random, agent_id: str, name: str) -> None:
        self._http = client.http
        self._chance = chance
        self._base = f"/api/agents/{agent_id}/eve/v1/session"
        self._name = name
        self.session_id = ""
        self.frames: dict[int, bytes] = {}
        self.messages = 0
        self.reconnects = 0

    async def run(self, is_over: Callable[[], bool]) -> None:
        """One message after another, each to the end of its run."""
        while not is_over():
            self.messages += 1
            await self._talk(f"{self._name} {self.messages}")

    async def _talk(self, key: str) -> None:
        asks = self._chance.random() < 0.3
        text = tool("bash", command="true") if asks else f"LEN:{self._chance.randint(1, 12)} DELAY:60"
        body: dict[str, Any] = {"message": text}
        first, told = len(self.frames), False
        # The same call at each try: a key belongs to the path that it was sent to.
        path = self._path()
        while not (told and self._is_over(first)):
            if not told:
                told = await self._send(path, body, key)
            elif (waiting := self._waiting(first)) and await self._send(
                self._path(), {"inputResponses": [{"requestId": waiting, "optionId": "approve"}]}, f"{key} {waiting}"
            ):
                continue
            elif not self._is_over(first):
                await self._follow(first)

    def _path(self) -> str:
        return f"{self._base}/{self.session_id}" if self.session_id else self._base

    async def _send(self, path: str, body: dict[str, Any], key: str) -> bool:
        """Whether it was taken, by this try or by one before. What comes of it is read as far as it comes."""
        try:
            headers = {"idempotency-key": key}
            async with self._http.stream("POST", path, json=body, headers=headers) as response:
                if response.status_code in AGAIN:
                    return False
                assert response.status_code == 200, await response.aread()
                self.session_id = response.headers["session-id"]
                await self._read(response, lambda: False)
        except httpx2.TransportError:
            # Whether it was taken is not known: the same key finds out.
            self.reconnects += 1
            await asyncio.sleep(PAUSE_SECONDS)
            return False
        return True

    async def _follow(self, first: int) -> None:
        try:
            path = f"{self._base}/{self.session_id}/stream?startIndex={len(self.frames)}"
            async with self._http.stream("GET", path) as response:
                if response.status_code in AGAIN:
                    return
                assert response.status_code == 200, await response.aread()
                await self._read(response, lambda: self._is_over(first) or bool(self._waiting(first)))
        except httpx2.TransportError:
            self.reconnects += 1
            await asyncio.sleep(PAUSE_SECONDS)

    async def _read(self, response: httpx2.Response, enough: Callable[[], bool]) -> None:
        unread = b""
        async for piece in response.aiter_raw():
            *frames, unread = (unread + piece).split(b"\n\n")
            for frame in frames:
                if not frame.startswith(b":"):
                    self._take(frame)
            if enough():
                return

    def _take(self, frame: bytes) -> None:
        index = int(frame.partition(b"\n")[0].removeprefix(b"id: "))
        assert index <= len(self.frames), f"{self.session_id}: {index} came where {len(self.frames)} was next"
        assert self.frames.setdefault(index, frame) == frame, f"{self.session_id}: two stories of {index}"

    def told(self, first: int = 0) -> list[dict[str, Any]]:
        """What was shown from an index on."""
        shown = [self.frames[index] for index in range(first, len(self.frames))]
        return [orjson.loads(frame.partition(b"\ndata: ")[2]) for frame in shown]

    def _is_over(self, first: int) -> bool:
        told = self.told(first)
        return bool(told) and told[-1]["type"] in ENDS

    def _waiting(self, first: int) -> str:
        told = self.told(first)
        return told[-1]["requestId"] if told and told[-1]["type"] == "input-requested" else ""

    async def whole(self) -> list[bytes]:
        """The session from its beginning, as a newcomer gets it."""
        again = Person.__new__(Person)
        again.session_id, again.frames = self.session_id, {}
        async with self._http.stream("GET", f"{self._base}/{self.session_id}/stream?startIndex=0") as response:
            await again._read(response, lambda: len(again.frames) >= len(self.frames))
        return [again.frames[index] for index in range(len(again.frames))]

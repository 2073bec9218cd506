"""What callers of the HTTP agent protocol do while things break: each plays a conversation and remembers its answers.

A caller sends a step until it is answered: after a lost connection, an outage, or for no reason at all, sometimes twice
at once, sometimes after hanging up early. Every answer to the same step has to be the same, also at the very end.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2
import orjson

from tests.faults.ground import Ground
from tests.faults.history import faults_of, line_faults
from tests.support.api import CUSTOM_TOOL, Api, Event, Refused, tool

LOOKUP = {key: value for key, value in CUSTOM_TOOL.items() if key != "type"}
Answer = tuple[int, bytes]


@dataclass
class Sent:
    """One step, and what it was answered with."""

    body: dict[str, Any]
    key: str
    answer: Answer


@dataclass
class Told:
    """What one caller knows of its conversation."""

    session_id: str = ""
    steps: list[Sent] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    # By call, the text of its result.
    results: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    given_up: int = 0


class Caller:
    """One conversation's caller."""

    def __init__(self, api: Api, chance: random.Random, agent_id: str, name: str, *, pause_seconds: float) -> None:
        self._api = api
        self._chance = chance
        self._path = f"/v1/agents/{agent_id}/step"
        self._pause = pause_seconds
        self.name = name
        self.told = Told()
        self.turns = 0

    async def run(self, enough: Callable[[], bool]) -> None:
        """Take turns until it is enough; the last one ends in a reply."""
        turns = (self._plain, self._plain, self._slow, self._custom, self._custom, self._built_in)
        while not enough():
            await self._chance.choice(turns)()
            self.turns += 1
            # As long as a user needs to think: nothing is waited for.
            await asyncio.sleep(self._pause * self._chance.random())
        while not await self._say("the last"):
            pass

    async def _plain(self) -> None:
        await self._say("hello")

    async def _slow(self) -> None:
        await self._say("LEN:8 DELAY:40")

    async def _built_in(self) -> None:
        line = uuid.uuid4().hex
        self.told.lines.append(line)
        await self._say(tool("bash", command=f"echo {line} >> runs.txt"))

    async def _custom(self) -> None:
        words = [uuid.uuid4().hex[:8] for _ in range(self._chance.randint(1, 3))]
        await self._say(" ".join(tool("lookup", word=word) for word in words))

    async def _say(self, text: str) -> bool:
        """One turn; False where it had no reply."""
        text = f"{uuid.uuid4().hex} {text}"
        self.told.texts.append(text)
        answer = await self._step({"message": text})
        while answer[0] == 200 and (calls := orjson.loads(answer[1]).get("tool_calls")):
            if self._chance.random() < 0.1:
                # Its budget of rounds is used up.
                self.told.given_up += len(calls)
                return False
            results = [{"id": call["id"], "ok": True, "result": uuid.uuid4().hex} for call in calls]
            self.told.results |= {each["id"]: each["result"] for each in results}
            answer = await self._step({"tool_results": results})
        return answer[0] == 200

    async def _step(self, brought: dict[str, Any]) -> Answer:
        body = {"session_id": self.name, "tools": [LOOKUP], **brought}
        key = uuid.uuid4().hex if self._chance.random() < 0.5 else ""
        if self._chance.random() < 0.1:
            await self._hang_up(body, key)
        times = 2 if self._chance.random() < 0.15 else 1
        answers = set(await asyncio.gather(*(self.until_answered(body, key) for _ in range(times))))
        assert len(answers) == 1, f"{self.name}: {body} was answered with {answers}"
        self.told.steps.append(Sent(body, key, answers.pop()))
        return self.told.steps[-1].answer

    async def _hang_up(self, body: dict[str, Any], key: str) -> None:
        try:
            async with asyncio.timeout(self._chance.choice((0.01, 0.05, 0.3))):
                await self._post(body, key)
        except (TimeoutError, httpx2.TransportError, Refused):
            pass

    async def until_answered(self, body: dict[str, Any], key: str) -> Answer:
        """Repeat the step while the platform is away; every other answer is final."""
        while True:
            try:
                return await self._post(body, key)
            except httpx2.TransportError:
                pass
            except Refused as refused:
                if refused.status not in (503, 504):
                    raise
            await asyncio.sleep(self._pause)

    async def _post(self, body: dict[str, Any], key: str) -> Answer:
        headers = {"idempotency-key": key} if key else {}
        answered = await self._api.http.post(self._path, json=body, headers=headers)
        self.told.session_id = answered.headers.get("step-session", self.told.session_id)
        if answered.status_code == 200:
            assert len(answered.json()) == 1
            return 200, answered.content
        error = answered.json()
        if answered.status_code == 502 and error["error"]["code"] == "step_turn_failed":
            # Of a turn whose runners were all killed.
            return 502, error["error"]["message"].encode()
        raise Refused(answered.status_code, error, answered.headers)


async def check_conversation(ground: Ground, api: Api, one: Caller) -> list[str]:
    """Everything that is wrong with a conversation whose caller has finished."""
    told = one.told
    log = await api.log(told.session_id)
    faults = await _answers(one) + _log_faults(log, told)
    workspace = ground.workspace(told.session_id)
    runs = workspace / "runs.txt" if workspace else None
    lines = runs.read_text().split() if runs is not None and runs.exists() else []
    faults += line_faults(log, told.lines, lines)
    if faults:
        faults += [f"{event['seq']} {event['type']} {event.get('stop_reason', '')}" for event in log]
    return [f"{one.name} {told.session_id}: {fault}" for fault in faults]


async def _answers(one: Caller) -> list[str]:
    """Whatever may be repeated is answered as it was, and nothing is answered twice with the same call."""
    faults = []
    for sent in one.told.steps:
        if sent.key or "tool_results" in sent.body or sent is one.told.steps[-1]:
            again = await one.until_answered(sent.body, sent.key)
            if again != sent.answer:
                faults.append(f"{sent.body} was answered with {sent.answer}, and now with {again}")
    calls = [
        call["id"]
        for sent in one.told.steps
        if sent.answer[0] == 200
        for call in orjson.loads(sent.answer[1]).get("tool_calls", ())
    ]
    return faults + [f"call {each} was handed out twice" for each in set(calls) if calls.count(each) > 1]


def _log_faults(log: list[Event], told: Told) -> list[str]:
    faults = faults_of(log, [], [*told.texts, *told.results.values(), ""])
    said = [event["content"][0]["text"] for event in log if event["type"] == "user.message"]
    if said != told.texts:
        faults.append(f"said {told.texts}, stored {said}")
    answered = {
        event["custom_tool_use_id"]: event["content"][0]["text"]
        for event in log
        if event["type"] == "user.custom_tool_result"
    }
    if answered != told.results:
        faults.append(f"results {told.results}, stored {answered}")
    return faults

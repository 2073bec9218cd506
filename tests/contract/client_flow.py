"""The published client on a real platform, and a table of cases: one for each method that it has for sessions.

    @case("threads.list")
    async def list_threads(flow: Flow) -> None:
        await flow.sessions.threads.list(session_id, limit=2, …)

The methods are found by walking the client. A case calls the one that it is named after through `Flow.sessions`,
which notes the parameters; `test_sessions_of_the_client` runs every case and wants every parameter used.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
from anthropic._resource import AsyncAPIResource

Case = Callable[["Flow"], Awaitable[None]]
CASES: dict[str, Case] = {}
# Parameters of every method, and what is no parameter of the contract.
COMMON = {"self", "extra_headers", "extra_query", "extra_body", "timeout", "betas"}
TOOLSET = {"type": "agent_toolset_20260401"}
ASKING = {**TOOLSET, "default_config": {"permission_policy": {"type": "always_ask"}}}
CUSTOM = {
    "type": "custom",
    "name": "lookup",
    "description": "Looks a word up.",
    "input_schema": {"type": "object", "properties": {"word": {"type": "string"}}},
}
WORKSPACE = "wrkspc_default"


def methods_of(resource: AsyncAPIResource, prefix: str = "") -> dict[str, set[str]]:
    """Dotted names of the client's methods under a resource, each with its parameters."""
    found: dict[str, set[str]] = {}
    for name in dir(type(resource)):
        if name.startswith(("_", "with_")):
            continue
        attribute = inspect.getattr_static(type(resource), name)
        if inspect.isfunction(attribute):
            found[prefix + name] = set(inspect.signature(attribute).parameters) - COMMON
        elif isinstance(part := getattr(resource, name), AsyncAPIResource):
            found |= methods_of(part, f"{prefix}{name}.")
    return found


METHODS = methods_of(anthropic.AsyncAnthropic(api_key="none").beta.sessions)


class Watched:
    """A part of the client that notes which parameters its methods were called with."""

    def __init__(self, part: Any, prefix: str, seen: dict[str, set[str]]) -> None:
        self._part, self._prefix, self._seen = part, prefix, seen

    def __getattr__(self, name: str) -> Any:
        part = getattr(self._part, name)
        if isinstance(part, AsyncAPIResource):
            return Watched(part, f"{self._prefix}{name}.", self._seen)

        def call(*arguments: Any, **named: Any) -> Any:
            bound = inspect.signature(part).bind(*arguments, **named)
            self._seen.setdefault(self._prefix + name, set()).update(bound.arguments)
            return part(*arguments, **named)

        return call


class Flow:
    """The client, an agent and an environment, and what a case needs again and again."""

    def __init__(self, client: anthropic.AsyncAnthropic) -> None:
        self.client = client
        self.seen: dict[str, set[str]] = {}
        self.sessions = Watched(client.beta.sessions, "", self.seen)
        self.environment = "env_default"

    async def agent(self, *tools: dict[str, Any]) -> Any:
        """A new agent."""
        return await self.client.beta.agents.create(
            name="contract", model="demo", system="Do as you are told.", tools=list(tools) or [TOOLSET]
        )

    async def session(self, *tools: dict[str, Any], **fields: Any) -> Any:
        """A new session of a new agent."""
        agent = await self.agent(*tools)
        return await self.sessions.create(agent=agent.id, environment_id=self.environment, **fields)

    async def turn(self, session_id: str, *events: dict[str, Any]) -> list[Any]:
        """What the stream brings from a request to the next idle event, or to the end of the session."""
        collected: list[Any] = []
        async with await self.sessions.events.stream(session_id) as stream:
            await self.sessions.events.send(session_id, events=list(events))
            async for event in stream:
                sound(event)
                collected.append(event)
                if event.type in ("session.status_idle", "session.status_terminated"):
                    break
        return collected

    async def log(self, session_id: str) -> list[Any]:
        """The whole log by the client's own paging."""
        return [sound(event) async for event in self.sessions.events.list(session_id)]


def sound(event: Any) -> Any:
    """An event in the class that its type says: strict validation takes another one that fits as well."""
    assert event.type in type(event).model_fields["type"].annotation.__args__, (event.type, type(event))
    return event


def user(text: str) -> dict[str, Any]:
    """A message."""
    return {"type": "user.message", "content": [{"type": "text", "text": text}]}


def case(name: str) -> Callable[[Case], Case]:
    """Makes a function the case of a method."""

    def add(function: Case) -> Case:
        assert name in METHODS and name not in CASES, name
        CASES[name] = function
        return function

    return add

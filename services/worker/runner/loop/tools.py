"""Calls of the model: judged by the agent's policies, written to the log, and run one after another.

Which tools exist here comes from the runner; which of them an agent may use, and how, from its profile. A call of
something else is answered with what there is, so that the model can go on.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from kit import failpoints
from kit.ids import new_id
from kit.telemetry import log, tracer
from services.worker.runner.loop import recovery
from services.worker.runner.loop.agent import AgentProfile
from services.worker.runner.loop.context import Call
from services.worker.runner.loop.journal import Journal
from services.worker.runner.loop.leases import LeaseLost
from services.worker.runner.loop.stopping import Stopped, StopSignal
from services.worker.runner.mcp.turn import TurnServers
from services.worker.runner.models.base import ToolCall, ToolDefinition
from services.worker.runner.outside.sessions import WORKER
from services.worker.tools import TOOL_SPECS, ToolOutcome


class Place(Protocol):
    """Where a call runs."""

    async def run_tool(self, name: str, value: object) -> ToolOutcome:
        """Run one tool to its end."""
        ...

    def interrupt(self) -> bool:
        """Kill what runs."""
        ...


class Sandbox(Place, Protocol):
    """Where the tools of one session run. Starts with the first tool."""

    def limit_output(self, text: str, *, is_error: bool = False) -> ToolOutcome:
        """Apply the contract for output that is too long to what was made elsewhere."""
        ...


class Toolbox:
    """The tools of one turn."""

    def __init__(
        self,
        profile: AgentProfile,
        built_in: Mapping[str, ToolDefinition],
        of_service: Sequence[ToolDefinition] = (),
        servers: TurnServers | None = None,
    ) -> None:
        """`of_service` are tools whose calls the sessions service answers by itself; `servers` come and go."""
        self._profile = profile
        self._servers = servers
        self._usable = {name: policy for name, policy in profile.policies.items() if name in built_in}
        self._fixed = [built_in[name] for name in built_in if name in self._usable]
        self._fixed += profile.custom_tools.values()
        self._fixed += of_service
        self.uses_sandbox = any(name in TOOL_SPECS for name in self._usable)
        self._by_worker = frozenset(name for name, tool in built_in.items() if tool.by_worker)
        self._usable |= dict.fromkeys((tool.name for tool in of_service), "always_allow")

    @property
    def definitions(self) -> Sequence[ToolDefinition]:
        """What the model is offered now."""
        return self._fixed if self._servers is None else [*self._fixed, *self._servers.definitions]

    def write_calls(self, calls: list[ToolCall], journal: Journal) -> list[tuple[str, dict[str, Any]]]:
        """Append the calls of one answer as events. Returns the results of those that can't be made."""
        refusals: list[tuple[str, dict[str, Any]]] = []
        group_id = ""
        seen: set[str] = set()
        for call in calls:
            block_id = call.id if call.id and call.id not in seen else new_id("toolu")
            seen.add(block_id)
            block = {"type": "tool_use", "id": block_id, "name": call.name, "input": call.input}
            fields: dict[str, Any] = {"name": call.name, "input": call.input}
            if call.name in self._profile.custom_tools and not call.input_error:
                journal.add("agent.custom_tool_use", {**fields, "content": [block]})
                continue
            tool = self._servers.find(call.name) if self._servers is not None else None
            problem = call.input_error or ("" if tool else self._problem(call.name))
            policy = "" if problem else tool.policy if tool else self._usable[call.name]
            if tool is not None:
                fields |= {"name": tool.name, "mcp_server_name": tool.server_name}
            if policy == "always_ask":
                group_id = group_id or new_id("cgrp")
                gate = {"requires_confirmation": True, "confirmation_group_id": group_id}
                fields |= gate
                block |= gate
            if policy and tool is None and call.name in self._by_worker:
                fields["executor"] = WORKER
            fields["evaluated_permission"] = _PERMISSIONS.get(policy, "deny")
            if policy:
                fields["evaluation"] = {"type": policy}
            event_id = journal.add("agent.mcp_tool_use" if tool else "agent.tool_use", {**fields, "content": [block]})
            if problem:
                refused = Call(event_id, block_id, call.name, call.input, server_name=tool.server_name if tool else "")
                refusals.append(recovery.tool_result(refused, problem))
        return refusals

    def _problem(self, name: str) -> str:
        if name in self._usable:
            return ""
        names = ", ".join(tool.name for tool in self.definitions) or "none"
        return f"There is no tool {name!r} here, so nothing was run. The tools are: {names}."


_PERMISSIONS = {"always_allow": "allow", "always_ask": "ask"}


class Watcher(Protocol):
    """Who wants to know of tools that ran, and may add to their results."""

    def begin_tool(self, call: Call) -> None:
        """A tool is about to run."""
        ...

    async def after_tool(self, call: Call, outcome: ToolOutcome) -> Sequence[str]:
        """A tool has run; notes for its result."""
        ...


async def run_call(
    call: Call, place: Place, journal: Journal, stop: StopSignal, watcher: Watcher, *, joins: bool = False
) -> None:
    """Run one call and write its result. Stopped leaves it without one; whatever else goes wrong becomes the result.

    `joins` says that whoever goes on with the turn asks for it again: then only a user has it ended.
    """
    watcher.begin_tool(call)
    try:
        with stop.scope(), tracer().start_as_current_span("tool.run"):
            await failpoints.point("runner.tool.running")
            outcome = await place.run_tool(call.name, dict(call.input))
    except (Stopped, asyncio.CancelledError) as cut:
        if not joins or (isinstance(cut, Stopped) and cut.by_user):
            place.interrupt()
        raise
    except (LeaseLost, failpoints.FailpointHit):
        raise
    except Exception as error:
        log.exception("a tool could not be run", tool=call.name)
        journal.add(*recovery.tool_result(call, f"The tool could not be run: {error}"))
        return
    # The result is there, whatever comes now.
    notes: Sequence[str] = ()
    with suppress(Stopped):
        notes = await watcher.after_tool(call, outcome)
    if notes:
        outcome = replace(outcome, text="\n".join((outcome.text, *notes)))
    journal.add(*recovery.outcome_result(call, outcome))

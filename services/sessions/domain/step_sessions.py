"""What the session of a conversation is made of: the agent, and what the first step brought.

The step's tools take the place of the agent's own custom tools, which its caller could not
run; built-in tools and MCP servers stay. The step's system prompt is used where the agent
has none of its own, or asks for it. An agent says further things about its conversations in
its metadata:

- `step_system: request` asks for the caller's system prompt in place of its own.
- `step_environment_id` names the environment of its sessions.
- `step_vault_ids` names their vaults, with commas in between.
"""

from dataclasses import dataclass
from typing import Any

import orjson

from services.sessions.domain.agent import AgentVersion
from services.sessions.domain.session_errors import InvalidRequest
from services.sessions.domain.steps import Conversation, Step, canonical

SYSTEM, ENVIRONMENT, VAULTS = "step_system", "step_environment_id", "step_vault_ids"
SYSTEM_OF_REQUEST = "request"


@dataclass(frozen=True, slots=True)
class FirstStep:
    """A session that is asked for, and what its conversation keeps of the step."""

    # As the body of a creation.
    body: dict[str, Any]
    conversation: Conversation


def begin(agent: AgentVersion, step: Step) -> FirstStep:
    """The session that this step of a new conversation asks for."""
    document = orjson.loads(agent.document)
    metadata = document.get("metadata") or {}
    overrides = _tools(document, step)
    system: str | None = None
    if _takes_system(document, metadata, agent.id):
        system = step.system or ""
        if step.system:
            overrides["system"] = step.system
    reference: dict[str, Any] = {"type": "agent", "id": agent.id, "version": agent.version}
    if overrides:
        reference = reference | {"type": "agent_with_overrides"} | overrides
    body: dict[str, Any] = {"agent": reference, "title": step.conversation}
    if environment_id := metadata.get(ENVIRONMENT):
        body["environment_id"] = environment_id
    if vault_ids := [each.strip() for each in metadata.get(VAULTS, "").split(",") if each.strip()]:
        body["vault_ids"] = vault_ids
    return FirstStep(body, Conversation("", canonical(step.tools or []), system))


def _tools(document: dict[str, Any], step: Step) -> dict[str, Any]:
    own = document.get("tools") or []
    kept = [tool for tool in own if tool["type"] != "custom"]
    tools = [*kept, *(step.tools or ())]
    return {} if tools == own else {"tools": tools}


def _takes_system(document: dict[str, Any], metadata: dict[str, str], agent_id: str) -> bool:
    wanted = metadata.get(SYSTEM)
    if wanted not in (None, SYSTEM_OF_REQUEST):
        raise InvalidRequest(
            f"The metadata of agent {agent_id} has {SYSTEM}: {wanted[:64]!r}. It is {SYSTEM_OF_REQUEST}, or left out.",
            field=f"metadata.{SYSTEM}",
        )
    return wanted is not None or not (document.get("system") or "").strip()

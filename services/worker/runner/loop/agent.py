"""The agent of a session as the loop needs it: prompt, model, and what it may do with which tool."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import orjson

from services.worker.runner.mcp.spec import Servers, read_servers
from services.worker.runner.models.base import ToolDefinition

TOOLSET = "agent_toolset_20260401"
BUILT_IN_TOOLS = ("bash", "read", "write", "edit", "glob", "grep", "web_fetch", "web_search")
DEFAULT_SYSTEM = (
    "You are an agent that works for a person through tools. Do what is asked, check your work with the tools where "
    "you can, say plainly what you did and what you could not do, and invent nothing."
)
SANDBOX_NOTE = (
    "Your tools run in a sandbox of this session. Its working directory keeps your files between calls. Files that "
    "the person gave are in /mnt/session/uploads; put files that the person should receive into /mnt/session/outputs."
)


def system_prompt(
    system: str, *, uses_sandbox: bool, notes: Sequence[str] = (), sandbox_note: str = SANDBOX_NOTE
) -> str:
    """What the model is told first: the agent's own prompt, and what it must know of where it works."""
    return "\n\n".join((system or DEFAULT_SYSTEM, *((sandbox_note,) if uses_sandbox else ()), *notes))


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """One agent, parsed once."""

    name: str
    system: str
    model_id: str
    speed: str
    # Name of each built-in tool that the agent may use → its policy.
    policies: Mapping[str, str]
    custom_tools: Mapping[str, ToolDefinition]
    # MCP servers with what binds them; None for an agent without.
    servers: Servers | None = None
    # Name of each built-in tool that has an entry of its own → that entry.
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # What is checked, by side.
    guardrails: Mapping[str, Any] = field(default_factory=dict)


@lru_cache(maxsize=512)
def parse_agent(document_json: bytes, model_json: bytes, model_id: str) -> AgentProfile:
    """Read an agent document; the same bytes are parsed once."""
    document: dict[str, Any] = orjson.loads(document_json) if document_json else {}
    model = orjson.loads(model_json) if model_json else {}
    policies: dict[str, str] = {}
    custom: dict[str, ToolDefinition] = {}
    configs: dict[str, Mapping[str, Any]] = {}
    for entry in document.get("tools") or ():
        if entry.get("type") == TOOLSET:
            policies.update(_toolset_policies(entry))
            configs |= {config["name"]: config for config in entry.get("configs") or ()}
        elif entry.get("type") == "custom":
            schema = entry.get("input_schema") or {"type": "object"}
            custom[entry["name"]] = ToolDefinition(entry["name"], entry.get("description") or "", schema)
    return AgentProfile(
        document.get("name") or "",
        document.get("system") or "",
        model.get("id") or model_id,
        model.get("speed") or "standard",
        policies,
        custom,
        read_servers(document),
        configs,
        document.get("guardrails") or {},
    )


def _toolset_policies(entry: Mapping[str, Any]) -> dict[str, str]:
    default = entry.get("default_config") or {}
    default_policy = _policy(default, "always_allow")
    configured: dict[str, str] = {}
    if default.get("enabled", True):
        configured = dict.fromkeys(BUILT_IN_TOOLS, default_policy)
    for config in entry.get("configs") or ():
        if config.get("enabled", default.get("enabled", True)):
            configured[config["name"]] = _policy(config, default_policy)
        else:
            configured.pop(config["name"], None)
    return configured


def _policy(config: Mapping[str, Any], default: str) -> str:
    return (config.get("permission_policy") or {}).get("type") or default

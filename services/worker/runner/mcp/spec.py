"""What an agent says of its MCP servers: how each is reached, and which of its tools may be called how. Pure.

A tool is governed by the toolsets that bind its server. An entry for the tool itself outranks the toolset's defaults,
and a tool that no entry names is under the defaults. Where several toolsets bind one server, each admits its own group:
a tool is admitted if an entry, or else a default, of any of them enables it, and the strictest policy of those that do
is the one that holds; an entry that disables or forbids it is final.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ALLOW, ASK, NEVER = "always_allow", "always_ask", "never_allow"
DEFAULT_POLICY = ASK
TOOLSET = "mcp_toolset"


@dataclass(frozen=True, slots=True)
class Server:
    """How one server is reached. Equal ones can share a connection."""

    name: str
    type: str
    url: str = ""
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """Whether a tool is offered, and under which policy."""

    enabled: bool
    policy: str

    @property
    def admits(self) -> bool:
        """Whether the model is to see the tool at all."""
        return self.enabled and self.policy in (ALLOW, ASK)


@dataclass(frozen=True, slots=True)
class Toolset:
    """One group of a server's tools."""

    server_name: str
    default: Rule
    tools: Mapping[str, Rule] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of an agent with what binds them."""

    servers: tuple[Server, ...]
    toolsets: tuple[Toolset, ...]

    def policy_of(self, server_name: str, tool_name: str) -> str:
        """`always_allow` or `always_ask`; empty for a tool that is not admitted."""
        bound = [toolset for toolset in self.toolsets if toolset.server_name == server_name]
        named = [toolset.tools[tool_name] for toolset in bound if tool_name in toolset.tools]
        if any(not rule.admits for rule in named):
            return ""
        admitting = named or [toolset.default for toolset in bound if toolset.default.admits]
        if not admitting:
            return ""
        return ASK if any(rule.policy == ASK for rule in admitting) else ALLOW


def read_servers(document: Mapping[str, Any]) -> Servers | None:
    """The servers of an agent document that a toolset binds; None where there are none."""
    toolsets = tuple(_toolset(entry) for entry in document.get("tools") or () if entry.get("type") == TOOLSET)
    bound = {toolset.server_name for toolset in toolsets}
    servers = tuple(_server(entry) for entry in document.get("mcp_servers") or () if entry.get("name") in bound)
    return Servers(servers, toolsets) if servers else None


def _server(entry: Mapping[str, Any]) -> Server:
    kind = entry.get("type") or "url"
    if kind == "url":
        return Server(entry["name"], kind, url=entry["url"])
    env = entry.get("env") or {}
    return Server(
        entry["name"],
        kind,
        command=entry["command"],
        args=tuple(entry.get("args") or ()),
        env=tuple(sorted(env.items())),
    )


def _toolset(entry: Mapping[str, Any]) -> Toolset:
    default = _rule(entry.get("default_config") or {}, Rule(True, DEFAULT_POLICY))
    configs: Sequence[Mapping[str, Any]] = entry.get("configs") or ()
    return Toolset(entry["mcp_server_name"], default, {config["name"]: _rule(config, default) for config in configs})


def _rule(config: Mapping[str, Any], default: Rule) -> Rule:
    enabled = config.get("enabled")
    policy = (config.get("permission_policy") or {}).get("type")
    return Rule(default.enabled if enabled is None else bool(enabled), policy or default.policy)

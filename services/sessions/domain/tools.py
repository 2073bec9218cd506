"""What an agent may use: built-in tools, the tools of MCP servers, custom tools.

`validate_tools` turns what a caller wrote into what is stored and read back: defaults are
filled in, policies are objects, legacy groups are flat. Doing it twice changes nothing,
so a merged definition can be judged as a whole. MCP servers and the toolsets that bind
them are one contract, which `check_mcp_consistency` holds together.
"""

from typing import Any

from services.sessions.domain import shape
from services.sessions.domain.custom_tools import flatten_custom_toolset, validate_custom_tool
from services.sessions.domain.errors import McpServerMismatch
from services.sessions.domain.session_errors import InvalidRequest, UnsupportedCapability
from services.sessions.domain.web_domains import LISTS, validate_domain_lists

BUILT_IN_TOOLSET = "agent_toolset_20260401"
BUILT_IN_TOOLS = ("bash", "read", "write", "edit", "glob", "grep", "web_fetch", "web_search")
TOOL_TYPES = (BUILT_IN_TOOLSET, "mcp_toolset", "custom", "custom_toolset")
POLICIES = ("always_allow", "always_ask")

MAX_TOOLS = 128
MAX_CONFIGS = 128
MAX_SERVER_NAME_CHARACTERS = 255
MAX_MCP_TOOL_NAME_CHARACTERS = 128
MAX_CONTENT_TOKENS = 1_000_000

_CONFIG_FIELDS = ("name", "type", "enabled", "permission_policy")
_WEB_CONFIG_FIELDS = {
    "web_fetch": (*_CONFIG_FIELDS, *LISTS, "max_content_tokens", "url_sources"),
    "web_search": (*_CONFIG_FIELDS, *LISTS, "user_location"),
}
_LOCATION_FIELDS = {"city": 255, "region": 255, "timezone": 255}

Tool = dict[str, Any]
Server = dict[str, Any]


def validate_tools(value: Any, field: str = "tools") -> list[Tool]:
    """The stored form of a `tools` array; null is an empty one."""
    tools: list[Tool] = []
    names: dict[str, str] = {}
    toolset_at: str | None = None
    for index, entry in enumerate(shape.entries(value, field, maximum=MAX_TOOLS)):
        path = f"{field}.{index}"
        if not isinstance(entry, dict):
            raise InvalidRequest(f"{path} must be an object.", field=path)
        kind = shape.one_of(entry.get("type"), f"{path}.type", TOOL_TYPES)
        if kind == "custom":
            _add_custom(tools, names, path, validate_custom_tool(entry, path, reserved=BUILT_IN_TOOLS))
        elif kind == "custom_toolset":
            for origin, tool in flatten_custom_toolset(entry, path, reserved=BUILT_IN_TOOLS):
                _add_custom(tools, names, origin, tool)
        elif kind == "mcp_toolset":
            tools.append(_mcp_toolset(entry, path))
        elif toolset_at:
            raise InvalidRequest(f"{path} declares the built-in toolset again; {toolset_at} does already.", field=path)
        else:
            toolset_at = path
            tools.append(_built_in_toolset(entry, path))
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"{field} has {len(tools)} tools; at most {MAX_TOOLS} are accepted.", field=field)
    return tools


def check_mcp_consistency(tools: list[Tool], servers: list[Server]) -> None:
    """Refuses a toolset without its server and a server that no toolset binds; both name the entry."""
    declared = {server["name"] for server in servers}
    bound: set[str] = set()
    for tool in tools:
        if tool["type"] != "mcp_toolset":
            continue
        name = tool["mcp_server_name"]
        if name not in declared:
            raise McpServerMismatch(
                f"tools has an mcp_toolset for the server {name}, which mcp_servers does not declare.",
                field="tools",
                mcp_server_name=name,
            )
        bound.add(name)
    for index, server in enumerate(servers):
        if server["name"] not in bound:
            raise McpServerMismatch(
                f"mcp_servers.{index} declares {server['name']}, but no mcp_toolset in tools binds it.",
                field=f"mcp_servers.{index}",
                mcp_server_name=server["name"],
            )


def _add_custom(tools: list[Tool], names: dict[str, str], path: str, tool: Tool) -> None:
    earlier = names.setdefault(tool["name"], path)
    if earlier != path:
        raise InvalidRequest(f"{path}.name repeats {tool['name']}, which {earlier} declares.", field=f"{path}.name")
    tools.append(tool)


def _built_in_toolset(entry: Tool, path: str) -> Tool:
    shape.known_only(entry, path, ("type", "configs", "default_config"))
    default = _default_config(entry.get("default_config"), f"{path}.default_config", "always_allow")
    configs: list[Tool] = []
    for config_path, config in _configs(entry, path):
        name = config.get("name")
        if not isinstance(name, str) or name not in BUILT_IN_TOOLS:
            raise InvalidRequest(
                f"{config_path}.name must be one of {', '.join(BUILT_IN_TOOLS)}.", field=f"{config_path}.name"
            )
        if config.get("type") not in (None, name):
            raise InvalidRequest(f"{config_path}.type must be {name}, as its name.", field=f"{config_path}.type")
        configs.append(_built_in_config(config, config_path, name, default))
    return {"type": BUILT_IN_TOOLSET, "default_config": default, "configs": _distinct(configs, f"{path}.configs")}


def _built_in_config(config: Tool, path: str, name: str, default: Tool) -> Tool:
    shape.known_only(config, path, _WEB_CONFIG_FIELDS.get(name, _CONFIG_FIELDS))
    stored = {"type": name, "name": name} | _governance(config, path, default)
    if name in _WEB_CONFIG_FIELDS:
        stored |= validate_domain_lists(config, path, path_suffix=name == "web_search")
        stored |= _web_options(config, path)
    return stored


def _web_options(config: Tool, path: str) -> Tool:
    options: Tool = {}
    if config.get("max_content_tokens") is not None:
        options["max_content_tokens"] = shape.whole(
            config["max_content_tokens"], f"{path}.max_content_tokens", minimum=1, maximum=MAX_CONTENT_TOKENS
        )
    if config.get("url_sources") is not None:
        raise UnsupportedCapability(
            f"{path}.url_sources can't be honoured by this build; leave it out.", field=f"{path}.url_sources"
        )
    if config.get("user_location") is not None:
        options["user_location"] = _user_location(config["user_location"], f"{path}.user_location")
    return options


def _user_location(value: Any, field: str) -> Tool:
    shape.mapping(value, field, ("type", "country", *_LOCATION_FIELDS))
    location: Tool = {"type": shape.one_of(value.get("type"), f"{field}.type", ("approximate",))}
    for name, maximum in _LOCATION_FIELDS.items():
        if value.get(name) is not None:
            location[name] = shape.label(value[name], f"{field}.{name}", maximum=maximum)
    country = value.get("country")
    if country is not None:
        if not (isinstance(country, str) and len(country) == 2 and country.isascii() and country.isupper()):
            raise InvalidRequest(f"{field}.country must be two upper-case letters.", field=f"{field}.country")
        location["country"] = country
    return location


def _mcp_toolset(entry: Tool, path: str) -> Tool:
    shape.known_only(entry, path, ("type", "mcp_server_name", "configs", "default_config"))
    server = shape.label(entry.get("mcp_server_name"), f"{path}.mcp_server_name", maximum=MAX_SERVER_NAME_CHARACTERS)
    default = _default_config(entry.get("default_config"), f"{path}.default_config", "always_ask")
    configs: list[Tool] = []
    for config_path, config in _configs(entry, path):
        shape.known_only(config, config_path, ("name", "enabled", "permission_policy"))
        name = shape.label(config.get("name"), f"{config_path}.name", maximum=MAX_MCP_TOOL_NAME_CHARACTERS)
        configs.append({"name": name} | _governance(config, config_path, default))
    return {
        "type": "mcp_toolset",
        "mcp_server_name": server,
        "default_config": default,
        "configs": _distinct(configs, f"{path}.configs"),
    }


def _configs(entry: Tool, path: str) -> list[tuple[str, Tool]]:
    found: list[tuple[str, Tool]] = []
    for index, config in enumerate(shape.entries(entry.get("configs"), f"{path}.configs", maximum=MAX_CONFIGS)):
        config_path = f"{path}.configs.{index}"
        if not isinstance(config, dict):
            raise InvalidRequest(f"{config_path} must be an object.", field=config_path)
        found.append((config_path, config))
    return found


def _distinct(configs: list[Tool], field: str) -> list[Tool]:
    seen: set[str] = set()
    for index, config in enumerate(configs):
        if config["name"] in seen:
            path = f"{field}.{index}.name"
            raise InvalidRequest(f"{path} repeats {config['name']}; each tool is configured once.", field=path)
        seen.add(config["name"])
    return configs


def _default_config(value: Any, field: str, policy: str) -> Tool:
    default = {"enabled": True, "permission_policy": {"type": policy}}
    if value is None:
        return default
    return _governance(shape.mapping(value, field, ("enabled", "permission_policy")), field, default)


def _governance(config: Tool, field: str, default: Tool) -> Tool:
    enabled, policy = config.get("enabled"), config.get("permission_policy")
    return {
        "enabled": default["enabled"] if enabled is None else shape.flag(enabled, f"{field}.enabled"),
        "permission_policy": default["permission_policy"]
        if policy is None
        else _permission_policy(policy, f"{field}.permission_policy"),
    }


def _permission_policy(value: Any, field: str) -> Tool:
    """A policy as an object or as its bare name; the object is what is stored."""
    kind = shape.mapping(value, field, ("type",)).get("type") if isinstance(value, dict) else value
    if not isinstance(kind, str) or kind not in POLICIES:
        raise InvalidRequest(
            f"{field}.type must be one of {', '.join(POLICIES)}. To forbid a tool, set enabled to false.",
            field=f"{field}.type",
        )
    return {"type": kind}

"""The MCP servers that an agent declares: by URL, as published, or as a process of the session's sandbox.

A process is ours alone to offer: `{type: stdio, name, command, args?, env?}`. Its secrets belong into a vault; what
stands in `env` is read back as it was written.
"""

import re
from typing import Any
from urllib.parse import SplitResult, urlsplit

from services.sessions.domain import shape
from services.sessions.domain.session_errors import InvalidRequest

KINDS = ("url", "stdio")
MAX_SERVERS = 20
MAX_NAME_CHARACTERS = 255
MAX_URL_CHARACTERS = 2048
MAX_COMMAND_CHARACTERS = 1024
MAX_ARGS = 64
MAX_ARG_CHARACTERS = 4096
MAX_VARIABLES = 64
MAX_VARIABLE_NAME_CHARACTERS = 128
MAX_VARIABLE_CHARACTERS = 8192

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Server = dict[str, Any]


def validate_mcp_servers(value: Any, field: str = "mcp_servers") -> list[Server]:
    """The stored form of an `mcp_servers` array; null is an empty one."""
    servers: list[Server] = []
    names: dict[str, str] = {}
    for index, entry in enumerate(shape.entries(value, field, maximum=MAX_SERVERS)):
        path = f"{field}.{index}"
        if not isinstance(entry, dict):
            raise InvalidRequest(f"{path} must be an object.", field=path)
        kind = "url" if entry.get("type") is None else shape.one_of(entry["type"], f"{path}.type", KINDS)
        server = _by_url(entry, path) if kind == "url" else _as_process(entry, path)
        name = server["name"]
        earlier = names.setdefault(name, path)
        if earlier != path:
            raise InvalidRequest(
                f"{path}.name repeats {name}, which {earlier} has; names of MCP servers are unique within an agent.",
                field=f"{path}.name",
            )
        servers.append(server)
    return servers


def _by_url(entry: Server, path: str) -> Server:
    shape.known_only(entry, path, ("name", "type", "url"))
    return {"name": _name(entry, path), "type": "url", "url": _url(entry.get("url"), f"{path}.url")}


def _as_process(entry: Server, path: str) -> Server:
    shape.known_only(entry, path, ("name", "type", "command", "args", "env"))
    name = _name(entry, path)
    command = shape.label(entry.get("command"), f"{path}.command", maximum=MAX_COMMAND_CHARACTERS)
    args = shape.entries(entry.get("args"), f"{path}.args", maximum=MAX_ARGS)
    for place, argument in enumerate(args):
        shape.text(argument, f"{path}.args.{place}", maximum=MAX_ARG_CHARACTERS)
    return {
        "name": name,
        "type": "stdio",
        "command": command,
        "args": args,
        "env": _environment(entry.get("env"), f"{path}.env"),
    }


def _environment(value: Any, field: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MAX_VARIABLES:
        raise InvalidRequest(f"{field} must be an object of at most {MAX_VARIABLES} variables.", field=field)
    for name, text in value.items():
        if len(name) > MAX_VARIABLE_NAME_CHARACTERS or not _VARIABLE.fullmatch(name):
            raise InvalidRequest(
                f"{field}.{shape.shown(name)} is no name of an environment variable: letters, digits and _, of which"
                " the first is no digit.",
                field=field,
            )
        shape.text(text, f"{field}.{name}", maximum=MAX_VARIABLE_CHARACTERS)
    return dict(value)


def _name(entry: Server, path: str) -> str:
    return shape.label(entry.get("name"), f"{path}.name", maximum=MAX_NAME_CHARACTERS)


def _url(value: Any, field: str) -> str:
    shape.text(value, field, minimum=1, maximum=MAX_URL_CHARACTERS)
    parts = _split(value)
    if parts is None or any(character.isspace() or ord(character) < 32 for character in value):
        raise InvalidRequest(f"{field} must be an http or https address with a host.", field=field)
    if parts.username is not None or parts.password is not None:
        raise InvalidRequest(f"{field} must not carry credentials; they belong into a vault.", field=field)
    return value


def _split(value: str) -> SplitResult | None:
    try:
        parts = urlsplit(value)
        reachable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if reachable else None

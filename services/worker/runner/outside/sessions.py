"""Self-hosted sessions whose workers serve the session as a whole (worker protocol `session`).

The runner runs none of the tools that need a machine: a call is written into the log for the worker, the turn waits
for it, and the worker answers with a `user.tool_result`. What the model is told of the tools and of where things are is
what holds on such a worker's machine: the published shapes, and the places where the published worker puts skills and
memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import orjson

from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.models.base import ToolDefinition
from services.worker.tools import ShellUnavailable, ToolOutcome, limit_text

WORKER = "worker"
NOTE = (
    "Your tools run on a machine of the operator, in its work folder. Relative paths start there. Output that is longer"
    " than a tool shows is cut off."
)
_SKILLS_NOTE = (
    "You have skills: packages of instructions for certain tasks, each with a SKILL.md and further files beside it, in"
    " the folder `skills` of the work folder. When a task fits one, read its SKILL.md before you begin, and follow it."
    " Your skills:"
)
_MEMORY_NOTE = (
    "Memory stores are attached to this session as folders on that machine. What is in them outlives the session, and"
    " other sessions may read and change it too. Read what is there before you need it, and keep what should be"
    " remembered as small UTF-8 text files; changes are stored a little after they are made."
)
_PATH = {"type": "string", "minLength": 1, "maxLength": 4096}
# As the published toolset declares them.
_SHAPES: Mapping[str, tuple[str, Mapping[str, Any], Sequence[str]]] = {
    "bash": (
        "Run a command in a bash that stays open for the session: working directory, variables and functions are kept"
        " from call to call. Standard input is empty. A command ends after 120 seconds unless timeout_ms says"
        " otherwise. restart gives a new shell.",
        {
            "command": {
                "type": "string",
                "minLength": 1,
                "description": "The command; leave it out only with restart.",
            },
            "timeout_ms": {"type": "integer", "minimum": 0, "description": "Milliseconds after which it is ended."},
            "restart": {"type": "boolean", "description": "Start a new shell instead of running a command."},
        },
        (),
    ),
    "read": (
        "Read a file. The whole file comes back when it is at most 256 KiB; for a part of it give view_range.",
        {
            "file_path": _PATH,
            "view_range": {
                "type": "array",
                "items": {"type": "integer"},
                "minItems": 2,
                "maxItems": 2,
                "description": "First and last line, from 1, both included; a last line below 1 means the end.",
            },
        },
        ("file_path",),
    ),
    "write": (
        "Write a file, replacing what was there.",
        {"file_path": _PATH, "content": {"type": "string", "description": "The whole new content."}},
        ("file_path", "content"),
    ),
    "edit": (
        "Replace text in a file. old_string must match exactly and occur once, unless replace_all is true.",
        {
            "file_path": _PATH,
            "old_string": {"type": "string", "minLength": 1, "description": "The text to replace."},
            "new_string": {"type": "string", "description": "What to put in its place."},
            "replace_all": {"type": "boolean", "description": "Replace every occurrence."},
        },
        ("file_path", "old_string", "new_string"),
    ),
    "glob": (
        "List paths that match a pattern such as **/*.py, newest first. At most 200 are listed.",
        {
            "pattern": {"type": "string", "minLength": 1, "description": "A relative pattern."},
            "path": _PATH | {"description": "The folder to look in; the work folder by default."},
        },
        ("pattern",),
    ),
    "grep": (
        "Search file contents with a regular expression. Shows file:line:text.",
        {
            "pattern": {"type": "string", "minLength": 1, "description": "The expression."},
            "path": _PATH | {"description": "The file or folder to search; the work folder by default."},
        },
        ("pattern",),
    ),
}


def serves_sessions(grant: TurnGrant) -> bool:
    """Whether the tools of a turn are run by a worker that serves its session."""
    return b'"worker_protocol":"session"' in grant.environment_json


def described(built_in: Mapping[str, ToolDefinition]) -> dict[str, ToolDefinition]:
    """The built-in tools, as a model is told of them where such a worker runs them."""
    return {name: _described(tool) if name in _SHAPES else tool for name, tool in built_in.items()}


def prompt_notes(grant: TurnGrant) -> Sequence[str]:
    """What the worker brings along for the turn's agent, and where."""
    notes = [("\n".join((_SKILLS_NOTE, *skills)))] if (skills := list(_skills(grant))) else []
    return notes + ([("\n".join((_MEMORY_NOTE, *stores)))] if (stores := list(_stores(grant))) else [])


class NoSandbox:
    """Where tools would run: nowhere here."""

    async def run_tool(self, name: str, value: object) -> ToolOutcome:
        """Only a worker may."""
        return ToolOutcome(f"{name} runs on a worker's machine, never here; nothing was run.", is_error=True)

    def limit_output(self, text: str, *, is_error: bool = False) -> ToolOutcome:
        """Apply the contract for output that is too long; there is no file for the rest."""
        return limit_text(text, None, is_error=is_error)

    def interrupt(self) -> bool:
        """Nothing runs."""
        return False

    async def start_program(self, argv: Sequence[str], env: Mapping[str, str], line_bytes: int) -> NoReturn:
        """Workers hold no programs."""
        raise ShellUnavailable("workers of a self-hosted environment hold no programs")


def _described(tool: ToolDefinition) -> ToolDefinition:
    text, properties, required = _SHAPES[tool.name]
    schema = {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }
    return replace(tool, description=text, input_schema=schema, by_worker=True)


def _skills(grant: TurnGrant) -> Iterator[str]:
    document = grant.session.agent.document_json
    for skill in (orjson.loads(document) if document else {}).get("skills") or ():
        if skill.get("name"):
            yield f"- {skill['name']} (skills/{skill['name']}/SKILL.md): {skill.get('description') or ''}"


def _stores(grant: TurnGrant) -> Iterator[str]:
    for resource in orjson.loads(grant.session.resources_json or b"[]"):
        if resource.get("type") == "memory_store":
            access = "read only" if resource.get("access") == "read_only" else "read and write"
            name = resource.get("name") or resource["memory_store_id"]
            told = [f"- {resource.get('mount_path')}: the memory store {name!r}, {access}."]
            told += [f"  What it holds: {resource['description']}"] if resource.get("description") else []
            told += [f"  How to use it: {resource['instructions']}"] if resource.get("instructions") else []
            yield "\n".join(told)

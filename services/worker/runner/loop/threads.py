"""Threads, as a runner sees them.

A coordinator's turn has two tools for the agents of its roster. Their calls need nobody to run them: the service
starts the thread, or sends to it, in the transaction that logs the call, and writes the call's result when the thread
is idle. So the turn runs what else it has to run, then parks on them. It may crash or change hands meanwhile; the
threads are not concerned.

The turn of a thread is a turn like any other. It shares the sandbox of its session with a shell of its own, and says
in its log what it answers.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import orjson

from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.loop.calls import SEND_TO_THREAD, START_THREAD
from services.worker.runner.loop.context import Conversation
from services.worker.runner.loop.tools import Sandbox
from services.worker.runner.models.base import ToolDefinition
from services.worker.tools import VisibleRoot

MAX_MESSAGE_CHARACTERS = 100_000
_MESSAGE = {"type": "string", "minLength": 1, "maxLength": MAX_MESSAGE_CHARACTERS}
_START_TEXT = (
    "Put one of your agents to work in a thread of its own, and get its answer as the result. The agent knows nothing"
    " of this conversation: say in the message all that it needs. It works in the same files as you. Call this several"
    " times in one answer to have agents work side by side. Your agents:"
)
_SEND_TEXT = (
    "Send a further message to a thread that you started, and get its answer as the result. The agent remembers what"
    " was said in that thread."
)


class Sandboxes(Protocol):
    """Where sessions and their threads get their sandbox."""

    def session(
        self, session_id: str, environment: Mapping[str, Any], thread_id: str = "", roots: Sequence[VisibleRoot] = ()
    ) -> Sandbox:
        """The sandbox of a session; a thread has a shell of its own in it. `roots` are seen beside the usual ones."""
        ...


def tools_for(grant: TurnGrant) -> list[ToolDefinition]:
    """What a coordinator has beside its own tools. Threads have no threads."""
    if grant.root_session_id or b'"multiagent":{' not in grant.session.agent.document_json:
        return []
    multiagent = orjson.loads(grant.session.agent.document_json).get("multiagent") or {}
    roster = multiagent.get("agents") or []
    agents = [each for each in roster if each.get("type") == "agent"]
    return _tools(agents) if agents else []


def _tools(agents: Sequence[Mapping[str, Any]]) -> list[ToolDefinition]:
    names = [each["name"] for each in agents]
    labels = [each["name"] if names.count(each["name"]) == 1 else each["id"] for each in agents]
    told = "\n".join(f"- {label}: {_about(agent)}" for label, agent in zip(labels, agents, strict=True))
    start = {"agent": {"type": "string", "enum": labels}, "message": _MESSAGE}
    send = {"thread_id": {"type": "string"}, "message": _MESSAGE}
    return [
        ToolDefinition(START_THREAD, f"{_START_TEXT}\n{told}", _schema(start)),
        ToolDefinition(SEND_TO_THREAD, _SEND_TEXT, _schema(send)),
    ]


def _about(agent: Mapping[str, Any]) -> str:
    return agent.get("description") or agent["name"]


def _schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def answer_of(grant: TurnGrant, conversation: Conversation) -> dict[str, Any] | None:
    """What a thread sends to the one that made it, when it is done; None where there is nothing to send."""
    content = conversation.said()
    if not grant.parent_thread_id or not content:
        return None
    return {"to_session_thread_id": grant.parent_thread_id, "content": content}


def sandbox_for(sandboxes: Sandboxes, grant: TurnGrant, roots: Sequence[VisibleRoot] = ()) -> Sandbox:
    """Where the tools of a turn run."""
    environment = orjson.loads(grant.environment_json or b"{}")
    extra: dict[str, Any] = {"roots": roots} if roots else {}
    if not grant.root_session_id:
        return sandboxes.session(grant.session.id, environment, **extra)
    return sandboxes.session(grant.root_session_id, environment, grant.session.id, **extra)

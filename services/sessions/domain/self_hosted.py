"""What a session can't have where an operator's workers run its tools. Pure.

A worker of the tool protocol does single executions, so nothing can be laid into its folder or its shell. One of the
session protocol brings memory stores and skills along by itself. Programs, files, repositories and variables of vaults
are nowhere on a worker's machine. What can't be there is refused before anything is written, and never left out.
"""

from collections.abc import Iterator
from typing import Any

from services.sessions.domain.environment import SELF_HOSTED, ResolvedEnvironment
from services.sessions.domain.resources import MEMORY_STORE, ResourceRequest
from services.sessions.domain.session import NewSession
from services.sessions.domain.session_errors import UnsupportedCapability

SESSION_PROTOCOL = "session"

Document = dict[str, Any]


def refuse_session(environment: ResolvedEnvironment, document: Document, new: NewSession) -> None:
    """Refuses a new session that asks for what its workers can't give."""
    if environment.sandbox_provider != SELF_HOSTED:
        return
    protocol = environment.worker_protocol
    refuse_agent(environment.sandbox_provider, protocol, document)
    for request in new.resources:
        refuse_resource(environment.sandbox_provider, protocol, request)
    for at, vault_id in enumerate(new.vault_ids):
        if vault_id in new.vaults_with_variables:
            raise _refusal(
                f"vault_ids.{at}",
                f"{vault_id} holds environment_variable credentials, which can't be given to the shell of a worker",
                "environment_variable",
            )


def refuse_agent(provider: str, protocol: str | None, document: Document) -> None:
    """Refuses an agent, or one of its roster, that needs what the workers of the environment can't give."""
    if provider != SELF_HOSTED:
        return
    for path, agent in _agents(document):
        for at, server in enumerate(agent.get("mcp_servers") or ()):
            if server.get("type") == "stdio":
                raise _refusal(
                    f"{path}.mcp_servers.{at}",
                    f"{server['name']} is a program, which workers don't hold; name an MCP server by its URL",
                    "mcp_stdio",
                )
        if agent.get("skills") and protocol != SESSION_PROTOCOL:
            raise _refusal(f"{path}.skills", "skills can't be put on a worker's machine by the tool protocol", "skills")


def refuse_resource(provider: str, protocol: str | None, request: ResourceRequest) -> None:
    """Refuses what can't be attached to a session of the environment."""
    if provider != SELF_HOSTED or (request.kind == MEMORY_STORE and protocol == SESSION_PROTOCOL):
        return
    field = f"{request.field}.type" if request.field else "type"
    raise _refusal(field, f"a {request.kind} can't be put on a worker's machine", request.kind)


def _agents(document: Document) -> Iterator[tuple[str, Document]]:
    yield "agent", document
    for at, member in enumerate((document.get("multiagent") or {}).get("agents") or ()):
        yield f"agent.multiagent.agents.{at}", member


def _refusal(field: str, why: str, capability: str) -> UnsupportedCapability:
    return UnsupportedCapability(
        f"{field}: {why}. Leave it out, or use an environment that is not self_hosted.",
        field=field,
        capability=capability,
    )

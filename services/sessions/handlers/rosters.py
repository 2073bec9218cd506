"""The roster of a new session's coordinator, with each agent as the session will run it.

A saved agent names its roster by ids and versions. A session shows the agents themselves, as
they were when it was made, and may start threads with nothing else; so what no runner can do
is refused here, for each of them as for the coordinator.
"""

from typing import Any

import orjson

from kit.postgres import Tx
from services.sessions.domain.overrides import refuse_unavailable, without_effort
from services.sessions.domain.session_errors import UnsupportedCapability
from services.sessions.store.agents import AgentStore

# What a session shows of an agent of its roster, beside its identity and model.
_SHOWN = (
    *("name", "description", "system", "tools", "mcp_servers", "skills", "execution_identity"),
    *("loop_engine", "loop_engine_options", "guardrails"),
)


async def with_roster(tx: Tx, document: dict[str, Any]) -> dict[str, Any]:
    """The document of a coordinator with its agents in place of their names."""
    multiagent = document["multiagent"]
    field = "agent.multiagent.agents"
    agents = [await _member(tx, entry, f"{field}.{at}") for at, entry in enumerate(multiagent["agents"])]
    return document | {"multiagent": multiagent | {"agents": agents}}


def models_of(model_id: str, document: dict[str, Any]) -> list[str]:
    """The models that a session may run: that of its agent, and those of the agents that it may put to work."""
    agents = (document.get("multiagent") or {}).get("agents") or []
    return [model_id, *(each["model"]["id"] for each in agents if "model" in each)]


async def _member(tx: Tx, entry: dict[str, Any], field: str) -> dict[str, Any]:
    saved = await AgentStore(tx).load_version(entry["id"], entry["version"])
    document: dict[str, Any] = orjson.loads(str(saved.document))
    # Rosters are one level deep: the coordinator itself, as one of its agents, has none.
    document.pop("multiagent", None)
    try:
        refuse_unavailable(document)
    except UnsupportedCapability as refusal:
        raise UnsupportedCapability(
            f"{field} can't be run: {refusal.message}", field=field, capability=refusal.metadata.get("capability", "")
        ) from None
    shown = {name: document[name] for name in _SHOWN if name in document}
    model = without_effort(orjson.loads(str(saved.model)))
    return {"type": "agent", "id": saved.id, "version": saved.version} | shown | {"model": model}

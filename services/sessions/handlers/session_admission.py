"""What a creation request refers to: looked up and judged before anything is written.

The order of refusals is the order of the request: agent, overrides, what the agent
needs, budget, environment, its sandbox.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Any

import orjson

from kit.ids import new_id
from kit.postgres import Tx
from services.sessions.domain import budget
from services.sessions.domain.environment import DEFAULT_ENVIRONMENT_ID, ResolvedEnvironment
from services.sessions.domain.overrides import apply_overrides, refuse_unavailable, without_effort
from services.sessions.domain.session import NewSession
from services.sessions.domain.session_errors import SandboxProviderNotRegistered
from services.sessions.store.agents import AgentStore
from services.sessions.store.environments import EnvironmentStore
from services.sessions.store.sessions import NewSessionRow


async def admit(
    tx: Tx, new: NewSession, now: datetime, *, workspace_provider: str, providers: Collection[str]
) -> NewSessionRow:
    """Returns the row of a session that may exist, or refuses it."""
    reference = new.agent
    agent = await AgentStore(tx).load_version(reference.agent_id, reference.version or 0)
    agent.require_active()
    document: dict[str, Any] = orjson.loads(agent.document)
    model_id = agent.model_id
    own_document = own_model = None
    if reference.overrides:
        document, model = apply_overrides(document, orjson.loads(agent.model), reference.overrides)
        own_document, own_model = orjson.dumps(document).decode(), orjson.dumps(without_effort(model)).decode()
        model_id = model["id"]
    refuse_unavailable(document)
    if new.has_budget:
        budget.refuse_at_creation(new.budget, model_id=model_id)
    environment = await _resolve_environment(tx, new.environment_id, workspace_provider, providers)
    return NewSessionRow(
        id=new_id("sess"),
        created_at=now,
        agent_id=agent.id,
        agent_version=agent.version,
        agent_document=own_document,
        agent_model=own_model,
        agent_name=document["name"],
        environment_id=new.environment_id,
        environment=environment.to_json(),
        title=new.title,
        metadata=orjson.dumps(new.metadata).decode(),
        loop_engine=new.loop_engine,
        thread_id=new_id("sthr"),
    )


async def _resolve_environment(
    tx: Tx, environment_id: str, workspace_provider: str, providers: Collection[str]
) -> ResolvedEnvironment:
    store = EnvironmentStore(tx)
    if environment_id == DEFAULT_ENVIRONMENT_ID:
        # It is never deleted, so it needs no lock, which all creations would meet at.
        environment = await store.load(environment_id)
    else:
        environment = await store.load_for_session(environment_id)
    environment.require_active()
    resolved = environment.resolve(workspace_provider)
    if resolved.sandbox_provider not in providers:
        raise SandboxProviderNotRegistered(
            f"Environment {environment_id} needs the sandbox provider {resolved.sandbox_provider}, which this build"
            f" does not have. Registered: {', '.join(sorted(providers))}.",
            field="environment_id",
            sandbox_provider=resolved.sandbox_provider,
        )
    return resolved

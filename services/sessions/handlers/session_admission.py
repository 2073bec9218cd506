"""What a creation request refers to: looked up and judged before anything is written.

The order of refusals is the order of the request: agent, overrides, what the agent
needs, budget, environment, its sandbox, resources.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from kit.ids import new_id
from kit.postgres import Tx
from services.sessions.domain import budget
from services.sessions.domain.agent import AgentVersion
from services.sessions.domain.cost import NOTHING_SPENT, Prices
from services.sessions.domain.environment import DEFAULT_ENVIRONMENT_ID, Environment, resolve_registered
from services.sessions.domain.loop_engine import (
    BUILTIN,
    EngineChoice,
    choice_of,
    frozen,
    refuse_budget,
    refuse_other_engines,
)
from services.sessions.domain.overrides import apply_overrides, refuse_unavailable, without_effort
from services.sessions.domain.self_hosted import refuse_session
from services.sessions.domain.session import NewSession
from services.sessions.domain.session_state import SessionState
from services.sessions.domain.web_search import refuse_search_in_session
from services.sessions.handlers.resource_admission import admit_resources
from services.sessions.handlers.rosters import models_of, with_roster
from services.sessions.handlers.session_skills import with_skills
from services.sessions.store.agents import AgentStore
from services.sessions.store.environments import EnvironmentStore
from services.sessions.store.origins import Origins
from services.sessions.store.session_row import SessionRow
from services.sessions.store.sessions import NewSessionRow, SavedAgent, SessionRecord


@dataclass(frozen=True, slots=True)
class Admitted:
    """A session that may exist, not stored yet."""

    row: NewSessionRow
    saved: SavedAgent
    # Secrets of its repositories, by resource id.
    tokens: Mapping[str, str]

    def state(self, workspace_id: str) -> SessionState:
        """Where it stands before anything happened to it."""
        return SessionState(
            workspace_id=workspace_id,
            id=self.row.id,
            thread_id=self.row.thread_id,
            agent_name=self.row.agent_name,
            updated_at=self.row.created_at,
            created_at=self.row.created_at,
            environment_id=self.row.environment_id,
            on_worker=self.row.on_worker,
            loop_engine=self.row.loop_engine,
            budget=self.row.budget,
        )

    def record(self, state: SessionState, outcomes: Sequence[dict[str, Any]] = ()) -> SessionRecord:
        """What a read of it would find once it stands in `state` and has declared these outcomes."""
        row = self.row
        return SessionRecord(
            SessionRow(
                workspace_id=state.workspace_id,
                id=row.id,
                created_at=row.created_at,
                revision=state.revision,
                agent_id=row.agent_id,
                agent_version=row.agent_version,
                agent_document=row.agent_document,
                agent_model=row.agent_model,
                agent_name=row.agent_name,
                environment_id=row.environment_id,
                environment=row.environment,
                title=row.title,
                metadata=row.metadata,
                resources=row.resources,
                vault_ids=row.vault_ids,
                loop_engine=row.loop_engine,
                loop_engine_options=row.loop_engine_options,
                deployment_id="",
                budget=row.budget,
                outcome_evaluations=orjson.dumps(outcomes).decode() if outcomes else "[]",
                thread_id=row.thread_id,
                archived_at=None,
                deleted_at=None,
                updated_at=state.updated_at,
                status=state.status,
                last_seq=state.last_seq,
                stop_reason=state.stop_reason,
                input_tokens=0,
                output_tokens=0,
                cache_read_input_tokens=0,
                cache_creation_5m_input_tokens=0,
                cache_creation_1h_input_tokens=0,
                active_seconds=0.0,
                running_since=state.running_since,
                spend=NOTHING_SPENT,
            ),
            self.saved,
        )


async def admit(
    tx: Tx,
    new: NewSession,
    now: datetime,
    *,
    workspace_provider: str,
    providers: Collection[str],
    prices: Prices,
    has_search: bool = False,
    default_engine: EngineChoice = BUILTIN,
) -> Admitted:
    """Returns a session that may exist, or refuses it."""
    agent, environment = await _origins(tx, new)
    agent.require_active()
    # Stored as text; the annotation is of what an agent is saved from.
    saved = SavedAgent(str(agent.document), str(agent.model), agent.model_id)
    document: dict[str, Any] = orjson.loads(agent.document)
    model_id = agent.model_id
    own_document = own_model = None
    if new.agent.overrides:
        document, model = apply_overrides(document, orjson.loads(agent.model), new.agent.overrides)
        own_document, own_model = orjson.dumps(document).decode(), orjson.dumps(without_effort(model)).decode()
        model_id = model["id"]
    refuse_unavailable(document)
    if document.get("multiagent"):
        document = await with_roster(tx, document)
        own_document = orjson.dumps(document).decode()
    if not has_search:
        refuse_search_in_session(document)
    if (resolved_document := await with_skills(tx, document)) is not document:
        document = resolved_document
        own_document = orjson.dumps(document).decode()
    engine = frozen(new.loop_engine, choice_of(document), default_engine)
    refuse_other_engines(engine, document)
    ceiling = budget.at_creation(new.budget, models_of(model_id, document), prices) if new.has_budget else None
    if ceiling is not None:
        refuse_budget(engine)
    if environment is None:
        environment = await _environment(tx, new.environment_id)
    environment.require_active()
    resolved = resolve_registered(environment.id, environment.config, workspace_provider, providers)
    refuse_session(resolved, document, new)
    session_id = new_id("sess")
    attached = await admit_resources(tx, session_id, new.resources, now)
    row = NewSessionRow(
        id=session_id,
        created_at=now,
        agent_id=agent.id,
        agent_version=agent.version,
        agent_document=own_document,
        agent_model=own_model,
        agent_name=document["name"],
        environment_id=environment.id,
        environment=resolved.to_json(),
        on_worker=resolved.worker_protocol == "session",
        title=new.title,
        metadata=orjson.dumps(new.metadata).decode(),
        loop_engine=engine.engine,
        loop_engine_options=engine.options_json(),
        thread_id=new_id("sthr"),
        budget=ceiling,
        vault_ids=orjson.dumps(new.vault_ids).decode() if new.vault_ids else "[]",
        resources=orjson.dumps(attached.resources).decode(),
    )
    return Admitted(row, saved, attached.tokens)


async def _origins(tx: Tx, new: NewSession) -> tuple[AgentVersion, Environment | None]:
    """The agent, and the environment where one read finds both."""
    if new.agent.version is None:
        found = await Origins(tx).newest(new.agent.agent_id, new.environment_id)
        if found is not None:
            return found
    return await AgentStore(tx).load_version(new.agent.agent_id, new.agent.version or 0), None


async def _environment(tx: Tx, environment_id: str) -> Environment:
    store = EnvironmentStore(tx)
    if environment_id == DEFAULT_ENVIRONMENT_ID:
        return await store.load(environment_id)
    return await store.load_for_session(environment_id)

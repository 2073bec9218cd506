"""A session's row as stored, for whoever renders a session.

The turn machinery reads a smaller part of it, `store/turns.py`.
"""

from datetime import datetime
from typing import NamedTuple

# The columns of SessionRow in the order of its fields.
SESSION_COLUMNS = (
    "workspace_id, id, created_at, revision, agent_id, agent_version, agent_document, agent_model, agent_name,"
    " environment_id, environment, title, metadata, resources, vault_ids, loop_engine, deployment_id, budget,"
    " outcome_evaluations, thread_id, archived_at, deleted_at, updated_at, status, last_seq, stop_reason,"
    " input_tokens, output_tokens, cache_read_input_tokens, cache_creation_5m_input_tokens,"
    " cache_creation_1h_input_tokens, active_seconds, running_since, spend, web_search_requests, web_fetch_requests,"
    " loop_engine_options, text_parts"
)


class SessionRow(NamedTuple):
    """One row of `sessions` without the inner state of its turn. A tuple, since listings make many of them."""

    workspace_id: str
    id: str
    created_at: datetime
    revision: int
    agent_id: str
    agent_version: int
    # Null where the session runs the agent's version as saved.
    agent_document: str | None
    agent_model: str | None
    agent_name: str
    environment_id: str
    environment: str
    title: str | None
    metadata: str
    resources: str
    vault_ids: str
    loop_engine: str
    deployment_id: str
    budget: str | None
    outcome_evaluations: str
    thread_id: str
    archived_at: datetime | None
    deleted_at: datetime | None
    updated_at: datetime
    status: str
    last_seq: int
    stop_reason: str
    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_5m_input_tokens: int
    cache_creation_1h_input_tokens: int
    active_seconds: float
    running_since: datetime | None
    # By model, as `domain/cost.py` writes it.
    spend: str
    web_search_requests: int = 0
    web_fetch_requests: int = 0
    # Null for an engine without options.
    loop_engine_options: str | None = None
    # Whether what the model says goes into the log in parts.
    text_parts: bool = False

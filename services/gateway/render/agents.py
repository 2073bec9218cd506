"""Public JSON of an agent: `model` is the bare id locally, an object in the published shape."""

from __future__ import annotations

import orjson

from managed_agents.sessions.v1.agents_pb2 import Agent

from .engines import without_engine_secrets
from .splice import members, object_of, text, text_or_null


def render_agent(agent: Agent, *, published: bool) -> bytes:
    """One version of an agent."""
    model = b'"model":' + (_published_model(agent.model_json) if published else text(agent.model_id))
    return object_of(
        (
            b'"id":%b,"type":"agent"' % text(agent.id),
            members(without_engine_secrets(agent.document_json)),
            model,
            b'"model_config":' + agent.model_json,
            b'"status":"archived"' if agent.archived_at else b'"status":"active"',
            b'"version":%d' % agent.version,
            b'"created_at":%b,"updated_at":%b' % (text(agent.created_at), text(agent.updated_at)),
            b'"archived_at":' + text_or_null(agent.archived_at),
        )
    )


def _published_model(model_json: bytes) -> bytes:
    # The published type knows two speeds; a local third one is left out rather than renamed.
    if b'"extended"' not in model_json:
        return model_json
    model = orjson.loads(model_json)
    if model.get("speed") == "extended":
        del model["speed"]
    return orjson.dumps(model)


def render_session_agent(agent: Agent, *, published: bool) -> bytes:
    """The agent as a session runs it: a version without the state of its resource, its roster with the agents."""
    return object_of(
        (
            b'"id":%b,"type":"agent","version":%d' % (text(agent.id), agent.version),
            members(without_engine_secrets(_with_roster(agent.document_json, published=published))),
            b'"model":' + (_published_model(agent.model_json) if published else text(agent.model_id)),
            b'"model_config":' + agent.model_json,
        )
    )


def _with_roster(document_json: bytes, *, published: bool) -> bytes:
    """The document of an agent whose roster holds agents: each shows its model as the agent itself does."""
    if b'"multiagent":{' not in document_json:
        return document_json
    document = orjson.loads(document_json)
    for member in (document.get("multiagent") or {}).get("agents") or ():
        if "model" not in member:
            continue
        member["model_config"] = model = member["model"]
        member["model"] = orjson.loads(_published_model(orjson.dumps(model))) if published else model["id"]
    return orjson.dumps(document)

"""Agents and their versions."""

from __future__ import annotations

from managed_agents.sessions.v1 import agents_pb2 as pb
from managed_agents.sessions.v1.common_pb2 import Page

from ..operation import Call, Operation, flag, integer, limit, page, timestamp
from ..render.agents import render_agent
from ..render.splice import collection
from ..schemas.agents import Agent, AgentCreate, AgentPage, AgentUpdate

TAG = "Agents"


async def create_agent(call: Call) -> bytes:
    """POST /v1/agents."""
    request = pb.CreateAgentRequest(definition_json=call.raw_body, idempotency=call.idempotency())
    answer = await call.ask(call.clients.agents.CreateAgent, request)
    return render_agent(answer.agent, published=call.published)


async def get_agent(call: Call) -> bytes:
    """GET /v1/agents/{agent_id}."""
    request = pb.GetAgentRequest(agent_id=call.path["agent_id"], version=call.query["version"] or 0)
    answer = await call.ask(call.clients.agents.GetAgent, request)
    return render_agent(answer.agent, published=call.published)


async def update_agent(call: Call) -> bytes:
    """POST and PUT /v1/agents/{agent_id}."""
    request = pb.UpdateAgentRequest(
        agent_id=call.path["agent_id"], patch_json=call.raw_body, idempotency=call.idempotency()
    )
    answer = await call.ask(call.clients.agents.UpdateAgent, request)
    return render_agent(answer.agent, published=call.published)


async def list_agents(call: Call) -> bytes:
    """GET /v1/agents."""
    query = call.query
    request = pb.ListAgentsRequest(
        page=Page(limit=query["limit"], cursor=query["page"]),
        include_archived=query["include_archived"],
        created_at_gte=query["created_at[gte]"],
        created_at_lte=query["created_at[lte]"],
    )
    answer = await call.ask(call.clients.agents.ListAgents, request)
    return collection([render_agent(each, published=call.published) for each in answer.agents], answer.page_info)


async def list_agent_versions(call: Call) -> bytes:
    """GET /v1/agents/{agent_id}/versions."""
    request = pb.ListAgentVersionsRequest(
        agent_id=call.path["agent_id"], page=Page(limit=call.query["limit"], cursor=call.query["page"])
    )
    answer = await call.ask(call.clients.agents.ListAgentVersions, request)
    return collection([render_agent(each, published=call.published) for each in answer.agents], answer.page_info)


async def archive_agent(call: Call) -> bytes:
    """POST /v1/agents/{agent_id}/archive."""
    request = pb.ArchiveAgentRequest(agent_id=call.path["agent_id"])
    answer = await call.ask(call.clients.agents.ArchiveAgent, request)
    return render_agent(answer.agent, published=call.published)


def _update(method: str) -> Operation:
    return Operation(
        method,
        "/v1/agents/{agent_id}",
        update_agent,
        tag=TAG,
        summary="Save a new agent version",
        description="A partial definition is merged; where nothing changes, no version is written.",
        body=AgentUpdate,
        response=Agent,
        idempotent_write=True,
    )


OPERATIONS = (
    Operation(
        "GET",
        "/v1/agents",
        list_agents,
        tag=TAG,
        summary="List agents, newest first",
        query=(
            limit(),
            page(),
            flag("include_archived", description="Archived agents too."),
            timestamp("created_at[gte]", description="Created at or after."),
            timestamp("created_at[lte]", description="Created at or before."),
        ),
        response=AgentPage,
    ),
    Operation(
        "POST",
        "/v1/agents",
        create_agent,
        tag=TAG,
        summary="Create an agent",
        body=AgentCreate,
        response=Agent,
        idempotent_write=True,
    ),
    Operation(
        "GET",
        "/v1/agents/{agent_id}",
        get_agent,
        tag=TAG,
        summary="Retrieve an agent",
        query=(integer("version", minimum=1, maximum=2_147_483_647, description="Newest where left out."),),
        response=Agent,
    ),
    _update("POST"),
    _update("PUT"),
    Operation(
        "GET",
        "/v1/agents/{agent_id}/versions",
        list_agent_versions,
        tag=TAG,
        summary="List the versions of an agent, newest first",
        query=(limit(), page()),
        response=AgentPage,
    ),
    Operation(
        "POST",
        "/v1/agents/{agent_id}/archive",
        archive_agent,
        tag=TAG,
        summary="Archive an agent for good",
        response=Agent,
    ),
)

"""Which version of an agent the session gateway runs."""

from __future__ import annotations

import orjson

from managed_agents.sessions.v1 import gateway_pb2 as pb

from ..operation import Call, Operation
from ..schemas.gateway import Publication, Publish
from .agents import TAG

PATH = "/v1/agents/{agent_id}/publish"


async def publish_agent(call: Call) -> bytes:
    """POST /v1/agents/{agent_id}/publish."""
    request = pb.PublishAgentRequest(agent_id=call.path["agent_id"], version=call.body.version or 0)
    return _rendered((await call.ask(call.clients.gateway.PublishAgent, request)).publication)


async def get_publication(call: Call) -> bytes:
    """GET /v1/agents/{agent_id}/publish."""
    request = pb.GetPublicationRequest(agent_id=call.path["agent_id"])
    return _rendered((await call.ask(call.clients.gateway.GetPublication, request)).publication)


def _rendered(publication: pb.Publication) -> bytes:
    return orjson.dumps(
        {
            "type": "agent_publication",
            "agent_id": publication.agent_id,
            "version": publication.version,
            "published_at": publication.published_at or None,
            "published_by": publication.published_by or None,
        }
    )


OPERATIONS = (
    Operation(
        "POST",
        PATH,
        publish_agent,
        tag=TAG,
        summary="Publish a version of an agent",
        description="The session gateway runs it from the next run on. An extension of this platform.",
        body=Publish,
        response=Publication,
        optional_body=True,
    ),
    Operation(
        "GET",
        PATH,
        get_publication,
        tag=TAG,
        summary="Tell which version of an agent is published",
        description="The newest one, for as long as none was published.",
        response=Publication,
    ),
)

"""Environments."""

from __future__ import annotations

from managed_agents.sessions.v1 import environments_pb2 as pb
from managed_agents.sessions.v1.common_pb2 import Page

from ..operation import Call, Operation, flag, limit, page
from ..render.environments import render_deleted_environment, render_environment
from ..render.splice import collection
from ..schemas.environments import (
    Environment,
    EnvironmentCreate,
    EnvironmentDeleted,
    EnvironmentPage,
    EnvironmentUpdate,
)

TAG = "Environments"


async def create_environment(call: Call) -> bytes:
    """POST /v1/environments."""
    request = pb.CreateEnvironmentRequest(definition_json=call.raw_body, idempotency=call.idempotency())
    answer = await call.ask(call.clients.environments.CreateEnvironment, request)
    return render_environment(answer.environment)


async def get_environment(call: Call) -> bytes:
    """GET /v1/environments/{environment_id}."""
    request = pb.GetEnvironmentRequest(environment_id=call.path["environment_id"])
    answer = await call.ask(call.clients.environments.GetEnvironment, request)
    return render_environment(answer.environment)


async def update_environment(call: Call) -> bytes:
    """POST and PUT /v1/environments/{environment_id}."""
    request = pb.UpdateEnvironmentRequest(environment_id=call.path["environment_id"], patch_json=call.raw_body)
    answer = await call.ask(call.clients.environments.UpdateEnvironment, request)
    return render_environment(answer.environment)


async def list_environments(call: Call) -> bytes:
    """GET /v1/environments."""
    request = pb.ListEnvironmentsRequest(
        page=Page(limit=call.query["limit"], cursor=call.query["page"]),
        include_archived=call.query["include_archived"],
    )
    answer = await call.ask(call.clients.environments.ListEnvironments, request)
    return collection([render_environment(each) for each in answer.environments], answer.page_info)


async def archive_environment(call: Call) -> bytes:
    """POST /v1/environments/{environment_id}/archive."""
    request = pb.ArchiveEnvironmentRequest(environment_id=call.path["environment_id"])
    answer = await call.ask(call.clients.environments.ArchiveEnvironment, request)
    return render_environment(answer.environment)


async def delete_environment(call: Call) -> bytes:
    """DELETE /v1/environments/{environment_id}."""
    environment_id = call.path["environment_id"]
    request = pb.DeleteEnvironmentRequest(environment_id=environment_id)
    await call.ask(call.clients.environments.DeleteEnvironment, request)
    return render_deleted_environment(environment_id)


def _update(method: str) -> Operation:
    return Operation(
        method,
        "/v1/environments/{environment_id}",
        update_environment,
        tag=TAG,
        summary="Update an environment",
        description="A partial definition is merged; running sandboxes keep theirs.",
        body=EnvironmentUpdate,
        response=Environment,
    )


OPERATIONS = (
    Operation(
        "GET",
        "/v1/environments",
        list_environments,
        tag=TAG,
        summary="List environments, newest first",
        query=(limit(), page(), flag("include_archived", description="Archived environments too.")),
        response=EnvironmentPage,
    ),
    Operation(
        "POST",
        "/v1/environments",
        create_environment,
        tag=TAG,
        summary="Create an environment",
        body=EnvironmentCreate,
        response=Environment,
        idempotent_write=True,
    ),
    Operation(
        "GET",
        "/v1/environments/{environment_id}",
        get_environment,
        tag=TAG,
        summary="Retrieve an environment",
        description="A worker's key reads its own environment, which tells its workers their protocol.",
        response=Environment,
        workers=True,
    ),
    _update("POST"),
    _update("PUT"),
    Operation(
        "POST",
        "/v1/environments/{environment_id}/archive",
        archive_environment,
        tag=TAG,
        summary="Archive an environment for good",
        response=Environment,
    ),
    Operation(
        "DELETE",
        "/v1/environments/{environment_id}",
        delete_environment,
        tag=TAG,
        summary="Delete an unused environment",
        response=EnvironmentDeleted,
    ),
)

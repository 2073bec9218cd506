"""Resources of sessions."""

from __future__ import annotations

import orjson

from managed_agents.sessions.v1 import resources_pb2 as pb
from managed_agents.sessions.v1.common_pb2 import Page

from ..operation import Call, Operation, integer, page
from ..render.resources import render_resource, render_resources
from ..render.splice import collection
from ..schemas.resources import DeletedResource, Resource, ResourceAttach, ResourcePage, ResourceRotate

TAG = "Session resources"
PATH = "/v1/sessions/{session_id}/resources"


async def list_resources(call: Call) -> bytes:
    """GET /v1/sessions/{session_id}/resources."""
    request = pb.ListResourcesRequest(
        session_id=call.path["session_id"], page=Page(limit=call.query["limit"] or 0, cursor=call.query["page"])
    )
    answer = await call.ask(call.clients.resources.ListResources, request)
    return collection(render_resources(answer.resources_json, published=call.published), answer.page_info)


async def attach_resource(call: Call) -> bytes:
    """POST /v1/sessions/{session_id}/resources."""
    request = pb.AttachResourceRequest(
        session_id=call.path["session_id"], definition_json=call.raw_body, idempotency=call.idempotency()
    )
    answer = await call.ask(call.clients.resources.AttachResource, request)
    return render_resource(answer.resource_json, published=call.published)


async def get_resource(call: Call) -> bytes:
    """GET /v1/sessions/{session_id}/resources/{resource_id}."""
    request = pb.GetResourceRequest(session_id=call.path["session_id"], resource_id=call.path["resource_id"])
    answer = await call.ask(call.clients.resources.GetResource, request)
    return render_resource(answer.resource_json, published=call.published)


async def rotate_token(call: Call) -> bytes:
    """PATCH and POST /v1/sessions/{session_id}/resources/{resource_id}."""
    request = pb.RotateResourceTokenRequest(
        session_id=call.path["session_id"], resource_id=call.path["resource_id"], patch_json=call.raw_body
    )
    answer = await call.ask(call.clients.resources.RotateResourceToken, request)
    return render_resource(answer.resource_json, published=call.published)


async def detach_resource(call: Call) -> bytes:
    """DELETE /v1/sessions/{session_id}/resources/{resource_id}."""
    resource_id = call.path["resource_id"]
    request = pb.DetachResourceRequest(session_id=call.path["session_id"], resource_id=resource_id)
    await call.ask(call.clients.resources.DetachResource, request)
    return orjson.dumps({"id": resource_id, "type": "session_resource_deleted"})


def _rotate(method: str) -> Operation:
    return Operation(
        method,
        f"{PATH}/{{resource_id}}",
        rotate_token,
        tag=TAG,
        summary="Rotate the token of a repository",
        description="The next fetch uses it. Nothing else of a resource can change: attach another one instead.",
        body=ResourceRotate,
        response=Resource,
    )


OPERATIONS = (
    Operation(
        "GET",
        PATH,
        list_resources,
        tag=TAG,
        summary="List what is attached to a session, in position order",
        query=(integer("limit", minimum=1, maximum=1000, description="Page size; all of them without it."), page()),
        response=ResourcePage,
    ),
    Operation(
        "POST",
        PATH,
        attach_resource,
        tag=TAG,
        summary="Attach a file or a repository",
        description="A running session hears of it with its next model request.",
        body=ResourceAttach,
        response=Resource,
        idempotent_write=True,
    ),
    Operation(
        "GET",
        f"{PATH}/{{resource_id}}",
        get_resource,
        tag=TAG,
        summary="Retrieve a resource of a session",
        response=Resource,
    ),
    _rotate("PATCH"),
    _rotate("POST"),
    Operation(
        "DELETE",
        f"{PATH}/{{resource_id}}",
        detach_resource,
        tag=TAG,
        summary="Detach a resource from a session",
        description="Its file leaves the sandbox; what was cloned stays there. A memory store can't be detached.",
        response=DeletedResource,
    ),
)

"""Resources of sessions as bodies. Their rules are the sessions service's; here is only their form."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from .shapes import JUDGED, Page, Rendered, Shape

_ID = Annotated[str, Field(min_length=1, max_length=256)]
_Checkout = Annotated[
    Any,
    JUDGED,
    WithJsonSchema({"description": "Branch, tag or commit by name, or an object of type branch or commit."}),
]


class ResourceAttach(Shape):
    """A file or a repository. Memory stores are attached when a session is created."""

    model_config = ConfigDict(
        json_schema_extra={
            "required": ["type"],
            "examples": [{"type": "file", "file_id": "FILE_ID", "mount_path": "/data.csv"}],
        }
    )

    type: Annotated[Any, JUDGED, WithJsonSchema({"type": "string", "enum": ["file", "github_repository"]})] = None
    file_id: Annotated[Any, JUDGED, WithJsonSchema({"type": "string"})] = None
    url: Annotated[Any, JUDGED, WithJsonSchema({"type": "string", "format": "uri"})] = None
    authorization_token: Annotated[Any, JUDGED, WithJsonSchema({"type": "string", "writeOnly": True})] = None
    checkout: _Checkout = None
    mount_path: Annotated[Any, JUDGED, WithJsonSchema({"type": ["string", "null"]})] = None
    memory_store_id: Annotated[Any, JUDGED, WithJsonSchema({"type": "string", "deprecated": True})] = None
    access: Annotated[Any, JUDGED, WithJsonSchema({"type": "string", "deprecated": True})] = None
    instructions: Annotated[Any, JUDGED, WithJsonSchema({"type": "string", "deprecated": True})] = None


class ResourceRotate(Shape):
    """The one thing that can change about a resource."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={"required": ["authorization_token"], "examples": [{"authorization_token": "ghp_example"}]},
    )

    authorization_token: Annotated[Any, JUDGED, WithJsonSchema({"type": "string", "writeOnly": True})] = None


class Resource(Rendered):
    """One resource instance of a session; its token is never shown."""

    id: str
    type: Literal["file", "github_repository", "memory_store"]
    mount_path: str
    # Where it stands in the sandbox.
    sandbox_path: str
    created_at: str
    updated_at: str


class ResourcePage(Page):
    """Resources in position order."""

    data: list[Resource]


class DeletedResource(Rendered):
    """What is left of a detached resource."""

    id: str
    type: Literal["session_resource_deleted"]

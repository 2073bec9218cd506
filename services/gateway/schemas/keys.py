"""Shapes of API keys and worker keys."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from .shapes import Metadata, Page, Rendered, Shape

Name = Annotated[str, Field(min_length=1, max_length=128)]


class ApiKeyCreate(Shape):
    """A new API key."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "Local Console"}]})

    name: Name
    role: Literal["admin", "member", "read_only"] | None = None
    owner_name: Annotated[str, Field(max_length=128)] | None = None
    # Taken from administrators of the default workspace; a workspace begins with its first key.
    workspace_id: Annotated[str, Field(min_length=1, max_length=72)] | None = None


class ApiKey(Rendered):
    """A key without its secret."""

    id: str
    type: Literal["api_key"]
    name: str
    source: Literal["managed", "config_env"]
    key_prefix: str
    status: Literal["active"]
    role: Literal["admin", "member", "read_only"]
    owner_name: str | None
    workspace_id: str
    created_at: str | None
    updated_at: str | None
    last_used_at: str | None
    archived_at: str | None


class CreatedApiKey(ApiKey):
    """A key with its secret, which no later answer holds."""

    secret_key: str


class ApiKeyPage(Page):
    """A page of keys."""

    data: list[ApiKey]


class ApiKeyDeleted(Rendered):
    """What a deletion answers."""

    id: str
    type: Literal["api_key_deleted"]


class WorkerKeyCreate(Shape):
    """A new worker key."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "fde-laptop"}]})

    name: Annotated[str, Field(min_length=1, max_length=80)]
    expires_at: Annotated[str, Field(max_length=40)] | None = None
    metadata: Metadata | None = None


class WorkerKey(Rendered):
    """A worker key without its secret."""

    id: str
    type: Literal["worker_key"]
    environment_id: str
    name: str
    key_prefix: str
    status: Literal["active", "expired", "revoked"]
    metadata: dict[str, str]
    created_at: str
    updated_at: str
    expires_at: str | None
    last_seen_at: str | None
    revoked_at: str | None


class IssuedWorkerKey(WorkerKey):
    """A worker key with its secret, which no later answer holds."""

    secret_key: str


class WorkerKeyPage(Page):
    """A page of worker keys."""

    data: list[WorkerKey]

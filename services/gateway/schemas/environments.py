"""Shapes of environments: the flat local spelling and the canonical `config`, in one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from .shapes import JUDGED, Description, Label, Metadata, MetadataPatch, Page, Rendered, Shape

HOSTS = {"type": "array", "maxItems": 256, "items": {"type": "string", "minLength": 1, "maxLength": 255}}
NETWORK = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"enum": ["unrestricted", "limited"]},
        "allowed_hosts": HOSTS,
        "allow_mcp_server_network_access": {"type": "boolean"},
        "allow_package_manager_network_access": {"type": "boolean"},
    },
}
CONFIG = {
    "type": "object",
    "properties": {
        "type": {"enum": ["cloud", "self_hosted"]},
        "networking": {"type": ["object", "null"]},
        "packages": {"type": ["object", "array", "null"]},
    },
}
Config = Annotated[Any, JUDGED, WithJsonSchema({"anyOf": [CONFIG, {"type": "null"}]})]
Network = Annotated[Any, JUDGED, WithJsonSchema({"anyOf": [NETWORK, {"type": "null"}]})]
Packages = Annotated[Any, JUDGED, WithJsonSchema({"anyOf": [{"type": ["array", "object", "null"], "maxItems": 256}]})]
MAX_WORD_LENGTH = 256
NAME = {"type": "string", "minLength": 1, "maxLength": MAX_WORD_LENGTH}


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_WORD_LENGTH:
        raise PydanticCustomError("string_too_long", "too long", {"max_length": MAX_WORD_LENGTH})
    return value


Word = Annotated[Any, JUDGED, AfterValidator(_short), WithJsonSchema({"anyOf": [NAME, {"type": "null"}]})]


class _Definition(Shape):
    description: Description | None = None
    config: Config = None
    hosting_type: Word = None
    sandbox_provider: Word = None
    network: Network = None
    packages: Packages = None
    worker_protocol: Literal["tool", "session"] | None = None
    scope: Literal["organization", "account"] | None = None


class EnvironmentCreate(_Definition):
    """A new environment."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "local-dev", "hosting_type": "local"}]})

    name: Label
    metadata: Metadata | None = None


class EnvironmentUpdate(_Definition):
    """A partial definition: what is left out stays, metadata merges."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"description": "For the local machine"}]})

    name: Annotated[str, Field(max_length=256)] | None = None
    metadata: MetadataPatch | None = None


class Environment(Rendered):
    """Where sessions run."""

    id: str
    type: Literal["environment"]
    name: str
    description: str | None
    metadata: dict[str, str]
    config: dict[str, Any] | None
    hosting_type: str
    sandbox_provider: str | None
    status: Literal["active", "archived"]
    scope: str | None
    created_at: str
    updated_at: str
    archived_at: str | None


class EnvironmentPage(Page):
    """A page of environments."""

    data: list[Environment]


class EnvironmentDeleted(Rendered):
    """What a deletion answers."""

    id: str
    type: Literal["environment_deleted"]

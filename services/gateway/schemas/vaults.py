"""Shapes of vaults, of their credentials in both spellings, and of the audit.

Vaults and credentials are judged by the vault; here is what they may look like at all. A
refusal of a shape never repeats a value, since any value in here may be a secret.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from .shapes import JUDGED, Page, Rendered, Shape

MAX_SECRET_CHARACTERS = 65_536
NAME = {"type": "string", "minLength": 1, "maxLength": 255}
PAIRS = {
    "type": "object",
    "maxProperties": 16,
    "propertyNames": {"minLength": 1, "maxLength": 64},
    "additionalProperties": {"type": "string", "maxLength": 512},
}
SECRET = {"type": "string", "minLength": 1, "maxLength": MAX_SECRET_CHARACTERS, "writeOnly": True}
URL = {"type": "string", "format": "uri", "maxLength": 2048}
NETWORKING = {
    "oneOf": [
        {
            "type": "object",
            "required": ["type"],
            "additionalProperties": False,
            "properties": {"type": {"const": "unrestricted"}},
        },
        {
            "type": "object",
            "required": ["type", "allowed_hosts"],
            "additionalProperties": False,
            "properties": {
                "type": {"const": "limited"},
                "allowed_hosts": {"type": "array", "maxItems": 16, "items": {"type": "string", "maxLength": 261}},
            },
        },
    ]
}
LOCATION = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"header": {"type": "boolean"}, "body": {"type": "boolean"}},
}
REFRESH = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "client_id": {"type": "string", "maxLength": 2048},
        "refresh_token": SECRET,
        "token_endpoint": URL,
        "token_endpoint_auth": {
            "type": "object",
            "required": ["type"],
            "additionalProperties": False,
            "properties": {
                "type": {"enum": ["none", "client_secret_basic", "client_secret_post"]},
                "client_secret": SECRET,
            },
        },
        "resource": {"type": ["string", "null"], "maxLength": 2048},
        "scope": {"type": ["string", "null"], "maxLength": 2048},
    },
}
AUTH = {
    "type": "object",
    "required": ["type"],
    "additionalProperties": False,
    "properties": {
        "type": {"enum": ["mcp_oauth", "static_bearer", "environment_variable"]},
        "mcp_server_url": URL,
        "access_token": SECRET,
        "expires_at": {"type": ["string", "null"], "format": "date-time"},
        "refresh": {"anyOf": [REFRESH, {"type": "null"}]},
        "token": SECRET,
        "secret_name": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$", "maxLength": 255},
        "secret_value": SECRET,
        "networking": {"anyOf": [NETWORKING, {"type": "null"}]},
        "injection_location": LOCATION,
    },
}


def _judged(schema: dict[str, Any], *, null: bool = True) -> Any:
    return Annotated[Any, JUDGED, WithJsonSchema({"anyOf": [schema, {"type": "null"}]} if null else schema)]


class VaultCreate(Shape):
    """A new vault, under either name of its label."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"display_name": "Deploy secrets"}]})

    display_name: _judged(NAME) = None  # type: ignore[valid-type]
    name: _judged(NAME) = None  # type: ignore[valid-type]
    metadata: _judged(PAIRS) = None  # type: ignore[valid-type]


class VaultUpdate(VaultCreate):
    """What to change of a vault: what is left out stays, metadata merges, null removes a key."""

    metadata: _judged({**PAIRS, "additionalProperties": {"type": ["string", "null"], "maxLength": 512}}) = None  # type: ignore[valid-type]


class Vault(Rendered):
    """A group of credentials."""

    id: str
    type: Literal["vault"]
    display_name: str
    name: str
    metadata: dict[str, str]
    status: Literal["active", "archived"]
    created_at: str
    updated_at: str
    archived_at: str | None


class VaultPage(Page):
    """A page of vaults."""

    data: list[Vault]


class VaultDeleted(Rendered):
    """What a deletion answers."""

    id: str
    type: Literal["vault_deleted"]


class CredentialUpdate(Shape):
    """What to change of a credential: what is left out stays. Its type and what it is found by never change."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"display_name": "Deploy key"}]})

    display_name: _judged(NAME) = None  # type: ignore[valid-type]
    name: _judged(NAME) = None  # type: ignore[valid-type]
    metadata: _judged({**PAIRS, "additionalProperties": {"type": ["string", "null"], "maxLength": 512}}) = None  # type: ignore[valid-type]
    auth: _judged(AUTH, null=False) = None  # type: ignore[valid-type]
    auth_type: _judged({"enum": ["mcp_oauth", "bearer_token", "environment_variable"]}) = None  # type: ignore[valid-type]
    mcp_server_url: _judged(URL) = None  # type: ignore[valid-type]
    variable_name: _judged(AUTH["properties"]["secret_name"]) = None  # type: ignore[valid-type,index]
    value: _judged(SECRET) = None  # type: ignore[valid-type]
    network: _judged(NETWORKING) = None  # type: ignore[valid-type]
    injection_locations: _judged(  # type: ignore[valid-type]
        {"type": "array", "maxItems": 16, "items": {"enum": ["request_headers", "request_body"]}}
    ) = None
    expires_at: _judged({"type": "string", "format": "date-time"}) = None  # type: ignore[valid-type]
    refresh: _judged(REFRESH) = None  # type: ignore[valid-type]


class CredentialCreate(CredentialUpdate):
    """A new credential: everything nested under `auth`, or the flat fields, never both."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "display_name": "Deploy key",
                    "auth": {
                        "type": "environment_variable",
                        "secret_name": "DEPLOY_KEY",
                        "secret_value": "an example",
                        "networking": {"type": "limited", "allowed_hosts": ["api.example.com"]},
                    },
                }
            ]
        }
    )

    metadata: _judged(PAIRS) = None  # type: ignore[valid-type]


class CredentialRotate(Shape):
    """A new secret."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"value": "an example", "actor": "operator"}]})

    value: Annotated[str, Field(min_length=1, max_length=MAX_SECRET_CHARACTERS)]
    actor: _judged(NAME) = None  # type: ignore[valid-type]
    metadata: _judged(PAIRS) = None  # type: ignore[valid-type]
    expires_at: _judged({"type": "string", "format": "date-time"}) = None  # type: ignore[valid-type]


class CredentialUse(Shape):
    """Who used it, and what for."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"actor": "operator"}]})

    actor: _judged(NAME) = None  # type: ignore[valid-type]
    metadata: _judged(PAIRS) = None  # type: ignore[valid-type]


class Credential(Rendered):
    """A stored secret without the secret, in both spellings."""

    id: str
    type: Literal["vault_credential"]
    vault_id: str
    display_name: str | None
    name: str | None
    auth: dict[str, Any]
    auth_type: Literal["mcp_oauth", "bearer_token", "environment_variable"]
    value_hint: str | None
    status: Literal["active", "archived"]
    metadata: dict[str, str]
    last_used_at: str | None
    rotated_at: str | None
    created_at: str
    updated_at: str
    archived_at: str | None


class CredentialPage(Page):
    """A page of credentials."""

    data: list[Credential]


class CredentialDeleted(Rendered):
    """What a deletion answers."""

    id: str
    type: Literal["vault_credential_deleted"]


class CredentialValidation(Rendered):
    """What the servers said of a credential."""

    type: Literal["vault_credential_validation"]
    credential_id: str
    vault_id: str
    status: Literal["valid", "invalid", "unknown"]
    has_refresh_token: bool
    mcp_probe: dict[str, Any] | None
    refresh: dict[str, Any] | None
    validated_at: str


class AuditEvent(Rendered):
    """One thing that happened to a credential."""

    id: str
    type: Literal["credential_audit_event"]
    vault_id: str
    credential_id: str
    action: str
    actor: str
    session_id: str | None
    metadata: dict[str, Any]
    created_at: str


class AuditPage(Page):
    """A page of audit events."""

    data: list[AuditEvent]

"""Public JSON of vaults, credentials and their audit.

The canonical and the flat spelling don't clash, so every answer holds both: `auth` nested
as it is written, and the flat fields beside it. No message that comes here has a secret.
"""

from __future__ import annotations

from typing import Any

import orjson

from managed_agents.vault.v1 import vaults_pb2 as pb

from .splice import object_of, raw, text, text_or_null

FLAT_TYPES = {"static_bearer": "bearer_token"}


def render_vault(vault: pb.Vault) -> bytes:
    """One vault."""
    return object_of(
        (
            b'"id":%b,"type":"vault"' % text(vault.id),
            b'"display_name":%b,"name":%b' % (text(vault.display_name), text(vault.display_name)),
            b'"metadata":' + raw(vault.metadata_json, b"{}"),
            *_times(vault),
        )
    )


def render_deleted_vault(vault_id: str) -> bytes:
    """What a deletion answers."""
    return b'{"id":%b,"type":"vault_deleted"}' % text(vault_id)


def render_credential(credential: pb.Credential) -> bytes:
    """One credential."""
    label = text(credential.display_name) if credential.HasField("display_name") else b"null"
    return object_of(
        (
            b'"id":%b,"type":"vault_credential","vault_id":%b' % (text(credential.id), text(credential.vault_id)),
            b'"display_name":%b,"name":%b' % (label, label),
            b'"auth":' + orjson.dumps(_auth(credential)),
            orjson.dumps(_flat(credential))[1:-1],
            b'"value_hint":' + text_or_null(credential.value_hint),
            b'"secret_version":%d' % credential.secret_version,
            b'"metadata":' + raw(credential.metadata_json, b"{}"),
            b'"last_used_at":%b,"rotated_at":%b'
            % (text_or_null(credential.last_used_at), text_or_null(credential.rotated_at)),
            *_times(credential),
            b'"warnings":' + orjson.dumps(list(credential.warnings)) if credential.warnings else b"",
        )
    )


def render_deleted_credential(credential_id: str) -> bytes:
    """What a deletion answers."""
    return b'{"id":%b,"type":"vault_credential_deleted"}' % text(credential_id)


def render_audit_event(event: pb.AuditEvent) -> bytes:
    """One audit event."""
    return object_of(
        (
            b'"id":%b,"type":"credential_audit_event"' % text(event.id),
            b'"vault_id":%b,"credential_id":%b' % (text(event.vault_id), text(event.credential_id)),
            b'"action":%b,"actor":%b' % (text(event.action), text(event.actor)),
            b'"session_id":' + text_or_null(event.session_id),
            b'"metadata":' + raw(event.metadata_json, b"{}"),
            b'"created_at":' + text(event.created_at),
        )
    )


def render_validation(vault_id: str, credential_id: str, found: pb.ValidateCredentialResponse) -> bytes:
    """What the servers said of a credential."""
    mcp = found.mcp_answer if found.HasField("mcp_answer") else None
    refresh = found.refresh_answer if found.HasField("refresh_answer") else None
    return orjson.dumps(
        {
            "type": "vault_credential_validation",
            "credential_id": credential_id,
            "vault_id": vault_id,
            "status": found.status,
            "has_refresh_token": found.has_refresh_token,
            "mcp_probe": {"method": found.failed_method, "http_response": _answer(mcp)}
            if found.failed_method
            else None,
            "refresh": {"status": found.refresh_status, "http_response": _answer(refresh)}
            if found.refresh_status
            else None,
            "validated_at": found.validated_at,
        }
    )


def _auth(credential: pb.Credential) -> dict[str, Any]:
    """The canonical form, as the published contract reads it."""
    if credential.type == "environment_variable":
        return {
            "type": credential.type,
            "secret_name": credential.key,
            "networking": _networking(credential),
            "injection_location": {"header": credential.in_header, "body": credential.in_body},
        }
    auth: dict[str, Any] = {"type": credential.type, "mcp_server_url": credential.key}
    if credential.type == "mcp_oauth":
        auth["expires_at"] = credential.expires_at or None
        auth["refresh"] = _refresh(credential.refresh) if credential.HasField("refresh") else None
    return auth


def _flat(credential: pb.Credential) -> dict[str, Any]:
    """The local form."""
    flat: dict[str, Any] = {"auth_type": FLAT_TYPES.get(credential.type, credential.type)}
    if credential.type != "environment_variable":
        return flat | {"mcp_server_url": credential.key}
    places = (("request_headers", credential.in_header), ("request_body", credential.in_body))
    return flat | {
        "variable_name": credential.key,
        "network": _networking(credential),
        "injection_locations": [name for name, enabled in places if enabled],
    }


def _networking(credential: pb.Credential) -> dict[str, Any]:
    if credential.networking.type == "unrestricted":
        return {"type": "unrestricted"}
    return {"type": "limited", "allowed_hosts": list(credential.networking.allowed_hosts)}


def _refresh(refresh: pb.OAuthRefresh) -> dict[str, Any]:
    return {
        "client_id": refresh.client_id,
        "token_endpoint": refresh.token_endpoint,
        "token_endpoint_auth": {"type": refresh.token_endpoint_auth},
        "resource": refresh.resource if refresh.HasField("resource") else None,
        "scope": refresh.scope if refresh.HasField("scope") else None,
    }


def _answer(answer: pb.HttpAnswer | None) -> dict[str, Any] | None:
    if answer is None:
        return None
    return {
        "status_code": answer.status_code,
        "content_type": answer.content_type,
        "body": answer.body,
        "body_truncated": answer.body_truncated,
    }


def _times(resource: pb.Vault | pb.Credential) -> tuple[bytes, ...]:
    return (
        b'"status":"archived"' if resource.archived_at else b'"status":"active"',
        b'"created_at":%b,"updated_at":%b' % (text(resource.created_at), text(resource.updated_at)),
        b'"archived_at":' + text_or_null(resource.archived_at),
    )

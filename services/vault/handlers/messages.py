"""Vaults, credentials and audit events as the contract shows them."""

from __future__ import annotations

from datetime import datetime

from kit.clock import rfc3339
from managed_agents.vault.v1 import vaults_pb2 as pb
from services.vault.domain.credential import VARIABLE, Credential
from services.vault.domain.networking import LIMITED, UNRESTRICTED
from services.vault.domain.vault import Vault
from services.vault.operations.outward import Reply, shown
from services.vault.store.audit import AuditEvent

NOT_REFRESHED = (
    "This installation does not renew OAuth tokens (MANAGED_AGENTS_OAUTH_REFRESH is off): the refresh block is kept "
    "and not used, and the access token serves until it ends."
)


def vault_message(vault: Vault) -> pb.Vault:
    """One vault."""
    return pb.Vault(
        id=vault.id,
        display_name=vault.display_name,
        metadata_json=vault.metadata.encode(),
        created_at=rfc3339(vault.created_at),
        updated_at=rfc3339(vault.updated_at),
        archived_at=_time(vault.archived_at),
    )


def credential_message(credential: Credential, *, refreshes: bool = True) -> pb.Credential:
    """One credential; where tokens are not renewed, one that could be says so."""
    message = pb.Credential(
        id=credential.id,
        vault_id=credential.vault_id,
        display_name=credential.display_name,
        type=credential.type,
        key=credential.key,
        in_header=credential.in_header,
        in_body=credential.in_body,
        expires_at=_time(credential.expires_at),
        metadata_json=credential.metadata.encode(),
        value_hint=credential.value_hint,
        last_used_at=_time(credential.last_used_at),
        rotated_at=_time(credential.rotated_at),
        secret_version=credential.secret_version,
        created_at=rfc3339(credential.created_at),
        updated_at=rfc3339(credential.updated_at),
        archived_at=_time(credential.archived_at),
        warnings=[NOT_REFRESHED] if credential.refresh and not refreshes else [],
    )
    if credential.type == VARIABLE:
        policy = credential.policy()
        # A policy that can't be read allows nothing, and is shown as one that does.
        message.networking.type = UNRESTRICTED if policy and policy.unrestricted else LIMITED
        message.networking.allowed_hosts.extend(policy.allowed_hosts if policy else ())
    if (renewal := credential.renewal()) is not None:
        message.refresh.CopyFrom(
            pb.OAuthRefresh(
                client_id=renewal.client_id,
                token_endpoint=renewal.token_endpoint,
                token_endpoint_auth=renewal.token_endpoint_auth,
                resource=renewal.resource,
                scope=renewal.scope,
            )
        )
    return message


def audit_message(event: AuditEvent) -> pb.AuditEvent:
    """One audit event."""
    return pb.AuditEvent(
        id=event.id,
        vault_id=event.vault_id,
        credential_id=event.credential_id,
        action=event.action,
        actor=event.actor,
        session_id=event.session_id,
        metadata_json=event.metadata.encode(),
        created_at=rfc3339(event.created_at),
    )


def answer_message(reply: Reply | None, secrets: tuple[str, ...]) -> pb.HttpAnswer | None:
    """What a foreign server answered, without these secrets."""
    if reply is None:
        return None
    body, is_cut = shown(reply.body, secrets)
    kind, _ = shown(reply.content_type.encode(), secrets)
    return pb.HttpAnswer(status_code=reply.status, content_type=kind, body=body, body_truncated=is_cut)


def _time(moment: datetime | None) -> str:
    return rfc3339(moment) if moment is not None else ""

"""Vaults and credentials: one table of routes, served under two prefixes."""

from __future__ import annotations

from typing import Any

from managed_agents.sessions.v1.common_pb2 import PageInfo
from managed_agents.vault.v1 import vaults_pb2 as pb

from ..operation import Call, Operation, flag, limit, page
from ..render import vaults as render
from ..render.splice import collection
from ..schemas import vaults as schemas

TAG = "Vaults"
PREFIXES = ("/v1/vaults", "/v1/credential-vaults")
# Two servers may each be asked twice, and take their time.
VALIDATION_SECONDS = 75.0


async def create_vault(call: Call) -> bytes:
    """POST /v1/vaults."""
    request = pb.CreateVaultRequest(definition_json=call.raw_body, idempotency=call.idempotency())
    return render.render_vault((await call.ask(call.clients.vaults.CreateVault, request)).vault)


async def get_vault(call: Call) -> bytes:
    """GET /v1/vaults/{vault_id}."""
    request = pb.GetVaultRequest(vault_id=call.path["vault_id"])
    return render.render_vault((await call.ask(call.clients.vaults.GetVault, request)).vault)


async def update_vault(call: Call) -> bytes:
    """POST /v1/vaults/{vault_id}."""
    request = pb.UpdateVaultRequest(vault_id=call.path["vault_id"], patch_json=call.raw_body)
    return render.render_vault((await call.ask(call.clients.vaults.UpdateVault, request)).vault)


async def list_vaults(call: Call) -> bytes:
    """GET /v1/vaults."""
    request = pb.ListVaultsRequest(
        limit=call.query["limit"], cursor=call.query["page"], include_archived=call.query["include_archived"]
    )
    answer = await call.ask(call.clients.vaults.ListVaults, request)
    return collection([render.render_vault(vault) for vault in answer.vaults], _info(answer))


async def archive_vault(call: Call) -> bytes:
    """POST /v1/vaults/{vault_id}/archive."""
    request = pb.ArchiveVaultRequest(vault_id=call.path["vault_id"])
    return render.render_vault((await call.ask(call.clients.vaults.ArchiveVault, request)).vault)


async def delete_vault(call: Call) -> bytes:
    """DELETE /v1/vaults/{vault_id}."""
    await call.ask(call.clients.vaults.DeleteVault, pb.DeleteVaultRequest(vault_id=call.path["vault_id"]))
    return render.render_deleted_vault(call.path["vault_id"])


async def create_credential(call: Call) -> bytes:
    """POST /v1/vaults/{vault_id}/credentials."""
    request = pb.CreateCredentialRequest(
        vault_id=call.path["vault_id"], definition_json=call.raw_body, idempotency=call.idempotency()
    )
    return render.render_credential((await call.ask(call.clients.vaults.CreateCredential, request)).credential)


async def get_credential(call: Call) -> bytes:
    """GET /v1/vaults/{vault_id}/credentials/{credential_id}."""
    request = pb.GetCredentialRequest(**call.path)
    return render.render_credential((await call.ask(call.clients.vaults.GetCredential, request)).credential)


async def update_credential(call: Call) -> bytes:
    """POST /v1/vaults/{vault_id}/credentials/{credential_id}."""
    request = pb.UpdateCredentialRequest(**call.path, patch_json=call.raw_body)
    return render.render_credential((await call.ask(call.clients.vaults.UpdateCredential, request)).credential)


async def list_credentials(call: Call) -> bytes:
    """GET /v1/vaults/{vault_id}/credentials."""
    request = pb.ListCredentialsRequest(
        vault_id=call.path["vault_id"],
        limit=call.query["limit"],
        cursor=call.query["page"],
        include_archived=call.query["include_archived"],
    )
    answer = await call.ask(call.clients.vaults.ListCredentials, request)
    return collection([render.render_credential(each) for each in answer.credentials], _info(answer))


async def rotate_credential(call: Call) -> bytes:
    """POST /v1/vaults/{vault_id}/credentials/{credential_id}/rotate."""
    request = pb.RotateCredentialRequest(**call.path, rotation_json=call.raw_body, idempotency=call.idempotency())
    return render.render_credential((await call.ask(call.clients.vaults.RotateCredential, request)).credential)


async def mark_credential_used(call: Call) -> bytes:
    """POST /v1/vaults/{vault_id}/credentials/{credential_id}/mark-used."""
    request = pb.MarkCredentialUsedRequest(**call.path, use_json=call.raw_body)
    return render.render_credential((await call.ask(call.clients.vaults.MarkCredentialUsed, request)).credential)


async def list_audit_events(call: Call) -> bytes:
    """GET /v1/vaults/{vault_id}/audit, and the same of one credential."""
    request = pb.ListAuditEventsRequest(**call.path, limit=call.query["limit"], cursor=call.query["page"])
    answer = await call.ask(call.clients.vaults.ListAuditEvents, request)
    return collection([render.render_audit_event(event) for event in answer.events], _info(answer))


async def archive_credential(call: Call) -> bytes:
    """POST /v1/vaults/{vault_id}/credentials/{credential_id}/archive."""
    request = pb.ArchiveCredentialRequest(**call.path)
    return render.render_credential((await call.ask(call.clients.vaults.ArchiveCredential, request)).credential)


async def delete_credential(call: Call) -> bytes:
    """DELETE /v1/vaults/{vault_id}/credentials/{credential_id}."""
    await call.ask(call.clients.vaults.DeleteCredential, pb.DeleteCredentialRequest(**call.path))
    return render.render_deleted_credential(call.path["credential_id"])


async def validate_credential(call: Call) -> bytes:
    """POST /v1/vaults/{vault_id}/credentials/{credential_id}/mcp_oauth_validate."""
    request = pb.ValidateCredentialRequest(**call.path)
    found = await call.ask(call.clients.vaults.ValidateCredential, request, seconds=VALIDATION_SECONDS)
    return render.render_validation(call.path["vault_id"], call.path["credential_id"], found)


def _info(answer: Any) -> PageInfo:
    return PageInfo(next_cursor=answer.next_cursor, previous_cursor=answer.previous_cursor)


def _vault_operations(prefix: str) -> tuple[Operation, ...]:
    one = f"{prefix}/{{vault_id}}"
    archived = flag("include_archived", description="Archived vaults too.")
    return (
        Operation(
            "GET",
            prefix,
            list_vaults,
            tag=TAG,
            summary="List vaults, newest first",
            query=(archived, limit(), page()),
            response=schemas.VaultPage,
        ),
        Operation(
            "POST",
            prefix,
            create_vault,
            tag=TAG,
            summary="Create a vault",
            body=schemas.VaultCreate,
            response=schemas.Vault,
            idempotent_write=True,
        ),
        Operation("GET", one, get_vault, tag=TAG, summary="Retrieve a vault", response=schemas.Vault),
        Operation(
            "POST",
            one,
            update_vault,
            tag=TAG,
            summary="Update a vault",
            body=schemas.VaultUpdate,
            response=schemas.Vault,
        ),
        Operation("DELETE", one, delete_vault, tag=TAG, summary="Delete a vault", response=schemas.VaultDeleted),
        Operation(
            "POST",
            f"{one}/archive",
            archive_vault,
            tag=TAG,
            summary="Archive a vault for good",
            description="The secrets of all its credentials are erased.",
            response=schemas.Vault,
        ),
        Operation(
            "GET",
            f"{one}/audit",
            list_audit_events,
            tag=TAG,
            summary="List what happened to a vault's credentials, newest first",
            query=(limit(), page()),
            response=schemas.AuditPage,
        ),
    )


def _credential_operations(prefix: str) -> tuple[Operation, ...]:
    every = f"{prefix}/{{vault_id}}/credentials"
    one = f"{every}/{{credential_id}}"
    archived = flag("include_archived", description="Archived credentials too.")
    return (
        Operation(
            "GET",
            every,
            list_credentials,
            tag=TAG,
            summary="List credentials, newest first",
            query=(archived, limit(), page()),
            response=schemas.CredentialPage,
        ),
        Operation(
            "POST",
            every,
            create_credential,
            tag=TAG,
            summary="Add a credential",
            description="Everything under `auth`, or the flat fields; both at once are refused.",
            body=schemas.CredentialCreate,
            response=schemas.Credential,
            idempotent_write=True,
        ),
        Operation("GET", one, get_credential, tag=TAG, summary="Retrieve a credential", response=schemas.Credential),
        Operation(
            "POST",
            one,
            update_credential,
            tag=TAG,
            summary="Update a credential",
            body=schemas.CredentialUpdate,
            response=schemas.Credential,
        ),
        Operation(
            "DELETE",
            one,
            delete_credential,
            tag=TAG,
            summary="Delete a credential",
            response=schemas.CredentialDeleted,
        ),
        Operation(
            "POST",
            f"{one}/rotate",
            rotate_credential,
            tag=TAG,
            summary="Replace the secret of a credential",
            description="Sessions that use the vault connect their MCP servers anew.",
            body=schemas.CredentialRotate,
            response=schemas.Credential,
            idempotent_write=True,
        ),
        Operation(
            "POST",
            f"{one}/mark-used",
            mark_credential_used,
            tag=TAG,
            summary="Note a use of a credential",
            body=schemas.CredentialUse,
            optional_body=True,
            response=schemas.Credential,
        ),
        Operation(
            "GET",
            f"{one}/audit",
            list_audit_events,
            tag=TAG,
            summary="List what happened to a credential, newest first",
            query=(limit(), page()),
            response=schemas.AuditPage,
        ),
        Operation(
            "POST",
            f"{one}/archive",
            archive_credential,
            tag=TAG,
            summary="Archive a credential for good",
            description="Its secret is erased.",
            response=schemas.Credential,
        ),
        Operation(
            "POST",
            f"{one}/mcp_oauth_validate",
            validate_credential,
            tag=TAG,
            summary="Try an OAuth credential at its MCP server",
            response=schemas.CredentialValidation,
        ),
    )


OPERATIONS = tuple(
    operation for prefix in PREFIXES for operation in (*_vault_operations(prefix), *_credential_operations(prefix))
)

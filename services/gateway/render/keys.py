"""Public JSON of API keys and worker keys; the same for every caller."""

from __future__ import annotations

from managed_agents.vault.v1.keys_pb2 import ApiKey, WorkerKey

from .splice import object_of, raw, text, text_or_null

# A configured key that is shorter shows none of its characters.
_SHORTEST_SHOWN = 24


def render_api_key(key: ApiKey, secret: str = "") -> bytes:
    """One managed key; with its secret where it was just made."""
    return object_of(
        (
            b'"id":%b,"type":"api_key","name":%b' % (text(key.id), text(key.name)),
            b'"source":"managed","key_prefix":%b,"status":"active"' % text(key.key_prefix),
            b'"role":%b,"owner_name":%b' % (text(key.role), text_or_null(key.owner_name)),
            b'"workspace_id":%b' % text(key.workspace_id),
            b'"created_at":%b,"updated_at":%b' % (text(key.created_at), text(key.created_at)),
            b'"last_used_at":%b,"archived_at":null' % text_or_null(key.last_used_at),
            b'"secret_key":%b' % text(secret) if secret else b"",
        )
    )


def render_configured_key(key_id: str, workspace_id: str, secret: str) -> bytes:
    """The record of the key that the configuration holds; nothing is known of its times."""
    shown = f"{secret[:6]}...{secret[-4:]}" if len(secret) >= _SHORTEST_SHOWN else "..."
    return object_of(
        (
            b'"id":%b,"type":"api_key","name":"MANAGED_AGENTS_API_KEY"' % text(key_id),
            b'"source":"config_env","key_prefix":%b,"status":"active"' % text(shown),
            b'"role":"admin","owner_name":null,"workspace_id":%b' % text(workspace_id),
            b'"created_at":null,"updated_at":null,"last_used_at":null,"archived_at":null',
        )
    )


def render_deleted_api_key(key_id: str) -> bytes:
    """What a deletion answers."""
    return b'{"id":%b,"type":"api_key_deleted"}' % text(key_id)


def render_worker_key(key: WorkerKey, secret: str = "") -> bytes:
    """One worker key; with its secret where it was just issued."""
    return object_of(
        (
            b'"id":%b,"type":"worker_key","environment_id":%b' % (text(key.id), text(key.environment_id)),
            b'"name":%b,"key_prefix":%b' % (text(key.name), text(key.key_prefix)),
            b'"status":%b,"metadata":%b' % (text(key.status), raw(key.metadata_json, b"{}")),
            b'"created_at":%b,"updated_at":%b' % (text(key.created_at), text(key.updated_at)),
            b'"expires_at":' + text_or_null(key.expires_at),
            b'"last_seen_at":' + text_or_null(key.last_seen_at),
            b'"revoked_at":' + text_or_null(key.revoked_at),
            b'"secret_key":%b' % text(secret) if secret else b"",
        )
    )

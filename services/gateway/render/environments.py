"""Public JSON of an environment: one object that holds the flat and the canonical form."""

from __future__ import annotations

from managed_agents.sessions.v1.environments_pb2 import Environment

from .splice import object_of, raw, text, text_or_null


def render_environment(environment: Environment) -> bytes:
    """One environment; both projections agree, since the forms don't clash."""
    description = text(environment.description) if environment.HasField("description") else b"null"
    return object_of(
        (
            b'"id":%b,"type":"environment","name":%b' % (text(environment.id), text(environment.name)),
            b'"description":' + description,
            b'"metadata":' + raw(environment.metadata_json, b"{}"),
            b'"config":' + raw(environment.config_json, b"null"),
            b'"hosting_type":' + text(environment.hosting_type),
            b'"sandbox_provider":' + text_or_null(environment.sandbox_provider),
            b'"network":' + raw(environment.network_json, b"null"),
            b'"packages":' + raw(environment.packages_json, b"[]"),
            b'"worker_protocol":' + text(environment.worker_protocol) if environment.worker_protocol else b"",
            b'"scope":' + text_or_null(environment.scope),
            b'"status":"archived"' if environment.archived_at else b'"status":"active"',
            b'"created_at":%b,"updated_at":%b' % (text(environment.created_at), text(environment.updated_at)),
            b'"archived_at":' + text_or_null(environment.archived_at),
        )
    )


def render_deleted_environment(environment_id: str) -> bytes:
    """What a deletion answers."""
    return b'{"id":%b,"type":"environment_deleted"}' % text(environment_id)

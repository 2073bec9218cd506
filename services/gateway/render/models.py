"""Public JSON of a model, in the published shape; there is no local one."""

from __future__ import annotations

from managed_agents.worker.v1.runner_pb2 import Model

from .splice import text

EPOCH = "1970-01-01T00:00:00Z"


def render_model(model: Model) -> bytes:
    """One model. What the vendor does not tell is null, never guessed."""
    return (
        b'{"id":%b,"type":"model","display_name":%b,"created_at":%b,"lifecycle":"active","deprecated_at":null,'
        b'"retires_at":null,"line":null,"capabilities":null,"allowed_fallback_models":null,'
        b'"max_input_tokens":%b,"max_tokens":%b}'
    ) % (
        text(model.id),
        text(model.display_name or model.id),
        text(model.created_at or EPOCH),
        _count_or_null(model.max_input_tokens),
        _count_or_null(model.max_output_tokens),
    )


def _count_or_null(count: int) -> bytes:
    return str(count).encode() if count > 0 else b"null"

"""Public JSON of files and artifacts. Where bytes lie is never part of it."""

from __future__ import annotations

from collections.abc import Sequence

from managed_agents.sessions.v1.common_pb2 import PageInfo
from managed_agents.sessions.v1.files_pb2 import File

from .splice import object_of, text, text_or_null


def render_file(file: File) -> bytes:
    """One file with its preview."""
    return object_of((*_file(file), *_preview(file)))


def render_archived(file: File, *, published: bool) -> bytes:
    """What a DELETE is answered with."""
    return b'{"id":%b,"type":"file_deleted"}' % text(file.id) if published else object_of(_file(file))


def render_files(files: Sequence[File], info: PageInfo, *, has_more: bool) -> bytes:
    """A page in both envelopes: cursors, and first and last ids."""
    return object_of(
        (
            b'"data":[%b]' % b",".join(object_of(_file(each)) for each in files),
            b'"prev_page":null,"next_page":' + text_or_null(info.next_cursor),
            b'"has_more":' + _bool(has_more),
            b'"first_id":' + text_or_null(files[0].id if files else ""),
            b'"last_id":' + text_or_null(files[-1].id if files else ""),
        )
    )


def render_artifact(file: File) -> bytes:
    """One artifact."""
    return object_of(
        (
            b'"id":%b,"type":"artifact","session_id":%b' % (text(file.id), text(file.session_id)),
            b'"path":%b,"name":%b' % (text(file.path), text(file.name)),
            b'"media_type":%b,"size_bytes":%d' % (text(file.media_type), file.size_bytes),
            b'"sha256":' + text(file.sha256),
            *_preview(file),
            b'"created_at":%b,"updated_at":%b' % (text(file.created_at), text(file.updated_at)),
        )
    )


def _file(file: File) -> tuple[bytes, ...]:
    name, media_type, scope = text(file.name), text(file.media_type), b"null"
    if file.session_id:
        scope = b'{"id":%b,"type":"session"}' % text(file.session_id)
    return (
        b'"id":%b,"type":"file","filename":%b,"name":%b' % (text(file.id), name, name),
        b'"mime_type":%b,"media_type":%b,"size_bytes":%d' % (media_type, media_type, file.size_bytes),
        b'"sha256":%b,"downloadable":%b' % (text(file.sha256), _bool(file.downloadable)),
        b'"scope":%b,"session_id":%b' % (scope, text_or_null(file.session_id)),
        b'"status":"archived"' if file.archived_at else b'"status":"active"',
        b'"created_at":%b,"updated_at":%b' % (text(file.created_at), text(file.updated_at)),
        b'"expires_at":%b,"archived_at":%b' % (text_or_null(file.expires_at), text_or_null(file.archived_at)),
    )


def _preview(file: File) -> tuple[bytes, bytes]:
    return (
        b'"preview":' + (text(file.preview) if file.HasField("preview") else b"null"),
        b'"preview_truncated":' + _bool(file.preview_truncated),
    )


def _bool(value: bool) -> bytes:
    return b"true" if value else b"false"

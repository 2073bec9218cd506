"""Public JSON of skills and their versions. Clients of two ages and local callers read one object but for `source`."""

from __future__ import annotations

from collections.abc import Sequence

from managed_agents.sessions.v1.common_pb2 import PageInfo
from managed_agents.sessions.v1.skills_pb2 import Skill, SkillVersion

from .splice import object_of, text, text_or_null


def render_skill(skill: Skill, *, nested_source: bool) -> bytes:
    """One skill. `nested_source` is how the published contract says where it comes from."""
    label, latest = text(skill.display_name), skill.latest_version
    source = text(skill.source)
    return object_of(
        (
            b'"id":%b,"type":"skill"' % text(skill.id),
            b'"display_name":%b,"display_title":%b' % (label, label),
            b'"name":%b,"description":%b' % (text(skill.name), text(latest.description)),
            b'"source":' + (b'{"type":%b}' % source if nested_source else source),
            b'"latest_version_id":%b,"latest_version":%b' % (text(latest.id), text(latest.version)),
            b'"created_at":%b,"updated_at":%b' % (text(skill.created_at), text(skill.updated_at)),
        )
    )


def render_version(version: SkillVersion) -> bytes:
    """One version."""
    name = text(version.name)
    return object_of(
        (
            b'"id":%b,"type":"skill_version","skill_id":%b' % (text(version.id), text(version.skill_id)),
            b'"name":%b,"directory":%b,"description":%b' % (name, name, text(version.description)),
            b'"version":%b,"size_bytes":%d' % (text(version.version), version.size_bytes),
            b'"sha256":%b,"created_at":%b' % (text(version.sha256), text(version.created_at)),
        )
    )


def render_deleted_skill(skill_id: str) -> bytes:
    """What a deletion answers."""
    return b'{"id":%b,"type":"skill_deleted"}' % text(skill_id)


def render_deleted_version(version_id: str) -> bytes:
    """What the deletion of a version answers."""
    return b'{"id":%b,"type":"skill_version_deleted"}' % text(version_id)


def render_page(items: Sequence[bytes], ids: Sequence[str], info: PageInfo) -> bytes:
    """A page in both envelopes: cursors, and first and last ids."""
    return object_of(
        (
            b'"data":[%b]' % b",".join(items),
            b'"prev_page":null,"next_page":' + text_or_null(info.next_cursor),
            b'"has_more":' + (b"true" if info.next_cursor else b"false"),
            b'"first_id":%b,"last_id":%b' % (text_or_null(ids[0] if ids else ""), text_or_null(ids[-1] if ids else "")),
        )
    )

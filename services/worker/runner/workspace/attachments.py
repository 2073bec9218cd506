"""The resources of a session as a runner is told of them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from managed_agents.sessions.v1.turns_pb2 import TurnGrant

_NONE = (b"", b"[]")


@dataclass(frozen=True, slots=True)
class Attachment:
    """One resource instance; `fields` are all of its public and internal ones."""

    id: str
    type: str
    # Where it stands in the sandbox.
    mount_path: str
    fields: Mapping[str, Any]


def attachments_of(grant: TurnGrant, *types: str) -> tuple[Attachment, ...]:
    """What is attached to the session of a grant, in position order; only the given types where any is given."""
    found = read_attachments(grant.session.resources_json)
    return tuple(each for each in found if each.type in types) if types else found


def read_attachments(resources_json: bytes) -> tuple[Attachment, ...]:
    """Read the JSON array of a session's resources; the same bytes are parsed once."""
    return () if resources_json in _NONE else _parse(resources_json)


@lru_cache(maxsize=256)
def _parse(resources_json: bytes) -> tuple[Attachment, ...]:
    return tuple(
        Attachment(each["id"], each["type"], each.get("sandbox_path") or each.get("mount_path") or "", each)
        for each in orjson.loads(resources_json)
    )

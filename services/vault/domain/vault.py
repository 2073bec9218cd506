"""Vaults: a name for people, a bag of metadata, and an end for good."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from services.vault.domain import fields
from services.vault.domain.errors import InvalidField

FIELDS = ("display_name", "name", "metadata")
NAMES = ("display_name", "name")
# How many credentials a vault holds at most, archived ones not counted.
MAX_CREDENTIALS = 20
MAX_VAULTS_OF_SESSION = 50


@dataclass(frozen=True, slots=True)
class Vault:
    """One stored vault."""

    id: str
    display_name: str
    # JSON object of string pairs.
    metadata: str
    created_at: datetime
    updated_at: datetime
    archived_at: datetime | None


@dataclass(frozen=True, slots=True)
class VaultContent:
    """What a creation or an update says."""

    display_name: str
    metadata: dict[str, str]


def define(body: dict[str, Any]) -> VaultContent:
    """A new vault; InvalidField names what is wrong."""
    fields.known_only(body, "", FIELDS)
    named = fields.agreed(body, NAMES)
    if named is None:
        raise InvalidField("display_name is required.", field="display_name")
    return VaultContent(fields.name(named[1], named[0]), fields.metadata(body.get("metadata")))


def patch(stored: Vault, body: dict[str, Any]) -> VaultContent:
    """The content after an update."""
    fields.known_only(body, "", FIELDS)
    named = fields.agreed(body, NAMES)
    label = stored.display_name if named is None or named[1] is None else fields.name(named[1], named[0])
    return VaultContent(label, fields.merged_metadata(orjson.loads(stored.metadata), body.get("metadata")))

"""What the handlers of vaults and credentials share at their edge: ids, page sizes, and who acted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kit.errors import DomainError
from kit.rpc.server import current_context
from services.vault.domain import fields

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
MAX_ACTOR_CHARACTERS = 255
MAX_ID_CHARACTERS = 256


def known_id(value: str, refusal: Callable[[str], DomainError]) -> str:
    """An id that the database can be asked for."""
    if not 0 < len(value) <= MAX_ID_CHARACTERS or "\x00" in value:
        raise refusal(value[:64].replace("\x00", ""))
    return value


def page_limit(limit: int) -> int:
    """How many entries a page holds."""
    return min(limit, MAX_LIMIT) if limit > 0 else DEFAULT_LIMIT


def actor_of(body: Mapping[str, Any]) -> str:
    """Who acts: as the body says, else the principal of the call."""
    if body.get("actor") is None:
        return current_context().principal_id
    return fields.text(body["actor"], "actor", maximum=MAX_ACTOR_CHARACTERS)

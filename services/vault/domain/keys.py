"""What a key may be called, who may make it, and how little of it is shown afterwards."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from services.vault.domain.key_errors import AdministratorsOnly, InvalidApiKey, InvalidWorkerKey

DEFAULT_WORKSPACE = "wrkspc_default"
ADMIN = "admin"
ROLES = (ADMIN, "member", "read_only")
API_PREFIX, WORKER_PREFIX = "ma_", "mawk_"
MAX_NAME_LENGTH = 128
MAX_WORKER_NAME_LENGTH = 80
MAX_METADATA_BYTES = 16_384
MAX_API_KEYS = 1_000
MAX_WORKER_KEYS = 1_000

_WORKSPACE = re.compile(r"wrkspc_[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class NewApiKey:
    """A key that may be made."""

    workspace_id: str
    name: str
    role: str
    owner_name: str


def new_api_key(*, caller: str, workspace_id: str, name: str, role: str, owner_name: str) -> NewApiKey:
    """The key that `caller`, a workspace, asks for; InvalidApiKey names what is wrong with it."""
    name = name.strip()
    if not 1 <= len(name) <= MAX_NAME_LENGTH:
        raise InvalidApiKey(f"name must be 1 to {MAX_NAME_LENGTH} characters long.", field="name")
    if len(owner_name) > MAX_NAME_LENGTH:
        raise InvalidApiKey(f"owner_name must be at most {MAX_NAME_LENGTH} characters long.", field="owner_name")
    if (role or ADMIN) not in ROLES:
        raise InvalidApiKey(f"role must be one of: {', '.join(ROLES)}.", field="role")
    return NewApiKey(managed_workspace(caller, workspace_id), name, role or ADMIN, owner_name.strip())


def managed_workspace(caller: str, named: str) -> str:
    """The workspace whose keys are meant: another one than the caller's only for the default workspace."""
    if not named or named == caller:
        return caller
    if caller != DEFAULT_WORKSPACE:
        raise AdministratorsOnly(
            "Keys of another workspace are managed by an administrator of the default one. Leave workspace_id out.",
            field="workspace_id",
        )
    if not _WORKSPACE.fullmatch(named):
        raise InvalidApiKey(
            "workspace_id must be wrkspc_ with 1 to 64 letters, digits, _ or - behind it.", field="workspace_id"
        )
    return named


def check_worker_key(name: str, metadata_json: bytes, expires_at: str, now: datetime) -> datetime | None:
    """When the key ends; InvalidWorkerKey names what is wrong with it."""
    if not len(name.strip()) >= 1 or len(name) > MAX_WORKER_NAME_LENGTH:
        raise InvalidWorkerKey(f"name must be 1 to {MAX_WORKER_NAME_LENGTH} characters long.", field="name")
    _check_metadata(metadata_json)
    if not expires_at:
        return None
    try:
        ends = datetime.fromisoformat(expires_at)
        # Outside the years that there are by the clock of UTC, nobody could read it again.
        ends = ends.astimezone(UTC) if ends.utcoffset() is not None else None
    except (ValueError, OverflowError):
        ends = None
    if ends is None:
        raise InvalidWorkerKey(
            "expires_at must be a timestamp with an offset, such as 2027-01-31T12:00:00Z.", field="expires_at"
        )
    if ends <= now:
        raise InvalidWorkerKey("expires_at must be in the future.", field="expires_at")
    return ends


def _check_metadata(metadata_json: bytes) -> None:
    if len(metadata_json) > MAX_METADATA_BYTES:
        raise InvalidWorkerKey(f"metadata must be at most {MAX_METADATA_BYTES} bytes of JSON.", field="metadata")
    try:
        is_object = isinstance(json.loads(metadata_json or b"{}"), dict)
    except ValueError:
        is_object = False
    if not is_object:
        raise InvalidWorkerKey("metadata must be an object.", field="metadata")


def shown(secret: str) -> str:
    """The beginning and the end of a secret: enough for its owner to know it by, nothing to guess it from."""
    prefix = WORKER_PREFIX if secret.startswith(WORKER_PREFIX) else API_PREFIX
    start = len(prefix) + 6
    return f"{secret[:start]}...{secret[-4:]}"


def status(*, revoked_at: datetime | None, expires_at: datetime | None, now: datetime) -> str:
    """Whether a worker key can be used."""
    if revoked_at is not None:
        return "revoked"
    return "expired" if expires_at is not None and expires_at <= now else "active"

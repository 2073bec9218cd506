"""Credentials: what a caller may say of one, in two spellings, and what is kept of it.

The canonical spelling nests everything under `auth`; the flat one has fields of its own at
the top. A body that uses both is refused, so that neither can override the other unseen.
What a credential is found by (an MCP server's URL, or a variable's name) never changes, nor
does its type, and its authorization server only together with its tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson

from services.vault.domain import fields, networking
from services.vault.domain.errors import ImmutableField, InvalidField
from services.vault.domain.oauth import Refresh, define_refresh, patch_refresh

OAUTH, BEARER, VARIABLE = "mcp_oauth", "static_bearer", "environment_variable"
TYPES = (OAUTH, BEARER, VARIABLE)
FLAT_TYPES = {"mcp_oauth": OAUTH, "bearer_token": BEARER, "environment_variable": VARIABLE}
HEADERS, BODY = "request_headers", "request_body"
MAX_LOCATIONS = 16
LABELS = ("display_name", "name")
MAX_VARIABLE_CHARACTERS = 255
HINT_CHARACTERS = 4
LEAST_HINTED_CHARACTERS = 16

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET: dict[str, str] = {OAUTH: "access_token", BEARER: "token", VARIABLE: "secret_value"}
_KEY: dict[str, str] = {OAUTH: "mcp_server_url", BEARER: "mcp_server_url", VARIABLE: "secret_name"}
_OWN: dict[str, tuple[str, ...]] = {
    OAUTH: ("mcp_server_url", "access_token", "expires_at", "refresh"),
    BEARER: ("mcp_server_url", "token"),
    VARIABLE: ("secret_name", "secret_value", "networking", "injection_location"),
}
_FLAT_NAMES = {
    "type": "auth_type",
    "secret_name": "variable_name",
    "secret_value": "value",
    "token": "value",
    "access_token": "value",
    "networking": "network",
    "injection_location": "injection_locations",
}
_FLAT = (
    "auth_type",
    "mcp_server_url",
    "variable_name",
    "value",
    "network",
    "injection_locations",
    "expires_at",
    "refresh",
)


@dataclass(frozen=True, slots=True)
class Secrets:
    """What is sealed of a credential."""

    value: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    client_secret: str | None = field(default=None, repr=False)

    def encode(self) -> bytes:
        """As it is sealed."""
        return orjson.dumps(self)

    @classmethod
    def decode(cls, opened: bytes) -> Secrets:
        """What was sealed."""
        return cls(**orjson.loads(opened))

    def with_changes(self, changes: Mapping[str, str]) -> Secrets:
        """The same with some of them replaced."""
        present = {"value": self.value, "refresh_token": self.refresh_token, "client_secret": self.client_secret}
        return Secrets(**{**present, **changes})  # type: ignore[arg-type]

    def all(self) -> tuple[str, ...]:
        """Every secret in it."""
        return tuple(secret for secret in (self.value, self.refresh_token, self.client_secret) if secret)


@dataclass(frozen=True, slots=True)
class Credential:
    """One stored credential, without its secret."""

    id: str
    vault_id: str
    display_name: str | None
    type: str
    # The URL or the variable's name.
    key: str
    # JSON as in `domain.networking`, of an environment variable; not necessarily readable.
    networking: str | None
    in_header: bool
    in_body: bool
    expires_at: datetime | None
    # JSON as in `domain.oauth`.
    refresh: str | None
    # JSON object of string pairs.
    metadata: str
    value_hint: str
    secret_version: int
    last_used_at: datetime | None
    rotated_at: datetime | None
    created_at: datetime
    updated_at: datetime
    archived_at: datetime | None

    def policy(self) -> networking.Networking | None:
        """Where it may be used; None allows nothing."""
        return networking.stored(self.networking)

    def renewal(self) -> Refresh | None:
        """How its token is renewed."""
        return Refresh.decode(self.refresh) if self.refresh else None


@dataclass(frozen=True, slots=True)
class Content:
    """What a caller may say of a credential, apart from its secrets."""

    display_name: str | None
    metadata: dict[str, str]
    networking: networking.Networking | None = None
    in_header: bool = False
    in_body: bool = False
    expires_at: datetime | None = None
    refresh: Refresh | None = None


@dataclass(frozen=True, slots=True)
class Definition:
    """A new credential."""

    type: str
    key: str
    content: Content
    secrets: Secrets = field(repr=False)


@dataclass(frozen=True, slots=True)
class Change:
    """What an update makes of a credential: its content, and the secrets that are replaced, by name."""

    content: Content
    secrets: dict[str, str] = field(repr=False)


def identity(workspace_id: str, vault_id: str, credential_id: str, kind: str, key: str) -> str:
    """What a credential's secret is sealed for: neither its row nor where it belongs can be changed under it."""
    return f"credential:{workspace_id}:{vault_id}:{credential_id}:{kind}:{key}"


def hint(secret: str) -> str:
    """A few characters that tell one secret from another, of one that is long enough not to be told by them."""
    end = secret[-HINT_CHARACTERS:]
    shown = len(secret) >= LEAST_HINTED_CHARACTERS and end.isascii() and end.isprintable()
    return f"****{end}" if shown else "****"


def define(body: Mapping[str, Any], now: datetime) -> Definition:
    """A new credential; InvalidField names what is wrong."""
    source = _Source.of(body)
    kind = source.type()
    source.require_own(kind)
    key = _key(kind, source)
    value = _secret(kind, source.required(_SECRET[kind]), source.path(_SECRET[kind]))
    label = fields.agreed(body, LABELS)
    common = {
        "display_name": fields.name(label[1], label[0]) if label and label[1] is not None else None,
        "metadata": fields.metadata(body.get("metadata")),
    }
    if kind == VARIABLE:
        policy = source.get("networking")
        in_header, in_body = source.locations((False, False), default=(True, True))
        content = Content(
            **common,
            networking=networking.parse(policy, source.path("networking")) if policy is not None else None,
            in_header=in_header,
            in_body=in_body,
        )
        return Definition(kind, key, content, Secrets(value))
    if kind == BEARER:
        return Definition(kind, key, Content(**common), Secrets(value))
    renewal, given = None, {}
    if (wanted := source.get("refresh")) is not None:
        renewal, given = define_refresh(wanted, source.path("refresh"))
    content = Content(**common, expires_at=_expiry(source, now), refresh=renewal)
    return Definition(kind, key, content, Secrets(value, **given))


def patch(stored: Credential, body: Mapping[str, Any], now: datetime) -> Change:
    """What an update says; what it leaves out, or gives as null, stays."""
    source = _Source.of(body, required=False)
    if source.has("type") and source.type() != stored.type:
        raise ImmutableField(f"{source.path('type')} can't be changed; it is {stored.type}.", field=source.path("type"))
    source.require_own(stored.type)
    _check_key(stored, source)
    label = fields.agreed(body, LABELS)
    common: dict[str, Any] = {
        "display_name": stored.display_name
        if label is None
        else (fields.name(label[1], label[0]) if label[1] is not None else None),
        "metadata": fields.merged_metadata(orjson.loads(stored.metadata), body.get("metadata")),
    }
    given: dict[str, str] = {}
    name = _SECRET[stored.type]
    if source.get(name) is not None:
        given["value"] = _secret(stored.type, source.get(name), source.path(name))
    if stored.type == VARIABLE:
        policy = source.get("networking")
        present = (stored.in_header, stored.in_body)
        in_header, in_body = source.locations(present, default=present)
        return Change(
            Content(
                **common,
                networking=stored.policy() if policy is None else networking.parse(policy, source.path("networking")),
                in_header=in_header,
                in_body=in_body,
            ),
            given,
        )
    if stored.type == BEARER:
        return Change(Content(**common), given)
    renewal = stored.renewal()
    if (wanted := source.get("refresh")) is not None:
        renewal, renewed = patch_refresh(renewal, wanted, source.path("refresh"), has_new_token="value" in given)
        given |= renewed
    expires_at = _expiry(source, now) if source.has("expires_at") else stored.expires_at
    return Change(Content(**common, expires_at=expires_at, refresh=renewal), given)


def changed(stored: Credential, content: Content) -> tuple[str, ...]:
    """The names of what an update changes, apart from secrets: where one may go is no small thing."""
    differs = {
        "display_name": stored.display_name != content.display_name,
        "metadata": orjson.loads(stored.metadata) != content.metadata,
        "networking": stored.policy() != content.networking,
        "injection_location": (stored.in_header, stored.in_body) != (content.in_header, content.in_body),
        "expires_at": stored.expires_at != content.expires_at,
        "refresh": stored.renewal() != content.refresh,
    }
    return tuple(name for name, is_other in differs.items() if is_other)


def rotation(stored: Credential, body: Mapping[str, Any], now: datetime) -> tuple[str, datetime | None]:
    """The new secret of a rotation, and when it ends. A new token without an end has none that is known."""
    if "value" not in body:
        raise InvalidField("value is required.", field="value")
    value = _secret(stored.type, body["value"], "value")
    if body.get("expires_at") is not None and stored.type != OAUTH:
        raise InvalidField(f"expires_at is for credentials of type {OAUTH} only.", field="expires_at")
    return value, _expiry(_Source(body, "", {}), now)


class _Source:
    """The fields of a body by their canonical names, wherever its spelling has them."""

    def __init__(self, values: Mapping[str, Any], prefix: str, names: Mapping[str, str]) -> None:
        self._values, self._prefix, self._names = values, prefix, names

    @classmethod
    def of(cls, body: Mapping[str, Any], *, required: bool = True) -> _Source:
        flat = [name for name in _FLAT if name in body]
        fields.known_only(body, "", (*LABELS, "metadata", "auth", *_FLAT))
        if "auth" in body:
            if flat:
                raise InvalidField(
                    f"auth and {flat[0]} are two spellings; send either auth or the flat fields.", field=flat[0]
                )
            return cls(fields.mapping(body["auth"], "auth"), "auth.", {})
        if required and not flat:
            raise InvalidField("auth is required.", field="auth")
        return cls({name: body[name] for name in flat}, "", _FLAT_NAMES)

    def path(self, name: str) -> str:
        return self._prefix + self._names.get(name, name)

    def has(self, name: str) -> bool:
        return self._names.get(name, name) in self._values

    def get(self, name: str) -> Any:
        return self._values.get(self._names.get(name, name))

    def required(self, name: str) -> Any:
        if self.get(name) is None:
            raise InvalidField(f"{self.path(name)} is required.", field=self.path(name))
        return self.get(name)

    def type(self) -> str:
        accepted: dict[str, str] = dict(FLAT_TYPES) if self._names else {kind: kind for kind in TYPES}
        return accepted[fields.one_of(self.required("type"), self.path("type"), tuple(accepted))]

    def require_own(self, kind: str) -> None:
        """Refuses fields of other types."""
        accepted = [self._names.get(name, name) for name in ("type", *_OWN[kind])]
        fields.known_only(self._values, self._prefix.rstrip("."), accepted)

    def locations(self, stored: tuple[bool, bool], *, default: tuple[bool, bool]) -> tuple[bool, bool]:
        """Whether headers and bodies may hold the secret. A member that an object leaves out stays as `stored`."""
        value, path = self.get("injection_location"), self.path("injection_location")
        if value is None:
            return default
        if self._names:
            if (
                not isinstance(value, list)
                or len(value) > MAX_LOCATIONS
                or any(item not in (HEADERS, BODY) for item in value)
            ):
                raise InvalidField(
                    f"{path} must be a list of {HEADERS} and {BODY}, with at most {MAX_LOCATIONS} entries.", field=path
                )
            found = (HEADERS in value, BODY in value)
        else:
            fields.known_only(fields.mapping(value, path), path, ("header", "body"))
            header = fields.flag(value["header"], f"{path}.header") if "header" in value else stored[0]
            body = fields.flag(value["body"], f"{path}.body") if "body" in value else stored[1]
            found = (header, body)
        if not any(found):
            raise InvalidField(f"{path} must enable at least one place.", field=path)
        return found


def _key(kind: str, source: _Source) -> str:
    name = _KEY[kind]
    value, path = source.required(name), source.path(name)
    if kind != VARIABLE:
        return fields.url(value, path)
    if not isinstance(value, str) or len(value) > MAX_VARIABLE_CHARACTERS or not _VARIABLE.fullmatch(value):
        raise InvalidField(
            f"{path} must be a variable's name: letters, digits and _, not beginning with a digit, at most "
            f"{MAX_VARIABLE_CHARACTERS} characters.",
            field=path,
        )
    return value


def _check_key(stored: Credential, source: _Source) -> None:
    name = _KEY[stored.type]
    if source.get(name) is not None and source.get(name) != stored.key:
        raise ImmutableField(f"{source.path(name)} can't be changed; add another credential.", field=source.path(name))


def _secret(kind: str, value: Any, path: str) -> str:
    return fields.secret(value, path) if kind == VARIABLE else fields.token(value, path)


def _expiry(source: _Source, now: datetime) -> datetime | None:
    value, path = source.get("expires_at"), source.path("expires_at")
    if value is None:
        return None
    moment = fields.moment(value, path)
    if moment <= now:
        raise InvalidField(f"{path} must be in the future.", field=path)
    return moment

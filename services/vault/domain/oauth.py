"""Renewing an OAuth token: what is kept for it, the request that asks, and the answer that is taken.

The authorization server of a credential is the one of its first consent. Its address comes
from whoever made the credential and from nowhere else: nothing that a server announces
later moves it, redirects are not followed, and an update may change it only if it brings
new tokens, so a token never goes to a server that did not give it.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote_plus

import orjson

from services.vault.domain import fields
from services.vault.domain.errors import AuthorizationServerFixed, ImmutableField, InvalidField
from services.vault.domain.fields import MAX_SECRET_CHARACTERS

NONE, BASIC, POST = "none", "client_secret_basic", "client_secret_post"
AUTHS = (NONE, BASIC, POST)
FIELDS = ("client_id", "refresh_token", "token_endpoint", "token_endpoint_auth", "resource", "scope")
MAX_WORD_CHARACTERS = 2048
# A token is renewed this long before its end, so that it doesn't end on its way.
MARGIN = timedelta(seconds=60)
LONGEST_LIFE_SECONDS = 10 * 366 * 86_400
# The words that RFC 6749 has for a refused refresh. Others are not repeated: a server may say anything.
KNOWN_ERRORS = frozenset(
    {"invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type"}
    | {"invalid_scope", "invalid_target", "server_error", "temporarily_unavailable"}
)


@dataclass(frozen=True, slots=True)
class Refresh:
    """How a token is renewed, without secrets."""

    client_id: str
    token_endpoint: str
    token_endpoint_auth: str
    resource: str | None = None
    scope: str | None = None

    def encode(self) -> str:
        """As it is stored."""
        return orjson.dumps(self).decode()

    @classmethod
    def decode(cls, stored: str) -> Refresh:
        """What was stored."""
        return cls(**orjson.loads(stored))


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A form to be posted to the token endpoint."""

    url: str
    form: dict[str, str] = field(repr=False)
    headers: dict[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a token endpoint gave."""

    access_token: str = field(repr=False)
    # None where the former one stays.
    refresh_token: str | None = field(repr=False)
    # None where the server doesn't say.
    expires_at: datetime | None


class UnusableAnswer(ValueError):
    """A token endpoint said yes and gave no token."""


def define_refresh(value: Any, path: str) -> tuple[Refresh, dict[str, str]]:
    """A refresh block as a creation gives it, and its secrets by name."""
    block = fields.mapping(value, path)
    fields.known_only(block, path, FIELDS)
    for name in ("client_id", "refresh_token", "token_endpoint", "token_endpoint_auth"):
        if block.get(name) is None:
            raise InvalidField(f"{path}.{name} is required.", field=f"{path}.{name}")
    secrets = {"refresh_token": fields.token(block["refresh_token"], f"{path}.refresh_token")}
    kind, client_secret = _token_endpoint_auth(block["token_endpoint_auth"], f"{path}.token_endpoint_auth")
    if kind != NONE:
        if client_secret is None:
            where = f"{path}.token_endpoint_auth.client_secret"
            raise InvalidField(f"{where} is required.", field=where)
        secrets["client_secret"] = client_secret
    refresh = Refresh(
        client_id=fields.text(block["client_id"], f"{path}.client_id", maximum=MAX_WORD_CHARACTERS),
        token_endpoint=fields.url(block["token_endpoint"], f"{path}.token_endpoint"),
        token_endpoint_auth=kind,
        resource=_word(block.get("resource"), f"{path}.resource"),
        scope=_word(block.get("scope"), f"{path}.scope"),
    )
    return refresh, secrets


def patch_refresh(
    stored: Refresh | None, value: Any, path: str, *, has_new_token: bool
) -> tuple[Refresh, dict[str, str]]:
    """The block after an update, and the secrets that it replaces, by name."""
    if stored is None:
        return define_refresh(value, path)
    block = fields.mapping(value, path)
    fields.known_only(block, path, FIELDS)
    for name in ("client_id", "resource"):
        if block.get(name) is not None and block[name] != getattr(stored, name):
            raise ImmutableField(f"{path}.{name} can't be changed; add another credential.", field=f"{path}.{name}")
    secrets: dict[str, str] = {}
    if block.get("refresh_token") is not None:
        secrets["refresh_token"] = fields.token(block["refresh_token"], f"{path}.refresh_token")
    endpoint = stored.token_endpoint
    if block.get("token_endpoint") is not None:
        endpoint = fields.url(block["token_endpoint"], f"{path}.token_endpoint")
    if endpoint != stored.token_endpoint and not (has_new_token and secrets):
        raise AuthorizationServerFixed(
            f"{path}.token_endpoint is the server that gave the tokens. It changes only together with a new "
            "access_token and a new refresh_token.",
            field=f"{path}.token_endpoint",
        )
    if block.get("token_endpoint_auth") is not None:
        secrets |= _patched_secret(stored, block["token_endpoint_auth"], f"{path}.token_endpoint_auth")
    if endpoint != stored.token_endpoint and stored.token_endpoint_auth != NONE and "client_secret" not in secrets:
        raise AuthorizationServerFixed(
            f"{path}.token_endpoint_auth.client_secret belongs to the former server; send the one of the new server.",
            field=f"{path}.token_endpoint_auth",
        )
    scope = stored.scope
    if block.get("scope") is not None:
        # An empty one clears it.
        scope = _word(block["scope"], f"{path}.scope") if block["scope"] != "" else None
    return Refresh(stored.client_id, endpoint, stored.token_endpoint_auth, stored.resource, scope), secrets


def is_due(expires_at: datetime | None, now: datetime) -> bool:
    """Whether it is time to renew. A token whose end nobody knows is renewed when it is refused."""
    return expires_at is not None and expires_at - now <= MARGIN


def token_request(refresh: Refresh, refresh_token: str, client_secret: str | None) -> TokenRequest:
    """The request of RFC 6749, section 6, with the client's identity where the server wants it."""
    form = {"grant_type": "refresh_token", "refresh_token": refresh_token}
    headers = {"accept": "application/json"}
    if refresh.token_endpoint_auth == BASIC:
        pair = f"{quote_plus(refresh.client_id)}:{quote_plus(client_secret or '')}"
        headers["authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    else:
        form["client_id"] = refresh.client_id
        if refresh.token_endpoint_auth == POST:
            form["client_secret"] = client_secret or ""
    if refresh.scope:
        form["scope"] = refresh.scope
    if refresh.resource:
        form["resource"] = refresh.resource
    return TokenRequest(refresh.token_endpoint, form, headers)


def read_tokens(body: bytes, now: datetime) -> Tokens:
    """What a successful answer holds; UnusableAnswer where it holds no usable token."""
    try:
        answer = orjson.loads(body)
    except ValueError:
        raise UnusableAnswer("the answer is not JSON") from None
    if not isinstance(answer, Mapping):
        raise UnusableAnswer("the answer is no object")
    access_token = _usable(answer.get("access_token"))
    if access_token is None:
        raise UnusableAnswer("the answer has no usable access_token")
    kind = answer.get("token_type", "bearer")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise UnusableAnswer("the token is no bearer token")
    return Tokens(access_token, _usable(answer.get("refresh_token")), _end(answer.get("expires_in"), now))


def error_word(body: bytes) -> str:
    """The word for the refusal, if it is one that the standard knows; else nothing."""
    try:
        answer = orjson.loads(body)
    except ValueError:
        return ""
    word = answer.get("error") if isinstance(answer, Mapping) else None
    return word if isinstance(word, str) and word in KNOWN_ERRORS else ""


def _token_endpoint_auth(value: Any, path: str) -> tuple[str, str | None]:
    block = fields.mapping(value, path)
    kind = fields.one_of(block.get("type"), f"{path}.type", AUTHS)
    fields.known_only(block, path, ("type",) if kind == NONE else ("type", "client_secret"))
    given = block.get("client_secret")
    return kind, fields.token(given, f"{path}.client_secret") if given is not None else None


def _patched_secret(stored: Refresh, value: Any, path: str) -> dict[str, str]:
    """Only the secret changes: the way in which it is sent stays, whichever of the two is named."""
    kind, client_secret = _token_endpoint_auth(value, path)
    if (kind == NONE) != (stored.token_endpoint_auth == NONE):
        raise ImmutableField(f"{path}.type can't be changed; it is {stored.token_endpoint_auth}.", field=f"{path}.type")
    return {} if client_secret is None else {"client_secret": client_secret}


def _word(value: Any, path: str) -> str | None:
    return None if value is None else fields.text(value, path, maximum=MAX_WORD_CHARACTERS)


def _usable(value: Any) -> str | None:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_SECRET_CHARACTERS:
        return None
    return value if all(33 <= ord(character) <= 126 for character in value) else None


def _end(value: Any, now: datetime) -> datetime | None:
    try:
        seconds = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else 0
    except ValueError:
        return None
    return now + timedelta(seconds=seconds) if 0 < seconds <= LONGEST_LIFE_SECONDS else None

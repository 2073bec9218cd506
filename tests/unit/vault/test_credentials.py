"""What is said of a credential, and which of them a target gets: pure rules."""

from __future__ import annotations

from base64 import b64decode, b64encode, urlsafe_b64encode
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, quote_plus

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import InvalidArgument
from services.vault.domain import injection, oauth
from services.vault.domain.credential import (
    BEARER,
    OAUTH,
    VARIABLE,
    Credential,
    Secrets,
    define,
    hint,
    identity,
    patch,
)
from services.vault.domain.oauth import Refresh, UnusableAnswer
from services.vault.operations.outward import shown

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "auth",
    "auth_type",
    "value",
    "variable_name",
    "network",
    "injection_locations",
    "name",
    "metadata",
    "refresh",
)


def credential(kind: str = VARIABLE, key: str = "KEY", vault_id: str = "vlt_1", **more: Any) -> Credential:
    """A stored one."""
    plain: dict[str, Any] = {
        **{"id": f"vcrd_{vault_id}_{key}", "vault_id": vault_id, "display_name": None, "type": kind, "key": key},
        **{"networking": '{"type":"unrestricted"}', "in_header": True, "in_body": False, "expires_at": None},
        **{"refresh": None, "metadata": "{}", "value_hint": "", "secret_version": 1, "last_used_at": None},
        **{"rotated_at": None, "created_at": NOW, "updated_at": NOW, "archived_at": None},
    }
    return Credential(**{**plain, **more})


@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), JSON, max_size=5))
def test_whatever_a_body_says_is_taken_or_refused(body: dict[str, Any]) -> None:
    for judge in (lambda: define(body, NOW), lambda: patch(credential(), body, NOW)):
        try:
            judge()
        except InvalidArgument as refusal:
            assert refusal.message and len(refusal.message) < 400


@given(st.text(min_size=1, max_size=40))
def test_no_refusal_repeats_what_it_was_given(value: str) -> None:
    canary = f"canary{value}"
    for body in (
        {"auth": {"type": "static_bearer", "mcp_server_url": canary, "token": "t"}},
        {"auth": {"type": "static_bearer", "mcp_server_url": "https://a.example", "token": f"{canary} x"}},
        {"auth": {"type": "environment_variable", "secret_name": f"{canary} ", "secret_value": "x"}},
        {"auth": {"type": canary}},
        {"auth_type": "environment_variable", "variable_name": "A", "value": [canary]},
        {"auth_type": "environment_variable", "variable_name": "A", "value": "x", "network": {"type": canary}},
    ):
        with pytest.raises(InvalidArgument) as refusal:
            define(body, NOW)
        assert canary not in refusal.value.message


def test_both_spellings_make_the_same_credential() -> None:
    flat = {
        "name": "a",
        "auth_type": "environment_variable",
        "variable_name": "KEY",
        "value": "v",
        "network": {"type": "limited", "allowed_hosts": ["a.example"]},
        "injection_locations": ["request_body"],
    }
    nested = {
        "display_name": "a",
        "auth": {
            "type": "environment_variable",
            "secret_name": "KEY",
            "secret_value": "v",
            "networking": flat["network"],
            "injection_location": {"body": True},
        },
    }
    assert define(flat, NOW) == define(nested, NOW)
    bearer = {"type": "static_bearer", "mcp_server_url": "https://a.example/", "token": "t"}
    same = {"auth_type": "bearer_token", "mcp_server_url": "https://a.example/", "value": "t"}
    assert define({"auth": bearer}, NOW) == define(same, NOW)


@given(st.sets(st.sampled_from(["header", "body"])), st.booleans(), st.booleans(), st.data())
def test_places_default_to_both_at_creation_and_stay_at_an_update(
    named: set[str], header: bool, body: bool, data: st.DataObject
) -> None:
    auth: dict[str, Any] = {"type": "environment_variable", "secret_name": "KEY", "secret_value": "v"}
    made = define({"auth": auth}, NOW).content
    assert (made.in_header, made.in_body) == (True, True)
    given_places = {name: data.draw(st.booleans()) for name in named}
    stored = credential(in_header=header, in_body=body or not header)
    wanted = (given_places.get("header", stored.in_header), given_places.get("body", stored.in_body))
    change = {"auth": {"type": "environment_variable", "injection_location": given_places}}
    at_creation = {"auth": {**auth, "injection_location": given_places}}
    if any(wanted):
        content = patch(stored, change, NOW).content
        assert (content.in_header, content.in_body) == wanted
    else:
        with pytest.raises(InvalidArgument):
            patch(stored, change, NOW)
    if any(given_places.values()):
        content = define(at_creation, NOW).content
        assert (content.in_header, content.in_body) == (
            given_places.get("header", False),
            given_places.get("body", False),
        )
    else:
        with pytest.raises(InvalidArgument):
            define(at_creation, NOW)


@given(st.text(max_size=40))
def test_a_hint_gives_away_four_characters_of_a_long_secret_at_most(secret: str) -> None:
    found = hint(secret)
    assert found == "****" or (len(secret) >= 16 and found == f"****{secret[-4:]}")


def test_secrets_are_not_shown_when_printed() -> None:
    secrets = Secrets("the-value", "the-refresh", "the-client")
    assert "the-" not in repr(secrets) and Secrets.decode(secrets.encode()) == secrets
    made = define({"auth": {"type": "static_bearer", "mcp_server_url": "https://a.example", "token": "the-t"}}, NOW)
    assert "the-t" not in repr(made)


@given(st.lists(st.text(max_size=6), min_size=5, max_size=5), st.lists(st.text(max_size=6), min_size=5, max_size=5))
def test_what_a_secret_is_sealed_for_tells_its_place(one: list[str], other: list[str]) -> None:
    if one[:4] != other[:4] and not any(":" in part for part in one + other):
        assert identity(*one) != identity(*other)


# Targets.


def names(found: Any) -> list[str]:
    return [each.id for each in found]


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.sampled_from(["free", "limited", "broken"])), max_size=8))
def test_of_each_name_the_first_counts_and_every_name_is_granted_or_denied(found: list[tuple[str, str]]) -> None:
    policies = {"free": '{"type":"unrestricted"}', "limited": '{"type":"limited","allowed_hosts":["a.example"]}'}
    held = [
        credential(key=name, id=f"{number}", networking=policies.get(policy))
        for number, (name, policy) in enumerate(found)
    ]
    first = {each.key: each for each in reversed(held)}
    for decision, usable in (
        (injection.for_process(held), {"free"}),
        (injection.for_egress(held, "a.example", 443), {"free", "limited"}),
        (injection.for_egress(held, "b.example", 443), {"free"}),
        (injection.for_egress(held, "", 443), {"free"}),
    ):
        granted = {each.key for each in decision.granted}
        assert granted == {name for name, each in first.items() if found[int(each.id)][1] in usable}
        assert {each.credential.id for each in decision.denied} == {
            each.id for name, each in first.items() if name not in granted
        }


def test_a_token_is_for_its_url_to_the_last_character() -> None:
    held = [credential(BEARER, "https://a.example/x"), credential(OAUTH, "https://a.example/x", "vlt_2")]
    assert names(injection.for_server(held, "https://a.example/x").granted) == [held[0].id]
    for other in ("https://a.example/x/", "https://A.example/x", "https://a.example/x?"):
        assert injection.for_server(held, other) == injection.Decision()
    assert injection.for_process(held) == injection.for_egress(held, "a.example", 443) == injection.Decision()


def test_what_is_archived_is_for_nobody() -> None:
    held = [replace(credential(), archived_at=NOW), replace(credential(BEARER, "https://a.example"), archived_at=NOW)]
    assert injection.for_process(held) == injection.for_server(held, "https://a.example") == injection.Decision()
    assert injection.for_listing(held) == ()


# Renewals.


@given(st.sampled_from(oauth.AUTHS), st.text("ab :+é", min_size=1, max_size=8), st.text("xy%&", min_size=1, max_size=8))
def test_a_client_names_itself_where_the_server_wants_it(kind: str, client_id: str, secret: str) -> None:
    refresh = Refresh(client_id, "https://a.example/token", kind, None, "read")
    request = oauth.token_request(refresh, "r", secret)
    assert (request.form["refresh_token"], request.form["scope"], "resource" in request.form) == ("r", "read", False)
    if kind == oauth.BASIC:
        assert b64decode(request.headers["authorization"].removeprefix("Basic ")).decode() == (
            f"{quote_plus(client_id)}:{quote_plus(secret)}"
        )
    assert ("client_id" in request.form) == (kind != oauth.BASIC)
    assert ("client_secret" in request.form) == (kind == oauth.POST)
    assert repr(request) == "TokenRequest(url='https://a.example/token')"


@given(JSON | st.fixed_dictionaries({"access_token": JSON, "expires_in": JSON, "token_type": JSON}))
def test_whatever_a_server_answers_is_tokens_or_unusable(answer: Any) -> None:
    try:
        found = oauth.read_tokens(orjson.dumps(answer, option=orjson.OPT_NON_STR_KEYS), NOW)
    except (UnusableAnswer, TypeError):
        return
    assert all(33 <= ord(character) <= 126 for character in found.access_token)
    assert found.expires_at is None or found.expires_at > NOW


@pytest.mark.parametrize(("expires_in", "seconds"), [(60, 60), ("60", 60), (0, None), (-1, None), ("x", None)])
def test_an_end_is_taken_where_it_is_one(expires_in: Any, seconds: int | None) -> None:
    found = oauth.read_tokens(orjson.dumps({"access_token": "a", "expires_in": expires_in}), NOW)
    assert found.expires_at == (NOW + timedelta(seconds=seconds) if seconds else None)


@given(st.integers(-100, 200))
def test_a_token_is_renewed_a_minute_before_its_end(seconds: int) -> None:
    assert oauth.is_due(NOW + timedelta(seconds=seconds), NOW) == (seconds <= 60)
    assert not oauth.is_due(None, NOW)


@given(st.text(max_size=30), st.text(max_size=30), st.text("abcXYZ019/+=-_. ", min_size=12, max_size=30))
def test_what_is_shown_of_an_answer_has_no_secret_in_any_spelling(before: str, after: str, secret: str) -> None:
    raw = secret.encode()
    for form in (
        secret,
        quote(secret, safe=""),
        quote_plus(secret),
        raw.hex(),
        b64encode(raw).decode().rstrip("=")[:-1],
        urlsafe_b64encode(raw).decode().rstrip("=")[:-1],
        orjson.dumps(secret)[1:-1].decode(),
    ):
        text, _ = shown(f"{before}<{form}>{after}".encode("utf-8", "replace"), [secret])
        assert f"<{form}>" not in text

"""Tickets and cookies: sealed, short-lived, for one place, and nothing that anybody else can make."""

from __future__ import annotations

import time

import pytest

from kit.config import ConfigError
from services.gateway.admission import browsers
from services.gateway.admission.browsers import COOKIE, TICKET_SECONDS, Browsers, InvalidTicket
from tests.unit.gateway.support import settings

HOST = {"host": "gw.example.com", "origin": "http://gw.example.com"}
PATH = "/api/agents/agent_1/eve/v1/session"


def exchanged(one: Browsers, seconds: int = 3600) -> str:
    """The cookie header of a browser."""
    ticket, _ = one.ticket("ab" * 32, "agent_1", preview=False, user="ada", seconds=seconds)
    cookie, _ = one.cookie(one.open_ticket(ticket, "agent_1", preview=False), HOST)
    return cookie.partition(";")[0]


def test_any_gateway_of_the_same_secret_knows_a_cookie_and_no_other_does() -> None:
    header = {**HOST, "cookie": exchanged(Browsers("secret"))}
    claims = Browsers("secret").read(header, PATH, "POST")
    assert claims is not None and (claims.user, claims.agent_id, claims.digest) == ("ada", "agent_1", "ab" * 32)
    assert Browsers("another").read(header, PATH, "POST") is None
    # Without one, only this process does.
    assert Browsers(None).read({**HOST, "cookie": exchanged(Browsers(None))}, PATH, "POST") is not None


def test_what_was_changed_opens_nothing() -> None:
    one = Browsers("secret")
    name, _, value = exchanged(one).partition("=")
    for wrong in (value[:-1], value[:-2] + "AA", "A" * len(value), "", "…", value.swapcase()):
        assert one.read({**HOST, "cookie": f"{name}={wrong}"}, PATH, "POST") is None
    ticket, _ = one.ticket("", "agent_1", preview=False, user="", seconds=60)
    # A ticket is no cookie, and a cookie no ticket.
    assert one.read({**HOST, "cookie": f"{COOKIE}={ticket}"}, PATH, "POST") is None
    with pytest.raises(InvalidTicket):
        one.open_ticket(value, "agent_1", preview=False)


def test_nothing_in_it_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    value = exchanged(Browsers("secret"))
    assert "agent_1" not in value and "ada" not in value and "ab" * 8 not in value


def test_both_end(monkeypatch: pytest.MonkeyPatch) -> None:
    one, now = Browsers("secret"), time.time()
    ticket, claims = one.ticket("", "agent_1", preview=False, user="", seconds=600)
    assert 0 < claims.expires_at - now <= TICKET_SECONDS
    cookie = exchanged(one, seconds=600)
    monkeypatch.setattr(browsers.time, "time", lambda: now + TICKET_SECONDS + 1)
    with pytest.raises(InvalidTicket):
        one.open_ticket(ticket, "agent_1", preview=False)
    assert one.read({**HOST, "cookie": cookie}, PATH, "POST") is not None
    monkeypatch.setattr(browsers.time, "time", lambda: now + 601)
    assert one.read({**HOST, "cookie": cookie}, PATH, "POST") is None


@pytest.mark.parametrize("path", ["/v1/agents", "/api/agents/agent_1/other", "/api/agents/agent_1/eve/v1", "/docs"])
def test_elsewhere_a_cookie_counts_for_nothing(path: str) -> None:
    one = Browsers("secret")
    assert one.read({**HOST, "cookie": exchanged(one)}, path, "POST") is None


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
def test_beside_a_key_a_cookie_counts_for_nothing(header: str) -> None:
    one = Browsers("secret")
    assert one.read({**HOST, "cookie": exchanged(one), header: "x"}, PATH, "POST") is None


@pytest.mark.parametrize(
    "other", ['theme={"dark":true}', "flag", "a b=c", "=x", "a@b=c", 'open="', "path=/", "é=ü", ";", f"{COOKIE}x=1"]
)
@pytest.mark.parametrize("form", ["{other}; {ours}", "{ours}; {other}", "{other};{ours};{other}"])
def test_what_else_the_host_has_set_does_not_shut_a_browser_out(other: str, form: str) -> None:
    one = Browsers("secret")
    assert one.read({**HOST, "cookie": form.format(other=other, ours=exchanged(one))}, PATH, "POST") is not None


@pytest.mark.parametrize(
    ("told", "meant"),
    [
        ("https://app.example.com, http://localhost:5173/", ("https://app.example.com", "http://localhost:5173")),
        ("https://App.Example.com/,", ("https://app.example.com",)),
        ("http://[::1]:8080", ("http://[::1]:8080",)),
        ("*", ("*",)),
        ("", ()),
    ],
)
def test_allowed_origins_are_read_as_browsers_spell_them(told: str, meant: tuple[str, ...]) -> None:
    assert settings(cors_origins=told).allowed_origins() == meant


@pytest.mark.parametrize(
    "told", ["app.example.com", "https://app.example.com/chat", "https://*.example.com", "null", "https://a.b:443"]
)
def test_what_no_browser_would_send_as_its_origin_is_refused(told: str) -> None:
    with pytest.raises(ConfigError, match="MANAGED_AGENTS_CORS_ORIGINS"):
        settings(cors_origins=f"https://app.example.com,{told}").allowed_origins()


def test_an_operator_that_allows_everyone_allows_nobody_a_cookie() -> None:
    one = Browsers("secret", ["*"])
    with pytest.raises(browsers.OriginRefused):
        one.check_origin({"host": "gw.example.com", "origin": "https://evil.example"}, "POST")

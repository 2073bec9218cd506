"""Each rule on the domain lists of web tools, with the path that its refusal names."""

from __future__ import annotations

from typing import Any

import pytest

from services.sessions.domain.errors import InvalidDomainList
from services.sessions.domain.session_errors import InvalidRequest, UnknownField, UnsupportedCapability
from services.sessions.domain.tools import validate_tools


def judge(**config: Any) -> dict[str, Any]:
    """The second config of the first toolset."""
    entry = {"name": "web_fetch", "enabled": False} | config
    return validate_tools([{"type": "agent_toolset_20260401", "configs": [{"name": "bash"}, entry]}])[0]["configs"][1]


def refused(**config: Any) -> InvalidDomainList:
    with pytest.raises(InvalidDomainList) as refusal:
        judge(**config)
    return refusal.value


@pytest.mark.parametrize(
    "domain",
    ["example.com", "EXAMPLE.com", "docs.example.co.uk", "xn--bcher-kva.de", "a-b.example", "1password.com", "web.de"],
)
@pytest.mark.parametrize("tool", ["web_fetch", "web_search"])
@pytest.mark.parametrize("name", ["allowed_domains", "blocked_domains"])
def test_plain_hostnames_are_kept_as_written(domain: str, tool: str, name: str) -> None:
    assert judge(**{"name": tool, name: [domain]})[name] == [domain]


@pytest.mark.parametrize(
    "domain",
    [
        "https://example.com",
        "example.com:443",
        "user@example.com",
        "*.example.com",
        "*",
        "exa mple.com",
        " example.com",
        "example.com\t",
        "bücher.de",
        "exam_ple.com",
        "-example.com",
        "example-.com",
        "a.-b.com",
        "a..com",
        ".example.com",
        "example.com.",
        "x" * 64 + ".com",
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "0x7f000001",
        "0177.0.0.1",
        "[::1]",
        "::1",
        "[fe80::1]",
        "example.123",
        "localhost",
        "app.localhost",
        "printer.local",
        "db.internal",
        "host.localdomain",
        "nothing.invalid",
        "com",
        "intranet",
        "co.uk",
        "com.au",
        "or.jp",
        "gov.uk",
        "",
        None,
        4,
        ["example.com"],
        "a." * 127 + "com",
    ],
)
def test_anything_else_is_refused_at_its_place(domain: Any) -> None:
    refusal = refused(name="web_search", allowed_domains=["one.example.com", "two.example.com", domain])
    assert refusal.field == "tools.0.configs.1.allowed_domains.2"
    assert refusal.field in refusal.message


def test_the_longest_domain_is_taken() -> None:
    domain = ".".join(["x" * 63] * 3 + ["y" * 59, "com"])
    assert len(domain) == 255
    judge(allowed_domains=[domain])
    assert refused(allowed_domains=["y" + domain]).field == "tools.0.configs.1.allowed_domains.0"


def test_only_one_of_the_lists() -> None:
    assert refused(allowed_domains=["a.example.com"], blocked_domains=["b.example.com"]).field


@pytest.mark.parametrize("empty", [[], [f"d{n}.example.com" for n in range(65)], "example.com", {}])
def test_a_list_holds_one_to_sixty_four_domains(empty: Any) -> None:
    assert refused(blocked_domains=empty).field == "tools.0.configs.1.blocked_domains"


def test_sixty_four_domains_are_taken() -> None:
    assert len(judge(allowed_domains=[f"d{n}.example.com" for n in range(64)])["allowed_domains"]) == 64


def test_null_means_no_restriction() -> None:
    config = judge(allowed_domains=None, blocked_domains=None)
    assert "allowed_domains" not in config
    assert "blocked_domains" not in config
    assert judge(allowed_domains=None, blocked_domains=["a.example.com"])["blocked_domains"]


@pytest.mark.parametrize("twin", ["example.com", "EXAMPLE.COM", "example.com/"])
def test_duplicates_are_found_beyond_case_and_one_trailing_slash(twin: str) -> None:
    refusal = refused(name="web_search", allowed_domains=["example.com", "b.example.com", twin])
    assert refusal.field == "tools.0.configs.1.allowed_domains.2"


def test_a_subdomain_does_not_stand_in_for_its_domain() -> None:
    assert judge(allowed_domains=["example.com", "www.example.com"])


@pytest.mark.parametrize("domain", ["example.com/blog", "example.com/"])
def test_only_web_search_takes_a_path_suffix(domain: str) -> None:
    assert judge(name="web_search", allowed_domains=[domain])["allowed_domains"] == [domain]
    assert refused(name="web_fetch", allowed_domains=[domain]).field == "tools.0.configs.1.allowed_domains.0"


@pytest.mark.parametrize(
    "suffix", ["/a b", "/a?q", "/a#b", "/$a", "/a,b", "/a|b", "/a^b", "/*", "/a\tb", "/a\x00", "//a"]
)
def test_a_path_suffix_has_no_character_with_a_meaning(suffix: str) -> None:
    assert refused(name="web_search", blocked_domains=["example.com" + suffix]).field == (
        "tools.0.configs.1.blocked_domains.0"
    )


@pytest.mark.parametrize("enabled", [True, False])
def test_a_list_is_judged_whether_or_not_its_tool_can_run(enabled: bool) -> None:
    for name in ("web_fetch", "web_search"):
        assert refused(name=name, enabled=enabled, allowed_domains=["localhost"])
        assert judge(name=name, enabled=enabled, allowed_domains=["example.com"])["enabled"] is enabled


def test_each_tool_takes_its_own_options_only() -> None:
    with pytest.raises(UnknownField, match="max_content_tokens"):
        judge(name="web_search", max_content_tokens=5)
    with pytest.raises(UnknownField, match="user_location"):
        judge(name="web_fetch", user_location={"type": "approximate"})
    with pytest.raises(UnknownField, match="allowed_domains"):
        judge(name="read", allowed_domains=["example.com"])


@pytest.mark.parametrize("tokens", [0, -1, 1.5, True, "5", 10_000_000])
def test_max_content_tokens_is_a_positive_whole_number(tokens: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        judge(max_content_tokens=tokens)
    assert refusal.value.field == "tools.0.configs.1.max_content_tokens"


@pytest.mark.parametrize(
    ("location", "field"),
    [
        ("Bonn", ""),
        ({}, ".type"),
        ({"type": "exact"}, ".type"),
        ({"type": "approximate", "country": "de"}, ".country"),
        ({"type": "approximate", "country": "DEU"}, ".country"),
        ({"type": "approximate", "city": ""}, ".city"),
        ({"type": "approximate", "timezone": 1}, ".timezone"),
    ],
)
def test_a_malformed_location(location: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        judge(name="web_search", user_location=location)
    assert refusal.value.field == "tools.0.configs.1.user_location" + field


def test_url_sources_are_an_unsupported_capability() -> None:
    assert judge(url_sources=None)
    with pytest.raises(UnsupportedCapability):
        judge(url_sources={"user_input": "none"})

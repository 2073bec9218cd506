"""What is a URL that may be fetched, which hosts are internal, and what domain lists let through."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from services.worker.runner.web.policy import DomainPolicy, WebRefused, check_internal, next_url, read_url


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://example.com/", "file:///etc/passwd", "gopher://example.com/", "data:text/plain,hi", "javascript:1"),
        *("http://user@example.com/", "http://user:password@example.com/", "http://@example.com/", "//example.com/"),
        *("example.com", "", "http://", "http:///path", "https://example.com:0/", "https://example.com:99999/"),
        *("http://example.com\\@evil.com/", "http://exa mple.com/", "http://example.com/\x00", "http://[::1/"),
        *("http://example.com/\n", "HTTP//example.com", f"https://example.com/{'a' * 2048}"),
    ],
)
def test_what_is_no_plain_web_address_is_refused(url: str) -> None:
    with pytest.raises(WebRefused):
        read_url(url)


@pytest.mark.parametrize(
    ("url", "requested", "host"),
    [
        ("HTTPS://Example.COM", "https://example.com/", "example.com"),
        ("https://example.com./a", "https://example.com/a", "example.com"),
        ("https://example.com:443/a#part", "https://example.com/a", "example.com"),
        ("http://example.com:8080/a?b=c d".replace(" ", "%20"), "http://example.com:8080/a?b=c%20d", "example.com"),
        ("https://bücher.example/ä?ö=ü", "https://xn--bcher-kva.example/%C3%A4?%C3%B6=%C3%BC", "xn--bcher-kva.example"),
        ("http://[2606:4700::1111]/", "http://[2606:4700::1111]/", "2606:4700::1111"),
    ],
)
def test_a_url_is_put_together_again_from_what_was_checked(url: str, requested: str, host: str) -> None:
    wanted = read_url(url)
    assert (wanted.url, wanted.host) == (requested, host)


@pytest.mark.parametrize("host", ["127。0。0。1", "１２７.0.0.1", "⑯9.254.169.254"])
def test_an_address_in_other_characters_is_no_name(host: str) -> None:
    with pytest.raises(WebRefused):
        read_url(f"http://{host}/")


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(
    st.one_of(
        _TEXTS, st.builds("http://{}/{}".format, _TEXTS, _TEXTS), st.builds("https://{}@{}".format, _TEXTS, _TEXTS)
    )
)
def test_whatever_is_taken_means_the_same_host_to_every_reader(url: str) -> None:
    try:
        wanted = read_url(url)
    except WebRefused:
        return
    parts, read = urlsplit(wanted.url), URL(wanted.url, encoded=True)
    assert wanted.url.isascii()
    assert parts.scheme in ("http", "https") and "@" not in parts.netloc
    assert parts.hostname == read.raw_host == wanted.host
    assert read.port == wanted.port


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "api.localhost", "printer.local", "metadata.google.internal", "db.internal", "a.localdomain"),
        *("gone.invalid", "localdomain", "internal."),
    ],
)
def test_names_of_internal_hosts_are_refused_before_any_resolver_is_asked(host: str) -> None:
    with pytest.raises(WebRefused, match="internal"):
        check_internal(host)


@pytest.mark.parametrize("host", ["example.com", "localhost.example.com", "internal.example.org", "mylocalhost.com"])
def test_other_names_are_not(host: str) -> None:
    check_internal(host)


def test_an_allowed_domain_covers_itself_and_what_is_below_it_and_nothing_else() -> None:
    policy = DomainPolicy.of({"allowed_domains": ["Example.com"]})
    assert policy.permits("example.com") and policy.permits("docs.example.com")
    for host in ("badexample.com", "example.com.evil.org", "example.org", "com"):
        with pytest.raises(WebRefused, match="allowed domains"):
            policy.check(host)


def test_a_blocked_domain_covers_itself_and_what_is_below_it_and_nothing_else() -> None:
    policy = DomainPolicy.of({"blocked_domains": ["example.com"]})
    for host in ("example.com", "a.b.example.com"):
        with pytest.raises(WebRefused, match="blocked domains"):
            policy.check(host)
    assert policy.permits("badexample.com") and policy.permits("example.org")


@pytest.mark.parametrize("config", [{}, {"allowed_domains": None}, {"blocked_domains": None}])
def test_no_list_means_any_host(config: dict) -> None:
    assert DomainPolicy.of(config).permits("example.com")


def test_a_path_suffix_covers_the_folder_that_it_names() -> None:
    policy = DomainPolicy.of({"allowed_domains": ["example.com/docs"]})
    assert policy.permits("example.com", "/docs") and policy.permits("www.example.com", "/docs/a")
    assert not policy.permits("example.com", "/docsearch") and not policy.permits("example.com", "/")


@pytest.mark.parametrize(
    ("location", "leads_to"),
    [
        ("/b", "https://example.com/b"),
        ("//other.org/x", "https://other.org/x"),
        ("http://169.254.169.254/latest", "http://169.254.169.254/latest"),
        ("?q=1", "https://example.com/a?q=1"),
    ],
)
def test_a_redirect_is_read_against_where_it_came_from(location: str, leads_to: str) -> None:
    assert next_url(read_url("https://example.com/a"), location) == leads_to

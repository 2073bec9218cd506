"""Searches over a provider with the JSON interface of SearXNG."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import parse_qs

import orjson
import pytest

from services.worker.runner.web.policy import DomainPolicy, FetchFailed
from services.worker.runner.web.search import Searcher
from tests.integration.web.web_server import WebServer, web_server

RESULTS = [
    {"url": "https://docs.example.com/a", "title": "A\n page", "content": "About  a.", "publishedDate": "2026-01-01"},
    {"url": "https://example.org/b", "title": "B", "content": None},
    {"url": "javascript:alert(1)", "title": "bad"},
    {"url": "http://user:pw@example.com/", "title": "bad"},
    {"title": "no url"},
    "no object",
]


@pytest.fixture
async def provider() -> AsyncIterator[WebServer]:
    async with web_server() as server:
        server.page("/search", orjson.dumps({"query": "q", "results": RESULTS}), "application/json")
        yield server


def _searcher(provider: WebServer, path: str = "", **options: float) -> Searcher:
    return Searcher(f"http://127.0.0.1:{provider.port}{path}", **options)


async def test_results_come_as_text(provider: WebServer) -> None:
    text = await _searcher(provider).search("what is a?", DomainPolicy())
    assert text == ("1. A page\nhttps://docs.example.com/a\n2026-01-01\nAbout a.\n\n2. B\nhttps://example.org/b")
    assert parse_qs(provider.requests[0].partition("?")[2]) == {"q": ["what is a?"], "format": ["json"]}


@pytest.mark.parametrize(
    ("path", "asked"), [("", "/search"), ("/", "/search"), ("/search", "/search"), ("/x", "/x/search")]
)
async def test_the_path_of_the_provider_is_completed(provider: WebServer, path: str, asked: str) -> None:
    provider.answers[asked] = provider.answers["/search"]
    await _searcher(provider, path).search("q", DomainPolicy())
    assert provider.requests[0].startswith(f"{asked}?")


async def test_domain_lists_hold_for_results(provider: WebServer) -> None:
    allowed = await _searcher(provider).search("q", DomainPolicy.of({"allowed_domains": ["example.com"]}))
    assert "docs.example.com" in allowed and "example.org" not in allowed
    assert allowed.endswith("[1 more results are of domains that this agent may not use]")
    blocked = await _searcher(provider).search("q", DomainPolicy.of({"blocked_domains": ["example.com"]}))
    assert "docs.example.com" not in blocked and "example.org" in blocked


async def test_a_path_suffix_holds_for_results(provider: WebServer) -> None:
    text = await _searcher(provider).search("q", DomainPolicy.of({"allowed_domains": ["example.com/other"]}))
    assert text == "[2 more results are of domains that this agent may not use]"


async def test_the_country_of_the_user_is_passed_as_region(provider: WebServer) -> None:
    location = {"type": "approximate", "country": "DE", "city": "Berlin"}
    await _searcher(provider).search("q", DomainPolicy(), location)
    await _searcher(provider).search("q", DomainPolicy(), {"type": "approximate", "country": "ZZ"})
    assert "language=de-DE" in provider.requests[0] and "language" not in provider.requests[1]


async def test_no_result_is_said(provider: WebServer) -> None:
    provider.page("/search", b'{"results": []}', "application/json")
    assert await _searcher(provider).search("q", DomainPolicy()) == "Nothing was found."


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"<html>", 200), (b"[]", 200), (b'{"results": {}}', 200), (b"{}", 429), (b"x" * 3_000_000, 200)],
)
async def test_an_answer_that_is_none_is_an_error(provider: WebServer, body: bytes, status: int) -> None:
    provider.page("/search", body, "application/json", status=status)
    with pytest.raises(FetchFailed) as caught:
        await _searcher(provider).search("q", DomainPolicy())
    assert caught.value.was_sent


async def test_a_redirect_of_the_provider_is_not_followed(provider: WebServer) -> None:
    provider.redirect("/search", "/elsewhere")
    with pytest.raises(FetchFailed, match="status 302"):
        await _searcher(provider).search("q", DomainPolicy())
    assert len(provider.requests) == 1


async def test_a_provider_that_is_away_or_slow_is_an_error_that_does_not_name_it(provider: WebServer) -> None:
    with pytest.raises(FetchFailed, match="can't be reached") as caught:
        await Searcher("http://127.0.0.1:1").search("q", DomainPolicy())
    assert "127.0.0.1" not in str(caught.value) and not caught.value.was_sent

    async def silent(_path: str, _write) -> None:
        import asyncio

        await asyncio.Event().wait()

    provider.answers["/search"] = silent
    with pytest.raises(FetchFailed, match="longer than"):
        await _searcher(provider, seconds=0.2).search("q", DomainPolicy())

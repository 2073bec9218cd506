"""Fetches of real servers: what is read, and every guard of the chain in its place."""

from __future__ import annotations

import asyncio
import gzip
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kit.addresses import checked_address
from services.worker.runner.web.fetch import Fetcher, FetchFailed, Limits
from services.worker.runner.web.pages import PageReader
from services.worker.runner.web.policy import DomainPolicy
from tests.integration.web.certificates import authority_for
from tests.integration.web.web_server import Names, WebServer, fetcher, web_server

ANY = DomainPolicy()


@pytest.fixture
async def web() -> AsyncIterator[WebServer]:
    async with web_server() as server:
        yield server


@pytest.fixture
def names() -> Names:
    return Names()


def _url(web: WebServer, path: str, host: str = "web.example") -> str:
    return f"http://{host}:{web.port}{path}"


async def _refusal(names: Names, url: str, policy: DomainPolicy = ANY, **limits: float) -> FetchFailed:
    async with fetcher(names, **limits) as web:
        with pytest.raises(FetchFailed) as caught:
            await web.fetch(url, policy)
    return caught.value


async def test_a_page_comes_as_markdown_with_its_title(web: WebServer, names: Names) -> None:
    web.page(
        "/",
        b"<html><head><title>The\n title</title><style>x</style></head><body><h1>Head</h1><script>bad()</script>"
        b"<p>Some <b>bold</b> text, <a href='/next'>more</a>.</p><ul><li>one</li><li>two</li></ul></body>",
        "text/html",
    )
    async with fetcher(names) as reader:
        page = await reader.fetch(_url(web, "/"), ANY)
    assert page.text.startswith("The title\n\n# Head\n\nSome **bold** text, [more](/next).")
    assert "bad()" not in page.text and "* one" in page.text


@pytest.mark.parametrize("encoding", ["gzip", None])
async def test_text_comes_as_it_is(web: WebServer, names: Names, encoding: str | None) -> None:
    body = '{"a": "ä"}'.encode()
    headers = [f"content-encoding: {encoding}"] if encoding else []
    web.page("/a.json", gzip.compress(body) if encoding else body, "application/json", *headers)
    async with fetcher(names) as reader:
        page = await reader.fetch(_url(web, "/a.json?b=1#c"), ANY)
    assert page.text == '{"a": "ä"}'
    assert web.requests == ["/a.json?b=1"] and web.hosts == [f"web.example:{web.port}"]


@pytest.mark.parametrize("url", ["ftp://web.example/", "http://user:pw@web.example/", "web.example", "http://\\web"])
async def test_a_url_of_another_shape_asks_nobody(names: Names, url: str) -> None:
    refusal = await _refusal(names, url)
    assert not refusal.was_sent and not names.asked


@pytest.mark.parametrize("host", ["localhost", "printer.local", "db.internal", "x.localhost", "a.localdomain"])
async def test_internal_names_are_refused_before_the_resolver(names: Names, host: str) -> None:
    refusal = await _refusal(names, f"http://{host}/")
    assert "internal" in str(refusal) and not names.asked


async def test_the_domain_list_is_judged_before_the_resolver(web: WebServer, names: Names) -> None:
    refusal = await _refusal(names, _url(web, "/"), DomainPolicy.of({"allowed_domains": ["allowed.com"]}))
    assert "not among the allowed domains" in str(refusal) and not names.asked
    refusal = await _refusal(names, _url(web, "/"), DomainPolicy.of({"blocked_domains": ["web.example"]}))
    assert "among the blocked domains" in str(refusal) and not names.asked
    assert not web.requests


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1",
            "10.0.0.1",
            "172.16.3.4",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
        ),
        *("[::1]", "[::]", "[fe80::1]", "[fd00::1]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]"),
        *("0x7f000001", "2130706433", "0177.0.0.1", "127.1", "0x7f.1"),
    ],
)
async def test_addresses_that_nobody_should_reach(web: WebServer, names: Names, host: str) -> None:
    refusal = await _refusal(names, f"http://{host}:{web.port}/")
    assert not refusal.was_sent and not web.requests


async def test_a_name_that_resolves_to_a_private_address_is_refused(
    web: WebServer, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(*_: object, **__: object) -> list[tuple]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in ("93.184.216.34", "127.0.0.1")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve, raising=False)
    refusal = await _refusal(names, f"http://mixed.test:{web.port}/")
    assert "may not be connected to" in str(refusal) and not web.requests


async def test_a_name_that_changes_its_address_after_the_check_is_connected_to_the_checked_one(
    web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rebinding: whoever resolves a second time gets another answer, and nobody does."""
    web.page("/", b"checked")
    resolved: list[str] = []

    async def guard(host: str, port: int) -> list[str]:
        resolved.append(host)
        return ["127.0.0.1"]

    async def rebound(*_: object, **__: object) -> list[tuple]:
        raise AssertionError("resolved a second time")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", rebound, raising=False)
    pages = PageReader()
    page = await Fetcher(pages, guard=guard).fetch(f"http://rebind.test:{web.port}/", ANY)
    await pages.close()
    assert page.text == "checked" and resolved == ["rebind.test"]
    assert web.hosts == [f"rebind.test:{web.port}"]


async def test_tls_goes_to_the_checked_address_under_the_name_that_was_asked_for(tmp_path: Path) -> None:
    server_context, client_context = authority_for("secure.example", tmp_path)
    asked_for: list[str | None] = []
    server_context.sni_callback = lambda _socket, name, _context: asked_for.append(name)
    async with (
        web_server(server_context) as web,
        fetcher(Names({"secure.example", "wrong.example"}), client_context) as reader,
    ):
        web.page("/", b"sealed")
        page = await reader.fetch(f"https://secure.example:{web.port}/", ANY)
        assert page.text == "sealed" and asked_for == ["secure.example"]
        with pytest.raises(FetchFailed, match="can't be reached"):
            await reader.fetch(f"https://wrong.example:{web.port}/", ANY)


async def test_a_certificate_of_nobody_is_not_taken(tmp_path: Path) -> None:
    server_context, _ = authority_for("secure.example", tmp_path)
    async with web_server(server_context) as web:
        refusal = await _refusal(Names({"secure.example"}), f"https://secure.example:{web.port}/")
    assert "can't be reached" in str(refusal) and not web.requests


async def test_a_redirect_is_followed_and_told(web: WebServer, names: Names) -> None:
    web.redirect("/a", "/b", 301)
    web.redirect("/b", f"http://other.example:{web.port}/c", 307)
    web.page("/c", b"there")
    async with fetcher(names) as reader:
        page = await reader.fetch(_url(web, "/a"), ANY)
    assert (page.url, page.text) == (_url(web, "/c", "other.example"), "there")
    assert names.asked == ["web.example", "web.example", "other.example"]


@pytest.mark.parametrize(
    "location",
    [
        *("http://169.254.169.254/latest/meta-data/", "http://127.0.0.1/", "http://[::1]/", "http://0x7f000001/"),
        *("http://localhost/", "http://metadata.google.internal/", "file:///etc/passwd", "ftp://web.example/"),
        *("http://user:pw@web.example/", "http://hidden.example/", "//169.254.169.254/", "http://[broken/"),
    ],
)
async def test_a_redirect_to_where_nobody_may_go_is_refused_at_that_hop(
    web: WebServer, names: Names, location: str
) -> None:
    web.redirect("/a", location)
    refusal = await _refusal(names, _url(web, "/a"))
    assert refusal.was_sent and web.requests == ["/a"]


async def test_a_redirect_out_of_the_domain_list_is_refused(web: WebServer, names: Names) -> None:
    web.redirect("/a", f"http://other.example:{web.port}/b")
    refusal = await _refusal(names, _url(web, "/a"), DomainPolicy.of({"allowed_domains": ["web.example"]}))
    assert "not among the allowed domains" in str(refusal) and web.requests == ["/a"]


async def test_redirects_are_counted(web: WebServer, names: Names) -> None:
    web.redirect("/loop", "/loop")
    refusal = await _refusal(names, _url(web, "/loop"))
    assert "more than 5 times" in str(refusal) and len(web.requests) == 6


@pytest.mark.parametrize("declares_its_size", [True, False])
async def test_a_huge_body_is_cut_off(web: WebServer, names: Names, declares_its_size: bool) -> None:
    length = "content-length: 1000000000\r\n" if declares_its_size else ""

    async def endless(_path: str, write) -> None:
        await write(f"HTTP/1.1 200 X\r\ncontent-type: text/plain\r\n{length}\r\n".encode())
        for _ in range(15_000):
            await write(bytes(65_536))

    web.answers["/"] = endless
    refusal = await _refusal(names, _url(web, "/"))
    assert "larger than 5242880 bytes" in str(refusal)
    assert web.written < 64 * 1024 * 1024


async def test_a_bomb_is_cut_off_where_it_unpacks(web: WebServer, names: Names) -> None:
    bomb = gzip.compress(bytes(100_000_000), 9)
    web.page("/", bomb, "text/html", "content-encoding: gzip")
    before = time.monotonic()
    refusal = await _refusal(names, _url(web, "/"))
    assert "larger than 5242880 bytes" in str(refusal)
    assert time.monotonic() - before < 5


async def test_a_slow_server_is_given_up(web: WebServer, names: Names) -> None:
    async def drip(_path: str, write) -> None:
        await write(b"HTTP/1.1 200 X\r\ncontent-type: text/plain\r\n\r\n")
        while True:
            await write(b".")
            await asyncio.sleep(0.02)

    web.answers["/"] = drip
    before = time.monotonic()
    refusal = await _refusal(names, _url(web, "/"), seconds=0.5)
    assert "longer than 0.5 seconds" in str(refusal) and time.monotonic() - before < 5


async def test_a_silent_server_is_given_up(web: WebServer, names: Names) -> None:
    async def silent(_path: str, _write) -> None:
        await asyncio.Event().wait()

    web.answers["/"] = silent
    assert "longer than 0.3 seconds" in str(await _refusal(names, _url(web, "/"), seconds=0.3))


async def test_slow_hops_share_one_time(web: WebServer, names: Names) -> None:
    async def slow(path: str, write) -> None:
        await asyncio.sleep(0.25)
        await write(b"HTTP/1.1 302 X\r\nlocation: /\r\ncontent-length: 0\r\n\r\n")

    web.answers["/"] = slow
    assert "longer than 0.6 seconds" in str(await _refusal(names, _url(web, "/"), seconds=0.6))


@pytest.mark.parametrize("content_type", ["image/png", "application/pdf", "application/octet-stream", "nonsense"])
async def test_binary_content_is_told_as_type_and_size(web: WebServer, names: Names, content_type: str) -> None:
    web.page("/", b"\x89PNG secret bytes", content_type)
    async with fetcher(names) as reader:
        page = await reader.fetch(_url(web, "/"), ANY)
    told = content_type if "/" in content_type else "application/octet-stream"
    assert page.text == f"[binary content, not shown]\nmedia type: {told}\nsize: 17 bytes"


async def test_binary_content_of_unknown_size_is_counted_up_to_the_limit(web: WebServer, names: Names) -> None:
    async def endless(_path: str, write) -> None:
        await write(b"HTTP/1.1 200 X\r\ncontent-type: video/mp4\r\n\r\n")
        for _ in range(15_000):
            await write(bytes(65_536))

    web.answers["/"] = endless
    async with fetcher(names, size_bytes=100_000) as reader:
        page = await reader.fetch(_url(web, "/"), ANY)
    assert page.text.endswith("size: more than 100000 bytes") and web.written < 64 * 1024 * 1024


@pytest.mark.parametrize("status", [300, 403, 404, 500, 503])
async def test_a_status_that_is_no_success_is_an_error(web: WebServer, names: Names, status: int) -> None:
    web.page("/", b"details", status=status)
    assert f"status {status}" in str(await _refusal(names, _url(web, "/")))


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 X\r\n" + b"x-long: " + b"a" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 X\r\ncontent-type: text/plain\r\ncontent-length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 X\r\ncontent-type: text/plain\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 X\r\ncontent-type: text/plain\r\ncontent-encoding: br\r\ncontent-length: 4\r\n\r\nabcd",
    ],
)
async def test_an_answer_that_is_none_is_an_error(web: WebServer, names: Names, answer: bytes) -> None:
    web.answers["/"] = answer
    await _refusal(names, _url(web, "/"))


async def test_a_server_that_is_not_there_is_an_error(names: Names) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    refusal = await _refusal(names, f"http://web.example:{port}/")
    assert "can't be reached" in str(refusal) and not refusal.was_sent


async def test_the_guards_are_set_where_a_fetcher_is_made_and_nowhere_else() -> None:
    """What an agent's entry may say reaches the domain list and nothing of the transport."""
    pages = PageReader()
    plain = Fetcher(pages)
    assert plain._guard is checked_address and plain._limits == Limits() and plain._tls is None
    policy = DomainPolicy.of({"allowed_domains": ["localhost"], "guard": None, "limits": {"seconds": 1e9}})
    with pytest.raises(FetchFailed, match="internal"):
        await plain.fetch("http://localhost/", policy)


async def test_a_page_that_takes_for_ever_costs_its_process_only(web: WebServer, names: Names) -> None:
    web.page("/deep", b"<div>" * 100_000 + b"text", "text/html")
    web.page("/", b"<p>after", "text/html")
    pages = PageReader(seconds=0.001)
    reader = Fetcher(pages, guard=names.guard)
    with pytest.raises(FetchFailed, match="too long"):
        await reader.fetch(_url(web, "/deep"), ANY)
    pages._seconds = 15.0
    assert (await reader.fetch(_url(web, "/"), ANY)).text == "after"
    assert (await reader.fetch(_url(web, "/deep"), ANY)).text == "text"
    await pages.close()


async def test_a_reader_that_died_is_replaced(web: WebServer, names: Names) -> None:
    web.page("/", b"<p>text", "text/html")
    async with fetcher(names) as reader:
        assert (await reader.fetch(_url(web, "/"), ANY)).text == "text"
        (process,) = reader._pages._idle
        process.kill()
        await process.wait()
        assert (await reader.fetch(_url(web, "/"), ANY)).text == "text"


async def test_the_process_that_reads_pages_has_no_secret(
    web: WebServer, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MANAGED_AGENTS_SECRET_KEY", "canary-of-the-environment")
    web.page("/", b"<p>text", "text/html")
    async with fetcher(names) as reader:
        await reader.fetch(_url(web, "/"), ANY)
        (process,) = reader._pages._idle
        environment = await asyncio.to_thread(Path(f"/proc/{process.pid}/environ").read_bytes)
    assert b"PYTHONPATH" in environment and b"canary" not in environment


async def test_a_page_that_takes_long_keeps_no_other_waiting(web: WebServer, names: Names) -> None:
    web.page("/slow", b"<div>" * 400_000, "text/html")
    web.page("/", b"<p>quick", "text/html")
    async with fetcher(names) as reader:
        slow = asyncio.create_task(reader.fetch(_url(web, "/slow"), ANY))
        quick = [await reader.fetch(_url(web, "/"), ANY) for _ in range(3)]
        assert [page.text for page in quick] == ["quick"] * 3 and not slow.done()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert (await reader.fetch(_url(web, "/"), ANY)).text == "quick"

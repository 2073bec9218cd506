"""Proves: the network policy lets out what it names and nothing else, and never to an address that is not public."""

import asyncio
import socket

import pytest

from kit.waiting import within
from services.worker.sandbox import SandboxManager
from services.worker.sandbox.egress import NetworkPolicy, is_public, parse_rule
from services.worker.sandbox.local import LocalProvider
from services.worker.sandbox.proxy import EgressProxy

from .conftest import LIMITS, Session

PUBLIC, OTHER_PUBLIC = "93.184.216.34", "1.1.1.1"
NAMES = {
    "good.example": [PUBLIC],
    "sub.good.example": [PUBLIC],
    "other.example": [OTHER_PUBLIC],
    "loop.example": ["127.0.0.1", "::1"],
    "private.example": ["10.1.2.3"],
    "metadata.example": ["169.254.169.254"],
    "mixed.example": ["10.1.2.3", PUBLIC],
}


async def fake_resolve(host: str, port: int) -> list[str]:
    if host in NAMES:
        return NAMES[host]
    if ":" in host:
        return [host]
    try:
        socket.inet_aton(host)
    except OSError:
        raise OSError("unknown host") from None
    return [socket.inet_ntoa(socket.inet_aton(host))]


class Web:
    """A web server, and a `connect` that leads every public address to it."""

    def __init__(self) -> None:
        self.dialled: list[tuple[str, int]] = []
        self.heads: list[bytes] = []

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]

    async def connect(self, address: str, port: int):
        self.dialled.append((address, port))
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def _serve(self, reader, writer) -> None:
        try:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def web():
    web = Web()
    await web.start()
    yield web
    web.server.close()
    await web.server.wait_closed()


def limited(*hosts, packages=False):
    return {
        "network": {
            "type": "limited",
            "allowed_hosts": list(hosts),
            "allow_package_manager_network_access": packages,
        }
    }


@pytest.mark.parametrize(
    ("environment", "allowed", "denied"),
    [
        ({}, [], ["good.example:443"]),
        ({"network": None}, [], ["good.example:443"]),
        ({"network": "unrestricted"}, [], ["good.example:443"]),
        ({"network": {"type": "open"}}, [], ["good.example:443"]),
        ({"network": {"type": "limited", "allowed_hosts": "good.example"}}, [], ["good.example:443"]),
        ({"network": {"type": "limited", "allowed_hosts": [1, None, "good.example"]}}, ["good.example:80"], []),
        (
            limited("good.example"),
            ["good.example:443", "good.example:22"],
            ["sub.good.example:443", "evilgood.example:1"],
        ),
        (
            limited("*.good.example"),
            ["sub.good.example:1", "a.b.good.example:1"],
            ["good.example:1", "xgood.example:1"],
        ),
        (limited("good.example:443"), ["good.example:443"], ["good.example:80"]),
        (limited("*"), [], ["good.example:443"]),
        (limited("*.*"), [], ["good.example:443"]),
        (limited("GOOD.example."), ["good.example:1"], []),
        (limited("bücher.example"), ["xn--bcher-kva.example:1"], []),
        (limited("", ":", "a b", "good.example:x", "good.example:0", "good.example:99999"), [], ["good.example:443"]),
        (limited(packages=True), ["packages.example:443"], ["good.example:443"]),
        (limited(), [], ["packages.example:443"]),
        ({"networking": {"type": "limited", "allow_package_managers": True}}, ["packages.example:1"], []),
        ({"networking": {"type": "unrestricted"}}, ["anything.example:1"], []),
    ],
)
def test_policies(environment, allowed, denied):
    policy = NetworkPolicy.of(environment, ["packages.example"])
    for target in allowed:
        host, _, port = target.partition(":")
        assert policy.allows(host, int(port)), target
    for target in denied:
        host, _, port = target.partition(":")
        assert not policy.allows(host, int(port)), target
    assert policy.allows_something == bool(allowed)


def test_rules_that_say_nothing_allow_nothing():
    for text in ("", "*", "*.", "http://good.example", "good.example/path", "a..b:", "x" * 300):
        rule = parse_rule(text)
        assert rule is None or not rule.allows("good.example", 443)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fec0::1",
        "ff02::1",
        "::ffff:10.0.0.1",
        "::ffff:93.184.216.34",
        "64:ff9b::a00:1",
        "2002:a00:1::",
        "2001:0:a00:1::",
        "2001:db8::1",
        "192.0.0.192",
        "192.88.99.1",
        "168.63.129.16",
        "3fff::1",
        "nonsense",
        "",
    ],
)
def test_addresses_that_are_never_reached(address):
    assert not is_public(address)


def test_the_hosts_own_address_is_not_public(monkeypatch):
    assert is_public(PUBLIC)
    assert is_public("2606:2800:220:1::1")
    # As where a public address is bound to this machine.
    monkeypatch.setattr("services.worker.sandbox.egress._is_own", lambda _: True)
    assert not is_public(PUBLIC)


REQUESTS = [
    # head, status, what was dialled
    (b"CONNECT good.example:443 HTTP/1.1\r\n\r\n", 200, (PUBLIC, 443)),
    (b"CONNECT GOOD.example.:443 HTTP/1.1\r\n\r\n", 200, (PUBLIC, 443)),
    (b"CONNECT other.example:443 HTTP/1.1\r\n\r\n", 403, None),
    (b"CONNECT good.example HTTP/1.1\r\n\r\n", 400, None),
    (b"CONNECT good.example:0x50 HTTP/1.1\r\n\r\n", 400, None),
    (b"CONNECT good.example:+80 HTTP/1.1\r\n\r\n", 400, None),
    (b"CONNECT *.example:443 HTTP/1.1\r\n\r\n", 400, None),
    (b"CONNECT loop.example:443 HTTP/1.1\r\n\r\n", 403, None),
    (b"CONNECT private.example:443 HTTP/1.1\r\n\r\n", 403, None),
    (b"CONNECT metadata.example:80 HTTP/1.1\r\n\r\n", 403, None),
    (b"CONNECT mixed.example:443 HTTP/1.1\r\n\r\n", 200, (PUBLIC, 443)),
    (b"CONNECT missing.example:443 HTTP/1.1\r\n\r\n", 502, None),
    (b"CONNECT 127.0.0.1:80 HTTP/1.1\r\n\r\n", 403, None),
    (b"CONNECT 0x7f000001:80 HTTP/1.1\r\n\r\n", 403, None),
    (b"CONNECT 2130706433:80 HTTP/1.1\r\n\r\n", 403, None),
    (b"CONNECT 127.1:80 HTTP/1.1\r\n\r\n", 403, None),
    (b"CONNECT [::1]:80 HTTP/1.1\r\n\r\n", 403, None),
    (b"CONNECT [::ffff:127.0.0.1]:80 HTTP/1.1\r\n\r\n", 403, None),
    (b"GET http://good.example/a?b HTTP/1.1\r\nHost: good.example\r\n\r\n", 200, (PUBLIC, 80)),
    (b"GET http://good.example:8080/ HTTP/1.1\r\n\r\n", 200, (PUBLIC, 8080)),
    (b"GET http://user@loop.example/ HTTP/1.1\r\n\r\n", 403, None),
    (b"GET http://good.example@other.example/ HTTP/1.1\r\n\r\n", 403, None),
    (b"GET https://good.example/ HTTP/1.1\r\n\r\n", 400, None),
    (b"GET / HTTP/1.1\r\nHost: good.example\r\n\r\n", 400, None),
    (b"GET http:///x HTTP/1.1\r\n\r\n", 400, None),
    (b"GET http://good.example:99999/ HTTP/1.1\r\n\r\n", 400, None),
    (b"GET http://good.example/ HTTP/1.1\r\nHost: GOOD.example.:80\r\n\r\n", 200, (PUBLIC, 80)),
    (b"GET http://good.example:8080/ HTTP/1.1\r\nHost: good.example:8080\r\n\r\n", 200, (PUBLIC, 8080)),
    (b"GET http://good.example:8080/ HTTP/1.1\r\nHost: good.example\r\n\r\n", 400, None),
    (b"GET http://good.example/ HTTP/1.1\r\nHost: other.test\r\n\r\n", 400, None),
    (b"GET http://good.example/ HTTP/1.1\r\nHOST:other.test\r\n\r\n", 400, None),
    (b"GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nHost: other.test\r\n\r\n", 400, None),
    (b"GET http://good.example/ HTTP/1.1\r\nHost:\r\n\r\n", 400, None),
    # Lines that one reader takes for two, or for another header.
    (b"GET http://good.example/ HTTP/1.1\r\nX: y\nHost: other.test\r\n\r\n", 400, None),
    (b"GET http://good.example/ HTTP/1.1\r\nX: y\rHost: other.test\r\n\r\n", 400, None),
    (b"GET http://good.example/ HTTP/1.1\r\nHost : other.test\r\n\r\n", 400, None),
    (b"GET http://good.example/ HTTP/1.1\r\n Host: other.test\r\n\r\n", 400, None),
    (b"GET http://good.example/ HTTP/1.1\r\nX\r\n\r\n", 400, None),
    (b"POST http://good.example/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, None),
    (b"POST http://good.example/ HTTP/1.1\r\nContent-Length: +1\r\n\r\n", 400, None),
    (
        b"POST http://good.example/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
        None,
    ),
    (b"POST http://good.example/ HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 400, None),
    (b"nonsense\r\n\r\n", 400, None),
    (b"\x16\x03\x01\r\n\r\n", 400, None),
]
ALLOWED = limited(
    "good.example", "loop.example", "private.example", "metadata.example", "mixed.example", "missing.example",
    "127.0.0.1", "0x7f000001", "2130706433", "127.1", "::1", "[::ffff:127.0.0.1]", "*.good.example",
)  # fmt: skip


async def ask(proxy_port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy_port)
    writer.write(data)
    try:
        return await within(reader.readline(), 30)
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("policy", ["limited", "unrestricted"])
async def test_what_the_proxy_lets_through(web, policy):
    environment = ALLOWED if policy == "limited" else {"network": {"type": "unrestricted"}}
    proxy = EgressProxy(NetworkPolicy.of(environment), resolve=fake_resolve, connect=web.connect)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    await proxy.serve(listener)
    try:
        for head, status, dialled in REQUESTS:
            web.dialled.clear()
            answer = await ask(port, head)
            if policy == "unrestricted" and b"other.example" in head:
                assert web.dialled == [(OTHER_PUBLIC, 443 if b"443" in head else 80)]
                continue
            assert answer.split(b" ")[1] == str(status).encode(), head
            assert web.dialled == ([dialled] if dialled else []), head
    finally:
        await proxy.close()


async def test_a_name_that_changes_its_address_is_asked_once(web):
    """What was checked is what is connected to: no second look-up is there to be answered differently."""
    answers = [[PUBLIC], ["127.0.0.1"]]

    async def rebinding(host, port):
        return answers.pop(0)

    proxy = EgressProxy(NetworkPolicy(unrestricted=True), resolve=rebinding, connect=web.connect)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    await proxy.serve(listener)
    try:
        assert b"200" in await ask(port, b"CONNECT good.example:443 HTTP/1.1\r\n\r\n")
        assert web.dialled == [(PUBLIC, 443)]
        assert b"403" in await ask(port, b"CONNECT good.example:443 HTTP/1.1\r\n\r\n")
    finally:
        await proxy.close()


async def test_plain_requests_are_rewritten_for_the_target(web):
    proxy = EgressProxy(NetworkPolicy(unrestricted=True), resolve=fake_resolve, connect=web.connect)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    await proxy.serve(listener)
    try:
        head = (
            b"GET http://good.example/p?q=1 HTTP/1.1\r\nHost: good.example\r\nProxy-Connection: keep-alive\r\n"
            b"Proxy-Authorization: Basic eA==\r\nAccept: */*\r\n\r\n"
        )
        assert b"200" in await ask(port, head)
        assert web.heads == [b"GET /p?q=1 HTTP/1.1\r\nHost: good.example\r\nAccept: */*\r\nConnection: close\r\n\r\n"]
    finally:
        await proxy.close()


_PIPELINED = b"GET /stolen HTTP/1.1\r\nHost: other.test\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "body", "sent_on"),
    [
        (b"", b"", b""),
        (b"Content-Length: 5\r\n", b"hello", b"hello"),
        (b"Transfer-Encoding: chunked\r\n", b"5;x=y\r\nhello\r\n0\r\nHost: x\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n"),
    ],
)
async def test_one_request_goes_on_and_its_host_is_the_one_that_was_checked(head, body, sent_on):
    """A target that keeps its connections would serve a second request, for a host that nobody checked."""
    taken = bytearray()
    got_all = asyncio.Event()

    async def serve(reader, writer):
        while data := await reader.read(1000):
            taken.extend(data)
            if taken.endswith(sent_on) and b"\r\n\r\n" in taken:
                got_all.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    target = server.sockets[0].getsockname()[1]
    proxy = EgressProxy(
        NetworkPolicy(unrestricted=True),
        resolve=fake_resolve,
        connect=lambda address, port: asyncio.open_connection("127.0.0.1", target),
    )
    listener = socket.create_server(("127.0.0.1", 0))
    await proxy.serve(listener)
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
        writer.write(b"POST http://good.example:81/a HTTP/1.1\r\n" + head + b"\r\n" + body + _PIPELINED)
        await within(got_all.wait(), 30)
        writer.close()
        await proxy.close()
        expected = b"POST /a HTTP/1.1\r\nHost: good.example:81\r\n" + head + b"Connection: close\r\n\r\n" + sent_on
        assert bytes(taken) == expected
    finally:
        await proxy.close()
        server.close()
        await server.wait_closed()


async def test_closing_the_proxy_cuts_open_tunnels(web):
    proxy = EgressProxy(NetworkPolicy(unrestricted=True), resolve=fake_resolve, connect=web.connect)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    await proxy.serve(listener)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"CONNECT good.example:443 HTTP/1.1\r\n\r\n")
    assert b"200" in await reader.readline()
    await proxy.close()
    await within(reader.read(), 30)
    writer.close()
    await writer.wait_closed()


@pytest.fixture
async def connected(web, tmp_path):
    """A manager whose sandboxes' proxies resolve by the table and lead to the test's web server."""
    provider = LocalProvider(tmp_path, limits=LIMITS, kind="bubblewrap", resolve=fake_resolve, connect=web.connect)
    manager = SandboxManager(tmp_path, providers={"local": provider})
    if not provider.isolation.proxied_network:
        pytest.skip(" ".join(manager.describe().notes))
    yield manager
    await manager.aclose()


CURL = "curl -s -m 10 -o /dev/null -w '%{http_code} ' "


async def test_a_sandbox_reaches_what_its_environment_allows(connected, web):
    session = Session(connected, "sess_one", limited("good.example", "loop.example"))
    outcome = await session.bash(
        f"{CURL} http://good.example/; {CURL} http://other.example/; {CURL} http://loop.example/"
    )
    assert outcome.text == "200 403 403 "
    assert web.dialled == [(PUBLIC, 80)]
    assert await session.text("exec 2>&1; curl -s http://good.example/") == "hello"


async def test_a_sandbox_has_no_other_way_out(connected, web):
    listener = socket.create_server(("0.0.0.0", 0))
    port = listener.getsockname()[1]
    session = Session(connected, "sess_one", {"network": {"type": "unrestricted"}})
    own = socket.gethostbyname(socket.gethostname())
    for host in ("127.0.0.1", "localhost", own, PUBLIC):
        outcome = await session.bash(f"{CURL} --noproxy '*' http://{host}:{port}/")
        assert outcome.text.startswith("000")
        outcome = await session.bash(f"{CURL} http://127.0.0.1:{port}/ -x http://127.0.0.1:3128 --noproxy ''")
        assert outcome.text.startswith("403")
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()
    listener.close()
    assert await session.text("cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' '") == "lo"
    assert (await session.bash("getent hosts good.example")).is_error


@pytest.mark.parametrize("environment", [{}, limited(), {"network": {"type": "limited"}}])
async def test_without_a_policy_there_is_no_proxy_and_no_network(connected, environment):
    session = Session(connected, "sess_one", environment)
    assert await session.text("echo ${http_proxy:-none}") == "none"
    assert (await session.bash(f"{CURL} http://good.example/")).text.startswith("000")
    assert (await session.bash(f"{CURL} -x http://127.0.0.1:3128 http://good.example/")).text.startswith("000")


async def test_two_sandboxes_keep_their_own_policies(connected, web):
    one = Session(connected, "sess_one", limited("good.example"))
    two = Session(connected, "sess_two", limited("other.example"))
    assert (await one.bash(f"{CURL} http://good.example/; {CURL} http://other.example/")).text == "200 403 "
    assert (await two.bash(f"{CURL} http://good.example/; {CURL} http://other.example/")).text == "403 200 "


async def test_the_network_is_back_after_the_shell_was_lost(connected):
    session = Session(connected, "sess_one", limited("good.example"))
    await session.bash("exit")
    assert (await session.bash(f"{CURL} http://good.example/")).text == "200 "

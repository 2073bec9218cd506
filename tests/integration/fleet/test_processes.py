"""A worker as an operator starts it: signals, kill -9, exit codes, secrets, proxies and certificates."""

import asyncio
import os
import secrets
import signal
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kit.testing import await_until
from tests.integration.fleet.harness import done, fleet, named, process
from tests.support.work_server import KEY, WorkServer

WAITS = "touch began; until [ -e go ]; do sleep 0.05; done; echo whole"


async def test_the_first_signal_finishes_what_runs_and_stops(tmp_path: Path, server: WorkServer) -> None:
    item = server.put("exec", {"command": WAITS})
    async with process(server, tmp_path, "--json") as worker:
        await await_until(lambda: bool(named(tmp_path, "began")), timeout=30)
        # As a terminal and a service manager may both do it.
        worker.signal(signal.SIGINT)
        worker.signal(signal.SIGTERM)
        await await_until(lambda: "finishing what runs" in worker.said)
        other = server.put("exec", {"command": "true"})
        (tmp_path / "go").touch()
        assert await worker.ended() == 0
    assert server.completed[item]["result"]["stdout"] == "whole\n" and other not in server.completed
    assert worker.lines[-1]["event"] == "stopped" and worker.lines[-1]["completed"] == 1
    assert server.completed[item]["worker_id"] == f"worker_{worker.pid}"


async def test_the_second_signal_ends_everything_now(tmp_path: Path, server: WorkServer) -> None:
    item = server.put("exec", {"command": "touch began; sleep 600 & sleep 600; touch late"})
    async with process(server, tmp_path) as worker:
        await await_until(lambda: bool(named(tmp_path, "began")), timeout=30)
        worker.signal(signal.SIGTERM)
        await await_until(lambda: "asked to stop" in worker.said)
        # Signals within half a second count as one.
        await await_until(lambda: worker.signal(signal.SIGTERM) or not worker.running)
        assert await worker.ended() == 128 + signal.SIGTERM
        await await_until(lambda: not _below(tmp_path))
    assert item not in server.completed


async def test_kill_9_leaves_no_process_behind(tmp_path: Path, server: WorkServer) -> None:
    server.put("exec", {"command": "(setsid sleep 600 &); touch began; sleep 600"})
    async with process(server, tmp_path) as worker:
        await await_until(lambda: bool(named(tmp_path, "began")), timeout=30)
        assert _below(tmp_path)
        worker.signal(signal.SIGKILL)
        await worker.ended()
        await await_until(lambda: not _below(tmp_path))


def _below(folder: Path) -> list[str]:
    """Processes that work in a folder."""
    found = []
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdigit() and os.readlink(each / "cwd") == str(folder):
                found.append(each.name)
        except OSError:
            continue
    return found


async def test_the_key_is_nowhere_to_be_seen(tmp_path: Path, server: WorkServer) -> None:
    command = "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -a mawk_ ; env; touch began"
    item = server.put("exec", {"command": command + "; until [ -e go ]; do sleep 0.05; done"})
    # Of this test alone: whatever else runs on this machine is seen by the command as well.
    key = "mawk_" + secrets.token_hex(20)
    server.refuse("claim", 503, message=f"Bearer {key} is what you sent")
    async with process(server, tmp_path, "--verbose", MANAGED_AGENTS_ENVIRONMENT_KEY=key) as worker:
        await await_until(lambda: bool(named(tmp_path, "began")), timeout=30)
        environ, line = worker.shown("environ"), worker.shown("cmdline")
        assert key.encode() not in environ and key.encode() not in line
        assert b"MANAGED_AGENTS_ENVIRONMENT_KEY=*" in environ
        (tmp_path / "go").touch()
        (report,) = await done(server, item)
    # This test itself, with the server in it, may be among what the command sees; it holds no such variable.
    assert key not in report["result"]["stdout"]
    assert key not in worker.said and "********" in worker.said
    assert {headers["authorization"] for _, _, headers in server.calls} == {f"Bearer {key}"}


async def test_a_key_from_a_file_is_used(tmp_path: Path, server: WorkServer) -> None:
    (tmp_path / "key").write_text(KEY + "\n")
    workdir = tmp_path / "w"
    workdir.mkdir()
    async with process(
        server, workdir, "--once", "--key-file", str(tmp_path / "key"), MANAGED_AGENTS_ENVIRONMENT_KEY="mawk_other"
    ) as worker:
        assert await worker.ended() == 0
    assert {headers["authorization"] for _, _, headers in server.calls} == {f"Bearer {KEY}"}


async def test_exit_codes_say_what_was_wrong(tmp_path: Path, server: WorkServer) -> None:
    server.refuse("claim", 401, message="This key is revoked.")
    async with process(server, tmp_path) as worker:
        assert await worker.ended() == 3
    assert "revoked" in worker.said and "--key-file" in worker.said
    async with process(server, tmp_path, "--once", "--url", "http://127.0.0.1:9") as worker:
        assert await worker.ended() == 1
    assert "http://127.0.0.1:9" in worker.said and "Traceback" not in worker.said


async def test_a_metrics_port_that_is_taken_is_named(tmp_path: Path, server: WorkServer) -> None:
    from services.worker.fleet.errors import OptionUnusable

    async with fleet(server, tmp_path, metrics_port=server.port) as worker:
        with pytest.raises(OptionUnusable, match="--metrics-port"):
            await worker.task


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that nobody trusts by himself, with its key, in one file."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "company")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "server.pem"
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(made.public_bytes(pem) + private)
    (file.parent / "ca.pem").write_bytes(made.public_bytes(pem))
    return file


async def test_a_companys_own_certificate_is_trusted_where_it_is_named(tmp_path: Path, certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with WorkServer(ssl=context) as server:
        item = server.put("exec", {"command": "echo hi"})
        async with fleet(server, tmp_path) as worker:
            await await_until(lambda: bool(worker.heard("waiting for the platform")))
            told = worker.heard("waiting for the platform")[0]["reason"]
            assert "not trusted" in told and "--ca-file" in told
        assert not server.calls
        async with fleet(server, tmp_path, ca_file=certificate.parent / "ca.pem"):
            await done(server, item)


async def test_a_file_that_holds_no_certificate_is_named(tmp_path: Path, server: WorkServer) -> None:
    from services.worker.fleet.errors import OptionUnusable

    (tmp_path / "ca.pem").write_text("not one")
    async with fleet(server, tmp_path, ca_file=tmp_path / "ca.pem") as worker:
        with pytest.raises(OptionUnusable, match="--ca-file"):
            await worker.task


class Proxy:
    """Passes requests for any host on to one port, and remembers what it was asked for."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.asked: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head)
        ahead, behind = await asyncio.open_connection("127.0.0.1", self._port)
        if head.startswith(b"CONNECT"):
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            behind.write(head)
        await asyncio.gather(self._pass(reader, behind), self._pass(ahead, writer), return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()


async def test_a_platform_is_reached_through_the_proxy_of_the_environment(tmp_path: Path, server: WorkServer) -> None:
    item = server.put("exec", {"command": "echo hi"})
    proxy = Proxy(server.port)
    listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    environment = {"HTTP_PROXY": f"http://user:pass@127.0.0.1:{port}", "NO_PROXY": "elsewhere.example"}
    try:
        async with fleet(server, tmp_path, environment, url="http://agents.invalid:8080") as worker:
            await done(server, item)
            assert "pass" not in worker.said.getvalue()
    finally:
        listening.close()
    assert b"http://agents.invalid:8080/" in proxy.asked[0]
    assert b"proxy-authorization: basic dXNlcjpwYXNz" in proxy.asked[0].replace(b"Basic", b"basic").replace(
        b"Proxy-Authorization", b"proxy-authorization"
    )


def test_the_command_starts_quickly() -> None:
    """What is loaded before anything is asked: neither gRPC nor a database nor the other services."""
    program = (
        "import sys; import cli.worker; import services.worker.fleet.app, services.worker.fleet.tool.serving;"
        "heavy = ('grpc', 'psycopg', 'nats', 'fastapi', 'anthropic', 'openai', 'pydantic', 'opentelemetry', 'httpx2');"
        "print([name for name in heavy if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


async def test_what_a_killed_worker_had_for_itself_is_removed_by_the_next_one(
    tmp_path: Path, server: WorkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    (temporary / "managed-agents-worker-left" / "tmp").mkdir(parents=True)
    (temporary / "managed-agents-worker-new").mkdir()
    (temporary / "another").mkdir()
    for name in ("managed-agents-worker-left", "another"):
        os.utime(temporary / name, (1, 1))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    workdir = tmp_path / "w"
    workdir.mkdir()
    async with fleet(server, workdir) as first:
        await await_until(lambda: bool(first.heard("ready")))
        (own,) = set(named(temporary, "managed-agents-worker-*")) - {"managed-agents-worker-new"}
        os.utime(temporary / own, (1, 1))
        async with fleet(server, workdir) as second:
            await await_until(lambda: bool(second.heard("ready")))
            # That of a living one stays, however old it is.
            assert own in named(temporary, "*") and len(named(temporary, "managed-agents-worker-*")) == 3
    assert named(temporary, "*") == ["another", "managed-agents-worker-new"]


@pytest.mark.parametrize(("key", "told"), [(KEY, "of the key"), ("", "any")])
async def test_a_worker_without_an_environment_says_whose_work_it_takes(
    tmp_path: Path, server: WorkServer, key: str, told: str
) -> None:
    arguments = ("--environment-id", "", "--json")
    async with process(server, tmp_path, *arguments, MANAGED_AGENTS_ENVIRONMENT_KEY=key) as running:
        await await_until(lambda: any(line["event"] == "ready" for line in running.lines))
        (ready,) = (line for line in running.lines if line["event"] == "ready")
        assert ready["environment"] == told

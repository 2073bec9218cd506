"""What a worker says holds no secret and nothing that moves a terminal; its numbers are what Prometheus reads."""

import asyncio
import io
import json

import pytest

from kit.redaction import register_secret
from services.worker.fleet.metrics import Metrics, MetricsServer
from services.worker.fleet.reporter import Reporter

KEY = "mawk_" + "S3cr3t" * 7


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_each_event_is_an_object_for_programs() -> None:
    stream = io.StringIO()
    reporter = Reporter(as_json=True, stream=stream)
    reporter.info("ready", worker="w", token="abcdefgh")
    reporter.warning("a line\nof two", reason=f"Bearer {KEY}")
    reporter.debug("unheard")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(each["level"], each["event"]) for each in lines] == [("info", "ready"), ("warning", "a line\nof two")]
    assert lines[0]["worker"] == "w" and lines[0]["token"] == "********"
    assert KEY not in stream.getvalue()


def test_a_registered_secret_is_in_no_line() -> None:
    register_secret("wst_this-is-a-sessions-token")
    stream = Terminal()
    reporter = Reporter(as_json=False, stream=stream)
    reporter.status("state wst_this-is-a-sessions-token")
    reporter.error("failed", reason="with wst_this-is-a-sessions-token inside")
    assert "this-is-a-sessions-token" not in stream.getvalue()


def test_text_of_others_moves_no_terminal() -> None:
    stream = io.StringIO()
    Reporter(as_json=False, stream=stream).info("x", session="\x1b[2J\x07\r")
    assert "\x1b" not in stream.getvalue() and "\x07" not in stream.getvalue() and "\r" not in stream.getvalue()


def test_a_terminal_has_one_line_of_state_below_the_others() -> None:
    stream = Terminal()
    reporter = Reporter(as_json=False, stream=stream)
    reporter.status("one")
    reporter.status("one")
    reporter.info("event")
    reporter.status("two")
    reporter.close()
    shown = stream.getvalue()
    assert shown.count("one") == 2 and shown.index("event") < shown.rindex("one") < shown.index("two")
    assert shown.endswith("\r\x1b[K")


def test_a_line_of_state_is_never_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    Reporter(as_json=False, stream=stream).status("x" * 100)
    assert stream.getvalue().count("x") == 19


def test_elsewhere_no_state_is_drawn() -> None:
    stream = io.StringIO()
    reporter = Reporter(as_json=False, stream=stream)
    reporter.status("one")
    reporter.close()
    assert stream.getvalue() == ""


def test_a_reader_that_is_gone_stops_nothing() -> None:
    stream = io.StringIO()
    reporter = Reporter(as_json=False, stream=stream)
    stream.close()
    reporter.info("nobody hears")


@pytest.fixture
async def server():
    server = MetricsServer(Metrics(), "127.0.0.1", 0)
    await server.start()
    yield server
    await server.stop()


async def ask(server: MetricsServer, request: bytes) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.decode()


async def test_the_endpoint_tells_numbers_and_health(server: MetricsServer) -> None:
    metrics = server._metrics
    assert "503" in await ask(server, b"GET /healthz HTTP/1.1\r\n\r\n")
    metrics.heard()
    metrics.ended("exec", "completed", 1.5)
    metrics.ended("exec", "completed", 0.5)
    answer = await ask(server, b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
    head, _, body = answer.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200") and f"content-length: {len(body)}" in head
    assert 'managed_agents_worker_items_total{kind="exec",outcome="completed"} 2' in body
    assert 'managed_agents_worker_item_seconds_total{kind="exec"} 2.000000' in body
    assert "managed_agents_worker_connected 1" in body
    assert body.count("# TYPE") == body.count("# HELP") == 7
    assert "200" in await ask(server, b"GET /healthz HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize(
    ("request_line", "status"), [(b"POST /metrics HTTP/1.1", "405"), (b"GET / HTTP/1.1", "404"), (b"nonsense", "405")]
)
async def test_it_answers_nothing_else(server: MetricsServer, request_line: bytes, status: str) -> None:
    assert status in await ask(server, request_line + b"\r\n\r\n")


async def test_a_request_without_end_is_dropped(server: MetricsServer) -> None:
    assert await ask(server, b"GET /" + b"x" * 20_000) == ""

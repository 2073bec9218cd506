"""Proves what `doctor` finds about ports, folders, servers and vendors, and that it never shows a key."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cli import checks
from cli.errors import CannotStart
from cli.model_check import check_model
from cli.supervisor import Options, Supervisor


def _options(tmp_path: Path, **changes: str) -> Options:
    return Options(host="127.0.0.1", port=1, data_dir=tmp_path / "data", **changes)


@asynccontextmanager
async def _vendor(status: int, date: str = "") -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status} X\r\ndate: {date}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def _configure(monkeypatch: pytest.MonkeyPatch, base_url: str, vendor: str = "openai") -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MANAGED_AGENTS_MODEL_VENDOR", vendor)
    monkeypatch.setenv("MANAGED_AGENTS_MODEL_BASE_URL", base_url)
    monkeypatch.setenv("MANAGED_AGENTS_MODEL_API_KEY", "sk-very-secret")


@pytest.mark.parametrize(
    ("status", "found", "told"),
    [
        (200, "ok", "answers"),
        (404, "ok", "is reachable"),
        (401, "warning", "refuses the key"),
        (503, "warning", "answers 503"),
    ],
)
@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
async def test_a_vendor_is_judged_by_its_answer(
    monkeypatch: pytest.MonkeyPatch, vendor: str, status: int, found: str, told: str
) -> None:
    async with _vendor(status) as url:
        _configure(monkeypatch, url, vendor)
        finding, _ = await check_model(None)
    assert finding.status == found and told in finding.told
    assert "sk-very-secret" not in str(finding)


async def test_a_vendor_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    _configure(monkeypatch, "http://127.0.0.1:9")
    finding, _ = await check_model(None)
    assert finding.status == "warning" and "can't be reached" in finding.told and finding.advice


async def test_no_vendor_means_the_demo_model(monkeypatch: pytest.MonkeyPatch) -> None:
    _configure(monkeypatch, "", "demo")
    finding, _ = await check_model(None)
    assert finding.status == "warning" and "demo" in finding.told
    finding, _ = await check_model({"models": [{"provider": "anthropic"}]})
    assert finding.status == "ok" and "anthropic" in finding.told


def test_a_clock_far_from_the_vendor_s_is_told() -> None:
    assert checks.check_clock(None).status == "ok"
    assert checks.check_clock("no date").status == "ok"
    assert checks.check_clock("Mon, 01 Jan 2001 00:00:00 GMT").status == "warning"


async def test_a_busy_port_is_told(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        options = Options(host="127.0.0.1", port=other.getsockname()[1], data_dir=tmp_path)
        assert (await checks.check_port(options, None)).status == "failed"
        assert (await checks.check_port(options, {"status": "running"})).status == "ok"
        assert (await checks.check_port(options, {"status": "degraded"})).status == "warning"


def test_a_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    assert checks.check_data_folder(_options(tmp_path), running=False).status == "failed"
    assert checks.check_data_folder(_options(tmp_path / "new"), running=False).status == "ok"


def test_a_folder_that_nobody_can_look_into_is_told(tmp_path: Path) -> None:
    """A name too long stands for what root can't look into either."""
    options = _options(tmp_path / ("x" * 300))
    assert checks.check_data_folder(options, running=False).status == "failed"
    assert checks.check_nats(options).status == checks.check_database(options).status == "ok"
    with pytest.raises(CannotStart, match="can't be used"):
        Supervisor(options, print).folder.take()


def test_servers_of_the_operator_that_are_not_there_are_told(tmp_path: Path) -> None:
    database = checks.check_database(_options(tmp_path, database_url="postgresql://a:secret@127.0.0.1:9/x"))
    assert database.status == "failed" and "secret" not in str(database)
    nats = checks.check_nats(_options(tmp_path, nats_url="nats://secret@127.0.0.1:9"))
    assert nats.status == "failed" and "secret" not in str(nats)


def test_the_sandbox_of_a_running_platform_is_told() -> None:
    assert checks.check_sandbox({"runner": {"sandbox_kind": "bubblewrap"}}).status == "ok"
    weak = checks.check_sandbox({"runner": {"sandbox_kind": "process", "sandbox_notes": ["Nothing is held."]}})
    assert weak.status == "warning" and "Nothing is held." in weak.told
    assert checks.check_sandbox({}).status == "warning"


def test_the_own_sandbox_is_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(checks, "_bubblewrap", lambda: str(broken))
    monkeypatch.setattr(checks, "landlock_version", lambda: 0)
    finding = checks.check_own_sandbox()
    assert finding.status == "warning" and "No permissions" in finding.told and "userns" in finding.advice
    monkeypatch.setattr(checks, "_bubblewrap", lambda: None)
    assert "no bubblewrap" in checks.check_own_sandbox().told


def test_list_prices_are_judged_as_a_start_would(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MANAGED_AGENTS_COST_PROFILE", raising=False)
    unset = checks.check_prices()
    assert unset.status == "ok" and "can't have a budget" in unset.told
    price = '{"input": 1, "output": 1, "cache_read": 1, "cache_write_5m": 1, "cache_write_1h": 1}'
    (tmp_path / "prices.json").write_text(f'{{"models": {{"m": {price}}}}}')
    monkeypatch.setenv("MANAGED_AGENTS_COST_PROFILE", str(tmp_path / "prices.json"))
    assert checks.check_prices().told == f"list prices of m ({tmp_path / 'prices.json'})"
    monkeypatch.setenv("MANAGED_AGENTS_COST_PROFILE", '{"models": {"m": {}}}')
    faulty = checks.check_prices()
    assert faulty.status == "failed" and "models['m']" in faulty.told and "unset it" in faulty.advice


async def test_a_faulty_price_list_keeps_a_start_from_beginning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MANAGED_AGENTS_COST_PROFILE", "no/such/file.json")
    with pytest.raises(CannotStart, match=r"no/such/file\.json, which is not usable: it can.t be read"):
        await Supervisor(_options(tmp_path), print).start()
    assert not (tmp_path / "data").exists()

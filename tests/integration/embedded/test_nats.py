"""Proves that the embedded NATS is shared, guarded by its token, and found again after a crash."""

import asyncio
import shutil
import socket
from pathlib import Path

import nats
import pytest

from kit.embedded import processes
from kit.embedded.nats import EmbeddedNats


@pytest.fixture
def server(tmp_path: Path):
    server = EmbeddedNats(tmp_path / "nats")
    yield server
    server.stop()


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


async def test_a_stream_on_disk_survives_a_kill(server: EmbeddedNats) -> None:
    client = await nats.connect(server.start())
    try:
        await client.jetstream().add_stream(name="KEPT", subjects=["kept.>"])
        await client.jetstream().publish("kept.one", b"1")
    finally:
        await client.close()
    server.kill()
    assert server.pid() is None
    client = await nats.connect(server.start())
    try:
        assert (await client.jetstream().stream_info("KEPT")).state.messages == 1
    finally:
        await client.close()


async def test_a_restart_takes_the_former_port_so_that_clients_find_it(server: EmbeddedNats) -> None:
    before = server.start()
    server.kill()
    assert server.start() == before


async def test_a_port_taken_meanwhile_is_given_up(server: EmbeddedNats) -> None:
    before = server.start()
    server.stop()
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", _port(before)))
        squatter.listen()
        after = server.start()
    assert _port(after) != _port(before)
    await (await nats.connect(after)).close()


async def test_without_the_token_nobody_gets_in(server: EmbeddedNats) -> None:
    port = _port(server.start())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await reader.readline()
    writer.write(b"CONNECT {}\r\nPING\r\n")
    answer = await reader.readline()
    writer.close()
    await writer.wait_closed()
    assert b"Authorization Violation" in answer


async def test_the_token_is_in_private_files_only(server: EmbeddedNats) -> None:
    server.start()
    for name in ("token", "nats.conf"):
        assert (server.data_dir / name).stat().st_mode & 0o077 == 0


async def test_the_second_user_joins_and_the_last_stops(server: EmbeddedNats) -> None:
    second = EmbeddedNats(server.data_dir)
    assert server.start() == second.start()
    server.stop()
    assert second.pid() is not None
    second.stop()
    assert second.pid() is None


async def test_a_server_whose_folder_was_deleted_is_ended(server: EmbeddedNats) -> None:
    other = EmbeddedNats(server.data_dir)
    other.start()
    old = other.pid()
    assert old is not None
    shutil.rmtree(server.data_dir)
    server.start()
    assert server.pid() != old
    other.stop()
    assert processes.ended(old)

"""Options of all channels and servers, and the forms of an address (`host:port`, `unix:/path`, `unix:///path`)."""

import os
import socket
from pathlib import Path

import grpc

MESSAGE_BYTES = 64 * 1024 * 1024
METADATA_BYTES = 64 * 1024

_COMMON = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_metadata_size", METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A window that grows with the speed of the line holds megabytes for each stream that nobody reads. Without it, what
    # is sent ahead is about one message, which at our distances costs no speed.
    ("grpc.http2.bdp_probe", 0),
)

SERVER_OPTIONS = (
    *_COMMON,
    # Two processes must never share a port by accident.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)

CHANNEL_OPTIONS = (
    *_COMMON,
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
    # Channels of one process to one target share a connection only where they are the same object.
    ("grpc.use_local_subchannel_pool", 1),
)


def bind(server: grpc.aio.Server, listen: str) -> int:
    """Bind the address; the port that was taken, 0 for a unix socket. RuntimeError where it is taken."""
    path = socket_path(listen)
    if path is None:
        return server.add_insecure_port(listen)
    # gRPC replaces a socket file without asking: right for one that a killed process left, not for a live one.
    if _answers(path):
        raise RuntimeError(f"another process already listens on {path}")
    before = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{path}")
    finally:
        os.umask(before)
    return 0


def socket_path(address: str) -> Path | None:
    """The path of a unix socket address, or None for any other."""
    if not address.startswith("unix:"):
        return None
    path = address.removeprefix("unix:")
    return Path(path.removeprefix("//") if path.startswith("//") else path)


def target(address: str) -> str:
    """The address as gRPC wants it."""
    path = socket_path(address)
    return address if path is None else f"unix:{path}"


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0.5)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True

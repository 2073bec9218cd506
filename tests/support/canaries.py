"""Secrets that a test plants, and the search for them in everything that a platform shows, writes or passes on."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import nats
import psycopg
from psycopg import sql

from services.worker.sandbox.spellings import spellings
from tests.support.rows import SCHEMAS


@dataclass(frozen=True)
class Allowed:
    """A place that holds a secret by right: which one (by the beginning of its name), where, and why."""

    secret: str
    place: str
    reason: str

    def covers(self, secret: str, place: str) -> bool:
        """Whether it is this secret in this place."""
        return secret.startswith(self.secret) and self.place in place


@dataclass
class Search:
    """Canaries by name, and the places that were looked through."""

    canaries: dict[str, str]
    allowed: tuple[Allowed, ...] = ()
    found: list[tuple[str, str]] = field(default_factory=list)
    used: set[Allowed] = field(default_factory=set)
    places: list[str] = field(default_factory=list)

    def look(self, place: str, content: bytes | str) -> None:
        """Look for every canary in every spelling."""
        data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
        self.places.append(place)
        for name, value in self.canaries.items():
            if any(spelling in data for spelling in spellings(value)):
                by_right = [each for each in self.allowed if each.covers(name, place)]
                self.used.update(by_right)
                if not by_right:
                    self.found.append((name, place))

    def look_at_files(self, folder: Path) -> None:
        """Every file below a folder."""
        for path in sorted(folder.rglob("*")):
            try:
                if path.is_file() and not path.is_symlink():
                    self.look(f"file {path.relative_to(folder)}", path.read_bytes())
            except OSError:
                # Files of a running database come and go.
                continue

    def look_at_processes(self) -> None:
        """Arguments and environment of every process of this machine, in sandboxes too."""
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                command = (entry / "cmdline").read_bytes()
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            shown = command.replace(b"\0", b" ").decode(errors="replace")
            self.look(f"arguments of {shown}", command)
            self.look(f"environment of {shown}", environment)


def rows_of(connection: psycopg.Connection) -> dict[str, str]:
    """Every row of every table, sealed columns as the hexadecimal that the database shows."""
    tables = connection.execute(
        "SELECT schemaname, tablename FROM pg_tables WHERE schemaname = ANY(%s)", [SCHEMAS]
    ).fetchall()
    found = {}
    for schema, table in tables:
        read = sql.SQL("SELECT t::text FROM {} t").format(sql.Identifier(schema, table))
        found[f"table {schema}.{table}"] = "\n".join(row[0] for row in connection.execute(read).fetchall())
    return found


class Bus:
    """Everything that is published, on every subject."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    async def listen(self, url: str) -> None:
        """From now on."""
        self._client = await nats.connect(url)

        async def take(message) -> None:
            headers = repr(message.headers or {}).encode()
            self.heard.append(b"\n".join((message.subject.encode(), headers, message.data)))

        await self._client.subscribe(">", cb=take)
        await self._client.flush()

    async def close(self) -> None:
        """No more."""
        await self._client.drain()


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """An OTLP receiver: its URL, and the bodies that it got."""
    bodies: list[bytes] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            bodies.append(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keeps the test's output quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def secrets_in_files(data_dir: Path, names: Mapping[str, str]) -> dict[str, str]:
    """Secrets that a platform made for itself, read from where it keeps them."""
    return {name: (data_dir / path).read_text().strip() for name, path in names.items()}

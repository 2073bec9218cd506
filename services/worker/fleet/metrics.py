"""What a worker counts, and its endpoint for Prometheus: `GET /metrics` and `GET /healthz`, nothing else.

The endpoint is there only where a port was asked for, and listens on this machine unless told otherwise.
"""

import asyncio
import contextlib
import time
from collections import Counter, defaultdict

_REQUEST_BYTES = 8 * 1024
_REQUEST_SECONDS = 5.0
# A platform that was heard of within this time counts as connected.
CONNECTED_SECONDS = 90.0


class Metrics:
    """Plain numbers; a worker has one event loop."""

    def __init__(self) -> None:
        self.items: Counter[tuple[str, str]] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.running = 0
        self.calls_failed = 0
        self.renewals_failed = 0
        self.heard_at: float | None = None
        self.connected_seconds = CONNECTED_SECONDS
        self.began_at = time.time()

    def heard(self) -> None:
        """The platform has answered."""
        self.heard_at = time.monotonic()

    @property
    def connected(self) -> bool:
        """Whether the platform answered lately."""
        return self.heard_at is not None and time.monotonic() - self.heard_at < self.connected_seconds

    def ended(self, kind: str, outcome: str, seconds: float) -> None:
        """An item is over: `completed`, `failed`, `stopped`, `refused` or `lost`."""
        self.items[kind, outcome] += 1
        self.seconds[kind] += seconds

    def count(self, outcome: str) -> int:
        """Items that ended this way."""
        return sum(number for (_, each), number in self.items.items() if each == outcome)

    def render(self) -> str:
        """In the text format of Prometheus."""
        lines = _family("items_total", "counter", "Work items that ended, by kind and outcome.")
        for (kind, outcome), number in sorted(self.items.items()):
            lines.append(f'managed_agents_worker_items_total{{kind="{kind}",outcome="{outcome}"}} {number}')
        lines += _family("item_seconds_total", "counter", "Time that items took, by kind.")
        for kind, seconds in sorted(self.seconds.items()):
            lines.append(f'managed_agents_worker_item_seconds_total{{kind="{kind}"}} {seconds:.6f}')
        plain = (
            ("items_running", "gauge", "Work items that run now.", self.running),
            ("calls_failed_total", "counter", "Calls of the platform that got no usable answer.", self.calls_failed),
            ("renewals_failed_total", "counter", "Renewals of leases that failed.", self.renewals_failed),
            ("connected", "gauge", "Whether the platform answered lately.", self.connected),
            ("start_time_seconds", "gauge", "When the worker began, in seconds of Unix time.", int(self.began_at)),
        )
        for name, kind, text, value in plain:
            lines += [*_family(name, kind, text), f"managed_agents_worker_{name} {int(value)}"]
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP managed_agents_worker_{name} {text}", f"# TYPE managed_agents_worker_{name} {kind}"]


class MetricsServer:
    """The endpoint."""

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        self._metrics = metrics
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """Where it listens, also where any free port was asked for."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Listen; raises OSError where that can't be."""
        self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=_REQUEST_BYTES)

    async def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head.partition(b"\r\n")[0].decode("latin-1")))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _answer(self, request: str) -> bytes:
        method, _, rest = request.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return _http(405, "Only GET is answered here.\n")
        if path == "/metrics":
            return _http(200, self._metrics.render(), head=method == "HEAD")
        if path == "/healthz":
            connected = self._metrics.connected
            return _http(200 if connected else 503, "ok\n" if connected else "the platform does not answer\n")
        return _http(404, "There are /metrics and /healthz.\n")


def _http(status: int, text: str, *, head: bool = False) -> bytes:
    words = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
    body = text.encode()
    top = f"HTTP/1.1 {status} {words[status]}\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n"
    top += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return top.encode() + (b"" if head else body)

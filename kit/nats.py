"""A connection to NATS that outlives the server.

    nats = await connect(settings.nats_server(), "gateway")
    await nats.publish(f"sessions.live.{session_id}", body)

It reconnects for ever; subscriptions come back by themselves. `connect` returns even where the server is not up yet,
since a service must be able to start first: what needs NATS waits, and core messages sent meanwhile are dropped, as
they are hints. `publish` never raises, so it can follow a commit. After each reconnect the `on_reconnect` callbacks
run, as whatever was sent in between is lost; when a subscription overflows, the `on_slow` callbacks get its subject.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import SlowConsumerError
from nats.js import JetStreamContext

from kit.config import SecretStr, reveal
from kit.errors import Unavailable
from kit.telemetry import inject, log, register_secret, tracing

OnReconnect = Callable[[], Awaitable[None] | None]
OnMessage = Callable[[Msg], Awaitable[None]]
OnSlow = Callable[[str], Awaitable[None] | None]

_PENDING_BYTES = 8 * 1024 * 1024


class Nats:
    """One connection of a process, shared by everything in it."""

    def __init__(self, url: str, name: str) -> None:
        # The token or password, by itself: the client's own messages don't show it inside a URL.
        address = urlsplit(url)
        register_secret(address.password or address.username)
        self.client = Client()
        self.url = url
        self.name = name
        self._on_reconnect: list[OnReconnect] = []
        self._on_slow: list[OnSlow] = []
        self._connected = asyncio.Event()
        self._connecting: asyncio.Task[None] | None = None
        self._told_lost = False
        self._waiting: list[tuple[str, OnMessage, dict[str, Any]]] = []

    @property
    def connected(self) -> bool:
        """Whether the server can be reached right now."""
        return self.client.is_connected

    def jetstream(self, timeout_seconds: float = 5.0) -> JetStreamContext:
        """JetStream over this connection."""
        return self.client.jetstream(timeout=timeout_seconds)

    def on_reconnect(self, callback: OnReconnect) -> None:
        """Call this after every connection but the first."""
        self._on_reconnect.append(callback)

    def on_slow(self, callback: OnSlow) -> None:
        """Call this with the subject of a subscription that lost messages since its reader was too slow."""
        self._on_slow.append(callback)

    async def publish(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> bool:
        """Send a hint. False where it could not be handed over; never an exception.

        It carries the trace while traces are on. Otherwise it has no header of ours: nobody reads one, and to take it
        apart costs a reader more than the hint itself.
        """
        if not self.client.is_connected:
            return False
        try:
            await self.client.publish(subject, payload, headers=inject(headers) if tracing() else headers)
        except Exception as error:
            log.debug("hint not sent", subject=subject, error=repr(error))
            return False
        return True

    async def flush(self, timeout_seconds: float = 1.0) -> bool:
        """Wait until the server has taken what was sent. False where it did not say so; never an exception."""
        if not self.client.is_connected:
            return False
        try:
            await self.client.flush(timeout=timeout_seconds)  # type: ignore[arg-type]  # any number works
        except Exception as error:
            log.debug("NATS was not flushed", error=repr(error))
            return False
        return True

    async def subscribe(
        self, subject: str, callback: OnMessage | None = None, *, wait_seconds: float = 5.0, **options: Any
    ) -> Subscription:
        """Subscribe; the subscription survives reconnects. Unavailable where the server never was up so far."""
        if not await self.wait_connected(wait_seconds):
            raise Unavailable("The message bus can't be reached now. Try again shortly.")
        return await self.client.subscribe(subject, cb=callback, **options)

    async def subscribe_eventually(self, subject: str, callback: OnMessage, **options: Any) -> None:
        """Subscribe for the life of the process, as soon as there is a server; returns at once."""
        if self._connected.is_set():
            await self.client.subscribe(subject, cb=callback, **options)
        else:
            self._waiting.append((subject, callback, options))

    async def request(self, subject: str, payload: bytes, timeout_seconds: float) -> Msg:
        """Ask and await one answer."""
        return await self.client.request(subject, payload, timeout=timeout_seconds, headers=inject() or None)

    async def wait_connected(self, timeout_seconds: float | None = None) -> bool:
        """Wait for the first connection."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._connected.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Deliver what is pending, as far as the server lets us, and close. Safe to repeat."""
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self.client.is_connected:
            try:
                await self.client.drain()
            except Exception as error:
                log.debug("NATS did not drain", error=repr(error))
        if not self.client.is_closed:
            await self.client.close()

    async def _connect(self) -> None:
        await self.client.connect(
            servers=[self.url],
            name=self.name,
            allow_reconnect=True,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,  # type: ignore[arg-type]  # any number works, and a second is long
            connect_timeout=2,
            drain_timeout=5,
            ping_interval=10,
            max_outstanding_pings=2,
            pending_size=_PENDING_BYTES,
            error_cb=self._failed,
            disconnected_cb=self._lost,
            reconnected_cb=self._back,
        )
        self._told_lost = False
        self._connected.set()
        for subject, callback, options in self._waiting:
            await self.client.subscribe(subject, cb=callback, **options)

    async def _failed(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            log.warning("subscription overflowed", subject=error.subject)
            await self._run(self._on_slow, error.subject)
        elif not self._told_lost:
            self._told_lost = True
            log.warning("NATS can't be reached, trying on", error=repr(error))

    async def _lost(self) -> None:
        if not self.client.is_closed and not self._told_lost:
            self._told_lost = True
            log.warning("connection to NATS lost")

    async def _back(self) -> None:
        self._told_lost = False
        log.info("connection to NATS is back")
        await self._run(self._on_reconnect)

    async def _run(self, callbacks: list[Any], *arguments: Any) -> None:
        for callback in callbacks:
            try:
                outcome = callback(*arguments)
                if inspect.isawaitable(outcome):
                    await outcome
            except Exception:
                log.exception("a NATS callback failed")


async def connect(url: str | SecretStr, name: str, *, wait_seconds: float = 3.0) -> Nats:
    """Connect; after `wait_seconds` without a server go on and connect in the background."""
    nats = Nats(reveal(url), name)
    nats._connecting = asyncio.create_task(nats._connect(), name="nats connect")
    done, _ = await asyncio.wait({nats._connecting}, timeout=wait_seconds)
    if done:
        nats._connecting.result()
    else:
        log.warning("NATS is not up yet; going on without it", name=name)
    return nats

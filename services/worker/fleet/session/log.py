"""The event log of a session, followed: all of it up to now, then what comes, each event once and in order.

The history is read page by page to its end; the stream is opened after its last event, and again after a broken
connection, so nothing is missed and nothing is told twice.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from services.worker.fleet.backoff import Backoff
from services.worker.fleet.errors import Refused, Unreachable
from services.worker.fleet.reporter import Reporter, Seldom
from services.worker.fleet.session.api import SessionApi


class SessionLog:
    """Feeds `take` with events; `changed` is called whenever there may be something to do."""

    def __init__(
        self,
        api: SessionApi,
        *,
        take: Callable[[dict[str, Any]], None],
        changed: Callable[[], None],
        reporter: Reporter,
    ) -> None:
        self._api = api
        self._take = take
        self._changed = changed
        self._reporter = reporter
        self._seq = 0
        # Nothing may be run before the whole history was read: a later page may hold a call's result.
        self.read = False

    async def follow(self) -> None:
        """Until the platform refuses; that is raised."""
        backoff, seldom = Backoff(cap_seconds=10.0), Seldom()
        while True:
            try:
                if not self.read:
                    await self._read_history()
                async with self._api.stream(self._seq) as events:
                    async for seq, event in events:
                        backoff.reset()
                        self._seq = max(seq, self._seq)
                        self._take(event)
                        self._changed()
            except Refused:
                raise
            except Unreachable as away:
                if seldom.now(str(away)):
                    self._reporter.warning("the event stream was lost; it is taken up again", reason=str(away))
            except (LookupError, TypeError, ValueError) as damaged:
                self._reporter.warning("the event log could not be read", error=repr(damaged))
            await asyncio.sleep(backoff.next_seconds())

    async def _read_history(self) -> None:
        events = [event async for event in self._api.history()]
        for event in events:
            self._seq = max(int(event.get("seq") or 0), self._seq)
            self._take(event)
        self.read = True
        self._changed()

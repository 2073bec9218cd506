"""What a turn writes: collected for a moment, appended in order, each event once.

Events wait up to LINGER_SECONDS for more, so a fast turn costs one append; `flush` appends at once and returns only
when the service has stored them, which the loop awaits before a tool runs. Appends of a turn never overlap. One that
fails for want of the service is sent again with the same event ids, which the service stores once, for as long as the
lease lasts; then, or when the service says so, LeaseLost ends the turn.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson

from kit import failpoints
from kit.errors import Aborted, DeadlineExceeded, FailedPrecondition, NotFound, Unavailable
from kit.ids import new_id
from kit.telemetry import log
from managed_agents.sessions.v1.sessions_pb2 import Usage
from managed_agents.sessions.v1.turns_pb2 import (
    AppendTurnEventsRequest,
    AppendTurnEventsResponse,
    ModelUsage,
    TurnEnd,
    TurnEvent,
)
from services.worker.runner.loop.context import Conversation
from services.worker.runner.loop.leases import Lease, LeaseLost
from services.worker.runner.models.base import TokenUsage

LINGER_SECONDS = 0.05
# The service takes no more at once; what is more goes in several appends.
MAX_APPEND_EVENTS = 1_000
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0

Append = Callable[[AppendTurnEventsRequest], Awaitable[AppendTurnEventsResponse]]


class Journal:
    """The writer of one turn. Knows the conversation, which takes every event as it is added."""

    def __init__(self, append: Append, lease: Lease, conversation: Conversation) -> None:
        self._append = append
        self._lease = lease
        self._conversation = conversation
        self._pending: list[TurnEvent] = []
        self._usage: list[ModelUsage] = []
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._background: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        # Seq of a user.interrupt that the service told of last; 0 where none waits.
        self.interrupt_seq = 0
        # Whether the session's budget is spent, as the service told last; None before its first answer.
        self.budget_reached: bool | None = None
        # What the service said last of the session's revision.
        self.session_revision = 0
        # The vendor's id of what agents call `default`, and price lists may call so too.
        self.default_model = ""
        self.on_answer: Callable[[], None] = _nothing
        self.on_failure: Callable[[Exception], None] = _nothing

    def add(self, event_type: str, fields: Mapping[str, Any], event_id: str = "") -> str:
        """Take an event; its id. It is appended with the next flush, at the latest when it has lingered."""
        event_id = event_id or new_id("sevt")
        encoded, fields = encode(fields)
        self._pending.append(TurnEvent(id=event_id, type=event_type, fields_json=encoded))
        self._conversation.apply(event_id, event_type, fields, size_bytes=len(encoded))
        self._start_timer()
        return event_id

    def spend(self, model_id: str, usage: TokenUsage, *, asked_as: str = "") -> None:
        """Count what a request to a model cost, with the events that wait; it may answer under another name."""
        tokens = Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_input_tokens=usage.cache_read_input_tokens,
            cache_creation_5m_input_tokens=usage.cache_creation_5m_input_tokens,
            cache_creation_1h_input_tokens=usage.cache_creation_1h_input_tokens,
        )
        names = [name for name in (asked_as, "default" if asked_as == self.default_model else "") if name]
        self._usage.append(ModelUsage(model_id=model_id, usage=tokens, asked_as=names))

    @property
    def has_uncharged_usage(self) -> bool:
        """Whether the service has not been told of all that was spent."""
        return bool(self._usage) or self._lock.locked()

    async def flush(self, end: TurnEnd | None = None) -> AppendTurnEventsResponse | None:
        """Append what waits, and end the turn with it if told so. None where there was nothing to do."""
        async with self._lock:
            self._stop_timer()
            if self._failure is not None:
                raise self._failure
            if not self._pending and end is None:
                return None
            events, self._pending = self._pending, []
            while len(events) > MAX_APPEND_EVENTS:
                await self._store(events[:MAX_APPEND_EVENTS], None)
                del events[:MAX_APPEND_EVENTS]
            response = await self._store(events, end)
            if self._pending:
                self._start_timer()
            return response

    async def _store(self, events: list[TurnEvent], end: TurnEnd | None) -> AppendTurnEventsResponse:
        """One append, with the usage that was not told yet."""
        usage, self._usage = self._usage, []
        response = await self._send(
            AppendTurnEventsRequest(
                session_id=self._lease.session_id,
                epoch=self._lease.epoch,
                known_seq=self._conversation.known_seq,
                events=events,
                usage=usage,
                end=end,
            )
        )
        self._read(response)
        return response

    def discard(self) -> None:
        """Write nothing more: the turn is over or lost."""
        self._stop_timer()
        self._pending.clear()
        self._usage.clear()
        if self._background is not None:
            self._background.cancel()

    def _read(self, response: AppendTurnEventsResponse) -> None:
        for event in response.new_events:
            self._conversation.apply_stored(event.seq, event.id, event.type, event.body)
        self._conversation.known_seq = max(self._conversation.known_seq, response.last_seq)
        self.interrupt_seq = response.interrupt_seq
        self.budget_reached = response.budget_reached
        self.session_revision = response.session_revision
        self.on_answer()

    async def _send(self, request: AppendTurnEventsRequest) -> AppendTurnEventsResponse:
        log.debug("append", session_id=request.session_id, epoch=request.epoch, ids=[one.id for one in request.events])
        pause = _FIRST_PAUSE_SECONDS
        while True:
            self._lease.check()
            await failpoints.point("runner.before_append")
            try:
                return await self._append(request)
            except (FailedPrecondition, NotFound) as refused:
                raise LeaseLost(refused.message) from refused
            except (Unavailable, DeadlineExceeded, Aborted) as failed:
                log.warning("append failed, trying again", session_id=request.session_id, error=repr(failed))
            await asyncio.sleep(min(pause, max(0.0, self._lease.remaining_seconds())))
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def _linger_over(self) -> None:
        self._timer = None
        if self._pending and not self._lock.locked():
            self._background = asyncio.create_task(self._flush_in_background())

    async def _flush_in_background(self) -> None:
        try:
            await self.flush()
        except Exception as failure:
            # The turn learns of it at its next flush; a lost lease stops it at once.
            self._failure = failure
            self.on_failure(failure)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._linger_over)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def encode(fields: Mapping[str, Any]) -> tuple[bytes, Mapping[str, Any]]:
    """An event's fields as JSON, and as they read back: characters that no log can hold are replaced."""
    try:
        encoded = orjson.dumps(fields)
    except TypeError:
        encoded = b""
    if not encoded or b"\\u0000" in encoded:
        fields = _storable(fields)
        encoded = orjson.dumps(fields)
    return encoded, fields


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\x00", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {_storable(str(key)): _storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    return value


def _nothing(*_: object) -> None:
    return None

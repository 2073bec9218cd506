"""What is told after a commit: hints only, since the log has the truth.

Subjects: `sessions.live.<session_id>`, `runners.<runner_id>.signals`, `sessions.turn_ready`.
"""

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace

from kit.nats import Nats
from kit.relay import Relay
from managed_agents.sessions.v1 import duties_pb2, events_pb2
from services.sessions.domain import duty
from services.sessions.domain.log import LoggedEvent
from services.sessions.domain.move import Moved, Signal
from services.sessions.domain.session_state import Phase, phase_of
from services.sessions.store.log import OutboxMessage

TURN_READY = "sessions.turn_ready"
# Live tails have their hint already; only durable consumers wait for the relay.
GATHER_SECONDS = 0.05


class Announcer:
    """Speaks on core NATS, and wakes the relay for what must not be lost."""

    def __init__(self, nats: Nats, relay: Relay) -> None:
        self._nats = nats
        self._relay = relay
        self._waking: asyncio.TimerHandle | None = None

    async def events(self, session_id: str, events: Sequence[LoggedEvent]) -> None:
        """Shows fresh events, and inputs that were just read, to live tails."""
        if events:
            message = events_pb2.LiveEvents(session_id=session_id, events=[event_message(event) for event in events])
            await self._nats.publish(f"sessions.live.{session_id}", message.SerializeToString())

    async def signal(self, signal: Signal) -> None:
        """Has the holder of a turn look at the log."""
        message = events_pb2.TurnSignal(
            session_id=signal.session_id,
            epoch=signal.epoch,
            interrupt_seq=signal.interrupt_seq,
            revoked=signal.revoked,
        )
        await self._nats.publish(f"runners.{signal.runner_id}.signals", message.SerializeToString())

    async def turn_ready(self) -> None:
        """Tells the other replicas that a turn waits."""
        await self._nats.publish(TURN_READY, b"")

    def wake_relay(self, *, at_once: bool = False) -> None:
        """Outbox rows were committed. The relay takes what gathers in a moment together, unless somebody waits."""
        if at_once:
            self._relay.wake()
        elif self._waking is None:
            self._waking = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._wake)

    def _wake(self) -> None:
        self._waking = None
        self._relay.wake()


def event_message(event: LoggedEvent) -> events_pb2.Event:
    """An event as other processes get it."""
    return events_pb2.Event(id=event.id, seq=event.seq, type=event.type, body=event.body)


def outbox_messages(moved: Moved, headers: dict[str, str] | None) -> list[OutboxMessage]:
    """What durable consumers get of an append. The end of a session is told to those who hear nothing else too."""
    appended = _appended(moved, headers)
    messages = [appended]
    has_ended = phase_of(moved.state) is Phase.ENDED and phase_of(moved.before) is not Phase.ENDED
    if has_ended and not moved.state.root_id:
        subject = f"sessions.log.{moved.state.id}.ended"
        messages.append(replace(appended, message_id=f"{appended.message_id}.ended", subject=subject))
    if (changed := duty.change(moved)) is not None:
        messages.append(_duty_changed(moved, changed, appended))
    return messages


def _duty_changed(moved: Moved, changed: duty.DutyChange, appended: OutboxMessage) -> OutboxMessage:
    """What the queue makes work items of."""
    state = moved.state
    payload = duties_pb2.DutyChanged(
        workspace_id=state.workspace_id,
        session_id=state.id,
        environment_id=state.environment_id,
        seq=state.last_seq,
        has_work=changed.has_work,
        ended=changed.ended,
    )
    return replace(
        appended,
        message_id=f"{appended.message_id}.duty",
        subject=f"sessions.work.{state.environment_id}",
        payload=b64encode(payload.SerializeToString()).decode(),
    )


def _appended(moved: Moved, headers: dict[str, str] | None) -> OutboxMessage:
    payload = events_pb2.EventsAppended(
        workspace_id=moved.state.workspace_id,
        session_id=moved.state.id,
        events=[events_pb2.EventReference(id=event.id, seq=event.seq, type=event.type) for event in moved.events],
    )
    return OutboxMessage(
        workspace_id=moved.state.workspace_id,
        session_id=moved.state.id,
        message_id=moved.events[0].id,
        subject=_subject(moved),
        payload=b64encode(payload.SerializeToString()).decode(),
        headers=headers or None,
    )


def _subject(moved: Moved) -> str:
    """A deletion has a subject of its own, for those who only clean up behind sessions."""
    deleted = any(event.type == "session.deleted" for event in moved.events)
    return f"sessions.log.{moved.state.id}.deleted" if deleted else f"sessions.log.{moved.state.id}"

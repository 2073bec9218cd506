"""Steers among the events of a request: judged in their order, told with their receipts.

The engines of this build run a turn to its end and keep no input open, so no steer is
ever written to one; whoever adds an engine that does says so in `channel_of`.
"""

from dataclasses import dataclass, field

from services.sessions.domain.inbound import USER_STEER, ClientEvent
from services.sessions.domain.session_state import SessionState
from services.sessions.domain.steering import Channel, Receipt, SteerState, Used, judge
from services.sessions.operations.core import Unit
from services.sessions.store.steers import SteerStore


@dataclass(slots=True)
class Steered:
    """The events of a request with the receipts of its steers."""

    events: list[ClientEvent]
    receipts: list[Receipt] = field(default_factory=list)


def has_steers(events: list[ClientEvent]) -> bool:
    """Whether a request needs to be looked at by `steered`."""
    return any(event.type == USER_STEER for event in events)


def channel_of(_state: SessionState) -> Channel | None:
    """The live input of the session's engine; None where it has none."""
    return None


async def steered(unit: Unit, state: SessionState, events: list[ClientEvent]) -> Steered:
    """Judges the steers of a request for a session that the unit holds, and keeps how their ids were used."""
    store = SteerStore(unit.tx)
    found = Steered([])
    known = await store.used(state.id, [event.fields["input_id"] for event in events if event.type == USER_STEER])
    changed: dict[str, Used] = {}
    channel = channel_of(state)
    for event in events:
        if event.type == USER_STEER:
            receipt = judge(event.fields, known.get(event.fields["input_id"]), channel)
            assert receipt is not None, "nothing takes a steer where no engine keeps its input open"
            found.receipts.append(receipt)
            if receipt.state is SteerState.REJECTED:
                use = Used(event.fields["text"], receipt.state, receipt.turn_id)
                known[receipt.input_id] = changed[receipt.input_id] = use
            event = ClientEvent(USER_STEER, event.fields | {"metadata": receipt.metadata()})
        found.events.append(event)
    if changed:
        await store.keep(state.id, changed.items())
    return found

"""What becomes of a steer: a text that is meant for the turn that runs, and for no other.

A steer is written to the input channel that the session's engine keeps open while a turn
runs. It is never queued: where nothing takes it, it is refused, and its sender may send it
again. The id that the sender gave it makes a repeat harmless: what was delivered is not
delivered twice, and what may have been is never tried again.

    judge   →  a receipt, or None: the steer may be written to the channel
    settle  →  the receipt of one that was
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any


class SteerState(StrEnum):
    """What became of a steer, in the words of its receipt."""

    DELIVERED = "delivered"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    REJECTED = "rejected"
    OUTCOME_UNKNOWN = "outcome_unknown"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the sender is told, and what stands with the event in the log."""

    input_id: str
    state: SteerState
    turn_id: str = ""
    detail: str = ""

    def public(self) -> dict[str, str]:
        """As the answer shows it."""
        return {"input_id": self.input_id, "state": self.state} | self._more()

    def metadata(self) -> dict[str, str]:
        """As the log keeps it."""
        return {"input_id": self.input_id, "steer_state": self.state} | self._more()

    def _more(self) -> dict[str, str]:
        return {name: value for name, value in (("turn_id", self.turn_id), ("detail", self.detail)) if value}


@dataclass(frozen=True, slots=True)
class Used:
    """How an input id was used before. Without a `state` the engine has not answered yet."""

    text: str
    state: SteerState | None
    turn_id: str = ""


@dataclass(frozen=True, slots=True)
class Channel:
    """The live input of a running turn, as its engine keeps it."""

    turn_id: str
    # False from the moment that the turn begins to end.
    open: bool = True
    # Whether a steer is under way and not acknowledged.
    busy: bool = False


def judge(steer: dict[str, Any], used: Used | None, channel: Channel | None) -> Receipt | None:
    """Whether a steer may be written to the channel; its receipt where it may not."""
    input_id = steer["input_id"]
    if used is not None and used.text != steer["text"]:
        return Receipt(input_id, SteerState.CONFLICT, detail="This input_id was used with another text before.")
    if used is not None and (repeat := _repeat(input_id, used)) is not None:
        return repeat
    refusal = _closed(steer.get("expected_turn_id"), channel)
    return Receipt(input_id, SteerState.REJECTED, detail=refusal) if refusal else None


def settle(steer: dict[str, Any], channel: Channel, *, acknowledged: bool | None) -> Receipt:
    """The receipt of a steer that was written; None for an acknowledgement that never came."""
    receipt = Receipt(steer["input_id"], SteerState.DELIVERED, channel.turn_id)
    if acknowledged is None:
        return replace(
            receipt, state=SteerState.OUTCOME_UNKNOWN, detail="The engine did not say whether it took the steer."
        )
    if not acknowledged:
        return replace(receipt, state=SteerState.REJECTED, turn_id="", detail="The engine did not take the steer.")
    return receipt


def _repeat(input_id: str, used: Used) -> Receipt | None:
    if used.state is None:
        return Receipt(input_id, SteerState.REJECTED, used.turn_id, "This steer is still under way.")
    if used.state in (SteerState.DELIVERED, SteerState.DUPLICATE):
        return Receipt(input_id, SteerState.DUPLICATE, used.turn_id)
    if used.state is SteerState.OUTCOME_UNKNOWN:
        return Receipt(input_id, used.state, used.turn_id, "The engine did not say whether it took the steer.")
    # Nothing heard it, so it is judged anew.
    return None


def _closed(expected_turn_id: str | None, channel: Channel | None) -> str:
    if channel is None:
        return "No engine takes steering in this session: its turns run to their end."
    if expected_turn_id is not None and expected_turn_id != channel.turn_id:
        return "expected_turn_id does not name the turn that runs."
    if not channel.open:
        return "The turn is about to end and takes no more steering."
    return "Another steer is still under way; send this one when that has its receipt." if channel.busy else ""

"""Where a session stands, as far as its log and its turn are concerned.

One value of this is loaded under the session's row lock, moved by the state machine in
`domain/turn.py`, and saved in the same transaction as the events of the move.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum, StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.sessions.domain.thread_state import Threads

from services.sessions.domain.outcome import Outcome


class Status(StrEnum):
    """The local vocabulary of a session's status."""

    IDLE = "idle"
    RUNNING = "running"
    RESCHEDULING = "rescheduling"
    REQUIRES_ACTION = "requires_action"
    TERMINATED = "terminated"
    TIMED_OUT = "timed_out"


class TurnState(StrEnum):
    """Whether there is a turn, and whether somebody runs it."""

    NONE = "none"
    READY = "ready"
    LEASED = "leased"


class CallKind(StrEnum):
    """What a parked call waits for."""

    CONFIRMATION = "confirmation"
    CUSTOM = "custom"
    # A thread's answer; no client gives it.
    THREAD = "thread"
    # The result of a tool that a worker runs.
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call that a client must answer before the turn goes on."""

    event_id: str
    block_id: str
    kind: CallKind
    answered: bool = False
    # Of the MCP server whose tool it is, or empty.
    server_name: str = ""
    # Whether a worker runs it, once it may be run.
    by_worker: bool = False


@dataclass(frozen=True, slots=True)
class UnreadInput:
    """A client's input that arrived during a turn and that no model request has read."""

    seq: int
    starts_turn: bool


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens that were spent, and requests to the web that tools made."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_5m_input_tokens: int = 0
    cache_creation_1h_input_tokens: int = 0
    web_search_requests: int = 0
    web_fetch_requests: int = 0

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_input_tokens + other.cache_read_input_tokens,
            self.cache_creation_5m_input_tokens + other.cache_creation_5m_input_tokens,
            self.cache_creation_1h_input_tokens + other.cache_creation_1h_input_tokens,
            self.web_search_requests + other.web_search_requests,
            self.web_fetch_requests + other.web_fetch_requests,
        )


@dataclass(slots=True)
class SessionState:
    """The moving part of a session.

    A value to everyone but `domain/move.py`, which moves its own copy.
    """

    workspace_id: str
    id: str
    thread_id: str
    agent_name: str
    updated_at: datetime
    created_at: datetime
    environment_id: str = ""
    # What the environment declares, where that changed after the session was made.
    environment_now: str | None = None
    # Whether workers of the environment run the session's tools, see `domain/duty.py`.
    on_worker: bool = False
    # What runs its turns: only a runner that has the engine is given one.
    loop_engine: str = "builtin"
    revision: int = 1
    budget: str | None = None
    archived_at: datetime | None = None
    deleted_at: datetime | None = None
    status: Status = Status.IDLE
    last_seq: int = 0
    input_seq: int = 0
    turn_epoch: int = 0
    turn_state: TurnState = TurnState.NONE
    turn_attempt: int = 0
    turn_holder: str = ""
    interrupt_seq: int = 0
    unread: tuple[UnreadInput, ...] = ()
    pending: tuple[PendingCall, ...] = ()
    stop_reason: str = ""
    usage: TokenUsage = TokenUsage()
    # The same by model and with its cost, as `domain/cost.py` writes it.
    spend: str = "[]"
    active_seconds: float = 0.0
    running_since: datetime | None = None
    # Since when it waits for answers of clients; `domain/waiting.py` bounds that.
    parked_at: datetime | None = None
    # The newest outcome, whatever became of it.
    outcome: Outcome | None = None
    traceparent: str = ""
    # Counts the moves that were saved.
    version: int = 0
    # Of a thread beside the primary one: the session that it belongs to.
    root_id: str = ""
    # Of a session that has had such threads: what it knows of them.
    threads: "Threads | None" = None


class Phase(Enum):
    """Where a session stands, for the table above."""

    IDLE = "idle"
    READY = "ready"
    LEASED = "leased"
    PARKED = "parked"
    ENDED = "ended"


def phase_of(state: SessionState) -> Phase:
    """The phase of a state."""
    if state.archived_at or state.deleted_at or state.status in (Status.TERMINATED, Status.TIMED_OUT):
        return Phase.ENDED
    if state.turn_state is TurnState.NONE and state.pending:
        return Phase.PARKED
    return {TurnState.NONE: Phase.IDLE, TurnState.READY: Phase.READY, TurnState.LEASED: Phase.LEASED}[state.turn_state]

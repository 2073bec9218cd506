"""What a session knows of its threads beside the primary one.

A thread has a row, a log and turns of its own, as any session has. The session keeps a
summary of those that take messages: it decides what the session as a whole does, where an
answer of a client goes, and which call of the coordinator waits for which thread. The
summary follows the threads' own logs (`domain/threads.py`), under the session's lock.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import orjson

from services.sessions.domain.session_state import CallKind, PendingCall, SessionState, Status, TokenUsage, TurnState

MAX_THREADS = 25
# How a session's row holds that it never had a thread beside the primary one.
NONE = ""


@dataclass(frozen=True, slots=True)
class PostedCall:
    """A call of a thread that a client must answer, as the session shows it."""

    # The event in the session's log.
    posted_id: str
    # The event in the thread's log.
    event_id: str
    block_id: str
    kind: CallKind
    # Whether a worker runs it, once it may be run.
    by_worker: bool = False

    def is_named(self, name: str) -> bool:
        """Whether a client means this call; a block id is the model's, so it may be in use twice."""
        return name in (self.posted_id, self.event_id, self.block_id)


@dataclass(frozen=True, slots=True)
class ThreadEntry:
    """One thread that takes messages."""

    id: str
    agent_name: str
    is_running: bool = False
    # The coordinator's call that waits for the thread's answer, or empty.
    call_id: str = ""
    waiting: tuple[PostedCall, ...] = ()
    # What the session's totals have of it.
    told_usage: TokenUsage = field(default_factory=TokenUsage)
    told_spend: str = "[]"
    # Whether it waits for the session's budget to be raised.
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class Threads:
    """The summary. `own_usage` is what the primary thread spent; the session's totals have all of them."""

    own_usage: TokenUsage = field(default_factory=TokenUsage)
    live: tuple[ThreadEntry, ...] = ()

    def find(self, thread_id: str) -> ThreadEntry | None:
        """The entry of a thread."""
        return next((entry for entry in self.live if entry.id == thread_id), None)

    def put(self, entry: ThreadEntry) -> "Threads":
        """With an entry that is new or has changed."""
        if self.find(entry.id) is None:
            return replace(self, live=(*self.live, entry))
        return replace(self, live=tuple(entry if each.id == entry.id else each for each in self.live))

    def without(self, thread_id: str) -> "Threads":
        """Without a thread that takes no more messages."""
        return replace(self, live=tuple(each for each in self.live if each.id != thread_id))

    def unawaited(self, call_id: str = "") -> "Threads":
        """Without a call that waits, or without any: what the threads still answer is told as news."""
        given_up = {call_id} if call_id else {entry.call_id for entry in self.live}
        live = tuple(replace(each, call_id="") if each.call_id in given_up else each for each in self.live)
        return replace(self, live=live)


def any_running(state: SessionState) -> bool:
    """Whether a thread beside the primary one runs, or is about to."""
    return state.threads is not None and any(entry.is_running for entry in state.threads.live)


def any_paused(state: SessionState) -> bool:
    """Whether a thread beside the primary one waits for the session's budget to be raised."""
    return state.threads is not None and any(entry.is_paused for entry in state.threads.live)


def posted_calls(state: SessionState) -> Iterator[tuple[ThreadEntry, PostedCall]]:
    """The calls of threads that a client must answer."""
    for entry in state.threads.live if state.threads else ():
        for call in entry.waiting:
            yield entry, call


def waiting_ids(state: SessionState) -> list[str]:
    """Ids, in the session's log, of all calls that a client must answer."""
    own = [call.event_id for call in state.pending if not call.answered and call.kind is not CallKind.THREAD]
    return own + [call.posted_id for _, call in posted_calls(state)]


_OF_CLIENTS = (CallKind.CONFIRMATION, CallKind.CUSTOM)


def client_ids(state: SessionState) -> list[str]:
    """Those of them that people or their programs answer; workers come to the others by themselves."""
    own = [call.event_id for call in state.pending if not call.answered and call.kind in _OF_CLIENTS]
    return own + [call.posted_id for _, call in posted_calls(state) if call.kind in _OF_CLIENTS]


def awaited(state: SessionState) -> list[PendingCall]:
    """Calls of the coordinator that wait for threads."""
    return [call for call in state.pending if call.kind is CallKind.THREAD and not call.answered]


def is_shown_running(state: SessionState) -> bool:
    """Whether the log says that the primary thread runs: also while it waits for others that do."""
    return state.status is Status.RUNNING and (state.turn_state is not TurnState.NONE or bool(state.pending))


def load(text: str) -> Threads | None:
    """The summary from its column."""
    if text == NONE:
        return None
    stored = orjson.loads(text)
    return Threads(TokenUsage(*stored["own"]), tuple(_entry(each) for each in stored["live"]))


def dump(threads: Threads | None) -> str:
    """The summary for its column."""
    if threads is None:
        return NONE
    stored = {"own": _numbers(threads.own_usage), "live": [_stored(entry) for entry in threads.live]}
    return orjson.dumps(stored).decode()


def _entry(stored: list) -> ThreadEntry:
    thread_id, agent_name, is_running, call_id, waiting, told_usage, told_spend, is_paused = stored
    calls = tuple(
        PostedCall(posted, event, block, CallKind(kind), *more) for posted, event, block, kind, *more in waiting
    )
    return ThreadEntry(
        thread_id, agent_name, is_running, call_id, calls, TokenUsage(*told_usage), told_spend, is_paused
    )


def _stored(entry: ThreadEntry) -> list:
    waiting = [
        # A former build knows no workers, and reads what it wrote.
        [call.posted_id, call.event_id, call.block_id, call.kind, *([True] if call.by_worker else [])]
        for call in entry.waiting
    ]
    return [
        *(entry.id, entry.agent_name, entry.is_running, entry.call_id, waiting),
        *(_numbers(entry.told_usage), entry.told_spend, entry.is_paused),
    ]


def _numbers(usage: TokenUsage) -> list[int]:
    return [
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_input_tokens,
        usage.cache_creation_5m_input_tokens,
        usage.cache_creation_1h_input_tokens,
        usage.web_search_requests,
        usage.web_fetch_requests,
    ]

"""Threads of a session: how a coordinator's calls become threads, and what comes back from them.

Pure. A session and its threads move under locks of their own; what has to cross from one to
the other is told here:

- A call of the coordinator starts a thread, or sends to one, in the transaction that logs the
  call. It waits until that thread is idle; then the thread's answer is the call's result.
- What a thread's log says about its status is news for its session, which takes note of it
  exactly once: the event is posted to the primary log, the session's status follows, an
  awaited call gets its result, and the coordinator's turn goes on with the last one.
- What a client must answer in a thread is posted with the thread's id, and the answer goes
  back to the thread by the id of the call.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from services.sessions.domain import turn_events
from services.sessions.domain.answers import ANSWER_FIELDS, ANSWER_KINDS, lets_worker_run
from services.sessions.domain.inbound import THREAD_MESSAGE, USER_INTERRUPT, ClientEvent
from services.sessions.domain.log import Draft
from services.sessions.domain.move import Move
from services.sessions.domain.session_state import CallKind, PendingCall, SessionState
from services.sessions.domain.thread_news import CREATED, MESSAGE_SENT, write_result
from services.sessions.domain.thread_state import (
    MAX_THREADS,
    PostedCall,
    ThreadEntry,
    Threads,
    posted_calls,
)
from services.sessions.domain.turn import MayBeRepeat

THREAD_PREFIX = "sthr_"
MAX_MESSAGE_CHARACTERS = 100_000


class ConcernsThreads(MayBeRepeat):
    """A request touches threads of the session beside the primary one: it needs their locks too."""


@dataclass(frozen=True, slots=True)
class Member:
    """An agent that a coordinator may put to work."""

    agent_id: str
    version: int
    name: str
    # Its skills at the versions that the session keeps.
    skills: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A coordinator's call of one of the thread tools."""

    event_id: str
    block_id: str
    name: str
    input: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message for a thread; `member` says what a new one is made of."""

    thread_id: str
    content: list[dict[str, Any]]
    member: Member | None = None


def is_thread(session_id: str) -> bool:
    """Whether a row is a thread's rather than a session's."""
    return session_id.startswith(THREAD_PREFIX)


def label(member: Member, members: Sequence[Member]) -> str:
    """What the model calls an agent of the roster by: its name, or its id where two share a name."""
    shared = sum(1 for each in members if each.name == member.name) > 1
    return member.agent_id if shared else member.name


def thread_calls(drafts: Iterable[tuple[Draft, dict[str, Any]]]) -> list[Call]:
    """The calls of thread tools among what a runner wrote."""
    found: list[Call] = []
    for draft, fields in drafts:
        if draft.type == "agent.tool_use" and turn_events.is_thread_call(fields):
            pending = turn_events.parked_call(draft.id, draft.type, fields)
            value = fields.get("input")
            found.append(Call(draft.id, pending.block_id, fields["name"], value if isinstance(value, Mapping) else {}))
    return found


def begin_calls(move: Move, calls: Sequence[Call], members: Sequence[Member], new_thread_id: Any) -> list[Delivery]:
    """Starts what calls ask for; one that can't be done gets a result that says why."""
    deliveries: list[Delivery] = []
    for call in calls:
        threads = move.state.threads or Threads(own_usage=move.state.usage)
        problem, entry, member = _target(call, threads, members, new_thread_id)
        if entry is None:
            _refuse(move, call, problem)
            continue
        content = [{"type": "text", "text": call.input["message"]}]
        if member is not None:
            move.write(CREATED, {"session_thread_id": entry.id, "agent_name": entry.agent_name})
        move.write(
            MESSAGE_SENT,
            {"to_session_thread_id": entry.id, "to_agent_name": entry.agent_name, "content": content},
        )
        # Whether it runs is news of the thread itself, in the same transaction.
        move.state.threads = threads.put(replace(entry, call_id=call.event_id))
        move.state.pending += (PendingCall(call.event_id, call.block_id, CallKind.THREAD),)
        deliveries.append(Delivery(entry.id, content, member))
    return deliveries


def _target(
    call: Call, threads: Threads, members: Sequence[Member], new_thread_id: Any
) -> tuple[str, ThreadEntry | None, Member | None]:
    """What a call is for: a problem, or the entry of its thread, and the member of a new one."""
    message = call.input.get("message")
    if not isinstance(message, str) or not message.strip() or len(message) > MAX_MESSAGE_CHARACTERS:
        return f"message must be a text of 1 to {MAX_MESSAGE_CHARACTERS} characters.", None, None
    if call.name == turn_events.START_THREAD:
        wanted = call.input.get("agent")
        member = next((each for each in members if wanted in (label(each, members), each.agent_id)), None)
        if member is None:
            return f"agent must be one of: {', '.join(label(each, members) for each in members)}.", None, None
        if len(threads.live) >= MAX_THREADS:
            return (
                f"No thread was started: the session has {len(threads.live)} threads, the most that it may have at"
                f" once. Send to one of them: {_names(threads)}.",
                None,
                None,
            )
        return "", ThreadEntry(new_thread_id(), member.name), member
    entry = threads.find(str(call.input.get("thread_id")))
    if entry is None:
        return f"thread_id must name an open thread of yours: {_names(threads) or 'there is none'}.", None, None
    if entry.call_id:
        return f"The thread {entry.id} is at work on another call; wait for its answer.", None, None
    return "", entry, None


def _names(threads: Threads) -> str:
    return ", ".join(f"{entry.id} ({entry.agent_name})" for entry in threads.live)


def _refuse(move: Move, call: Call, text: str) -> None:
    pending = PendingCall(call.event_id, call.block_id, CallKind.THREAD, answered=True)
    write_result(move, pending, text, is_error=True)
    # Remembered until the runner has read it, so that it writes no second result.
    move.state.pending += (pending,)


def message_for(delivery: Delivery, from_thread_id: str) -> ClientEvent:
    """What a thread gets from the primary one."""
    return ClientEvent(THREAD_MESSAGE, {"from_session_thread_id": from_thread_id, "content": delivery.content})


def concern(state: SessionState, events: Sequence[ClientEvent]) -> bool:
    """Whether a request has to do with threads beside the primary one."""
    if state.threads is None or not state.threads.live:
        return False
    return any(_goes_to(state, event) for event in events)


def route(state: SessionState, events: Sequence[ClientEvent]) -> tuple[list[ClientEvent], dict[str, list[ClientEvent]]]:
    """A client's events as the session stores them, and those that threads get, by thread."""
    stored: list[ClientEvent] = []
    routed: dict[str, list[ClientEvent]] = {}
    for event in events:
        targets = _goes_to(state, event)
        for thread_id, fields in targets:
            routed.setdefault(thread_id, []).append(ClientEvent(event.type, fields))
        if event.type == USER_INTERRUPT:
            named = event.fields.get("session_thread_id", state.thread_id)
            stored.append(event if named == state.thread_id else replace(event, thread_id=named))
        elif targets:
            (thread_id, _), call = targets[0], _posted(state, event)
            assert call is not None, "an answer goes to the thread whose call it names"
            fields = event.fields | {ANSWER_FIELDS[event.type]: call.posted_id, "session_thread_id": thread_id}
            stored.append(ClientEvent(event.type, fields, thread_id))
        else:
            stored.append(event)
    return stored, routed


def settle_posted(state: SessionState, events: Sequence[ClientEvent]) -> SessionState:
    """The session once the calls that these events answered wait no more."""
    threads = state.threads
    for event in events:
        if not event.thread_id or event.type == USER_INTERRUPT or threads is None:
            continue
        entry = threads.find(event.thread_id)
        if entry is not None:
            answer = event.fields[ANSWER_FIELDS[event.type]]
            threads = threads.put(replace(entry, waiting=tuple(_after(entry.waiting, answer, event))))
    return replace(state, threads=threads)


def _after(waiting: Iterable[PostedCall], posted_id: str, event: ClientEvent) -> Iterable[PostedCall]:
    """The calls that still wait once one of them was answered."""
    for call in waiting:
        if call.posted_id != posted_id:
            yield call
        elif lets_worker_run(call.kind, call.by_worker, event):
            yield replace(call, kind=CallKind.WORKER)


def _goes_to(state: SessionState, event: ClientEvent) -> list[tuple[str, dict[str, Any]]]:
    """The threads beside the primary one that an event is for, with its fields there."""
    assert state.threads is not None
    if event.type == USER_INTERRUPT:
        named = event.fields.get("session_thread_id")
        # Nothing happens to a thread that is idle, unless it is meant by name.
        return [
            (entry.id, {})
            for entry in state.threads.live
            if named == entry.id or (named is None and (entry.is_running or entry.waiting))
        ]
    if event.type not in ANSWER_FIELDS:
        return []
    name = event.fields[ANSWER_FIELDS[event.type]]
    if any(name in (call.event_id, call.block_id) for call in state.pending if not call.answered):
        return []
    call = _posted(state, event)
    if call is None:
        return []
    thread_id = next(entry.id for entry, each in posted_calls(state) if each is call)
    return [(thread_id, event.fields | {ANSWER_FIELDS[event.type]: call.event_id})]


def _posted(state: SessionState, event: ClientEvent) -> PostedCall | None:
    kind = ANSWER_KINDS[event.type]
    name = event.fields[ANSWER_FIELDS[event.type]]
    return next((call for _, call in posted_calls(state) if call.kind is kind and call.is_named(name)), None)

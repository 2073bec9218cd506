"""Whatever the order of calls, answers, interrupts, crashes and late news: a coordinator and its threads stay sound.

A random history is played against the pure parts: one session, its threads with turns of their own, and news that the
session hears sooner or later. No log has a gap, each call of a thread tool gets one result, nobody waits for a thread
that will not answer, and the session's status is what its threads do.
"""

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.sessions.domain import thread_news, threads, turn
from services.sessions.domain.inbound import ClientEvent
from services.sessions.domain.log import Draft, LoggedEvent
from services.sessions.domain.move import Move, Moved
from services.sessions.domain.session_state import (
    CallKind,
    PendingCall,
    Phase,
    SessionState,
    Status,
    TokenUsage,
    TurnState,
    phase_of,
)
from services.sessions.domain.thread_news import NEWS_TYPES, News
from services.sessions.domain.thread_state import awaited, posted_calls, waiting_ids

START = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
MESSAGE = ClientEvent("user.message", {"content": [{"type": "text", "text": "go"}]})
INTERRUPT = ClientEvent("user.interrupt", {})
MEMBERS = [threads.Member("agent_1", 1, "writer"), threads.Member("agent_2", 1, "critic")]
ROOT = "sess_1"


class ThreadHistories(RuleBasedStateMachine):
    """One session with its threads, each with a log, and the news that are on their way."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.moments = itertools.count(1), itertools.count(1)
        self.states = {ROOT: SessionState("wrkspc_default", ROOT, "sthr_primary", "lead", START, START)}
        self.logs: dict[str, list[LoggedEvent]] = {ROOT: []}
        self.news: list[tuple[str, LoggedEvent]] = []
        # Calls of the newest answer, and the answered ones of them that the coordinator's runner has heard of.
        self.batch: list[str] = []
        self.known: set[str] = set()

    @property
    def root(self) -> SessionState:
        return self.states[ROOT]

    def new_id(self) -> str:
        return f"sevt_{next(self.numbers)}"

    def now(self) -> datetime:
        return START + timedelta(milliseconds=10 * next(self.moments))

    def keep(self, moved: Moved) -> SessionState:
        state = moved.state
        self.states[state.id] = state
        self.logs[state.id].extend(moved.events)
        if state.root_id:
            self.news += [(state.id, event) for event in moved.events if event.type in NEWS_TYPES]
        return state

    def events(self, owner: str, *kinds: str) -> list[dict[str, Any]]:
        return [orjson.loads(event.body) for event in self.logs[owner] if not kinds or event.type in kinds]

    def in_phase(self, phase: Phase, *, root: bool = False) -> list[str]:
        return [owner for owner, state in self.states.items() if phase_of(state) is phase and (owner == ROOT) is root]

    def hear(self) -> None:
        news, self.news = self.news, []
        move = Move(self.root, self.now(), self.new_id)
        thread_news.hear(move, [self.understood(*each) for each in news])
        self.keep(move.finish())

    def understood(self, thread_id: str, event: LoggedEvent) -> News:
        fields, usage = orjson.loads(event.body), self.states[thread_id].usage
        reason = fields.get("stop_reason") or {}
        if reason.get("type") != "requires_action":
            return News(thread_id, event.type, fields, answer="done", usage=usage)
        waiting = {each["id"]: each for each in self.events(thread_id) if each["id"] in reason["event_ids"]}
        calls = tuple((name, waiting[name]["type"], waiting[name]) for name in reason["event_ids"])
        return News(thread_id, event.type, fields, calls=calls, usage=usage)

    @rule()
    def message(self) -> None:
        if phase_of(self.root) is not Phase.ENDED:
            self.keep(turn.append_client_events(self.root, [MESSAGE], self.now(), self.new_id))

    @rule(data=strategies.data())
    def grant(self, data: strategies.DataObject) -> None:
        ready = self.in_phase(Phase.READY) + self.in_phase(Phase.READY, root=True)
        if ready:
            owner = data.draw(strategies.sampled_from(ready))
            self.keep(turn.grant(self.states[owner], "runner_1", self.now(), self.new_id))
            self.learn()

    def learn(self) -> None:
        self.known = {each["tool_use_id"] for each in self.events(ROOT, "agent.tool_result")}

    @precondition(lambda self: phase_of(self.root) is Phase.LEASED and not awaited(self.root))
    @rule(data=strategies.data(), count=strategies.integers(1, 3), parks=strategies.booleans())
    def call_threads(self, data: strategies.DataObject, count: int, parks: bool) -> None:
        start = Draft(self.new_id(), "span.model_request_start")
        drafts = [start, *(self._call(data) for _ in range(count))]
        command = turn.TurnAppend(self.root.turn_epoch, self.root.last_seq, tuple(drafts), TokenUsage(1))
        self.keep(turn.append_turn_events(self.root, command, self.now(), self.new_id))
        calls = threads.thread_calls((draft, orjson.loads(draft.fields)) for draft in drafts)
        move = Move(self.root, self.now(), self.new_id)
        deliveries = threads.begin_calls(move, calls, MEMBERS, lambda: f"sthr_{next(self.numbers)}")
        self.keep(move.finish())
        for delivery in deliveries:
            if delivery.member is not None:
                self.states[delivery.thread_id] = SessionState(
                    "wrkspc_default",
                    delivery.thread_id,
                    delivery.thread_id,
                    delivery.member.name,
                    START,
                    START,
                    root_id=ROOT,
                )
                self.logs[delivery.thread_id] = []
            message = threads.message_for(delivery, self.root.thread_id)
            thread = self.states[delivery.thread_id]
            self.keep(turn.append_client_events(thread, [message], self.now(), self.new_id))
        self.batch = [call.event_id for call in calls]
        self.learn()
        self.hear()
        if parks:
            self.park_root()

    def _call(self, data: strategies.DataObject) -> Draft:
        live = [entry.id for entry in self.root.threads.live] if self.root.threads else []
        name, arguments = "start_thread", {"agent": data.draw(strategies.sampled_from(["writer", "nobody"]))}
        if live and data.draw(strategies.booleans()):
            name, arguments = "send_to_thread", {"thread_id": data.draw(strategies.sampled_from(live))}
        fields = {"name": name, "input": arguments | {"message": "do it"}, "evaluated_permission": "allow"}
        return Draft(self.new_id(), "agent.tool_use", orjson.dumps(fields))

    @precondition(lambda self: phase_of(self.root) is Phase.LEASED and bool(awaited(self.root)))
    @rule()
    def park_root(self) -> None:
        parked = tuple(replace(call, answered=False) for call in self.root.pending)
        end = turn.End(turn.EndKind.REQUIRES_ACTION, parked)
        command = turn.TurnAppend(self.root.turn_epoch, self.root.last_seq, end=end)
        self.keep(turn.append_turn_events(self.root, command, self.now(), self.new_id))

    @precondition(lambda self: phase_of(self.root) is Phase.LEASED)
    @rule()
    def end_root(self) -> None:
        state = self.root
        if state.interrupt_seq:
            # The runner closes what it believes to be open, also where a thread has answered by now.
            open_calls = [call_id for call_id in self.batch if call_id not in self.known]
            end, drafts = turn.End(turn.EndKind.INTERRUPTED), tuple(self._result(each) for each in open_calls)
        elif awaited(state):
            return
        else:
            end, drafts = turn.End(turn.EndKind.END_TURN), (Draft(self.new_id(), "span.model_request_start"),)
            self.batch = []
        command = turn.TurnAppend(state.turn_epoch, state.last_seq, drafts, end=end)
        self.keep(turn.append_turn_events(state, command, self.now(), self.new_id))

    def _result(self, call_id: str) -> Draft:
        fields = {"tool_use_id": call_id, "content": [], "is_error": True}
        return Draft(self.new_id(), "agent.tool_result", orjson.dumps(fields))

    @rule(data=strategies.data(), kind=strategies.sampled_from(["done", "asks", "fails"]))
    def work(self, data: strategies.DataObject, kind: str) -> None:
        held = self.in_phase(Phase.LEASED)
        if not held:
            return
        state = self.states[data.draw(strategies.sampled_from(held))]
        drafts, end = [Draft(self.new_id(), "span.model_request_start")], turn.End(turn.EndKind.END_TURN)
        if state.interrupt_seq:
            end = turn.End(turn.EndKind.INTERRUPTED)
        elif kind == "asks":
            drafts.append(Draft(self.new_id(), "agent.tool_use", b'{"name":"bash","evaluated_permission":"ask"}'))
            call = PendingCall(drafts[-1].id, drafts[-1].id, CallKind.CONFIRMATION)
            end = turn.End(turn.EndKind.REQUIRES_ACTION, (call,))
        elif kind == "fails":
            end = turn.End(turn.EndKind.FAILED)
        else:
            drafts.append(Draft(self.new_id(), "agent.thread_message_sent", b'{"content":[]}'))
        command = turn.TurnAppend(state.turn_epoch, state.last_seq, tuple(drafts), TokenUsage(1), end)
        self.keep(turn.append_turn_events(state, command, self.now(), self.new_id))

    @rule(data=strategies.data())
    def expire(self, data: strategies.DataObject) -> None:
        held = self.in_phase(Phase.LEASED) + self.in_phase(Phase.LEASED, root=True)
        if held:
            state = self.states[data.draw(strategies.sampled_from(held))]
            tail = [event for event in self.logs[state.id] if event.in_context]
            self.keep(turn.expire(state, self.now(), self.new_id, tail))

    @rule()
    def hear_news(self) -> None:
        self.hear()

    @rule(data=strategies.data())
    def answer(self, data: strategies.DataObject) -> None:
        posted = [call.posted_id for _, call in posted_calls(self.root)]
        if posted:
            chosen = data.draw(strategies.sampled_from(posted))
            self.send(ClientEvent("user.tool_confirmation", {"tool_use_id": chosen, "result": "allow"}))

    @rule(data=strategies.data())
    def interrupt(self, data: strategies.DataObject) -> None:
        live = [entry.id for entry in self.root.threads.live] if self.root.threads else []
        named = data.draw(strategies.sampled_from([None, self.root.thread_id, *live]))
        fields = {} if named is None else {"session_thread_id": named}
        if phase_of(self.root) is not Phase.ENDED:
            self.send(ClientEvent("user.interrupt", fields))

    def send(self, event: ClientEvent) -> None:
        # Their session hears them first where it holds their locks anyway.
        self.hear()
        if event.type == "user.tool_confirmation" and not any(
            call.posted_id == event.fields["tool_use_id"] for _, call in posted_calls(self.root)
        ):
            return
        if not threads.concern(self.root, [event]):
            self.keep(turn.append_client_events(self.root, [event], self.now(), self.new_id))
            return
        stored, routed = threads.route(self.root, [event])
        state = threads.settle_posted(self.root, stored)
        self.keep(turn.append_client_events(state, stored, self.now(), self.new_id))
        for thread_id, events in routed.items():
            self.keep(turn.append_client_events(self.states[thread_id], events, self.now(), self.new_id))
        self.hear()

    @rule(data=strategies.data())
    def archive(self, data: strategies.DataObject) -> None:
        resting = self.in_phase(Phase.IDLE) + self.in_phase(Phase.PARKED)
        if not resting or phase_of(self.root) is Phase.ENDED:
            return
        state = self.states[data.draw(strategies.sampled_from(resting))]
        tail = [event for event in self.logs[state.id] if event.in_context]
        self.keep(turn.archive(state, self.now(), self.new_id, tail))
        self.hear()
        entry = self.root.threads.find(state.id) if self.root.threads else None
        if entry is not None:
            move = Move(self.root, self.now(), self.new_id)
            thread_news.close(move, entry, "archived")
            thread_news.settle(move)
            self.keep(move.finish())

    @invariant()
    def logs_have_no_gap(self) -> None:
        for owner, log in self.logs.items():
            assert [event.seq for event in log] == list(range(1, self.states[owner].last_seq + 1))

    @invariant()
    def threads_tell_nothing_of_the_session(self) -> None:
        for owner, log in self.logs.items():
            assert owner == ROOT or not any(event.type.startswith("session.status_") for event in log)

    @invariant()
    def a_call_has_one_result_at_most(self) -> None:
        answered = [each["tool_use_id"] for each in self.events(ROOT, "agent.tool_result")]
        assert len(answered) == len(set(answered))

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        if self.news or self.root.threads is None:
            return
        by_call = {entry.call_id: entry for entry in self.root.threads.live if entry.call_id}
        assert set(by_call) == {call.event_id for call in awaited(self.root)}
        for entry in by_call.values():
            assert entry.is_running or entry.waiting
            assert phase_of(self.states[entry.id]) in (Phase.READY, Phase.LEASED, Phase.PARKED)

    @invariant()
    def a_parked_coordinator_has_no_answer_left(self) -> None:
        if phase_of(self.root) is Phase.PARKED:
            assert awaited(self.root)

    @invariant()
    def the_status_is_what_the_threads_do(self) -> None:
        state = self.root
        if self.news or phase_of(state) is Phase.ENDED:
            return
        runs = [each for owner, each in self.states.items() if owner != ROOT and each.turn_state is not TurnState.NONE]
        if state.turn_state is TurnState.NONE:
            expected = Status.RUNNING if runs else Status.REQUIRES_ACTION if waiting_ids(state) else Status.IDLE
            assert state.status is expected
        assert (state.status is Status.RUNNING) == (state.running_since is not None)

    @invariant()
    def the_log_says_so(self) -> None:
        told = [
            event["type"].removeprefix("session.status_")
            for event in self.events(
                ROOT, "session.status_running", "session.status_idle", "session.status_rescheduled"
            )
        ]
        for before, after in itertools.pairwise(told):
            assert (before, after) != ("running", "running"), told
        if told and self.root.status in (Status.RUNNING, Status.RESCHEDULING):
            assert told[-1] in ("running", "rescheduled")
        elif told:
            assert told[-1] == "idle"

    @invariant()
    def totals_have_each_token_once(self) -> None:
        if self.root.threads is None or self.news:
            return
        live = {entry.id for entry in self.root.threads.live}
        mine = self.root.threads.own_usage.input_tokens
        rest = sum(each.usage.input_tokens for owner, each in self.states.items() if owner != ROOT)
        assert self.root.usage.input_tokens <= mine + rest
        if not any(self.states[owner].turn_state is not TurnState.NONE for owner in live):
            assert self.root.usage.input_tokens == mine + rest


TestThreads = ThreadHistories.TestCase
TestThreads.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

"""Whatever the order of messages, spending, interrupts, pauses and new budgets: the ceiling holds and sums are exact.

A random history is played against the state machine, and beside it the plainest book-keeping that there is. After each
step the totals are those of the book, no work was admitted at the ceiling, nothing stands still that has budget, and
each snapshot in the log says what had been spent by then.
"""

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kit.cost_profile import PICODOLLARS_PER_CENT, read_cost_profile
from kit.errors import DomainError
from services.sessions.domain import budget, turn
from services.sessions.domain.cost import Prices
from services.sessions.domain.inbound import ClientEvent
from services.sessions.domain.log import Draft
from services.sessions.domain.move import Moved
from services.sessions.domain.session_errors import BudgetNotRaised, BudgetReached
from services.sessions.domain.session_state import CallKind, PendingCall, Phase, SessionState, TokenUsage, TurnState
from services.sessions.domain.turn_errors import ToolCallNotPending

START = datetime(2026, 11, 30, 23, 59, tzinfo=UTC)
MESSAGE = ClientEvent("user.message", {"content": [{"type": "text", "text": "go"}]})
INTERRUPT = ClientEvent("user.interrupt", {})
# Prices that are no whole cents for any usual number of tokens.
PRICE = (
    '{"input": "3000.000001", "output": "15000", "cache_read": "300.5", "cache_write_5m": 3750, "cache_write_1h": 6000}'
)
PRICES = Prices(read_cost_profile(f'{{"models": {{"m": {PRICE}}}}}'))


def limit(amount: int) -> dict[str, Any]:
    return {"type": "limit", "max_list_cost": {"amount": str(amount), "currency": "USD"}}


class Budgets(RuleBasedStateMachine):
    """One session with a budget, a runner that obeys, and a book."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1)
        self.now = START
        self.log: list[dict[str, Any]] = []
        # Picodollars; None once something without a price was spent.
        self.spent: int | None = 0
        self.tokens = TokenUsage()
        self.ceiling: int | None = None
        self.told: list[tuple[int | None, TokenUsage]] = []

    def new_id(self) -> str:
        return f"sevt_{next(self.numbers)}"

    def keep(self, moved: Moved) -> Moved:
        self.log.extend(orjson.loads(event.body) for event in moved.events)
        snapshots = sum(event.type == "session.usage" for event in moved.events)
        self.told.extend([(self.spent, self.tokens)] * snapshots)
        self.state = moved.state
        self.now += timedelta(milliseconds=700)
        return moved

    @initialize(amount=strategies.integers(1, 20), far=strategies.integers(0, 2))
    def create(self, amount: int, far: int) -> None:
        """A session that was just made, one that works, or one that has come to its ceiling."""
        self.ceiling = amount
        stored = budget.at_creation(limit(amount), ["m"], PRICES)
        self.state = replace(SessionState("wrkspc_default", "sess_1", "sthr_1", "tester", START, START), budget=stored)
        if far:
            self.message(False)
        if far == 2:
            self.run((9, 9, 9, 9, 9), "m", [None, None])

    @property
    def at_ceiling(self) -> bool:
        if self.ceiling is None:
            return False
        return self.spent is None or self.spent >= self.ceiling * PICODOLLARS_PER_CENT

    def send(self, *events: ClientEvent) -> Moved:
        return self.keep(turn.append_client_events(self.state, list(events), self.now, self.new_id))

    @rule(with_interrupt=strategies.booleans())
    def message(self, with_interrupt: bool) -> None:
        """What starts work; a runner takes it at once."""
        events = [INTERRUPT, MESSAGE] if with_interrupt else [MESSAGE]
        if not self.at_ceiling:
            self.send(*events)
            self.grant()
            return
        before = self.state
        with pytest.raises(BudgetReached):
            self.send(*events)
        assert self.state is before

    @rule()
    def interrupt(self) -> None:
        stands_still = budget.is_paused(self.state)
        moved = self.send(INTERRUPT)
        if self.at_ceiling and stands_still:
            assert moved.events == () and budget.is_paused(self.state)
        else:
            assert moved.events[0].type == "user.interrupt"

    @rule()
    def grant(self) -> None:
        if self.state.turn_state is TurnState.READY:
            self.keep(turn.grant(self.state, "runner_1", self.now, self.new_id))

    @precondition(lambda self: self.state.turn_state is TurnState.LEASED)
    @rule(
        tokens=strategies.tuples(*(strategies.integers(2, 9) for _ in range(5))),
        model=strategies.sampled_from(["m"] * 30 + ["unlisted"]),
        kinds=strategies.lists(
            strategies.sampled_from([None, None, None, turn.EndKind.END_TURN, turn.EndKind.REQUIRES_ACTION]),
            min_size=1,
            max_size=4,
        ),
    )
    def run(self, tokens: tuple[int, ...], model: str, kinds: list[turn.EndKind | None]) -> None:
        """Some steps of a runner."""
        for kind in kinds:
            if self.state.turn_state is TurnState.LEASED:
                self.ask_the_model_or_pause(model, TokenUsage(*tokens), kind)

    def ask_the_model_or_pause(self, model: str, usage: TokenUsage, kind: turn.EndKind | None) -> None:
        """A runner looks at the ceiling before each request, and at an interrupt before that."""
        if self.state.interrupt_seq:
            self.append((), None, turn.End(turn.EndKind.INTERRUPTED))
            return
        if self.at_ceiling:
            ended = self.append((), None, turn.End(turn.EndKind.BUDGET_REACHED)).ended
            assert ended and budget.is_paused(self.state)
            assert [event["type"] for event in self.log[-3:]] == [
                *("session.thread_status_idle", "session.usage", "session.status_idle")
            ]
            return
        drafts = [Draft(self.new_id(), "span.model_request_start"), Draft(self.new_id(), "span.model_request_end")]
        end = turn.End(kind) if kind else None
        if kind is turn.EndKind.REQUIRES_ACTION:
            call = PendingCall(self.new_id(), "toolu_1", CallKind.CONFIRMATION)
            drafts.append(Draft(call.event_id, "agent.tool_use"))
            end = turn.End(kind, (call,))
        self.append(tuple(drafts), (model, usage), end)

    def append(self, drafts: tuple[Draft, ...], spent: tuple[str, TokenUsage] | None, end: turn.End | None) -> Moved:
        charges = (PRICES.charge(*spent),) if spent else ()
        command = turn.TurnAppend(
            self.state.turn_epoch, self.state.last_seq, drafts, spent[1] if spent else None, end, charges=charges
        )
        # What comes with an end is in that end's snapshot.
        for charge in charges:
            self.tokens += charge.usage
            self.spent = None if self.spent is None or charge.cost is None else self.spent + charge.cost
        return self.keep(turn.append_turn_events(self.state, command, self.now, self.new_id))

    @rule(allow=strategies.booleans())
    def answer(self, allow: bool) -> None:
        """Answers are taken at the ceiling as below it."""
        named = self.state.pending[0].event_id if self.state.pending else "sevt_none"
        result = "allow" if allow else "deny"
        event = ClientEvent("user.tool_confirmation", {"tool_use_id": named, "result": result})
        if turn.phase_of(self.state) is Phase.PARKED:
            self.send(event)
            assert turn.phase_of(self.state) is Phase.READY
            self.grant()
        else:
            with pytest.raises(ToolCallNotPending):
                self.send(event)

    @precondition(lambda self: self.state.turn_state is TurnState.LEASED)
    @rule()
    def lose_the_runner(self) -> None:
        self.keep(turn.expire(self.state, self.now, self.new_id))

    @rule(over=strategies.integers(-2, 20))
    def raise_or_lower(self, over: int) -> None:
        """To somewhere near what was spent."""
        spent = 0 if self.spent is None else self.spent // PICODOLLARS_PER_CENT
        self.change(max(1, spent + over))

    @rule(sure=strategies.integers(0, 9))
    def remove(self, sure: int) -> None:
        if not sure:
            self.change(None)

    def change(self, amount: int | None) -> None:
        wanted = None if amount is None else limit(amount)
        paused = budget.is_paused(self.state)
        try:
            stored = budget.at_update(self.state, wanted, ["m"], PRICES)
        except DomainError as refused:
            assert amount is not None
            if isinstance(refused, BudgetNotRaised):
                # Refused at least where it would be the ceiling at once.
                assert self.spent is not None and amount * PICODOLLARS_PER_CENT < self.spent + PICODOLLARS_PER_CENT
            else:
                assert self.ceiling is None or self.spent is None
            return
        if stored == self.state.budget:
            return
        self.keep(turn.tell_update(self.state, {"budget": wanted}, self.now, self.new_id))
        self.ceiling = amount
        assert self.state.budget == stored
        assert not self.at_ceiling
        assert (turn.phase_of(self.state) is Phase.READY) or not paused

    @invariant()
    def the_service_and_the_book_agree(self) -> None:
        assert self.state.usage == self.tokens
        assert budget.is_reached(self.state) == self.at_ceiling

    @invariant()
    def nothing_stands_still_that_has_budget(self) -> None:
        assert not budget.is_paused(self.state) or self.at_ceiling

    @invariant()
    def each_snapshot_says_what_had_been_spent(self) -> None:
        snapshots = [event["usage"] for event in self.log if event["type"] == "session.usage"]
        assert len(snapshots) == len(self.told)
        for usage, (spent, tokens) in zip(snapshots, self.told, strict=True):
            assert (usage["input_tokens"], usage["output_tokens"]) == (tokens.input_tokens, tokens.output_tokens)
            if spent is None:
                assert "list_cost" not in usage
            else:
                assert abs(usage["list_cost"] * PICODOLLARS_PER_CENT - spent) * 2 <= PICODOLLARS_PER_CENT


TestBudgets = Budgets.TestCase
TestBudgets.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)

"""Budgets: their shape, who may have one, what a session at its ceiling takes, and how its pause ends."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from kit.cost_profile import PICODOLLARS_PER_CENT, read_cost_profile
from kit.errors import DomainError
from services.sessions.domain import budget, turn
from services.sessions.domain.cost import Charge, Prices, Spend
from services.sessions.domain.inbound import ClientEvent
from services.sessions.domain.log import Draft
from services.sessions.domain.move import Moved
from services.sessions.domain.session_state import CallKind, PendingCall, Phase, SessionState, Status, TokenUsage

START = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
BUDGET = {"type": "limit", "max_list_cost": {"amount": "500", "currency": "USD"}}
PRICE = '{"input": "1", "output": "1", "cache_read": "1", "cache_write_5m": "1", "cache_write_1h": "1"}'
PRICES = Prices(read_cost_profile(f'{{"models": {{"m": {PRICE}, "n": {PRICE}}}}}'))
MESSAGE = ClientEvent("user.message", {"content": [{"type": "text", "text": "go"}]})
INTERRUPT = ClientEvent("user.interrupt", {})
ANSWERS = ("user.tool_confirmation", "user.tool_result", "user.custom_tool_result")

_ids = (f"sevt_{number}" for number in itertools.count(1))


def new_id() -> str:
    return next(_ids)


def of(amount: str) -> dict[str, Any]:
    return {"type": "limit", "max_list_cost": {"amount": amount, "currency": "USD"}}


def refusal(function: Any, *args: Any, **kwargs: Any) -> DomainError:
    with pytest.raises(DomainError) as caught:
        function(*args, **kwargs)
    return caught.value


def session(amount: str | None = "500", *, spent: int | None = 0, **fields: Any) -> SessionState:
    """A session with a budget that spent some cents; None for what has no list price."""
    cost = None if spent is None else spent * PICODOLLARS_PER_CENT
    spend = Spend((Charge("m", TokenUsage(1, 1), cost),)) if spent != 0 else Spend()
    stored = None if amount is None else orjson.dumps(of(amount)).decode()
    state = SessionState("wrkspc_default", "sess_1", "sthr_1", "tester", START, START)
    return replace(state, budget=stored, spend=spend.dump(), **fields)


def later(state: SessionState) -> datetime:
    return state.updated_at + timedelta(seconds=1)


def send(state: SessionState, *events: ClientEvent) -> Moved:
    return turn.append_client_events(state, list(events), later(state), new_id)


def held(state: SessionState, *events: ClientEvent) -> SessionState:
    """A session whose turn a runner has."""
    ready = send(state, *(events or (MESSAGE,))).state
    return turn.grant(ready, "runner_1", later(ready), new_id).state


def append(state: SessionState, *types: str, charge: Charge | None = None, end: turn.End | None = None) -> Moved:
    command = turn.TurnAppend(
        state.turn_epoch,
        state.last_seq,
        tuple(Draft(new_id(), kind) for kind in types),
        charge.usage if charge else None,
        end,
        charges=(charge,) if charge else (),
    )
    return turn.append_turn_events(state, command, later(state), new_id)


def cents(number: int) -> Charge:
    return Charge("m", TokenUsage(10, 5), number * PICODOLLARS_PER_CENT)


def paused(amount: str = "500", spent: int = 500) -> SessionState:
    state = held(session(amount))
    state = append(state, "span.model_request_start", "span.model_request_end", charge=cents(spent)).state
    return append(state, end=turn.End(turn.EndKind.BUDGET_REACHED)).state


def types(moved: Moved) -> list[str]:
    return [event.type for event in moved.events]


class TestShape:
    @pytest.mark.parametrize(
        "value", [None, "500", [], {}, {**BUDGET, "type": "cap"}, {"type": "limit"}, {**BUDGET, "extra": 1}]
    )
    def test_shape(self, value: Any) -> None:
        assert refusal(budget.at_creation, value, ["m"], PRICES).reason == "BUDGET_INVALID_SHAPE"

    @pytest.mark.parametrize("cost", [None, 500, {}, {"amount": "1"}, {"amount": "1", "currency": "USD", "x": 1}])
    def test_shape_of_the_cost(self, cost: Any) -> None:
        value = {"type": "limit", "max_list_cost": cost}
        assert refusal(budget.at_creation, value, ["m"], PRICES).reason == "BUDGET_INVALID_SHAPE"

    @pytest.mark.parametrize("amount", ["25.00", "0", "0125", "-1", "", " 1", "1\n", "1e3", "١٢", 500, None])
    def test_amount(self, amount: Any) -> None:
        value = {"type": "limit", "max_list_cost": {"amount": amount, "currency": "USD"}}
        assert refusal(budget.at_creation, value, ["m"], PRICES).reason == "BUDGET_INVALID_AMOUNT"

    @pytest.mark.parametrize("currency", ["EUR", "usd", "", None, 1])
    def test_currency(self, currency: Any) -> None:
        value = {"type": "limit", "max_list_cost": {"amount": "500", "currency": currency}}
        assert refusal(budget.at_creation, value, ["m"], PRICES).reason == "BUDGET_INVALID_CURRENCY"

    def test_the_shape_is_judged_before_the_prices(self) -> None:
        assert refusal(budget.at_creation, {}, ["x"], Prices({})).reason == "BUDGET_INVALID_SHAPE"

    def test_it_is_stored_as_it_reads_back(self) -> None:
        assert orjson.loads(budget.at_creation(BUDGET, ["m"], PRICES)) == BUDGET


class TestPrices:
    def test_every_model_that_may_run_needs_a_list_price(self) -> None:
        budget.at_creation(BUDGET, ["m", "n"], PRICES)
        refused = refusal(budget.at_creation, BUDGET, ["m", "x"], PRICES)
        assert refused.reason == "BUDGET_MODEL_WITHOUT_LIST_PRICE"
        assert "x" in refused.message
        assert orjson.loads(refused.metadata["details"]) == {"error_code": "model_not_budgetable"}

    def test_without_a_profile_nothing_can_be_budgeted(self) -> None:
        assert refusal(budget.at_creation, BUDGET, ["m"], Prices({})).reason == "BUDGET_MODEL_WITHOUT_LIST_PRICE"

    def test_raising_needs_prices_as_creating_does(self) -> None:
        refused = refusal(budget.at_update, session(), of("900"), ["x"], PRICES)
        assert refused.reason == "BUDGET_MODEL_WITHOUT_LIST_PRICE"

    def test_raising_is_refused_where_what_was_spent_has_no_list_price(self) -> None:
        refused = refusal(budget.at_update, session(spent=None), of("900"), ["m"], PRICES)
        assert refused.reason == "BUDGET_MODEL_WITHOUT_LIST_PRICE"


class TestChange:
    def test_none_can_be_added_later(self) -> None:
        refused = refusal(budget.at_update, session(None), BUDGET, ["m"], PRICES)
        assert refused.reason == "BUDGET_CREATE_ONLY"
        assert orjson.loads(refused.metadata["details"]) == {"error_code": "budget_create_only"}
        assert refusal(budget.at_update, session(None), {}, ["m"], PRICES).reason == "BUDGET_INVALID_SHAPE"

    def test_none_comes_back_after_its_removal(self) -> None:
        removed = replace(session(), budget=budget.at_update(session(), None, ["m"], PRICES))
        assert refusal(budget.at_update, removed, BUDGET, ["m"], PRICES).reason == "BUDGET_CREATE_ONLY"

    def test_null_removes_it_and_asks_for_nothing_where_there_is_none(self) -> None:
        assert budget.at_update(session(), None, ["m"], PRICES) == "null"
        assert budget.at_update(session(None), None, ["m"], PRICES) is None
        assert budget.at_update(replace(session(), budget="null"), None, ["m"], PRICES) == "null"

    @pytest.mark.parametrize("amount", ["1", "41", "42"])
    def test_a_ceiling_at_or_below_what_was_spent_is_refused(self, amount: str) -> None:
        refused = refusal(budget.at_update, session(spent=42), of(amount), ["m"], PRICES)
        assert refused.reason == "BUDGET_NOT_RAISED"
        assert orjson.loads(refused.metadata["details"]) == {"error_code": "budget_not_raised"}

    def test_a_ceiling_over_what_was_spent_is_taken_higher_or_lower(self) -> None:
        for amount in ("43", "9000"):
            assert orjson.loads(budget.at_update(session(spent=42), of(amount), ["m"], PRICES) or "") == of(amount)

    @pytest.mark.parametrize("spent", [42 * PICODOLLARS_PER_CENT + 1, 43 * PICODOLLARS_PER_CENT - 1])
    def test_parts_of_cents_count(self, spent: int) -> None:
        state = replace(session(), spend=Spend((Charge("m", TokenUsage(1), spent),)).dump())
        told = Spend((Charge("m", TokenUsage(1), spent),)).cents

        assert refusal(budget.at_update, state, of("42"), ["m"], PRICES).reason == "BUDGET_NOT_RAISED"
        # Whoever is told that 43 cents were spent, and asks for 43, would be at the ceiling by what they know.
        if told == 43:
            assert refusal(budget.at_update, state, of("43"), ["m"], PRICES).reason == "BUDGET_NOT_RAISED"
        else:
            assert budget.at_update(state, of("43"), ["m"], PRICES)


class TestReached:
    def test_at_exactly_the_ceiling(self) -> None:
        assert not budget.is_reached(session("500", spent=499))
        assert budget.is_reached(session("500", spent=500))
        assert budget.is_reached(session("500", spent=501))

    def test_the_last_fraction_of_a_cent_counts_although_no_client_sees_it(self) -> None:
        almost = Spend((Charge("m", TokenUsage(1), 500 * PICODOLLARS_PER_CENT - 1),))
        assert almost.cents == 500
        assert not budget.is_reached(replace(session("500"), spend=almost.dump()))

    def test_never_without_a_budget(self) -> None:
        assert not budget.is_reached(session(None, spent=10**9))
        assert not budget.is_reached(replace(session(spent=10**9), budget="null"))

    def test_what_can_not_be_measured_counts_as_reached(self) -> None:
        assert budget.is_reached(session("500", spent=None))


class TestAdmission:
    @pytest.mark.parametrize(
        "kind", ["user.message", "user.define_outcome", "user.steer", "system.message", "user.anything_new"]
    )
    @pytest.mark.parametrize("phase", [Phase.IDLE, Phase.LEASED, Phase.PARKED])
    def test_what_would_start_work_is_refused_with_the_list_of_what_is_taken(self, kind: str, phase: Phase) -> None:
        state = {
            Phase.IDLE: session("500", spent=500),
            Phase.LEASED: replace(held(session("500")), spend=session(spent=500).spend),
            Phase.PARKED: replace(_parked(session("500")), spend=session(spent=500).spend),
        }[phase]

        refused = refusal(send, state, INTERRUPT, ClientEvent(kind, {}))

        assert refused.reason == "BUDGET_REACHED"
        assert refused.field == "events.1"
        accepted = orjson.loads(refused.metadata["details"])["accepted"]
        assert set(accepted) == {*ANSWERS, "user.interrupt"}
        assert all(name in refused.message for name in accepted)

    def test_below_the_ceiling_everything_is_as_ever(self) -> None:
        assert types(send(session("500", spent=499), MESSAGE))[0] == "user.message"

    @pytest.mark.parametrize("spent", [500, None])
    def test_answers_settle_what_is_under_way(self, spent: int | None) -> None:
        state = replace(_parked(session("500")), spend=session(spent=spent).spend)
        answer = ClientEvent("user.tool_confirmation", {"tool_use_id": "sevt_call", "result": "allow"})

        moved = send(state, answer)

        assert types(moved) == ["user.tool_confirmation", "session.status_running", "session.thread_status_running"]

    def test_an_interrupt_of_a_paused_session_is_taken_and_not_stored(self) -> None:
        moved = send(paused(), INTERRUPT)
        assert moved.events == ()
        assert moved.state.last_seq == moved.before.last_seq

    def test_an_interrupt_of_a_running_or_waiting_session_is_obeyed_at_the_ceiling(self) -> None:
        running = replace(held(session("500")), spend=session(spent=500).spend)
        assert send(running, INTERRUPT).signal is not None
        waiting = replace(_parked(session("500")), spend=session(spent=500).spend)
        assert types(send(waiting, INTERRUPT))[-1] == "session.status_idle"


class TestPause:
    def test_the_order_at_the_ceiling(self) -> None:
        state = append(held(session("500")), "span.model_request_end", charge=cents(500)).state

        moved = append(state, end=turn.End(turn.EndKind.BUDGET_REACHED))

        assert moved.ended
        assert types(moved) == ["session.thread_status_idle", "session.usage", "session.status_idle"]
        thread, usage, idle = (orjson.loads(event.body) for event in moved.events)
        assert thread["stop_reason"] == idle["stop_reason"] == {"type": "budget_reached"}
        assert usage["usage"]["list_cost"] == 500
        assert usage["usage"]["budget"] == usage["budget"] == of("500")

    def test_the_request_that_crossed_it_is_charged_in_full(self) -> None:
        state = append(held(session("500")), "span.model_request_end", charge=cents(777)).state
        moved = append(state, end=turn.End(turn.EndKind.BUDGET_REACHED))
        assert orjson.loads(moved.events[1].body)["usage"]["list_cost"] == 777

    def test_a_turn_that_is_done_ends_as_ever(self) -> None:
        moved = append(held(session("500")), charge=cents(500), end=turn.End(turn.EndKind.END_TURN))
        assert orjson.loads(moved.events[-1].body)["stop_reason"] == {"type": "end_turn"}

    def test_a_pending_answer_wins(self) -> None:
        call = PendingCall("sevt_call", "toolu_1", CallKind.CONFIRMATION)
        moved = append(held(session("500")), charge=cents(500), end=turn.End(turn.EndKind.REQUIRES_ACTION, (call,)))
        assert moved.state.status is Status.REQUIRES_ACTION
        assert orjson.loads(moved.events[-1].body)["stop_reason"]["type"] == "requires_action"

    def test_an_interrupt_that_came_meanwhile_is_obeyed_first(self) -> None:
        state = append(held(session("500")), charge=cents(500)).state
        state = send(state, INTERRUPT).state
        moved = append(state, end=turn.End(turn.EndKind.BUDGET_REACHED))
        assert not moved.ended
        assert moved.events == ()

    def test_a_turn_goes_on_where_there_is_budget_again(self) -> None:
        state = append(held(session("500")), charge=cents(500)).state
        state = turn.tell_update(state, {"budget": of("900")}, later(state), new_id).state
        assert not append(state, end=turn.End(turn.EndKind.BUDGET_REACHED)).ended

    def test_input_that_waits_stays_for_the_time_after_the_pause(self) -> None:
        state = send(held(session("500")), MESSAGE).state
        state = append(state, "span.model_request_end", charge=cents(500), end=turn.End(turn.EndKind.END_TURN)).state
        assert state.unread
        moved = append(state, end=turn.End(turn.EndKind.BUDGET_REACHED))
        assert moved.ended
        assert moved.state.unread == state.unread


class TestResumption:
    @pytest.mark.parametrize("after", [of("900"), None])
    def test_a_raise_or_removal_resumes_by_itself(self, after: Any) -> None:
        state = paused()
        moved = turn.tell_update(state, {"budget": after}, later(state), new_id)

        assert types(moved) == ["session.updated", "session.status_running", "session.thread_status_running"]
        assert phase(moved.state) is Phase.READY
        assert not budget.is_reached(moved.state)
        assert orjson.loads(moved.events[0].body)["budget"] == after

    def test_nothing_resumes_that_was_not_paused(self) -> None:
        done = append(held(session("500")), charge=cents(500), end=turn.End(turn.EndKind.END_TURN)).state
        moved = turn.tell_update(done, {"budget": of("900")}, later(done), new_id)
        assert types(moved) == ["session.updated"]

    def test_a_session_that_waits_for_an_answer_goes_on_waiting(self) -> None:
        state = replace(_parked(session("500")), spend=session(spent=500).spend)
        moved = turn.tell_update(state, {"budget": None}, later(state), new_id)
        assert types(moved) == ["session.updated"]

    def test_other_changes_resume_nothing(self) -> None:
        state = paused()
        assert types(turn.tell_update(state, {"title": "x"}, later(state), new_id)) == ["session.updated"]


def phase(state: SessionState) -> Phase:
    return turn.phase_of(state)


def _parked(state: SessionState) -> SessionState:
    call = PendingCall("sevt_call", "toolu_1", CallKind.CONFIRMATION)
    return append(held(state), end=turn.End(turn.EndKind.REQUIRES_ACTION, (call,))).state


class TestCounting:
    """Usage is counted once, also where a runner asks again because the answer to an append was lost."""

    def test_a_repeat_of_an_append_is_not_charged_again(self) -> None:
        state = held(session("500"))
        command = turn.TurnAppend(
            state.turn_epoch,
            state.last_seq,
            (Draft(new_id(), "span.model_request_end"),),
            TokenUsage(10, 5),
            charges=(cents(7),),
        )
        once = turn.append_turn_events(state, command, later(state), new_id).state
        stored = frozenset(draft.id for draft in command.events)
        twice = turn.append_turn_events(once, replace(command, stored_ids=stored), later(once), new_id).state
        assert (twice.usage, twice.spend) == (once.usage, once.spend)

    def test_nor_is_what_an_interrupt_cut_off_before_a_message_that_waits(self) -> None:
        state = send(held(session("500")), MESSAGE, INTERRUPT).state
        state = send(state, MESSAGE).state
        end = turn.End(turn.EndKind.INTERRUPTED)
        once = append(state, charge=cents(7), end=end)
        assert not once.ended
        twice = append(once.state, charge=cents(7), end=end).state
        assert twice.usage == once.state.usage == TokenUsage(10, 5)
        assert twice.spend == once.state.spend

    def test_usage_is_told_at_the_time_of_its_use_over_midnight(self) -> None:
        evening = datetime(2026, 11, 30, 23, 59, 30, tzinfo=UTC)
        state = replace(session("500"), updated_at=evening, created_at=evening)
        told: dict[str, int] = {}
        for wait, spent in ((0, 3), (60, 4)):
            state = replace(state, updated_at=evening + timedelta(seconds=wait))
            moved = append(held(state), charge=cents(spent), end=turn.End(turn.EndKind.END_TURN))
            snapshot = orjson.loads(moved.events[1].body)
            told[snapshot["created_at"][:10]] = snapshot["usage"]["list_cost"]
            state = moved.state
        assert told == {"2026-11-30": 3, "2026-12-01": 7}

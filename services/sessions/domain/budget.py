"""Spending ceilings: who may have one, when it is reached, and what a session at its ceiling still takes.

A ceiling is set when a session is created, may be changed or removed, and never comes back once removed. It is held
against the exact list cost (`domain/cost.py`). A model without a list price can't be metered: it is refused at
creation, and where a session came to use one all the same, its ceiling counts as reached.

At the ceiling no further model request begins. What is under way is settled: answers to calls and interrupts are
taken, everything else is refused. A pause ends by itself when the ceiling is raised or removed.
"""

import re
from collections.abc import Iterable
from typing import Any

import orjson

from kit.cost_profile import PICODOLLARS_PER_CENT
from services.sessions.domain.cost import Prices, read_spend
from services.sessions.domain.inbound import (
    USER_CUSTOM_TOOL_RESULT,
    USER_INTERRUPT,
    USER_TOOL_CONFIRMATION,
    USER_TOOL_RESULT,
    ClientEvent,
)
from services.sessions.domain.session_errors import (
    BudgetCreateOnly,
    BudgetInvalidAmount,
    BudgetInvalidCurrency,
    BudgetInvalidShape,
    BudgetModelWithoutListPrice,
    BudgetNotRaised,
    BudgetReached,
)
from services.sessions.domain.session_state import Phase, SessionState, phase_of
from services.sessions.domain.thread_state import any_running

BUDGET_REACHED = {"type": "budget_reached"}
# How a row and a response hold that a budget was removed.
REMOVED = "null"
ACCEPTED_AT_CEILING = (USER_TOOL_CONFIRMATION, USER_TOOL_RESULT, USER_CUSTOM_TOOL_RESULT, USER_INTERRUPT)
_AMOUNT = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_NOT_BUDGETABLE = '{"error_code":"model_not_budgetable"}'


def at_creation(budget: Any, models: Iterable[str], prices: Prices) -> str:
    """The budget of a new session that may run these models, as it is stored; or its refusal, the shape first."""
    stored = _checked(budget)
    _refuse_unpriced(models, prices)
    return stored


def at_update(state: SessionState, budget: Any, models: Iterable[str], prices: Prices) -> str | None:
    """What a session's budget becomes. Null removes it, and asks for nothing where there is none."""
    if budget is None:
        return None if state.budget is None else REMOVED
    stored = _checked(budget)
    if state.budget is None or state.budget == REMOVED:
        why = "this session was created without one" if state.budget is None else "that of this session was removed"
        raise BudgetCreateOnly(
            f"budget can only be set when a session is created, and {why}.",
            field="budget",
            details='{"error_code":"budget_create_only"}',
        )
    _refuse_unpriced(models, prices)
    spend = read_spend(state.spend)
    _refuse_unpriced((entry.model_id for entry in spend.models if entry.cost is None), prices, used=True)
    # Neither what was spent nor what clients are told of it: they would choose by the latter.
    if spend.cost is not None and _cap(stored) <= max(spend.cost, (spend.cents or 0) * PICODOLLARS_PER_CENT):
        raise BudgetNotRaised(
            f"budget.max_list_cost.amount must be over what the session has spent, which is {spend.cents} cents.",
            field="budget.max_list_cost.amount",
            details='{"error_code":"budget_not_raised"}',
        )
    return stored


def is_reached(state: SessionState) -> bool:
    """Whether the session may begin no further model request. Of a thread beside the primary one its session tells."""
    return not state.root_id and is_spent(state.budget, state.spend)


def is_spent(budget: str | None, spend: str) -> bool:
    """The same of a session's columns."""
    if budget is None or budget == REMOVED:
        return False
    cost = read_spend(spend).cost
    return cost is None or cost >= _cap(budget)


def is_paused(state: SessionState) -> bool:
    """Whether the session's work stands still because of its budget, and nothing else."""
    return phase_of(state) is Phase.IDLE and state.stop_reason == _PAUSED


def admitted(state: SessionState, events: list[ClientEvent]) -> list[ClientEvent]:
    """What is to be done of a request at the ceiling: BudgetReached where a part of it would start work.

    An interrupt of a session that is paused is taken, and there is nothing that it could stop.
    """
    if not is_reached(state):
        return events
    refused = next((index for index, event in enumerate(events) if event.type not in ACCEPTED_AT_CEILING), None)
    if refused is not None:
        raise BudgetReached(
            f"events.{refused}: session {state.id} has reached its budget, so {events[refused].type} isn't taken."
            f" Accepted until the budget is raised or removed: {', '.join(ACCEPTED_AT_CEILING)}.",
            field=f"events.{refused}",
            session_id=state.id,
            details=orjson.dumps({"error_code": "budget_reached", "accepted": ACCEPTED_AT_CEILING}).decode(),
        )
    if is_paused(state) and not any_running(state):
        return [event for event in events if event.type != USER_INTERRUPT]
    return events


_PAUSED = orjson.dumps(BUDGET_REACHED).decode()


def _cap(budget: str) -> int:
    """The ceiling of a stored budget, in picodollars."""
    return int(orjson.loads(budget)["max_list_cost"]["amount"]) * PICODOLLARS_PER_CENT


def _refuse_unpriced(models: Iterable[str], prices: Prices, *, used: bool = False) -> None:
    unpriced = next((model for model in models if used or not prices.has(model)), None)
    if unpriced is not None:
        did = "used" if used else "may run"
        raise BudgetModelWithoutListPrice(
            f"budget can't be enforced: the session {did} the model {unpriced}, which has no list price here. "
            "Prices come from the file that MANAGED_AGENTS_COST_PROFILE names.",
            field="budget",
            details=_NOT_BUDGETABLE,
        )


def _checked(budget: Any) -> str:
    """Accepts `{type: limit, max_list_cost: {amount: whole cents as string, currency: USD}}`."""
    if not isinstance(budget, dict) or budget.keys() != {"type", "max_list_cost"} or budget["type"] != "limit":
        raise BudgetInvalidShape(
            "budget must be an object of type limit with max_list_cost and nothing else.", field="budget"
        )
    cost = budget["max_list_cost"]
    if not isinstance(cost, dict) or cost.keys() != {"amount", "currency"}:
        raise BudgetInvalidShape(
            "budget.max_list_cost must be an object with amount and currency and nothing else.",
            field="budget.max_list_cost",
        )
    amount = cost["amount"]
    if not isinstance(amount, str) or not _AMOUNT.fullmatch(amount):
        raise BudgetInvalidAmount(
            'budget.max_list_cost.amount must be a positive whole number of cents in a string, such as "500".',
            field="budget.max_list_cost.amount",
        )
    if cost["currency"] != "USD":
        raise BudgetInvalidCurrency("budget.max_list_cost.currency must be USD.", field="budget.max_list_cost.currency")
    shown = {"type": "limit", "max_list_cost": {"amount": amount, "currency": "USD"}}
    return orjson.dumps(shown).decode()

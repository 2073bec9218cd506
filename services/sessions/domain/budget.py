"""Spending ceilings: their shape, and why none can be set yet.

A ceiling is metered by an operator's list of prices. This build has no such list, so
no model has a list price and every well-formed budget is refused instead of being
stored and never enforced. The shape is judged first, so a caller learns about a slip
of theirs before it learns about the platform.
"""

import re
from typing import Any

from services.sessions.domain.session_errors import (
    BudgetCreateOnly,
    BudgetInvalidAmount,
    BudgetInvalidCurrency,
    BudgetInvalidShape,
    BudgetModelWithoutListPrice,
)

_AMOUNT = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)


def refuse_at_creation(budget: Any, *, model_id: str) -> None:
    """Refuses the `budget` of a new session: by its shape, else for want of prices."""
    check_shape(budget)
    raise BudgetModelWithoutListPrice(
        f"budget can't be enforced: the model {model_id} has no list price on this platform.",
        field="budget",
        details='{"error_code":"model_not_budgetable"}',
    )


def refuse_at_update(budget: Any) -> None:
    """Refuses a ceiling for a session that was created without one.

    Null is no refusal: it asks for what already is.
    """
    if budget is None:
        return
    check_shape(budget)
    raise BudgetCreateOnly(
        "budget can only be set when a session is created, and this session was created without one.",
        field="budget",
        details='{"error_code":"budget_create_only"}',
    )


def check_shape(budget: Any) -> None:
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

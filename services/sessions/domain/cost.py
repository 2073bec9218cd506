"""What a session's models cost at list price, in whole numbers.

Each request is priced when its usage is told, in picodollars, so a sum is exact and a later change of the price list
changes nothing that was spent. Usage of a model without a list price is kept beside, and from then on the session has
no list cost: a sum of the rest would pass a part off as the whole. What clients see is rounded to whole cents; what a
budget is compared with is not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import orjson

from kit.cost_profile import PICODOLLARS_PER_CENT, Price
from services.sessions.domain.session_state import TokenUsage

# How a state and its row hold that nothing was spent.
NOTHING_SPENT = "[]"
_USD_DECIMALS = 12


@dataclass(frozen=True, slots=True)
class Charge:
    """What one model request spent; no `cost` where its model has no list price."""

    model_id: str
    usage: TokenUsage
    cost: int | None


class Prices:
    """The operator's price list."""

    def __init__(self, by_model: Mapping[str, Price]) -> None:
        self._by_model = by_model

    def has(self, model_id: str) -> bool:
        """Whether a model has a list price."""
        return model_id in self._by_model

    def charge(self, model_id: str, usage: TokenUsage, asked_as: Iterable[str] = ()) -> Charge:
        """What a request costs: by the model that answered, else by the names that it was asked for under."""
        price = next((self._by_model[name] for name in (model_id, *asked_as) if name in self._by_model), None)
        return Charge(model_id, usage, None if price is None else _cost(price, usage))


def _cost(price: Price, usage: TokenUsage) -> int:
    return (
        price.input * usage.input_tokens
        + price.output * usage.output_tokens
        + price.cache_read * usage.cache_read_input_tokens
        + price.cache_write_5m * usage.cache_creation_5m_input_tokens
        + price.cache_write_1h * usage.cache_creation_1h_input_tokens
    )


@dataclass(frozen=True, slots=True)
class Spend:
    """What a session spent, by model, in the order of first use."""

    models: tuple[Charge, ...] = ()

    @property
    def cost(self) -> int | None:
        """All of it in picodollars; None where a part has no list price."""
        total = 0
        for entry in self.models:
            if entry.cost is None:
                return None
            total += entry.cost
        return total

    @property
    def cents(self) -> int | None:
        """All of it, rounded to whole cents, half a cent upwards."""
        cost = self.cost
        return None if cost is None else to_cents(cost)

    def plus(self, charges: Iterable[Charge]) -> "Spend":
        """With further requests."""
        models = {entry.model_id: entry for entry in self.models}
        for charge in charges:
            former = models.get(charge.model_id)
            models[charge.model_id] = charge if former is None else _joined(former, charge)
        return replace(self, models=tuple(models.values()))

    def dump(self) -> str:
        """As text for the row: `[model, input, output, cache read, 5m writes, 1h writes, cost]` each."""
        if not self.models:
            return NOTHING_SPENT
        return orjson.dumps(
            [
                # A sum may outgrow what JSON numbers hold exactly elsewhere.
                [entry.model_id, *_tokens(entry.usage), None if entry.cost is None else str(entry.cost)]
                for entry in self.models
            ]
        ).decode()


def read_spend(text: str) -> Spend:
    """What `dump` wrote."""
    if text == NOTHING_SPENT:
        return Spend()
    return Spend(
        tuple(
            Charge(model_id, TokenUsage(*tokens), None if cost is None else int(cost))
            for model_id, *tokens, cost in orjson.loads(text)
        )
    )


def to_cents(picodollars: int) -> int:
    """Rounded to whole cents, half a cent upwards."""
    return (2 * picodollars + PICODOLLARS_PER_CENT) // (2 * PICODOLLARS_PER_CENT)


def to_usd(picodollars: int) -> str:
    """In dollars, to the last digit and without idle zeros."""
    whole, rest = divmod(picodollars, 10**_USD_DECIMALS)
    decimals = str(rest).rjust(_USD_DECIMALS, "0").rstrip("0")
    return f"{whole}.{decimals}" if decimals else str(whole)


def _joined(former: Charge, charge: Charge) -> Charge:
    cost = None if former.cost is None or charge.cost is None else former.cost + charge.cost
    return Charge(charge.model_id, former.usage + charge.usage, cost)


def _tokens(usage: TokenUsage) -> tuple[int, ...]:
    return (
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_input_tokens,
        usage.cache_creation_5m_input_tokens,
        usage.cache_creation_1h_input_tokens,
    )

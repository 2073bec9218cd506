"""Accounting is exact: whatever is spent in whatever pieces, sums are what fractions say, and nothing is forgotten."""

from collections import Counter
from fractions import Fraction

import orjson
from hypothesis import given, strategies

from kit.cost_profile import PICODOLLARS_PER_CENT, Price
from services.sessions.domain.cost import Charge, Prices, Spend, read_spend, to_cents, to_usd
from services.sessions.domain.session_state import TokenUsage

MODELS = ("a", "b", "free", "unlisted")
_prices = strategies.builds(Price, *(strategies.integers(0, 10**12) for _ in range(5)))
_tokens = strategies.one_of(strategies.integers(0, 100), strategies.integers(0, 2**62))
_usages = strategies.builds(TokenUsage, *(_tokens for _ in range(5)))
_requests = strategies.lists(strategies.tuples(strategies.sampled_from(MODELS), _usages), max_size=12)
_lists = strategies.fixed_dictionaries({"a": _prices, "b": _prices, "free": strategies.just(Price(0, 0, 0, 0, 0))})


def usd(price: Price, usage: TokenUsage) -> Fraction:
    """What a request costs, by the book: prices are dollars per million tokens."""
    per_million = (
        (price.input, usage.input_tokens),
        (price.output, usage.output_tokens),
        (price.cache_read, usage.cache_read_input_tokens),
        (price.cache_write_5m, usage.cache_creation_5m_input_tokens),
        (price.cache_write_1h, usage.cache_creation_1h_input_tokens),
    )
    return sum((Fraction(each, 10**6) * Fraction(count, 10**6) for each, count in per_million), Fraction(0))


@given(_lists, _requests, strategies.data())
def test_sums_are_exact_in_whatever_pieces_they_come(
    listed: dict[str, Price], requests: list[tuple[str, TokenUsage]], data: strategies.DataObject
) -> None:
    prices = Prices(listed)
    charges = [prices.charge(model, usage) for model, usage in requests]
    spend = Spend()
    while charges:
        size = data.draw(strategies.integers(1, len(charges)), label="charges of one append")
        # What is stored between appends is all that the next one knows.
        spend = read_spend(spend.plus(charges[:size]).dump())
        del charges[:size]

    tokens: Counter[str] = Counter()
    for _, usage in requests:
        tokens.update({name: getattr(usage, name) for name in TokenUsage.__slots__})
    for name in TokenUsage.__slots__:
        assert sum(getattr(entry.usage, name) for entry in spend.models) == tokens[name]
    assert [entry.model_id for entry in spend.models] == list(dict.fromkeys(model for model, _ in requests))
    if any(model == "unlisted" for model, _ in requests):
        assert (spend.cost, spend.cents) == (None, None)
        return
    owed = sum((usd(listed[model], usage) for model, usage in requests), Fraction(0))
    assert spend.cost is not None and spend.cents is not None
    assert Fraction(spend.cost, 10**12) == owed
    assert Fraction(-1, 2) < spend.cents - owed * 100 <= Fraction(1, 2)
    for entry in spend.models:
        mine = sum((usd(listed[model], usage) for model, usage in requests if model == entry.model_id), Fraction(0))
        assert entry.cost is not None and Fraction(to_usd(entry.cost)) == mine


@given(_lists, _usages)
def test_a_model_that_loses_or_gains_its_price_changes_nothing_that_was_spent(
    listed: dict[str, Price], usage: TokenUsage
) -> None:
    before = Spend().plus([Prices(listed).charge("a", usage)])
    dearer = Prices({"a": Price(*(10**12 for _ in range(5)))})

    after = before.plus([dearer.charge("a", TokenUsage(output_tokens=1))])
    assert after.cost == (before.cost or 0) + 10**12
    assert before.plus([Prices({}).charge("a", usage)]).cost is None
    # Once a part is unknown the total stays unknown.
    assert before.plus([Prices({}).charge("a", usage)]).plus([dearer.charge("a", usage)]).cost is None


def test_the_model_that_answered_comes_first_then_the_names_it_was_asked_for_under() -> None:
    price = {name: Price(number, 0, 0, 0, 0) for number, name in enumerate(("answered", "asked", "default"), 1)}
    one = TokenUsage(input_tokens=1)

    def cost(*listed: str) -> int | None:
        prices = Prices({name: price[name] for name in listed})
        return prices.charge("answered", one, ("asked", "default")).cost

    assert cost("answered", "asked", "default") == 1
    assert cost("asked", "default") == 2
    assert cost("default") == 3
    assert cost() is None


def test_it_is_attributed_to_the_model_that_answered() -> None:
    charge = Prices({"asked": Price(1, 1, 1, 1, 1)}).charge("answered", TokenUsage(1), ("asked",))
    assert charge == Charge("answered", TokenUsage(1), 1)


def test_half_a_cent_is_rounded_up_and_less_is_not() -> None:
    half = PICODOLLARS_PER_CENT // 2
    assert [to_cents(cost) for cost in (0, half - 1, half, half + PICODOLLARS_PER_CENT)] == [0, 0, 1, 2]


def test_dollars_have_no_idle_digits() -> None:
    assert [to_usd(cost) for cost in (0, 1, 10**12, 1_500_000_000_000, 12_345)] == [
        *("0", "0.000000000001", "1", "1.5", "0.000000012345")
    ]


def test_nothing_spent_costs_nothing() -> None:
    assert (Spend().cost, Spend().cents, Spend().dump()) == (0, 0, "[]")


def test_what_is_stored_is_exact_beyond_what_json_numbers_hold() -> None:
    spend = Spend().plus([Charge("m", TokenUsage(1), 10**40 + 1)])
    assert orjson.loads(spend.dump())[0][-1] == str(10**40 + 1)
    assert read_spend(spend.dump()).cost == 10**40 + 1

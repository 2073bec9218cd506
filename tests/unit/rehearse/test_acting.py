"""Proves what calls do to rows: each action, all or nothing, invariants first, and that refusals change nothing."""

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.rehearse.acting import perform
from cli.rehearse.domain import Domain
from cli.rehearse.world import Call, Record, World
from tests.unit.rehearse.domains import changed, loaded


class Desk:
    """Calls one after the other."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.world = domain.tasks["take"].start
        self.log: list[Record] = []

    def call(self, tool: str, **arguments: Any) -> Record:
        self.world, record = perform(self.domain, self.world, self.log, Call("c", tool, arguments), 0)
        self.log.append(record)
        return record


@pytest.fixture(scope="module")
def domain(tmp_path_factory: pytest.TempPathFactory) -> Domain:
    return loaded(tmp_path_factory.mktemp("lockers"))


@pytest.fixture
def desk(domain: Domain) -> Desk:
    return Desk(domain)


def test_a_read_gives_the_row(desk: Desk) -> None:
    assert desk.call("get_locker", id="B").result == {
        "id": "B",
        "size": "large",
        "holder": "Kim",
        "uses": 0,
        "since": "2026-11-01",
        "tags": ["corner", "new"],
    }


def test_a_read_of_nothing_says_so(desk: Desk) -> None:
    record = desk.call("get_locker", id="Z")
    assert not record.ok and record.error == 'there is no locker with id "Z"'


def test_a_find_gives_the_rows_that_match_with_the_columns_that_are_shown(desk: Desk) -> None:
    assert desk.call("find_lockers", size="small", uses=1).result == [{"id": "C", "size": "small"}]
    assert [row["id"] for row in desk.call("find_lockers").result] == ["A", "B", "C"]


def test_a_response_is_always_the_same(desk: Desk) -> None:
    assert desk.call("hours").result == {"open": 8, "close": 20}


def test_several_actions_change_all_and_give_the_last_one_s_result(desk: Desk) -> None:
    desk.call("get_locker", id="A")
    record = desk.call("take_locker", id="A", holder="Lou")
    assert record.result == {"number": 1, "locker": "A", "amount": 2.5}
    assert desk.world.row("lockers", "A") == {
        "id": "A",
        "size": "small",
        "holder": "Lou",
        "uses": 4,
        "since": None,
        "tags": None,
    }


def test_new_keys_are_counted_past_those_that_are_taken(desk: Desk) -> None:
    assert [desk.call("pay", locker="A", amount=1).result["number"] for _ in range(3)] == [1, 2, 3]


def test_what_a_table_refuses_undoes_the_whole_call(desk: Desk) -> None:
    before = desk.world
    record = desk.call("pay", locker="A", amount=101)
    assert record.error == "amount of the payment must be a number of at most 100, not 101"
    assert desk.world is before


@pytest.mark.parametrize(
    ("tool", "arguments", "error"),
    [
        ("fly", {}, 'unknown tool "fly"; the tools are find_lockers, get_locker, take_locker, pay, hours'),
        ("get_locker", {"id": "A", "foo": 1}, 'unknown argument "foo"'),
        ("get_locker", {}, 'missing argument "id"'),
        ("get_locker", {"id": 1}, 'argument "id" must be a text, not 1'),
        ("take_locker", {"id": "B", "holder": "Lou"}, "Locker B is taken."),
    ],
)
def test_refusals_are_told_to_the_agent(desk: Desk, tool: str, arguments: dict[str, Any], error: str) -> None:
    record = desk.call(tool, **arguments)
    assert (record.ok, record.result, record.error) == (False, None, error)


def test_an_invariant_is_judged_before_the_call_and_blocks_it(desk: Desk) -> None:
    desk.call("get_locker", id="A")
    before = desk.world
    record = desk.call("take_locker", id="A", holder="Kim")
    assert [breach.invariant for breach in record.breaches] == ["one-each"]
    assert record.breaches[0].blocked and record.breaches[0].differences == ["held is 1, wanted 0"]
    assert record.error == "not allowed: Kim has 1 already." and desk.world is before


def test_an_invariant_that_does_not_block_is_noted_and_the_call_runs(desk: Desk) -> None:
    record = desk.call("take_locker", id="A", holder="Lou")
    assert record.ok and [breach.invariant for breach in record.breaches] == ["looked-first"]
    assert not record.breaches[0].blocked


def test_a_call_with_unsound_arguments_is_judged_by_no_invariant(desk: Desk) -> None:
    assert desk.call("take_locker", id="A", holder=5).breaches == ()


def test_a_condition_says_when_an_invariant_applies(tmp_path: Path) -> None:
    guarded = changed("    must: {held: 0}\n", "    when: {args.holder: {is_not: Kim}}\n    must: {held: 0}\n")
    desk = Desk(loaded(tmp_path, guarded))
    desk.call("get_locker", id="A")
    assert desk.call("take_locker", id="A", holder="Kim").breaches == []


def test_an_existing_key_is_not_created_again(tmp_path: Path) -> None:
    twice = changed("set: {locker: $args.locker, amount", "set: {number: 1, locker: $args.locker, amount")
    desk = Desk(loaded(tmp_path, twice))
    assert desk.call("pay", locker="A", amount=1).ok
    assert desk.call("pay", locker="A", amount=1).error == "there is already a payment with number 1"


# Properties

_TEXTS = st.sampled_from(["A", "B", "C", "Z", "Kim", "Lou", "small"])
_ARGUMENTS = st.dictionaries(
    st.sampled_from(["id", "holder", "locker", "amount", "size", "uses", "foo"]),
    _TEXTS | st.integers(-1, 200) | st.none(),
    max_size=4,
)
_SOUND = st.one_of(
    st.builds(lambda id, holder: ("take_locker", {"id": id, "holder": holder}), _TEXTS, _TEXTS),
    st.builds(lambda locker, amount: ("pay", {"locker": locker, "amount": amount}), _TEXTS, st.integers(-1, 200)),
    st.builds(lambda id: ("get_locker", {"id": id}), _TEXTS),
)
_ANY = st.tuples(st.sampled_from(["find_lockers", "take_locker", "pay", "hours", "fly"]), _ARGUMENTS)
CALLS = st.lists(_SOUND | _ANY, max_size=12)


@given(calls=CALLS)
def test_a_world_never_changes_on_a_refused_call(domain: Domain, calls: list[tuple[str, dict[str, Any]]]) -> None:
    desk = Desk(domain)
    start, kept = desk.world, copy.deepcopy(desk.world)
    for tool, arguments in calls:
        before, frozen = desk.world, copy.deepcopy(desk.world)
        record = desk.call(tool, **arguments)
        # What was there is never written to, whatever comes of the call …
        assert before == frozen
        # … and what is refused has no world of its own.
        assert record.ok or desk.world is before
        assert record.ok is (record.error is None)
    assert start == kept


@given(calls=CALLS)
def test_the_same_calls_have_the_same_results_and_end(domain: Domain, calls: list[tuple[str, dict[str, Any]]]) -> None:
    one, other = Desk(domain), Desk(domain)
    for tool, arguments in calls:
        assert one.call(tool, **arguments) == other.call(tool, **copy.deepcopy(arguments))
    assert one.world == other.world and list(one.world.tables["payments"]) == list(other.world.tables["payments"])


@given(calls=CALLS)
def test_every_row_is_always_sound(domain: Domain, calls: list[tuple[str, dict[str, Any]]]) -> None:
    desk = Desk(domain)
    for tool, arguments in calls:
        desk.call(tool, **arguments)
    _assert_sound(domain, desk.world)


def _assert_sound(domain: Domain, world: World) -> None:
    for table in domain.tables.values():
        for key, row in world.tables[table.name].items():
            assert row[table.key] == key and list(row) == list(table.columns)
            for name, field in table.columns.items():
                assert (row[name] is None and field.optional) or field.problem(row[name]) is None

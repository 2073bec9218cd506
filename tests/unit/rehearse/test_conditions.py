"""Proves each operator and each function of the domain language: what holds, what does not, and how that is told."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.rehearse.conditions import OPERATORS, Condition
from cli.rehearse.expressions import Expressions
from cli.rehearse.fields import Field
from cli.rehearse.kinds import Names
from cli.rehearse.values import Scope
from cli.rehearse.world import Call, Record, World
from cli.rehearse.yaml_files import YamlFile

COLUMNS = {
    "id": Field("id", "string"),
    "n": Field("n", "integer", optional=True),
    "word": Field("word", "string", optional=True),
    "tags": Field("tags", "list", optional=True),
    "open": Field("open", "boolean", optional=True),
}
ARGUMENTS = {
    "id": Field("id", "string", optional=True),
    "n": Field("n", "integer", optional=True),
    "word": Field("word", "string", optional=True),
}
NAMES = Names({"things": COLUMNS}, {"look": ARGUMENTS}, {"limit": 3}, ARGUMENTS)
ROWS = {
    "a": {"id": "a", "n": 3, "word": "Oak tree", "tags": ["big", "old"], "open": True},
    "b": {"id": "b", "n": 5, "word": "Elm", "tags": [], "open": False},
    "c": {"id": "c", "n": None, "word": None, "tags": None, "open": None},
}
WORLD = World({"things": ROWS})


def _reader() -> tuple[Expressions, list[Any]]:
    faults: list[Any] = []
    return Expressions(YamlFile("x", None, {}), faults), faults


def _scope(**args: Any) -> Scope:
    return Scope(WORLD, (), {"args": args, "facts": {"limit": 3}})


def _where(told: Any, *, filtering: bool = False) -> Condition:
    reader, faults = _reader()
    found = reader.where(told, (), NAMES, "things", filtering=filtering)
    assert not faults and found is not None
    return found


def _ids(told: Any, *, filtering: bool = False, **args: Any) -> str:
    where = _where(told, filtering=filtering)
    return "".join(key for key, row in ROWS.items() if not where.differences(_scope(**args).of_row(row)))


def _value(told: Any, **args: Any) -> Any:
    reader, faults = _reader()
    value, _ = reader.value(told, (), NAMES)
    assert not faults
    return value.evaluate(_scope(**args))


@pytest.mark.parametrize(
    ("told", "ids"),
    [
        ({"n": 3}, "a"),
        ({"n": {"is": 3}}, "a"),
        ({"n": None}, "c"),
        ({"n": {"is_not": 3}}, "bc"),
        ({"n": {"one_of": [3, 5]}}, "ab"),
        ({"n": {"not_one_of": [3]}}, "b"),
        ({"n": {"at_least": 5}}, "b"),
        ({"n": {"at_most": 3}}, "a"),
        ({"n": {"more_than": 3}}, "b"),
        ({"n": {"less_than": 5}}, "a"),
        ({"n": {"at_least": 3, "less_than": 5}}, "a"),
        ({"n": {"exists": True}}, "ab"),
        ({"n": {"exists": False}}, "c"),
        ({"word": {"contains": "TREE"}}, "a"),
        ({"word": {"starts_with": "oak"}}, "a"),
        ({"word": {"matches": "^[A-Z][a-z]+$"}}, "b"),
        ({"word": {"at_least": "F"}}, "a"),
        ({"tags": {"contains": "old"}}, "a"),
        ({"tags": {"is": []}}, "b"),
        ({"open": True}, "a"),
        ({"open": False}, "b"),
        ({"n": "$facts.limit"}, "a"),
        ({"n": {"at_least": {"plus": ["$facts.limit", 1]}}}, "b"),
        ({"n": {"plus": [1, 2]}}, "a"),
        ({"id": "b", "n": 5}, "b"),
        ({"id": "b", "n": 3}, ""),
        ([{"n": 3}, {"id": "a"}], "a"),
        ({"all": [{"n": 3}, {"id": "a"}]}, "a"),
        ({"any": [{"n": 3}, {"id": "c"}]}, "ac"),
        ({"not": {"n": 3}}, "bc"),
        ({"not": {"any": [{"id": "a"}, {"id": "b"}]}}, "c"),
    ],
)
def test_what_holds(told: Any, ids: str) -> None:
    assert _ids(told) == ids


def test_a_filter_leaves_out_what_its_call_leaves_out() -> None:
    told = {"n": {"at_least": "$args.n"}, "word": {"contains": "$args.word"}}
    assert _ids(told, filtering=True) == "abc"
    assert _ids(told, filtering=True, n=4) == "b"
    assert _ids(told, filtering=True, word="e") == "ab"
    assert _ids(told, filtering=True, n=4, word="oak") == ""


@pytest.mark.parametrize(
    ("told", "none", "n", "word"),
    [
        ({"any": [{"n": "$args.n"}, {"word": {"contains": "$args.word"}}]}, "abc", "a", "ab"),
        ({"not": {"n": "$args.n"}}, "abc", "bc", "abc"),
        ({"not": {"n": "$args.n", "word": {"contains": "$args.word"}}}, "abc", "bc", "c"),
        ({"any": [{"not": {"n": "$args.n"}}, {"id": "a"}]}, "a", "abc", "a"),
        ([{"all": [{"n": "$args.n"}]}, {"id": {"one_of": ["a", "b"]}}], "ab", "a", "ab"),
    ],
)
def test_what_is_left_out_counts_nowhere(told: Any, none: str, n: str, word: str) -> None:
    assert _ids(told, filtering=True) == none
    assert _ids(told, filtering=True, n=3) == n
    assert _ids(told, filtering=True, word="e") == word


def test_elsewhere_a_left_out_argument_is_null() -> None:
    assert _ids({"n": {"at_least": "$args.n"}}) == ""
    assert _ids({"n": "$args.n"}) == "c"


@pytest.mark.parametrize(
    ("told", "value"),
    [
        ({"plus": [0.1, 0.2]}, 0.3),
        ({"minus": [10, 3, 2]}, 5),
        ({"times": [70, 0.9]}, 63),
        ({"times": [1.5, 1.5]}, 2.25),
        ({"plus": ["$args.n", 1]}, None),
        ({"text": "{args.word} is {facts.limit}"}, "nothing is 3"),
        ("$$5", "$5"),
        ("plain", "plain"),
        ({"count": {"table": "things"}}, 3),
        ({"count": {"table": "things", "where": {"n": {"exists": True}}}}, 2),
        ({"sum": {"table": "things", "column": "n"}}, 8),
        ({"sum": {"table": "things", "column": "n", "where": {"id": "z"}}}, 0),
        ({"row": {"table": "things", "key": "b"}}, ROWS["b"]),
        ({"row": {"table": "things", "key": "z"}}, None),
        ({"row": {"table": "things", "key": "$args.n"}}, None),
        ({"row": {"table": "things", "where": {"n": {"more_than": 3}}}}, ROWS["b"]),
    ],
)
def test_values(told: Any, value: Any) -> None:
    assert _value(told) == value


def test_a_sum_that_is_whole_is_an_integer() -> None:
    assert isinstance(_value({"times": [70, 0.9]}), int)
    assert _value({"times": [10**14, 10**14]}) is None


def test_names_that_are_bound_see_those_before() -> None:
    reader, faults = _reader()
    told = {
        "thing": {"row": {"table": "things", "key": "$args.id"}},
        "double": {"times": ["$thing.n", 2]},
    }
    let, names = reader.let(told, (), NAMES)
    condition = reader.condition({"double": 10, "thing.open": False}, (), names)
    assert not faults
    assert condition.differences(_scope(id="b").bound(let)) == []
    assert condition.differences(_scope(id="z").bound(let)) == [
        "double is nothing, wanted 10",
        "thing.open is nothing, wanted false",
    ]


def _record(ok: bool, arguments: Mapping[str, Any], result: Any) -> Record:
    return Record(1, 0, Call("c", "look", arguments), ok, result=result)


@pytest.mark.parametrize(
    ("record", "holds"),
    [
        (_record(True, {"id": "a"}, {"open": True}), True),
        (_record(True, {"id": "a"}, [{"open": False}, {"open": True}]), True),
        (_record(True, {"id": "a"}, [{"open": False}]), False),
        (_record(True, {"id": "a"}, []), False),
        (_record(True, {"id": "a"}, "text"), False),
        (_record(True, {"id": "b"}, {"open": True}), False),
        (_record(False, {"id": "a"}, None), False),
    ],
)
def test_a_call_counts_when_it_succeeded_with_such_arguments_and_result(record: Record, holds: bool) -> None:
    reader, faults = _reader()
    told = {"called": {"tool": "look", "with": {"id": "$args.id"}, "result": {"open": True}}}
    condition = reader.condition(told, (), NAMES)
    assert not faults
    scope = Scope(WORLD, (record,), {"args": {"id": "a"}, "facts": {}})
    told_wrong = 'look with {id: "a"} and result {open: true} was not called before'
    assert condition.differences(scope) == ([] if holds else [told_wrong])


def test_a_call_may_be_asked_for_by_its_tool_alone() -> None:
    reader, _ = _reader()
    condition = reader.condition({"called": "look"}, (), NAMES)
    assert condition.differences(Scope(WORLD, (_record(True, {}, []),), {})) == []
    assert condition.differences(Scope(WORLD, (), {})) == ["look was not called before"]


def test_differences_are_told_with_what_is_found_and_wanted() -> None:
    scope = _scope(n=4).of_row(ROWS["a"])
    told = {"n": {"more_than": "$args.n"}, "open": False, "word": {"exists": False}, "any": [{"n": 1}, {"id": "b"}]}
    assert _where(told).differences(scope) == [
        "n is 3, wanted more than 4",
        "open is true, wanted false",
        'word is "Oak tree", wanted nothing',
        'none of these holds: n is 3, wanted 1; or id is "a", wanted "b"',
    ]
    assert _where({"not": {"n": {"is": "$args.n"}}}).differences(_scope(n=3).of_row(ROWS["a"])) == [
        "this holds and must not: {n: {is: 3}}"
    ]


_ANYTHING = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)
_ANYTHING = _ANYTHING | st.lists(_ANYTHING, max_size=2)


@given(_ANYTHING, _ANYTHING, st.sampled_from([name for name in OPERATORS if name not in ("matches", "exists")]))
def test_operators_answer_whatever_they_are_asked(found: Any, wanted: Any, operator: str) -> None:
    assert OPERATORS[operator][1](found, wanted) in (True, False)


@given(_ANYTHING, _ANYTHING)
def test_opposites_never_agree(found: Any, wanted: Any) -> None:
    holds = {name: OPERATORS[name][1](found, wanted) for name in OPERATORS if name not in ("matches", "exists")}
    assert holds["is"] is not holds["is_not"]
    assert not (holds["at_least"] and holds["less_than"])
    assert not (holds["at_most"] and holds["more_than"])
    assert not (holds["one_of"] and holds["not_one_of"])

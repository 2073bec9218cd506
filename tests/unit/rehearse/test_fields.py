"""Proves that arguments are judged exactly as the JSON schema says that agents are offered, in words for agents."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker

from cli.rehearse.fields import SCALARS, Field, argument_problems, arguments_schema, normal, same, shown

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(-5, 5)
    | st.sampled_from(["a", "b", "ab", "", "2026-12-01", "2026-13-01", "2026-1-1", "20261201"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def _fields(draw: st.DrawFn, name: str) -> Field:
    kind = draw(st.sampled_from([*SCALARS, "list"]))
    told: dict[str, Any] = {"optional": draw(st.booleans())}
    if kind in ("integer", "number"):
        told |= {"minimum": draw(st.none() | st.integers(-3, 0)), "maximum": draw(st.none() | st.integers(0, 3))}
    if kind == "string":
        told |= draw(st.sampled_from([{}, {"one_of": ("a", "b")}, {"pattern": "^a"}]))
    if kind == "list":
        told |= {"items": draw(st.sampled_from(SCALARS))}
    return Field(name, kind, **told)


@given(st.data())
def test_arguments_are_taken_exactly_when_their_schema_takes_them(data: st.DataObject) -> None:
    fields = {name: data.draw(_fields(name)) for name in ("one", "two")}
    given_ = data.draw(st.dictionaries(st.sampled_from(["one", "two", "other"]), _VALUES, max_size=3))
    validator = Draft202012Validator(arguments_schema(fields), format_checker=FormatChecker())
    assert (not argument_problems(fields, given_)) is validator.is_valid(given_)


@given(_fields("one"), _VALUES)
def test_the_one_form_of_a_value_is_sound_and_equal(field: Field, value: Any) -> None:
    if field.problem(value) is None:
        assert field.problem(normal(field, value)) is None
        assert same(normal(field, value), value)


@given(_fields("one"), _VALUES)
def test_what_is_refused_is_told_with_what_is_accepted(field: Field, value: Any) -> None:
    problem = field.problem(value)
    assert problem is None or (field.accepted() in problem and shown(value) in problem)


def test_the_schema_is_closed_and_says_what_is_required() -> None:
    fields = {
        "room": Field("room", "string", "The room."),
        "day": Field("day", "date", optional=True),
        "kinds": Field("kinds", "list", items="date"),
    }
    assert arguments_schema(fields) == {
        "type": "object",
        "properties": {
            "room": {"type": "string", "description": "The room."},
            "day": {"type": "string", "format": "date"},
            "kinds": {"type": "array", "items": {"type": "string", "format": "date"}},
        },
        "required": ["room", "kinds"],
        "additionalProperties": False,
    }
    Draft202012Validator.check_schema(arguments_schema(fields))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"n": 1, "foo": 2}, ['unknown argument "foo"']),
        ({}, ['missing argument "n"']),
        ({"n": "1"}, ['argument "n" must be an integer from 0 to 9, not "1"']),
        ({"n": 10}, ['argument "n" must be an integer from 0 to 9, not 10']),
        ({"n": True}, ['argument "n" must be an integer from 0 to 9, not true']),
        ({"n": None}, ['argument "n" must be an integer from 0 to 9, not nothing']),
        ({"n": 1, "size": "huge"}, ['argument "size" must be one of "small", "large", not "huge"']),
        ({"n": 3.0}, []),
    ],
)
def test_agents_are_told_what_is_wrong(arguments: dict[str, Any], told: list[str]) -> None:
    fields = {
        "n": Field("n", "integer", minimum=0, maximum=9),
        "size": Field("size", "string", one_of=("small", "large"), optional=True),
    }
    assert argument_problems(fields, arguments) == told


def test_true_is_not_one() -> None:
    assert same(1, 1.0) and not same(1, True) and not same(0, False) and not same([1], [True])
    assert same({"a": [1]}, {"a": [1.0]}) and not same({"a": 1}, {"b": 1})

"""Reads values and conditions out of a domain's files, and checks every name and type in them.

A text that begins with `$` refers (`$args.room`); `$$` is a dollar sign. A mapping is one function. Whatever is wrong
is noted with its line, and reading goes on, so that a person hears of everything at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import re2

from cli.rehearse.conditions import OPERATORS, All, AnyOf, Called, Condition, Not, Test
from cli.rehearse.faults import Fault, listed, unknown
from cli.rehearse.fields import shown
from cli.rehearse.kinds import ANY, Kind, Names, is_clash, kind_of_literal
from cli.rehearse.values import PLACEHOLDER, Arithmetic, CallsOf, CountOf, Literal, Reference, RowOf, SumOf, Text, Value
from cli.rehearse.yaml_files import Path_, YamlFile

# What could not be read. It is no literal, so nothing else is said about its value.
_NOTHING = Reference(("?",))
_ALWAYS = All(())
_LOOKS = {
    "row": ("table", "key", "where"),
    "count": ("table", "where"),
    "sum": ("table", "column", "where"),
    "calls": ("tool", "with", "result"),
}
FUNCTIONS = ("plus", "minus", "times", "text", *_LOOKS)
_TEXT_OPERATORS = ("starts_with", "matches")


class Expressions:
    """Reads the expressions of one file. `faults` are collected for all files of a domain."""

    def __init__(self, file: YamlFile, faults: list[Fault]) -> None:
        self._file = file
        self._faults = faults
        # Arguments that may be left out and that the value being read refers to.
        self._optional: list[str] = []

    def fault(self, path: Path_, told: str) -> None:
        self._faults.append(self._file.fault(path, told))

    # Values

    def value(self, data: Any, path: Path_, names: Names) -> tuple[Value, Kind]:
        match data:
            case str() if data.startswith("$$"):
                return Literal(data[1:]), Kind("string", optional=False)
            case str() if data.startswith("$"):
                return self._reference(data[1:], path, names)
            case dict():
                return self._function(data, path, names)
            case list():
                items = [self.value(item, (*path, index), names)[0] for index, item in enumerate(data)]
                if not all(isinstance(item, Literal) for item in items):
                    self.fault(path, "a list may hold plain values only")
                return Literal(data), Kind("list", optional=False)
        return Literal(data), kind_of_literal(data)

    def let(self, data: Mapping[str, Any], path: Path_, names: Names) -> tuple[dict[str, Value], Names]:
        """What names are bound, and the names that can be used after."""
        bound: dict[str, Value] = {}
        for name, given in data.items():
            bound[name], kind = self.value(given, (*path, name), names)
            names = names.bound(name, kind)
        return bound, names

    def template(self, text: str, path: Path_, names: Names) -> str:
        """A text with `{names}` in it, each of which must be known."""
        for name in PLACEHOLDER.findall(text):
            self._reference(name, path, names)
        return text

    def _reference(self, told: str, path: Path_, names: Names) -> tuple[Value, Kind]:
        parts = tuple(told.split("."))
        kind = names.find(parts)
        if kind is None:
            self.fault(path, unknown("name", told, names.accepted(parts)))
            return _NOTHING, ANY
        if parts[0] == "args" and kind.optional:
            self._optional.append(parts[1])
        return Reference(parts), kind

    def _function(self, data: Mapping[str, Any], path: Path_, names: Names) -> tuple[Value, Kind]:
        if len(data) != 1 or next(iter(data)) not in FUNCTIONS:
            self.fault(path, f"a value is plain, a reference such as $args.room, or one of {listed(FUNCTIONS)}")
            return _NOTHING, ANY
        name, given = next(iter(data.items()))
        path = (*path, name)
        if name == "text":
            if not isinstance(given, str):
                self.fault(path, "must be a text with {names} in it")
                return _NOTHING, ANY
            return Text(self.template(given, path, names)), Kind("string", optional=False)
        if name in _LOOKS:
            return self._look(name, given, path, names)
        if not isinstance(given, list) or len(given) < 2:
            self.fault(path, "must be a list of at least two values")
            return _NOTHING, ANY
        operands = []
        for index, item in enumerate(given):
            operand, kind = self.value(item, (*path, index), names)
            if kind.comparable not in ("number", ""):
                self.fault((*path, index), f"must be a number; {shown(item)} is none")
            operands.append(operand)
        return Arithmetic(name, operands), Kind("number")

    def _look(self, name: str, given: Any, path: Path_, names: Names) -> tuple[Value, Kind]:
        if not isinstance(given, dict):
            self.fault(path, f"must have the fields {listed(_LOOKS[name])}")
            return _NOTHING, ANY
        for field in given:
            if field not in _LOOKS[name]:
                self.fault((*path, field), unknown("field", field, _LOOKS[name]))
        if name == "calls":
            return self._calls(given, path, names), Kind("integer", optional=False)
        table = given.get("table")
        if not isinstance(table, str) or table not in names.tables:
            self.fault((*path, "table"), unknown("table", str(table or ""), names.tables))
            return _NOTHING, ANY
        where = self.where(given.get("where"), (*path, "where"), names, table)
        if name == "count":
            return CountOf(table, where), Kind("integer", optional=False)
        if name == "row":
            if ("key" in given) == ("where" in given):
                self.fault(path, "needs either key or where")
            key = self.value(given["key"], (*path, "key"), names)[0] if "key" in given else None
            return RowOf(table, key, where), Kind("row", table=table)
        column = given.get("column")
        numbers = [each for each, field in names.tables[table].items() if field.type in ("integer", "number")]
        if column not in numbers:
            self.fault((*path, "column"), unknown("column", str(column or ""), numbers))
            return _NOTHING, ANY
        return SumOf(table, column, where), Kind("number", optional=False)

    def _calls(self, given: Mapping[str, Any], path: Path_, names: Names) -> Value:
        tool = given.get("tool")
        if not isinstance(tool, str) or tool not in names.tools:
            self.fault((*path, "tool"), unknown("tool", str(tool or ""), names.tools))
            return Literal(0)
        arguments = result = None
        if "with" in given:
            inner = names.of_row(names.tools[tool], f"argument of {tool}")
            arguments = self.condition(given["with"], (*path, "with"), inner)
        if "result" in given:
            result = self.condition(given["result"], (*path, "result"), names.of_row(None, "column of the result"))
        return CallsOf(tool, arguments, result)

    # Conditions

    def where(self, data: Any, path: Path_, names: Names, table: str, *, filtering: bool = False) -> Condition | None:
        """A condition on the columns of a table's row; None when there is none."""
        if data is None:
            return None
        inner = names.of_row(names.tables[table], f"column of {table}", filtering=filtering)
        return self.condition(data, path, inner)

    def condition(self, data: Any, path: Path_, names: Names) -> Condition:
        if isinstance(data, list):
            return All([self.condition(item, (*path, index), names) for index, item in enumerate(data)])
        if not isinstance(data, dict) or not data:
            self.fault(path, "a condition is a mapping such as {room.status: free}, or a list of them")
            return _ALWAYS
        parts = [self._entry(key, data[key], (*path, key), names) for key in data]
        return parts[0] if len(parts) == 1 else All(parts)

    def _entry(self, key: str, given: Any, path: Path_, names: Names) -> Condition:
        match key:
            case "all" | "any":
                if not isinstance(given, list) or not given:
                    self.fault(path, "must be a list of conditions")
                    return _ALWAYS
                parts = [self.condition(item, (*path, index), names) for index, item in enumerate(given)]
                return All(parts) if key == "all" else AnyOf(parts)
            case "not":
                return Not(self.condition(given, path, names), shown(given))
            case "called":
                if isinstance(given, str):
                    given = {"tool": given}
                calls, _ = self._look("calls", given, path, names)
                return Called(calls, _call_told(given))
        return self._tests(key, given, path, names)

    def _tests(self, subject_told: str, given: Any, path: Path_, names: Names) -> Condition:
        parts = tuple(subject_told.split("."))
        if names.row_told and len(parts) == 1:
            # In `where` a bare name is a column of the row that is looked at.
            parts = ("row", *parts)
        kind = names.find(parts)
        if kind is None:
            accepted = names.row if parts[0] == "row" and names.row else names.accepted(parts)
            self.fault(
                path, unknown(names.row_told or "name", subject_told, [*accepted, "all", "any", "not", "called"])
            )
            return _ALWAYS
        if isinstance(given, list):
            self.fault(path, "a list can mean two things here: write {one_of: […]} or {is: […]}")
            return _ALWAYS
        operators = given if isinstance(given, dict) and not _is_function(given) else {"is": given}
        tests: list[Condition] = []
        for operator, wanted in operators.items():
            where = (*path, operator) if operators is given else path
            if operator not in OPERATORS:
                self.fault(where, unknown("operator", operator, OPERATORS))
                continue
            tests.append(self._test(subject_told, Reference(parts), kind, operator, wanted, where, names))
        return tests[0] if len(tests) == 1 else All(tests)

    def _test(
        self, told: str, subject: Value, kind: Kind, operator: str, given: Any, path: Path_, names: Names
    ) -> Condition:
        self._optional = []
        wanted, wanted_kind = self.value(given, path, names)
        needs = tuple(self._optional) if names.filtering else ()
        for problem in _problems(told, kind, operator, given, wanted, wanted_kind):
            self.fault(path, problem)
        return Test(told, subject, operator, wanted, needs)


def _is_function(data: Mapping[str, Any]) -> bool:
    return len(data) == 1 and next(iter(data)) in FUNCTIONS


def _call_told(given: Any) -> str:
    if not isinstance(given, dict):
        return "a tool"
    told = str(given.get("tool"))
    if "with" in given:
        told += f" with {shown(given['with'])}"
    return f"{told} and result {shown(given['result'])}" if "result" in given else told


def _problems(told: str, kind: Kind, operator: str, given: Any, wanted: Value, wanted_kind: Kind) -> list[str]:
    """What can never hold, or always would."""
    literal = isinstance(wanted, Literal)
    match operator:
        case "is" | "is_not":
            if isinstance(wanted, Literal) and kind.field is not None and given is not None:
                problem = kind.field.problem(wanted.value)
                return [f"{told} {problem}"] if problem else []
            return _clash(told, kind, wanted_kind)
        case "one_of" | "not_one_of":
            return _list_problems(told, kind, operator, given, literal, wanted_kind)
        case "exists":
            return [] if isinstance(given, bool) else ["must be true or false"]
        case "contains":
            return _only(told, kind, operator, ("text", "list"))
    if operator in _TEXT_OPERATORS:
        found = _only(told, kind, operator, ("text",)) or _clash(told, Kind("string"), wanted_kind)
        if operator == "matches" and not found:
            found = _pattern_problems(given, literal)
        return found
    return _only(told, kind, operator, ("text", "number")) or _clash(told, kind, wanted_kind)


def _clash(told: str, kind: Kind, wanted: Kind) -> list[str]:
    return [f"{told} is {_a(kind)} and can't be compared with {_a(wanted)}"] if is_clash(kind, wanted) else []


def _only(told: str, kind: Kind, operator: str, classes: tuple[str, ...]) -> list[str]:
    if not kind.comparable or kind.comparable in classes:
        return []
    return [f"{operator} is for {' and '.join(f'{each}s' for each in classes)}; {told} is {_a(kind)}"]


def _list_problems(told: str, kind: Kind, operator: str, given: Any, literal: bool, wanted: Kind) -> list[str]:
    if not literal:
        return [] if wanted.type in ("list", "any") else [f"{operator} needs a list"]
    if not isinstance(given, list) or not given:
        return [f"{operator} needs a list of values"]
    check: Callable[[Any], str | None] = kind.field.problem if kind.field else lambda _: None
    return [f"{told} {problem}" for value in given if (problem := check(value)) is not None]


def _pattern_problems(given: Any, literal: bool) -> list[str]:
    if not literal:
        return ["matches needs a pattern that is written out"]
    return [] if (problem := pattern_problem(given)) is None else [problem]


def pattern_problem(pattern: str) -> str | None:
    """Patterns are of the kind that takes no more time than its text is long (RE2)."""
    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern, options)
    except re2.error as error:
        told = error.args[0] if error.args else ""
        return f"is no pattern: {told.decode() if isinstance(told, bytes) else told}"
    return None


def _a(kind: Kind) -> str:
    named = {"integer": "an integer", "string": "a text", "list": "a list", "boolean": "true or false"}
    return named.get(kind.type, f"a {kind.type}")


__all__ = ["FUNCTIONS", "Expressions", "pattern_problem"]

"""Values of the domain language: literals, references, arithmetic, texts, and looks at rows and earlier calls.

A value that can't be had (a row that isn't there, an argument that was left out) is null, never an error. Arithmetic is
decimal, so 0.1 + 0.2 is 0.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

from cli.rehearse.fields import shown
from cli.rehearse.world import Log, Row, World

if TYPE_CHECKING:
    from cli.rehearse.conditions import Condition

PLACEHOLDER = re.compile(r"\{([a-zA-Z_][\w.]*)\}")


@dataclass(frozen=True)
class Scope:
    """What an expression can see: the world, the calls so far, names (args, facts, what `let` bound), and a row."""

    world: World
    log: Log
    names: Mapping[str, Any]
    row: Row | None = None

    def of_row(self, row: Row | None) -> Scope:
        return replace(self, row=row)

    def bound(self, let: Mapping[str, Value]) -> Scope:
        """With the values of `let`; each sees those before it."""
        scope = self
        for name, value in let.items():
            scope = replace(scope, names={**scope.names, name: value.evaluate(scope)})
        return scope


class Value(Protocol):
    """Something that has a value in a scope."""

    def evaluate(self, scope: Scope) -> Any: ...


@dataclass(frozen=True)
class Literal:
    value: Any

    def evaluate(self, scope: Scope) -> Any:
        return self.value


@dataclass(frozen=True)
class Reference:
    """`args.room`, `room.beds`, `loans`; `row.…` is the row that is looked at."""

    path: tuple[str, ...]

    def evaluate(self, scope: Scope) -> Any:
        first, *rest = self.path
        found: Any = scope.row if first == "row" else scope.names.get(first)
        for name in rest:
            found = found.get(name) if isinstance(found, Mapping) else None
        return found


@dataclass(frozen=True)
class Arithmetic:
    operation: str
    operands: Sequence[Value]

    def evaluate(self, scope: Scope) -> Any:
        found = [operand.evaluate(scope) for operand in self.operands]
        if any(isinstance(value, bool) or not isinstance(value, int | float) for value in found):
            return None
        numbers = [Decimal(str(value)) for value in found]
        total = numbers[0]
        for number in numbers[1:]:
            match self.operation:
                case "plus":
                    total += number
                case "minus":
                    total -= number
                case _:
                    total *= number
        return _number(total)


def _number(total: Decimal) -> int | float | None:
    if total == total.to_integral_value():
        return int(total) if abs(total) < 10**18 else None
    return float(total)


@dataclass(frozen=True)
class Text:
    """A text with `{names}` in it."""

    template: str

    def evaluate(self, scope: Scope) -> str:
        return filled(self.template, scope)


def filled(template: str, scope: Scope) -> str:
    def put(found: re.Match[str]) -> str:
        value = Reference(tuple(found[1].split("."))).evaluate(scope)
        return value if isinstance(value, str) else shown(value)

    return PLACEHOLDER.sub(put, template)


@dataclass(frozen=True)
class RowOf:
    """One row: by its key, or the first that meets a condition."""

    table: str
    key: Value | None
    where: Condition | None

    def evaluate(self, scope: Scope) -> Any:
        if self.key is not None:
            return scope.world.row(self.table, self.key.evaluate(scope))
        return next(iter(matching(self.table, self.where, scope)), None)


@dataclass(frozen=True)
class CountOf:
    table: str
    where: Condition | None

    def evaluate(self, scope: Scope) -> int:
        return len(matching(self.table, self.where, scope))


@dataclass(frozen=True)
class SumOf:
    table: str
    column: str
    where: Condition | None

    def evaluate(self, scope: Scope) -> Any:
        found = (row[self.column] for row in matching(self.table, self.where, scope))
        numbers = [Decimal(str(value)) for value in found if value is not None]
        return _number(sum(numbers, Decimal(0)))


@dataclass(frozen=True)
class CallsOf:
    """How many earlier calls of a tool succeeded, with such arguments and such a result."""

    tool: str
    arguments: Condition | None
    result: Condition | None

    def evaluate(self, scope: Scope) -> int:
        return sum(
            1
            for record in scope.log
            if record.ok
            and record.call.name == self.tool
            and _holds(self.arguments, scope.of_row(record.call.arguments))
            and any(_holds(self.result, scope.of_row(row)) for row in _rows_of(record.result))
        )


def _rows_of(result: Any) -> Sequence[Row | None]:
    """The rows of a result; a call without any still counts where no result is asked for."""
    if isinstance(result, Mapping):
        return [result]
    return [row for row in result if isinstance(row, Mapping)] or [None] if isinstance(result, list) else [None]


def matching(table: str, where: Condition | None, scope: Scope) -> Sequence[Row]:
    return [row for row in scope.world.rows(table) if _holds(where, scope.of_row(row))]


def _holds(condition: Condition | None, scope: Scope) -> bool:
    return condition is None or not condition.differences(scope)

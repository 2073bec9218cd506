"""What is known of a value before anything runs: enough to find a typo in a domain when it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cli.rehearse.fields import CLASSES, Field

# What `let`, columns and arguments may not be called: conditions and looks use these words themselves.
RESERVED = ("all", "any", "not", "called", "args", "facts", "row", "end")


@dataclass(frozen=True)
class Kind:
    """`row` kinds name their table; `any` is what can't be known."""

    type: str
    optional: bool = True
    field: Field | None = None
    table: str = ""

    @property
    def comparable(self) -> str:
        """The class of types that it can be compared with; empty where nothing is known."""
        return CLASSES.get(self.type, self.type if self.type in ("list", "row") else "")


ANY = Kind("any")


def kind_of_field(field: Field) -> Kind:
    return Kind(field.type, field.optional, field)


def kind_of_literal(value: Any) -> Kind:
    match value:
        case None:
            return ANY
        case bool():
            return Kind("boolean", optional=False)
        case int():
            return Kind("integer", optional=False)
        case float():
            return Kind("number", optional=False)
        case str():
            return Kind("string", optional=False)
        case list():
            return Kind("list", optional=False)
        case _:
            return ANY


def is_clash(one: Kind, other: Kind) -> bool:
    """Whether two values can never be compared."""
    return bool(one.comparable and other.comparable and one.comparable != other.comparable)


def common(fields: Iterable[Mapping[str, Field]]) -> Mapping[str, Field]:
    """The arguments that several tools share."""
    first, *rest = list(fields) or [{}]
    return {
        name: replace(field, optional=field.optional or any(other[name].optional for other in rest))
        for name, field in first.items()
        if all(name in other and other[name].type == field.type for other in rest)
    }


@dataclass(frozen=True)
class Names:
    """What an expression may name. `row` says of whose columns or arguments a bare name in `where` is."""

    tables: Mapping[str, Mapping[str, Field]]
    tools: Mapping[str, Mapping[str, Field]]
    facts: Mapping[str, Any] = field(default_factory=dict)
    args: Mapping[str, Field] | None = None
    lets: Mapping[str, Kind] = field(default_factory=dict)
    row: Mapping[str, Field] | None = None
    row_told: str = ""
    # Whether a test on an argument that was left out is left out, as filters do.
    filtering: bool = False

    def bound(self, name: str, kind: Kind) -> Names:
        return replace(self, lets={**self.lets, name: kind})

    def of_row(self, row: Mapping[str, Field] | None, told: str, *, filtering: bool = False) -> Names:
        return replace(self, row=row, row_told=told, filtering=filtering)

    def starts(self) -> list[str]:
        """What a path may begin with."""
        args = [f"args.{name}" for name in self.args or {}]
        rows = [f"row.{name}" for name in self.row or {}]
        return [*args, *(f"facts.{name}" for name in self.facts), *self.lets, *rows]

    def find(self, path: tuple[str, ...]) -> Kind | None:
        """None when nothing has this name."""
        first, *rest = path
        if len(rest) > 1:
            return None
        if not rest:
            return self.lets.get(first)
        match first:
            case "args":
                return _of(self.args or {}, rest[0])
            case "facts":
                return kind_of_literal(self.facts[rest[0]]) if rest[0] in self.facts else None
            case "row":
                return ANY if self.row is None and self.row_told else _of(self.row or {}, rest[0])
        kind = self.lets.get(first)
        if kind is None or kind.type != "row":
            return None
        found = _of(self.tables[kind.table], rest[0])
        return replace(found, optional=True) if found else None

    def accepted(self, path: tuple[str, ...]) -> list[str]:
        """What could have been meant by a path that names nothing."""
        kind = self.lets.get(path[0])
        if kind is not None and kind.type == "row":
            return [f"{path[0]}.{column}" for column in self.tables[kind.table]]
        same_start = [name for name in self.starts() if name.startswith(f"{path[0]}.")]
        return same_start or self.starts()


def _of(fields: Mapping[str, Field], name: str) -> Kind | None:
    return kind_of_field(fields[name]) if name in fields else None

"""Rows of data, and what a call does to them. All values: a change is a new world, so what is refused changes none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Key = str | int
Row = Mapping[str, Any]
Rows = Mapping[Key, Row]


@dataclass(frozen=True)
class World:
    """The rows of each table, by their keys, in the order in which they came."""

    tables: Mapping[str, Rows] = field(default_factory=dict)

    def rows(self, table: str) -> Sequence[Row]:
        return list(self.tables[table].values())

    def row(self, table: str, key: Any) -> Row | None:
        """None also for what can be no key."""
        if isinstance(key, bool) or not isinstance(key, str | int | float):
            return None
        return self.tables[table].get(key)  # type: ignore[arg-type]

    def with_row(self, table: str, key: Key, row: Row) -> "World":
        return World({**self.tables, table: {**self.tables[table], key: row}})


@dataclass(frozen=True)
class Call:
    """A tool call as the agent asked for it."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Breach:
    """An invariant that a call broke: which, and how what was found differs from what must be."""

    invariant: str
    message: str
    differences: Sequence[str]
    blocked: bool


@dataclass(frozen=True)
class Record:
    """A call and what came of it. `ok` calls have a result, the others an error."""

    number: int
    turn: int
    call: Call
    ok: bool
    result: Any = None
    error: str | None = None
    breaches: Sequence[Breach] = ()


Log = Sequence[Record]

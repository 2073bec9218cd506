"""The verdict on a trial: a pure function of its end state and its call log, and of why it ended early, if it did."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cli.rehearse.domain import Absent, Domain, Equal, Expectation, Limits, Present, Table, Task, Unchanged
from cli.rehearse.fields import same, shown
from cli.rehearse.values import Scope, matching
from cli.rehearse.world import Log, Row, World

_ROWS_SHOWN = 5


@dataclass(frozen=True)
class Failure:
    """Why a trial failed. `kind` is runtime, invariant, end_state or limit; `details` say line by line what differs."""

    kind: str
    name: str
    told: str
    details: Sequence[str] = ()


def grade(domain: Domain, task: Task, log: Log, end: World, runtime: str | None) -> list[Failure]:
    """Empty when the trial passed. What ended early has no end state that could be judged."""
    broken = _broken(log)
    if runtime is not None:
        return [Failure("runtime", "runtime", runtime), *broken]
    scope = domain.scope(end, log)
    states = [failure for each in task.end if (failure := _JUDGES[type(each)](each, task.start, scope)) is not None]
    return [*broken, *states, *_over_limits(task.limits, log)]


def _broken(log: Log) -> list[Failure]:
    return [
        Failure(
            "invariant",
            breach.invariant,
            f"broken by call {record.number}, {_call(record)}: {breach.message}",
            [*breach.differences, "the call was blocked" if breach.blocked else "the call was let through"],
        )
        for record in log
        for breach in record.breaches
    ]


def _call(record: Any) -> str:
    return f"{record.call.name} {shown(dict(record.call.arguments))}"


def _over_limits(limits: Limits, log: Log) -> list[Failure]:
    found = []
    if limits.calls is not None and len(log) > limits.calls:
        found.append(Failure("limit", "calls", f"{_times(len(log))} in all, at most {limits.calls} wanted"))
    for tool, bounds in limits.tools.items():
        asked = [record for record in log if record.call.name == tool]
        done = sum(record.ok for record in asked)
        if bounds.at_most is not None and len(asked) > bounds.at_most:
            told = f"{_times(len(asked))} of {tool}, at most {bounds.at_most} wanted"
            found.append(Failure("limit", tool, told))
        if done < bounds.at_least:
            told = f"{_times(done)} of {tool} succeeded, at least {bounds.at_least} wanted"
            found.append(Failure("limit", tool, told))
    return found


def _times(count: int) -> str:
    return f"{count} call" if count == 1 else f"{count} calls"


# The end state


def _present(wanted: Present, start: World, scope: Scope) -> Failure | None:
    found = matching(wanted.table.name, wanted.where, scope)
    if found and wanted.count in (None, len(found)):
        return None
    number = "at least one row" if wanted.count is None else _rows(wanted.count)
    told = f"{number} wanted{wanted.told}, {len(found)} found"
    return _state(wanted.table, told, _listed(found, wanted.table) if found else _nearest(wanted, scope))


def _nearest(wanted: Present, scope: Scope) -> list[str]:
    """How the rows that come nearest differ."""
    rows = scope.world.rows(wanted.table.name)
    if not rows or wanted.where is None:
        return [f"{wanted.table.name} has no rows"]
    told = [(wanted.where.differences(scope.of_row(row)), row) for row in rows]
    least = min(len(differences) for differences, _ in told)
    nearest = [(differences, row) for differences, row in told if len(differences) == least]
    lines = [f"{_name(wanted.table, row)}: {'; '.join(differences)}" for differences, row in nearest[:_ROWS_SHOWN]]
    more = len(nearest) - len(lines)
    return [*lines, f"and {more} more rows that differ as much"] if more else lines


def _absent(wanted: Absent, start: World, scope: Scope) -> Failure | None:
    found = matching(wanted.table.name, wanted.where, scope)
    if not found:
        return None
    return _state(wanted.table, f"no row wanted{wanted.told}, {len(found)} found", _listed(found, wanted.table))


def _equal(wanted: Equal, start: World, scope: Scope) -> Failure | None:
    row = scope.world.row(wanted.table.name, wanted.key)
    if row is None:
        return _state(wanted.table, f"there is no {wanted.table.one} with {wanted.table.key} {shown(wanted.key)}", [])
    values = {column: value.evaluate(scope) for column, value in wanted.columns.items()}
    lines = [
        f"{column} is {shown(row[column])}, wanted {shown(value)}"
        for column, value in values.items()
        if not same(row[column], value)
    ]
    return _state(wanted.table, f"{_name(wanted.table, row)} differs", lines) if lines else None


def _unchanged(wanted: Unchanged, start: World, scope: Scope) -> Failure | None:
    before, after = start.tables[wanted.table.name], scope.world.tables[wanted.table.name]
    lines = []
    for key, row in after.items():
        if any(same(key, each) for each in wanted.but):
            continue
        if key not in before:
            lines.append(f"{_name(wanted.table, row)} is new: {shown(dict(row))}")
        lines += [
            f"{_name(wanted.table, row)}: {column} was {shown(old)}, is {shown(row[column])}"
            for column, old in before.get(key, {}).items()
            if not same(old, row[column])
        ]
    return _state(wanted.table, "no change wanted", lines) if lines else None


_JUDGES: Mapping[type[Expectation], Callable[[Any, World, Scope], Failure | None]] = {
    Present: _present,
    Absent: _absent,
    Equal: _equal,
    Unchanged: _unchanged,
}


def _state(table: Table, told: str, lines: Sequence[str]) -> Failure:
    return Failure("end_state", table.name, f"{table.name}: {told}", lines)


def _rows(count: int) -> str:
    return "exactly 1 row" if count == 1 else f"exactly {count} rows"


def _listed(rows: Sequence[Row], table: Table) -> list[str]:
    lines = [f"{_name(table, row)}: {shown(dict(row))}" for row in rows[:_ROWS_SHOWN]]
    return [*lines, f"and {len(rows) - _ROWS_SHOWN} more"] if len(rows) > _ROWS_SHOWN else lines


def _name(table: Table, row: Row) -> str:
    return f"{table.one} {row[table.key]}"

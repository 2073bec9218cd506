"""Reads a task of a domain: user turns, rows at the start, wanted end state, limits."""

from collections.abc import Mapping
from typing import Any

from cli.rehearse.domain import (
    Absent,
    Bounds,
    Equal,
    Expectation,
    Limits,
    Present,
    Table,
    Task,
    Unchanged,
)
from cli.rehearse.expressions import Expressions
from cli.rehearse.faults import unknown
from cli.rehearse.fields import shown
from cli.rehearse.kinds import Names, is_clash, kind_of_field
from cli.rehearse.tables import read_rows
from cli.rehearse.values import Literal, Value
from cli.rehearse.world import World
from cli.rehearse.yaml_files import Path_


def read_task(
    task_id: str, data: Mapping[str, Any], tables: Mapping[str, Table], start: World, names: Names, reader: Expressions
) -> Task:
    rows = dict(start.tables)
    for name, given in data.get("rows", {}).items():
        if name not in tables:
            reader.fault(("rows", name), unknown("table", name, tables))
            continue
        rows[name] = read_rows(given, tables[name], ("rows", name), reader, rows[name])
    end = [
        expectation
        for index, each in enumerate(data["end"])
        if (expectation := _expectation(each, ("end", index), tables, names, reader)) is not None
    ]
    limits = _limits(data.get("limits", {}), names, reader)
    return Task(task_id, data.get("title", ""), data["turns"], World(rows), end, limits)


def _expectation(
    told: Mapping[str, Any], path: Path_, tables: Mapping[str, Table], names: Names, reader: Expressions
) -> Expectation | None:
    kind, given = next(iter(told.items()))
    path = (*path, kind)
    table = tables.get(given["table"])
    if table is None:
        reader.fault((*path, "table"), unknown("table", given["table"], tables))
        return None
    if kind == "equal":
        return _equal(given, path, table, names, reader)
    if kind == "unchanged":
        for index, key in enumerate(given.get("but", [])):
            _check_key(key, (*path, "but", index), table, reader)
        return Unchanged(table, given.get("but", []))
    where = reader.where(given.get("where"), (*path, "where"), names, table.name)
    condition = f" where {shown(given['where'])}" if where is not None else ""
    return (
        Present(table, where, condition, given.get("count")) if kind == "present" else Absent(table, where, condition)
    )


def _check_key(key: Any, path: Path_, table: Table, reader: Expressions) -> None:
    if (problem := table.columns[table.key].problem(key)) is not None:
        reader.fault(path, f"{table.key} {problem}")


def _equal(given: Mapping[str, Any], path: Path_, table: Table, names: Names, reader: Expressions) -> Equal:
    _check_key(given["key"], (*path, "key"), table, reader)
    columns: dict[str, Value] = {}
    for name, told in given["columns"].items():
        where = (*path, "columns", name)
        if name not in table.columns:
            reader.fault(where, unknown(f"column of {table.name}", name, table.columns))
            continue
        column = table.columns[name]
        columns[name], kind = reader.value(told, where, names)
        problem = column.problem(told) if isinstance(columns[name], Literal) and told is not None else None
        if problem is not None:
            reader.fault(where, f"{name} {problem}")
        elif is_clash(kind, kind_of_field(column)):
            reader.fault(where, f"{name} is {column.accepted()}; {shown(told)} can't be that")
    return Equal(table, given["key"], columns)


def _limits(given: Mapping[str, Any], names: Names, reader: Expressions) -> Limits:
    bounds: dict[str, Bounds] = {}
    for name, told in given.get("tools", {}).items():
        path: Path_ = ("limits", "tools", name)
        if name not in names.tools:
            reader.fault(path, unknown("tool", name, names.tools))
            continue
        bounds[name] = Bounds(0, told) if isinstance(told, int) else Bounds(**told)
        most = bounds[name].at_most
        if most is not None and most < bounds[name].at_least:
            reader.fault(path, f"at_most ({most}) is less than at_least ({bounds[name].at_least})")
    return Limits(given.get("calls"), bounds)

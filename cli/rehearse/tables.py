"""Reads the types of columns and arguments, the tables of a domain, and their rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from cli.rehearse.domain import Table
from cli.rehearse.expressions import Expressions, pattern_problem
from cli.rehearse.faults import unknown
from cli.rehearse.fields import Field, normal, shown
from cli.rehearse.kinds import RESERVED
from cli.rehearse.world import Key, Row, Rows
from cli.rehearse.yaml_files import Path_

MAX_ROWS = 10_000
_KEY_TYPES = ("string", "integer", "date")


def read_fields(given: Mapping[str, Any], path: Path_, reader: Expressions) -> dict[str, Field]:
    """Types by name; what is unsound is told and left out."""
    found = {}
    for name, told in given.items():
        if name in RESERVED:
            reader.fault((*path, name), f'"{name}" is a word of the language; take another name')
        field = Field(name, **_spelled_out(told))
        problems = _field_problems(field, told if isinstance(told, dict) else {})
        for part, problem in problems:
            reader.fault((*path, name, part), problem)
        if not problems:
            found[name] = field
    return found


def _spelled_out(told: Any) -> dict[str, Any]:
    if isinstance(told, str):
        return {"type": told}
    return {name: tuple(value) if name == "one_of" else value for name, value in told.items()}


def _field_problems(field: Field, told: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    is_number = field.type in ("integer", "number")
    for name, fits, types in (
        ("minimum", is_number, "integer and number"),
        ("maximum", is_number, "integer and number"),
        ("pattern", field.type == "string", "string"),
        ("items", field.type == "list", "list"),
        ("one_of", field.type != "list", "all types but list"),
    ):
        if name in told and not fits:
            found.append((name, f'"{name}" is for {types}, not for {field.type}'))
    if field.type == "list" and "items" not in told:
        found.append(("type", 'a list needs "items": the type of its values'))
    if found:
        return found
    plain = Field(field.name, field.type, items=field.items)
    found += [
        ("one_of", f"a value {problem}") for value in field.one_of if (problem := plain.problem(value)) is not None
    ]
    if field.pattern is not None and (problem := pattern_problem(field.pattern)) is not None:
        found.append(("pattern", problem))
    if field.minimum is not None and field.maximum is not None and field.minimum > field.maximum:
        found.append(("maximum", f"{field.maximum} is less than the minimum, {field.minimum}"))
    return found


def read_tables(given: Mapping[str, Any], reader: Expressions) -> dict[str, Table]:
    found = {}
    for name, told in given.items():
        path: Path_ = ("tables", name)
        columns = read_fields(told["columns"], (*path, "columns"), reader)
        key = told["key"]
        if key not in told["columns"]:
            reader.fault((*path, "key"), unknown("column", key, told["columns"]))
            continue
        if key in columns:
            _check_key(columns[key], told.get("new_key"), path, reader)
            found[name] = Table(name, key, columns, told.get("one", f"row of {name}"), told.get("new_key"))
    return found


def _check_key(column: Field, new_key: str | None, path: Path_, reader: Expressions) -> None:
    where = (*path, "columns", column.name)
    if column.type not in _KEY_TYPES:
        reader.fault(where, f"a key is a {', '.join(_KEY_TYPES)}; {column.name} is a {column.type}")
    if column.optional:
        reader.fault(where, f"a key is never left out; {column.name} is optional")
    if new_key is None:
        return
    example = new_key.replace("{n}", "1")
    if new_key.count("{n}") != 1 or (column.type == "integer" and new_key != "{n}"):
        wanted = '"{n}", since the key is an integer' if column.type == "integer" else "a text with {n} in it once"
        reader.fault((*path, "new_key"), f"must be {wanted}, not {shown(new_key)}")
    elif (problem := column.problem(1 if column.type == "integer" else example)) is not None:
        reader.fault((*path, "new_key"), f"makes keys that are none: {column.name} {problem}")


def read_rows(given: Any, table: Table, path: Path_, reader: Expressions, before: Rows | None = None) -> Rows:
    """The rows of a table by key. With rows from before, a row of the same key replaces the columns that it names."""
    if not isinstance(given, list):
        reader.fault(path, f"must be a list of rows, not {shown(given)}")
        return before or {}
    if len(given) > MAX_ROWS:
        reader.fault(path, f"has {len(given)} rows; {MAX_ROWS} are accepted")
        return before or {}
    rows: dict[Key, Row] = dict(before or {})
    new: set[Key] = set()
    for index, told in enumerate(given):
        where = (*path, index)
        if not isinstance(told, dict):
            reader.fault(where, f"must be a row (values by column), not {shown(told)}")
            continue
        key: Any = told.get(table.key)
        if (problem := table.columns[table.key].problem(key)) is not None:
            reader.fault((*where, table.key), f"{table.key} {problem}")
        elif key in new:
            reader.fault((*where, table.key), f"there are two rows with {table.key} {shown(key)}")
        else:
            new.add(key)
            rows[key] = _row({**rows.get(key, {}), **told}, told, table, where, reader)
    return rows


def _row(merged: Row, told: Row, table: Table, path: Path_, reader: Expressions) -> Row:
    for name in told:
        if name not in table.columns:
            reader.fault((*path, name), unknown(f"column of {table.name}", name, table.columns))
    row: dict[str, Any] = {}
    for name, field in table.columns.items():
        value = merged.get(name)
        if value is None and field.optional:
            row[name] = None
        elif name not in merged:
            reader.fault(path, f'"{name}" is missing: {field.accepted()}')
        elif (problem := field.problem(value)) is not None:
            reader.fault((*path, name), f"{name} {problem}")
        else:
            row[name] = normal(field, value)
    return row


def known_columns(names: Sequence[str], table: Table, path: Path_, reader: Expressions) -> list[str]:
    for index, name in enumerate(names):
        if name not in table.columns:
            reader.fault((*path, index), unknown(f"column of {table.name}", name, table.columns))
    return [name for name in names if name in table.columns]

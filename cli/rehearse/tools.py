"""Reads the tools and invariants of a domain, and checks every name and type in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cli.rehearse.conditions import All
from cli.rehearse.domain import Action, Create, Find, Invariant, Read, Requirement, Respond, Table, Tool, Update
from cli.rehearse.expressions import Expressions
from cli.rehearse.faults import unknown
from cli.rehearse.fields import Field, shown
from cli.rehearse.kinds import RESERVED, Kind, Names, common, is_clash, kind_of_field
from cli.rehearse.tables import known_columns, read_fields
from cli.rehearse.values import Literal, Value
from cli.rehearse.yaml_files import Path_

Fields = Mapping[str, Field]


def read_arguments(given: Mapping[str, Any], reader: Expressions) -> dict[str, Fields]:
    """The arguments of each tool; known before any condition is read, since those speak of other tools' calls."""
    return {
        name: read_fields(told.get("arguments", {}), ("tools", name, "arguments"), reader)
        for name, told in given.items()
    }


def read_tools(
    given: Mapping[str, Any], tables: Mapping[str, Table], names: Names, reader: Expressions
) -> dict[str, Tool]:
    return {name: _tool(name, told, tables, names, reader) for name, told in given.items()}


def _tool(name: str, told: Mapping[str, Any], tables: Mapping[str, Table], names: Names, reader: Expressions) -> Tool:
    path: Path_ = ("tools", name)
    names = replace(names, args=names.tools[name])
    let, names = _let(told.get("let", {}), (*path, "let"), names, reader)
    requires = [
        Requirement(
            reader.condition(each["must"], (*path, "requires", index, "must"), names),
            reader.template(each["error"], (*path, "requires", index, "error"), names),
        )
        for index, each in enumerate(told.get("requires", []))
    ]
    does = told["does"]
    steps = list(enumerate(does)) if isinstance(does, list) else [(None, does)]
    actions = []
    for index, step in steps:
        where = (*path, "does") if index is None else (*path, "does", index)
        action = _Actions(tables, names, reader).read(step, where)
        actions += [action] if action is not None else []
    return Tool(name, told["description"], names.tools[name], let, requires, actions)


def _let(given: Mapping[str, Any], path: Path_, names: Names, reader: Expressions) -> tuple[dict[str, Value], Names]:
    for name in given:
        if name in RESERVED:
            reader.fault((*path, name), f'"{name}" is a word of the language; take another name')
    return reader.let(given, path, names)


class _Actions:
    """Reads what a tool does."""

    def __init__(self, tables: Mapping[str, Table], names: Names, reader: Expressions) -> None:
        self._tables, self._names, self._reader = tables, names, reader

    def read(self, step: Mapping[str, Any], path: Path_) -> Action | None:
        """None when it is unsound; that is told."""
        kind, given = next(iter(step.items()))
        path = (*path, kind)
        if kind == "respond":
            return Respond(given)
        table = self._tables.get(given["table"])
        if table is None:
            self._reader.fault((*path, "table"), unknown("table", given["table"], self._tables))
            return None
        columns = known_columns(given.get("columns", list(table.columns)), table, (*path, "columns"), self._reader)
        match kind:
            case "read":
                return Read(table, self._key(given["key"], table, path), columns)
            case "find":
                return self._find(given, table, columns, path)
            case "create":
                return Create(table, self._set(given["set"], table, (*path, "set"), is_new=True), columns)
        key = self._key(given["key"], table, path)
        return Update(table, key, self._set(given["set"], table, (*path, "set"), is_new=False), columns)

    def _find(self, given: Mapping[str, Any], table: Table, columns: list[str], path: Path_) -> Find:
        order = given.get("order_by")
        sortable = [name for name, field in table.columns.items() if field.type != "list"]
        if order is not None and order not in sortable:
            self._reader.fault((*path, "order_by"), unknown("column to sort by", order, sortable))
        where = self._reader.where(given.get("where"), (*path, "where"), self._names, table.name, filtering=True)
        return Find(table, where, columns, order, given.get("limit"))

    def _key(self, given: Any, table: Table, path: Path_) -> Value:
        value, kind = self._reader.value(given, (*path, "key"), self._names)
        column = table.columns[table.key]
        if is_clash(kind, kind_of_field(column)):
            self._reader.fault((*path, "key"), f"{table.key} is {column.accepted()}; {shown(given)} can't be one")
        return value

    def _set(self, given: Mapping[str, Any], table: Table, path: Path_, *, is_new: bool) -> dict[str, Value]:
        names = self._names if is_new else self._names.of_row(table.columns, f"column of {table.name}")
        found: dict[str, Value] = {}
        for name, told in given.items():
            value, kind = self._reader.value(told, (*path, name), names)
            if name not in table.columns:
                self._reader.fault((*path, name), unknown(f"column of {table.name}", name, table.columns))
                continue
            if name == table.key and not is_new:
                self._reader.fault((*path, name), f"the key of a row ({name}) can't be changed")
            self._check_set(told, value, kind, table.columns[name], (*path, name))
            found[name] = value
        if is_new:
            self._check_new(found, table, path)
        return found

    def _check_set(self, told: Any, value: Value, kind: Kind, column: Field, path: Path_) -> None:
        if isinstance(value, Literal):
            problem = column.problem(value.value)
            if problem is not None and not (value.value is None and column.optional):
                self._reader.fault(path, f"{column.name} {problem}")
        elif is_clash(kind, kind_of_field(column)):
            self._reader.fault(path, f"{column.name} must be {column.accepted()}; {shown(told)} can't be that")

    def _check_new(self, found: Mapping[str, Value], table: Table, path: Path_) -> None:
        made = {table.key} if table.new_key is not None else set()
        for name, column in table.columns.items():
            if name not in found and not column.optional and name not in made:
                hint = ' (or give the table a "new_key")' if name == table.key else ""
                self._reader.fault(path, f'"{name}" is missing: {column.accepted()}{hint}')


def read_invariants(given: Mapping[str, Any], names: Names, reader: Expressions) -> list[Invariant]:
    return [_invariant(name, told, names, reader) for name, told in given.items()]


def _invariant(name: str, told: Mapping[str, Any], names: Names, reader: Expressions) -> Invariant:
    path: Path_ = ("invariants", name)
    judged = told.get("on", list(names.tools))
    for index, tool in enumerate(told.get("on", [])):
        if tool not in names.tools:
            reader.fault((*path, "on", index), unknown("tool", tool, names.tools))
    names = replace(names, args=common(names.tools[tool] for tool in judged if tool in names.tools))
    let, names = _let(told.get("let", {}), (*path, "let"), names, reader)
    when = reader.condition(told["when"], (*path, "when"), names) if "when" in told else None
    must = reader.condition(told["must"], (*path, "must"), names)
    if must == All(()):
        reader.fault((*path, "must"), "says nothing; a condition is needed")
    message = reader.template(told["message"], (*path, "message"), names)
    return Invariant(name, frozenset(judged), let, when, must, message, told.get("blocks", True))

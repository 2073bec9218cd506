"""What a tool call does: checked against arguments and invariants, then run against the rows. Pure.

A call whose arguments don't fit never runs, so no invariant judges it. Each other call is judged before it runs. What
is refused, by an invariant that blocks, by the tool or by a table, leaves the world as it was, whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cli.rehearse.domain import Action, Create, Domain, Find, Invariant, Read, Respond, Table, Tool, Update
from cli.rehearse.faults import listed
from cli.rehearse.fields import argument_problems, normal, shown
from cli.rehearse.values import Scope, Value, filled, matching
from cli.rehearse.world import Breach, Call, Key, Log, Record, Row, World


class Refused(Exception):
    """A call that the world does not carry out; the agent reads why."""


def perform(domain: Domain, world: World, log: Log, call: Call, turn: int) -> tuple[World, Record]:
    """The world after the call, and its line in the log."""
    record = Record(len(log) + 1, turn, call, ok=False)
    tool = domain.tools.get(call.name)
    if tool is None:
        told = f'unknown tool "{call.name}"; the tools are {listed(domain.tools)}'
        return world, replace(record, error=told)
    if problems := argument_problems(tool.arguments, call.arguments):
        return world, replace(record, error="; ".join(problems))
    sound = {name: normal(tool.arguments[name], value) for name, value in call.arguments.items()}
    scope = domain.scope(world, log, replace(call, arguments=sound))
    breaches = [
        breach for each in domain.invariants if call.name in each.tools and (breach := _breach(each, scope)) is not None
    ]
    record = replace(record, breaches=breaches)
    if blocked := [breach.message for breach in breaches if breach.blocked]:
        return world, replace(record, error=f"not allowed: {' '.join(blocked)}")
    try:
        after, result = _run(tool, scope)
    except Refused as refusal:
        return world, replace(record, error=str(refusal))
    return after, replace(record, ok=True, result=result)


def _breach(invariant: Invariant, scope: Scope) -> Breach | None:
    scope = scope.bound(invariant.let)
    if invariant.when is not None and invariant.when.differences(scope):
        return None
    differences = invariant.must.differences(scope)
    if not differences:
        return None
    return Breach(invariant.id, filled(invariant.message, scope), differences, invariant.blocks)


def _run(tool: Tool, scope: Scope) -> tuple[World, Any]:
    """All actions, each on what the one before left; the result is the last one's."""
    scope = scope.bound(tool.let)
    for requirement in tool.requires:
        if requirement.must.differences(scope):
            raise Refused(filled(requirement.error, scope))
    result: Any = None
    for action in tool.actions:
        world, result = _act(action, scope)
        scope = replace(scope, world=world)
    return scope.world, result


def _act(action: Action, scope: Scope) -> tuple[World, Any]:
    match action:
        case Read():
            row = _wanted_row(action.table, action.key, scope)
            return scope.world, _part(row, action.columns)
        case Find():
            return scope.world, _found(action, scope)
        case Create():
            row = _new_row(action, scope)
        case Update():
            old = _wanted_row(action.table, action.key, scope)
            row = {**old, **_values(action.set, scope.of_row(old))}
        case Respond():
            return scope.world, action.answer
    row = _judged(action.table, row)
    return scope.world.with_row(action.table.name, row[action.table.key], row), _part(row, action.columns)


def _found(action: Find, scope: Scope) -> list[dict[str, Any]]:
    rows = list(matching(action.table.name, action.where, scope))
    if (column := action.order_by) is not None:
        rows.sort(key=lambda row: (row[column] is None, row[column] if row[column] is not None else 0))
    return [_part(row, action.columns) for row in rows[: action.limit]]


def _wanted_row(table: Table, key: Value, scope: Scope) -> Row:
    wanted = key.evaluate(scope)
    row = scope.world.row(table.name, wanted)
    if row is None:
        raise Refused(f"there is no {table.one} with {table.key} {shown(wanted)}")
    return row


def _new_row(action: Create, scope: Scope) -> Row:
    table = action.table
    row = {**dict.fromkeys(table.columns), **_values(action.set, scope)}
    if row[table.key] is None and table.new_key is not None:
        row[table.key] = _free_key(table, scope.world)
    key = row[table.key]
    if key is not None and scope.world.row(table.name, key) is not None:
        raise Refused(f"there is already a {table.one} with {table.key} {shown(key)}")
    return row


def _free_key(table: Table, world: World) -> Key:
    """The first number that is free: the same for the same rows."""
    taken, number = world.tables[table.name], 1
    while True:
        text = (table.new_key or "").replace("{n}", str(number))
        key = int(text) if table.columns[table.key].type == "integer" else text
        if key not in taken:
            return key
        number += 1


def _values(given: Mapping[str, Value], scope: Scope) -> dict[str, Any]:
    return {column: value.evaluate(scope) for column, value in given.items()}


def _judged(table: Table, row: Row) -> Row:
    """The row in its one form; Refused when a column would hold what it must not."""
    for column, field in table.columns.items():
        if row[column] is None and field.optional:
            continue
        if (problem := field.problem(row[column])) is not None:
            raise Refused(f"{column} of the {table.one} {problem}")
    return {name: None if row[name] is None else normal(field, row[name]) for name, field in table.columns.items()}


def _part(row: Row, columns: Sequence[str]) -> dict[str, Any]:
    return {column: row[column] for column in columns}

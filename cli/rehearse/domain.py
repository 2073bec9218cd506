"""A sound domain, as it is played. Made by `loading` only; nothing in here can be wrong any more."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cli.rehearse.conditions import Condition
from cli.rehearse.fields import Field, arguments_schema
from cli.rehearse.values import Scope, Value
from cli.rehearse.world import Call, Log, World


@dataclass(frozen=True)
class Table:
    """`one` is what messages call a row; `new_key` is the pattern of keys that rows get which are created without."""

    name: str
    key: str
    columns: Mapping[str, Field]
    one: str
    new_key: str | None = None


@dataclass(frozen=True)
class Read:
    table: Table
    key: Value
    columns: Sequence[str]


@dataclass(frozen=True)
class Find:
    table: Table
    where: Condition | None
    columns: Sequence[str]
    order_by: str | None = None
    limit: int | None = None


@dataclass(frozen=True)
class Create:
    table: Table
    set: Mapping[str, Value]
    columns: Sequence[str]


@dataclass(frozen=True)
class Update:
    table: Table
    key: Value
    set: Mapping[str, Value]
    columns: Sequence[str]


@dataclass(frozen=True)
class Respond:
    answer: Any


Action = Read | Find | Create | Update | Respond


@dataclass(frozen=True)
class Requirement:
    """What the tool itself demands; otherwise the call fails with `error`. No fault of the agent's."""

    must: Condition
    error: str


@dataclass(frozen=True)
class Tool:
    name: str
    description: str
    arguments: Mapping[str, Field]
    let: Mapping[str, Value]
    requires: Sequence[Requirement]
    actions: Sequence[Action]

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, "input_schema": arguments_schema(self.arguments)}


@dataclass(frozen=True)
class Invariant:
    """What must hold before each call of its tools runs."""

    id: str
    tools: frozenset[str]
    let: Mapping[str, Value]
    when: Condition | None
    must: Condition
    message: str
    blocks: bool


@dataclass(frozen=True)
class Present:
    """At least one row, or exactly `count` of them. `told` is the condition as the task has it."""

    table: Table
    where: Condition | None
    told: str
    count: int | None


@dataclass(frozen=True)
class Absent:
    table: Table
    where: Condition | None
    told: str


@dataclass(frozen=True)
class Equal:
    """The row with this key has these values."""

    table: Table
    key: Any
    columns: Mapping[str, Value]


@dataclass(frozen=True)
class Unchanged:
    """The table is as it was at the start, but for the rows with the keys that are left out."""

    table: Table
    but: Sequence[Any]


Expectation = Present | Absent | Equal | Unchanged


@dataclass(frozen=True)
class Bounds:
    """How often a tool must succeed at least and may be called at most."""

    at_least: int = 0
    at_most: int | None = None


@dataclass(frozen=True)
class Limits:
    calls: int | None = None
    tools: Mapping[str, Bounds] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    id: str
    title: str
    turns: Sequence[str]
    start: World
    end: Sequence[Expectation]
    limits: Limits


@dataclass(frozen=True)
class Domain:
    name: str
    description: str
    policy: str
    facts: Mapping[str, Any]
    tables: Mapping[str, Table]
    tools: Mapping[str, Tool]
    invariants: Sequence[Invariant]
    tasks: Mapping[str, Task]

    @cached_property
    def system(self) -> str:
        """The system prompt that agents are offered."""
        return "\n\n".join(filter(None, (self.description.strip(), self.policy.strip())))

    @cached_property
    def offered(self) -> Sequence[dict[str, Any]]:
        """The tools as agents are told of them."""
        return [tool.as_json() for tool in self.tools.values()]

    def scope(self, world: World, log: Log = (), call: Call | None = None) -> Scope:
        return Scope(world, log, {"facts": self.facts, "args": dict(call.arguments) if call else {}})

"""Conditions of the domain language. Each tells how what is found differs from what is wanted; nothing means it holds.

A comparison with null never holds, but for `is: null`, `is_not` and `exists: false`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import re2

from cli.rehearse.fields import same, shown
from cli.rehearse.values import Reference, Scope, Value

_REFERENCE = re.compile(r'"\$([A-Za-z_][\w.]*)"')


class Condition(Protocol):
    """Something that holds in a scope, or not."""

    def differences(self, scope: Scope) -> list[str]:
        """How it does not hold; empty when it does."""
        ...

    def applies(self, scope: Scope) -> bool:
        """False for what a filter leaves out; then it has no differences."""
        ...


def _numbers_or_texts(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compared(found: Any, wanted: Any) -> bool:
        if isinstance(found, bool) or isinstance(wanted, bool):
            return False
        if isinstance(found, str) and isinstance(wanted, str):
            return compare(found, wanted)
        both = isinstance(found, int | float) and isinstance(wanted, int | float)
        return both and compare(found, wanted)

    return compared


def _contains(found: Any, wanted: Any) -> bool:
    if isinstance(found, str) and isinstance(wanted, str):
        return wanted.casefold() in found.casefold()
    return isinstance(found, list) and any(same(item, wanted) for item in found)


def _starts_with(found: Any, wanted: Any) -> bool:
    return isinstance(found, str) and isinstance(wanted, str) and found.casefold().startswith(wanted.casefold())


def _matches(found: Any, wanted: Any) -> bool:
    return isinstance(found, str) and isinstance(wanted, str) and re2.search(wanted, found) is not None


def _one_of(found: Any, wanted: Any) -> bool:
    return found is not None and isinstance(wanted, list) and any(same(found, item) for item in wanted)


OPERATORS: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "is": ("{}", same),
    "is_not": ("anything but {}", lambda found, wanted: not same(found, wanted)),
    "one_of": ("one of {}", _one_of),
    "not_one_of": ("none of {}", lambda found, wanted: found is not None and not _one_of(found, wanted)),
    "at_least": ("at least {}", _numbers_or_texts(lambda found, wanted: found >= wanted)),
    "at_most": ("at most {}", _numbers_or_texts(lambda found, wanted: found <= wanted)),
    "more_than": ("more than {}", _numbers_or_texts(lambda found, wanted: found > wanted)),
    "less_than": ("less than {}", _numbers_or_texts(lambda found, wanted: found < wanted)),
    "contains": ("something that contains {}", _contains),
    "starts_with": ("something that starts with {}", _starts_with),
    "matches": ("something that matches {}", _matches),
    "exists": ("{}", lambda found, wanted: (found is not None) is wanted),
}


@dataclass(frozen=True)
class Test:
    """One subject, one operator. `needs` names arguments without which a filter leaves this test out."""

    __test__ = False

    told: str
    subject: Value
    operator: str
    wanted: Value
    needs: Sequence[str] = ()

    def applies(self, scope: Scope) -> bool:
        return all(Reference(("args", name)).evaluate(scope) is not None for name in self.needs)

    def differences(self, scope: Scope) -> list[str]:
        if not self.applies(scope):
            return []
        found, wanted = self.subject.evaluate(scope), self.wanted.evaluate(scope)
        words, compare = OPERATORS[self.operator]
        if compare(found, wanted):
            return []
        if self.operator == "exists":
            return [f"{self.told} is {shown(found)}, wanted {'something' if wanted else 'nothing'}"]
        return [f"{self.told} is {shown(found)}, wanted {words.format(shown(wanted))}"]


@dataclass(frozen=True)
class All:
    parts: Sequence[Condition]

    def applies(self, scope: Scope) -> bool:
        return not self.parts or any(part.applies(scope) for part in self.parts)

    def differences(self, scope: Scope) -> list[str]:
        return [told for part in self.parts for told in part.differences(scope)]


@dataclass(frozen=True)
class AnyOf:
    parts: Sequence[Condition]

    def applies(self, scope: Scope) -> bool:
        return any(part.applies(scope) for part in self.parts)

    def differences(self, scope: Scope) -> list[str]:
        told = [part.differences(scope) for part in self.parts if part.applies(scope)]
        if not told or not all(told):
            return []
        return [f"none of these holds: {'; or '.join(' and '.join(each) for each in told)}"]


@dataclass(frozen=True)
class Not:
    part: Condition
    told: str

    def applies(self, scope: Scope) -> bool:
        return self.part.applies(scope)

    def differences(self, scope: Scope) -> list[str]:
        if not self.applies(scope) or self.part.differences(scope):
            return []
        return [f"this holds and must not: {_with_values(self.told, scope)}"]


@dataclass(frozen=True)
class Called:
    """A tool was called before, and succeeded."""

    calls: Value
    told: str

    def applies(self, scope: Scope) -> bool:
        return True

    def differences(self, scope: Scope) -> list[str]:
        return [] if self.calls.evaluate(scope) else [f"{_with_values(self.told, scope)} was not called before"]


def _with_values(told: str, scope: Scope) -> str:
    """What a domain says, with the values of what it refers to."""
    return _REFERENCE.sub(lambda found: shown(Reference(tuple(found[1].split("."))).evaluate(scope)), told)

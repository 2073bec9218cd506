"""Faults of a settings document: all of them are found, and refused together.

A fault names its path and what is accepted there, never the value that was sent: that may be
a secret in the wrong place.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

from services.vault.domain.errors import InvalidSettings

# They travel in the trailers of an rpc, which are bounded.
MAX_FAULTS = 10
MAX_NAME_CHARACTERS = 64
_PLAIN_NAME = re.compile(rf"^[A-Za-z_][A-Za-z0-9_.-]{{0,{MAX_NAME_CHARACTERS - 1}}}$")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong."""

    path: str
    problem: str

    @property
    def message(self) -> str:
        """A sentence."""
        return f"{self.path} {self.problem}."

    def public(self) -> dict[str, str]:
        """As a caller reads it."""
        return {"path": self.path, "message": self.message}


@dataclass(slots=True)
class Faults:
    """What was found so far, in the order of the document."""

    found: list[Fault] = field(default_factory=list)

    def add(self, path: str, problem: str) -> None:
        """Note a fault."""
        self.found.append(Fault(path, problem))

    def refuse(self) -> NoReturn:
        """Raise InvalidSettings for what was found."""
        first, *others = self.found[:MAX_FAULTS]
        more = f" There are further faults: {', '.join(fault.path for fault in others)}." if others else ""
        errors = [fault.public() for fault in (first, *others)]
        raise InvalidSettings(first.message + more, path=first.path, details=json.dumps({"errors": errors}))

    def raise_if_any(self) -> None:
        """Refuse where something was found."""
        if self.found:
            self.refuse()

    def object_at(self, value: Any, path: str, known: set[str]) -> dict[str, Any]:
        """The value if it is an object of known members; else what can be read of it, and faults."""
        if not isinstance(value, dict):
            self.add(path or "the document", "must be an object")
            return {}
        for name in sorted(set(value) - known):
            shown = name if _PLAIN_NAME.match(name) else "(a name that no setting has)"
            accepted = f"accepted here: {', '.join(sorted(known))}" if known else "nothing can be set here"
            self.add(joined(path, shown), f"is not known; {accepted}")
        return {name: member for name, member in value.items() if name in known}


def joined(path: str, name: str) -> str:
    """The path of a member."""
    return f"{path}.{name}" if path else name

"""What is wrong with a domain: file, line, and what is accepted instead."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# More than a person reads at once says no more than these.
MAX_FAULTS = 50


@dataclass(frozen=True, order=True)
class Fault:
    """One thing that is wrong. `file` is relative to the domain's folder."""

    file: str
    line: int
    told: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.told}" if self.line else f"{self.file}: {self.told}"


class Unusable(Exception):
    """What was given can't be played; the message says why and what is accepted."""


class UnusableDomain(Unusable):
    """A domain with faults."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults: Sequence[Fault] = sorted(set(faults))
        shown = [str(fault) for fault in self.faults[:MAX_FAULTS]]
        if len(self.faults) > MAX_FAULTS:
            shown.append(f"… and {len(self.faults) - MAX_FAULTS} more")
        super().__init__("\n".join(shown))


def listed(names: Iterable[str]) -> str:
    """What is accepted, for the end of a message."""
    return ", ".join(names) or "none"


def unknown(what: str, name: str, accepted: Iterable[str]) -> str:
    """`unknown column "stats", did you mean "status"? Accepted: …`"""
    accepted = list(accepted)
    near = difflib.get_close_matches(name, accepted, n=1)
    hint = f', did you mean "{near[0]}"?' if near else "."
    return f'unknown {what} "{name}"{hint} Accepted: {listed(accepted)}'

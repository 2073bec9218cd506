"""What requirements come to, by what the installed packages say of themselves."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def needed(lines: list[str]) -> set[str]:
    """Packages that these requirements come to on this machine."""
    found: set[str] = set()
    asked = [(line, "") for line in lines]
    seen: set[tuple[str, str]] = set()
    while asked:
        line, extra = asked.pop()
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = str(canonicalize_name(requirement.name))
        found.add(name)
        for each in ("", *requirement.extras):
            if (name, each) not in seen:
                seen.add((name, each))
                asked += [(further, each) for further in _requires(name)]
    return found


def _requires(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []

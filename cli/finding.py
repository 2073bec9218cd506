"""The answer to one question of `doctor`.

`ok`, `warning` (the platform runs, with less) or `failed` (`up` can't work); all but `ok` say what to do.
"""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to one question."""

    name: str
    status: str
    told: str
    advice: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def ok(name: str, told: str) -> Finding:
    return Finding(name, "ok", told)


def warning(name: str, told: str, advice: str) -> Finding:
    return Finding(name, "warning", told, advice)


def failed(name: str, told: str, advice: str) -> Finding:
    return Finding(name, "failed", told, advice)

"""Settings from the environment, all faults told at once.

    class Settings(BaseServiceSettings):
        sessions_address: str
        capacity: int = Field(64, ge=1)

    settings = load(Settings)

Every variable begins with `MANAGED_AGENTS_`; an empty one counts as unset. Nothing but a `config.py` reads the
environment; the rest of a service gets its settings passed. Values that may hold a password or a key are `SecretStr`,
so that a logged settings object shows none. Fields are texts, numbers, paths and secrets, each of them also `| None`:
too little to load a validation library for in every process.
"""

import os
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, cast, dataclass_transform, get_args, get_type_hints

PREFIX = "MANAGED_AGENTS_"


class ConfigError(Exception):
    """The environment does not describe a process that can run."""


class SecretStr:
    """A text that shows itself only to whoever asks for it by name."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def get_secret_value(self) -> str:
        return self._text

    def __len__(self) -> int:
        return len(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretStr) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "SecretStr('**********')" if self._text else "SecretStr('')"

    __str__ = __repr__


def Field(
    default: Any = MISSING,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    validation_alias: str | None = None,
) -> Any:
    """A setting with bounds, or one that is read from a variable of another name."""
    limits = {"ge": ge, "gt": gt, "le": le, "lt": lt}
    return field(default=default, metadata={"limits": limits, "alias": validation_alias})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field, field))
class _Declared:
    """Makes every subclass a frozen dataclass whose constructor checks what it is given."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True, init=False)(cls)

    def __init__(self, **given: Any) -> None:
        values, faults = _checked(type(self), given)
        if faults:
            raise ConfigError("The environment is not usable:\n" + "\n".join(f"  {fault}" for fault in faults))
        for name, value in values.items():
            object.__setattr__(self, name, value)


class BaseServiceSettings(_Declared):
    """What every process understands; each service adds its own fields."""

    log_level: str = "info"
    data_dir: Path = Path(".managed-agents")
    listen: str = ""
    database_url: SecretStr | None = None
    nats_url: SecretStr | None = None
    internal_token_file: Path | None = None
    supervisor_fd: int | None = None
    grace_seconds: float = 20.0
    # Comma-separated hosts, or host:port, that may be private addresses though somebody else names them.
    allowed_private_hosts: str = ""

    def internal_token(self) -> str | None:
        """The token that calls between services carry; None where no file is configured."""
        if self.internal_token_file is None:
            return None
        return read_secret_file(self.internal_token_file, f"{PREFIX}INTERNAL_TOKEN_FILE")

    def database_dsn(self) -> str:
        """The DSN of the service's own role."""
        return self._required("database_url")

    def nats_server(self) -> str:
        """The URL of NATS, with its token."""
        return self._required("nats_url")

    def listen_address(self) -> str:
        """Where the process binds its gRPC server."""
        return self._required("listen")

    def _required(self, name: str) -> str:
        value = getattr(self, name)
        if not value:
            raise ConfigError(f"{PREFIX}{name.upper()} is not set, and this process can't run without it.")
        return reveal(value)


S = TypeVar("S", bound=BaseServiceSettings)


def load(settings: type[S]) -> S:
    """Read the environment. ConfigError lists each variable that is missing or wrong."""
    found = {}
    for declared in fields(settings):
        if value := os.environ.get(_variable(declared.name, declared.metadata)):
            found[declared.name] = value
    return settings(**found)


def ready_fd() -> int | None:
    """Where a process says by one byte that it serves, if whoever started it wants to hear."""
    text = os.environ.get(f"{PREFIX}READY_FD", "")
    return int(text) if text.isdigit() else None


def read_secret_file(path: Path, variable: str) -> str:
    """The stripped content of a file that holds one secret."""
    try:
        value = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{variable} names {path}, which can't be read: {error.strerror}.") from None
    if not value:
        raise ConfigError(f"{variable} names {path}, which is empty.")
    return value


def reveal(value: str | SecretStr) -> str:
    """The text of a setting that may be wrapped."""
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _variable(name: str, metadata: Mapping[str, Any]) -> str:
    return metadata.get("alias") or f"{PREFIX}{name}".upper()


def _checked(settings: type[_Declared], given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Each field's value in its type, and what is wrong with those that have none."""
    declared = {one.name: one for one in fields(cast(Any, settings))}
    if unknown := given.keys() - declared.keys():
        raise TypeError(f"{settings.__name__} has no setting {', '.join(sorted(unknown))}.")
    kinds = get_type_hints(settings)
    values: dict[str, Any] = {}
    faults: list[str] = []
    for name, one in declared.items():
        variable = _variable(name, one.metadata)
        if name not in given:
            if one.default is MISSING:
                faults.append(f"{variable}: is not set, and this process can't run without it")
            else:
                values[name] = one.default
            continue
        try:
            values[name] = _converted(given[name], kinds[name])
            _check_limits(values[name], one.metadata.get("limits") or {})
        except ValueError as error:
            faults.append(f"{variable}: {error}")
    return values, faults


def _converted(value: Any, kind: Any) -> Any:
    choices = get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    wanted = next(choice for choice in choices if choice is not type(None))
    if type(None) in choices and (value is None or value == "" or (isinstance(value, SecretStr) and not value)):
        return None
    if isinstance(value, wanted):
        return value
    convert, told = _KINDS[wanted]
    try:
        return convert(value)
    except (ValueError, TypeError):
        raise ValueError(f"should be {told}") from None


_KINDS: dict[type, tuple[Callable[[Any], Any], str]] = {
    str: (str, "text"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    Path: (Path, "a path"),
    SecretStr: (SecretStr, "text"),
}


def _check_limits(value: Any, limits: Mapping[str, float | None]) -> None:
    words = {"ge": "at least", "gt": "greater than", "le": "at most", "lt": "less than"}
    for name, limit in limits.items():
        if limit is None or value is None:
            continue
        within = {"ge": value >= limit, "gt": value > limit, "le": value <= limit, "lt": value < limit}[name]
        if not within:
            raise ValueError(f"should be {words[name]} {limit:g}")

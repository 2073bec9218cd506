"""The operator's list prices, `MANAGED_AGENTS_COST_PROFILE`: a JSON document, or the path of a file that holds one.

    {"models": {"claude-sonnet-4-5": {"input": "3", "output": "15", "cache_read": "0.30",
                                      "cache_write_5m": "3.75", "cache_write_1h": "6"}}}

Prices are US dollars per million tokens, as numbers or texts with up to six decimals; zero is a price. They are read
exactly: as whole picodollars per token, of which a cent has ten thousand million. Models are named as agents or the
vendor name them. A model that is not listed has no list price; nothing stands in for it.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kit.config import PREFIX, ConfigError

VARIABLE = f"{PREFIX}COST_PROFILE"
PICODOLLARS_PER_CENT = 10**10
MAX_USD_PER_MILLION = 1_000_000
_DECIMALS = 6
_MAX_FILE_BYTES = 1 << 20
_PRICE = re.compile(r"(0|[1-9][0-9]*)(?:\.([0-9]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Price:
    """What one token of each kind costs, in picodollars."""

    input: int
    output: int
    cache_read: int
    cache_write_5m: int
    cache_write_1h: int


PRICE_NAMES = tuple(one.name for one in fields(Price))


class _Fault(ValueError):
    """What is wrong with a document."""


def read_cost_profile(value: str) -> Mapping[str, Price]:
    """The price of each model; empty where `value` is. ConfigError says what is wrong, and where."""
    value = value.strip()
    if not value:
        return {}
    inline = value.startswith("{")
    source = VARIABLE if inline else f"{VARIABLE} names {value}, which is not usable"
    try:
        return _parse(value if inline else _read_file(value))
    except _Fault as fault:
        raise ConfigError(f"{source}: {fault}.") from None


def from_any_folder(value: str) -> str:
    """The same value for a process that runs in another folder."""
    value = value.strip()
    return value if not value or value.startswith("{") else str(Path(value).expanduser().absolute())


def _read_file(name: str) -> str:
    path = Path(name).expanduser()
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise _Fault(f"it holds more than {_MAX_FILE_BYTES} bytes")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise _Fault(f"it can't be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise _Fault("it is not UTF-8 text") from None


def _parse(text: str) -> dict[str, Price]:
    try:
        # Numbers are kept as they are written: a float would round them.
        document = json.loads(
            text, parse_float=str, parse_int=str, parse_constant=str, object_pairs_hook=_without_repeats
        )
    except json.JSONDecodeError as error:
        raise _Fault(f"it is not JSON ({error.msg} in line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise _Fault("it is nested too deeply") from None
    if not isinstance(document, dict) or document.keys() != {"models"} or not isinstance(document["models"], dict):
        raise _Fault("it must be an object with the one key models, an object of prices by model")
    return {model: _price(model, entry) for model, entry in document["models"].items()}


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise _Fault(f"{next(name for name in names if names.count(name) > 1)!r} stands in it twice")
    return found


def _price(model: str, entry: Any) -> Price:
    where = f"models[{model!r}]"
    if not model.strip():
        raise _Fault(f"{where} must have a name")
    if not isinstance(entry, dict) or entry.keys() != set(PRICE_NAMES):
        raise _Fault(f"{where} must hold exactly {', '.join(PRICE_NAMES)}, in USD per million tokens")
    return Price(**{name: _picodollars(entry[name], f"{where}.{name}") for name in PRICE_NAMES})


def _picodollars(value: Any, where: str) -> int:
    """A dollar for a million tokens is a million picodollars for one."""
    found = _PRICE.fullmatch(value) if isinstance(value, str) else None
    whole, decimals = found.groups(default="") if found else ("", "")
    if not found or len(decimals) > _DECIMALS or len(whole) > len(str(MAX_USD_PER_MILLION)):
        raise _Fault(f"{where} must be a number of 0 or more with at most {_DECIMALS} decimals, such as 3.75")
    price = int(whole) * 10**_DECIMALS + int(decimals.ljust(_DECIMALS, "0"))
    if price > MAX_USD_PER_MILLION * 10**_DECIMALS:
        raise _Fault(f"{where} must be at most {MAX_USD_PER_MILLION}")
    return price

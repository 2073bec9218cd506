"""Options of the loop engine `http`: what may be asked for, and how readers see it.

    {"url": "https://agent.example.com/step", "headers": {"Authorization": "Bearer ${AGENT_TOKEN}"},
     "max_rounds": 16, "timeout_seconds": 300}

Stored options hold no secrets. A header that is a secret by its name must name a credential as `${NAME}`, which a
runner fills in from the session's vaults when it makes a request. Readers see such a header as a mask; a writer that
sends the mask back keeps what stands there. Vault and sessions judge by this, the gateway masks, runners read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kit.addresses import LONGEST_URL, AddressRefused, split_url

HTTP_ENGINE = "http"
MASK = "********"
DEFAULT_ROUNDS, MOST_ROUNDS = 16, 1000
DEFAULT_TIMEOUT_SECONDS, LONGEST_TIMEOUT_SECONDS = 300, 3600
MOST_HEADERS = 32
LONGEST_HEADER = 2048
FIELDS = ("url", "headers", "max_rounds", "timeout_seconds")
# A name of a credential in a header's value.
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]{0,127})\}")

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
_SOUNDS_SECRET = re.compile(r"auth|cookie|secret|token|passw|passphrase|credential|signature|(^|[-_.])(api)?key$", re.I)
# What the platform sets for each request, or what says where the request ends.
_RESERVED = frozenset(
    (
        *("accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect"),
        *("host", "idempotency-key", "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer"),
        *("transfer-encoding", "upgrade"),
    )
)

# Called with the path below the options and what is wrong there.
Fault = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class HttpEngine:
    """Options as a runner uses them."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    max_rounds: int = DEFAULT_ROUNDS
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> HttpEngine:
        """Read options that were judged when they were stored."""
        given = {name: options[name] for name in FIELDS if options.get(name) is not None}
        return cls(**given)


def read_options(value: Any, fault: Fault, stored: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The sound part of options; each other part is told to `fault`. Every option may be left out, or be null.

    `stored` are the options that a mask in `value` stands for.
    """
    if not isinstance(value, Mapping):
        fault("", "must be an object")
        return {}
    for name in value:
        if name not in FIELDS:
            fault(str(name)[:64], f"is not known; accepted here: {', '.join(FIELDS)}")
    sound: dict[str, Any] = {}
    if (url := value.get("url")) is not None:
        if problem := _problem_of_url(url):
            fault("url", problem)
        else:
            sound["url"] = url
    if value.get("headers") is not None:
        sound["headers"] = _read_headers(value["headers"], fault, (stored or {}).get("headers") or {})
    for name, most in (("max_rounds", MOST_ROUNDS), ("timeout_seconds", LONGEST_TIMEOUT_SECONDS)):
        if (number := value.get(name)) is not None:
            if type(number) is int and 1 <= number <= most:
                sound[name] = number
            else:
                fault(name, f"must be a whole number from 1 to {most}")
    return sound


def joined_options(own: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Options over defaults. Headers belong to the address that they were given for, so another one inherits none."""
    inherited = {name: value for name, value in defaults.items() if name not in own}
    if own.get("url") not in (None, defaults.get("url")):
        inherited.pop("headers", None)
    return {name: value for name in FIELDS if (value := {**inherited, **own}.get(name)) is not None}


def masked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as readers see them."""
    headers = options.get("headers")
    if not isinstance(headers, Mapping):
        return dict(options)
    shown = {name: MASK if sounds_secret(name) else value for name, value in headers.items()}
    return {**options, "headers": shown}


def sounds_secret(name: str) -> bool:
    """Whether a header of this name carries a secret."""
    return _SOUNDS_SECRET.search(name) is not None


def names_in(headers: Mapping[str, str]) -> frozenset[str]:
    """The credentials that headers name."""
    return frozenset(name for value in headers.values() for name in REFERENCE.findall(value))


def _problem_of_url(url: Any) -> str:
    told = f"must be a whole address, such as https://agent.example.com/step, of at most {LONGEST_URL} characters"
    if not isinstance(url, str) or not url.isascii() or "#" in url:
        return told
    try:
        split_url(url)
    except AddressRefused:
        return f"{told}, without a name or password in it"
    return ""


def _read_headers(value: Any, fault: Fault, stored: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(value, Mapping) or len(value) > MOST_HEADERS:
        fault("headers", f"must be an object of at most {MOST_HEADERS} headers")
        return {}
    kept = {name.lower(): text for name, text in stored.items()}
    sound: dict[str, str] = {}
    seen: set[str] = set()
    for name, text in value.items():
        shown = name if isinstance(name, str) and _HEADER_NAME.fullmatch(name) else ""
        if text == MASK and shown.lower() in kept:
            text = kept[shown.lower()]
        problem = _problem_of_header(shown, text, seen)
        if problem:
            fault(f"headers.{shown}" if shown else "headers", problem)
        else:
            seen.add(shown.lower())
            sound[shown] = text
    return sound


def _problem_of_header(name: str, value: Any, seen: set[str]) -> str:
    if not name:
        return "must have names of HTTP headers"
    if name.lower() in _RESERVED:
        return "is set by the platform itself"
    if name.lower() in seen:
        return "is given twice"
    if not isinstance(value, str) or len(value) > LONGEST_HEADER or not _HEADER_VALUE.fullmatch(value):
        return f"must be a text of printable ASCII characters, at most {LONGEST_HEADER} of them"
    if value == MASK:
        return "is a mask, and no header of this name is stored; send its value"
    if "${" in REFERENCE.sub("", value):
        return "must name a credential as ${NAME}"
    if sounds_secret(name) and not REFERENCE.search(value):
        return (
            "must name a credential as ${NAME}, such as Bearer ${AGENT_TOKEN}: put the secret into an"
            " environment_variable credential of a vault"
        )
    return ""

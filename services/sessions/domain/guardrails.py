"""An agent's guardrails: what is checked before the model reads an input, and before anybody reads its answer.

    guardrails: {
        "input":  {"max_characters"?, "deny_patterns"?, "endpoint"?, "code"?, "message"?},
        "output": {…the same…},
    }

The checks run in this order, and the first that objects decides. Here only the form is judged, when an agent is
saved; runners do the checking.
"""

from typing import Any

from kit.addresses import LONGEST_URL, AddressRefused, split_url
from services.sessions.domain import shape
from services.sessions.domain.session_errors import InvalidRequest

SIDES = ("input", "output")
CHECK_FIELDS = ("max_characters", "deny_patterns", "endpoint", "code", "message")
PATTERN_FIELDS = ("pattern", "code", "message")
ENDPOINT_FIELDS = ("url", "timeout_seconds", "on_failure")
ON_FAILURE = ("block", "allow")

MAX_CHARACTERS = 1_000_000
MAX_PATTERNS = 50
MAX_PATTERN_CHARACTERS = 1_000
MAX_CODE_CHARACTERS = 64
MAX_MESSAGE_CHARACTERS = 500
DEFAULT_TIMEOUT_SECONDS = 5
MAX_TIMEOUT_SECONDS = 30
_PATTERN_MEMORY_BYTES = 4 * 1024 * 1024
_CODE_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")


def validate_guardrails(value: Any, field: str = "guardrails") -> dict[str, Any] | None:
    """The stored form of `guardrails`; None where there is none."""
    if value is None:
        return None
    shape.mapping(value, field, SIDES)
    sides = {side: _side(value[side], f"{field}.{side}") for side in SIDES if value.get(side) is not None}
    return {side: checks for side, checks in sides.items() if checks} or None


def _side(value: Any, field: str) -> dict[str, Any]:
    shape.mapping(value, field, CHECK_FIELDS)
    checks: dict[str, Any] = {}
    if value.get("max_characters") is not None:
        path = f"{field}.max_characters"
        checks["max_characters"] = shape.whole(value["max_characters"], path, minimum=1, maximum=MAX_CHARACTERS)
    patterns = shape.entries(value.get("deny_patterns"), f"{field}.deny_patterns", maximum=MAX_PATTERNS)
    if patterns:
        checks["deny_patterns"] = [
            _pattern(entry, f"{field}.deny_patterns.{index}") for index, entry in enumerate(patterns)
        ]
    if value.get("endpoint") is not None:
        checks["endpoint"] = _endpoint(value["endpoint"], f"{field}.endpoint")
    told = _told(value, field)
    if told and not checks:
        raise InvalidRequest(
            f"{field} says what to tell and checks nothing: send max_characters, deny_patterns or endpoint.",
            field=field,
        )
    return checks | told


def _pattern(value: Any, field: str) -> dict[str, str]:
    if isinstance(value, str):
        value = {"pattern": value}
    shape.mapping(value, field, PATTERN_FIELDS)
    pattern = shape.text(value.get("pattern"), f"{field}.pattern", minimum=1, maximum=MAX_PATTERN_CHARACTERS)
    _compile(pattern, f"{field}.pattern")
    return {"pattern": pattern, **_told(value, field)}


def _compile(pattern: str, field: str) -> None:
    # Few agents have patterns, and the engine takes its time to load.
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_MEMORY_BYTES
    try:
        re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0] if error.args else error
        told = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidRequest(f"{field} is no RE2 pattern: {shape.shown(told)}.", field=field) from None


def _endpoint(value: Any, field: str) -> dict[str, Any]:
    shape.mapping(value, field, ENDPOINT_FIELDS)
    url = shape.text(value.get("url"), f"{field}.url", minimum=1, maximum=LONGEST_URL)
    try:
        split_url(url)
    except AddressRefused:
        raise InvalidRequest(
            f"{field}.url must be an http or https URL that names a host and no user.", field=f"{field}.url"
        ) from None
    seconds = value.get("timeout_seconds")
    if seconds is None:
        seconds = DEFAULT_TIMEOUT_SECONDS
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_TIMEOUT_SECONDS:
        path = f"{field}.timeout_seconds"
        raise InvalidRequest(f"{path} must be a number above 0, at most {MAX_TIMEOUT_SECONDS}.", field=path)
    on_failure = value.get("on_failure")
    return {
        "url": url,
        "timeout_seconds": seconds,
        "on_failure": "block" if on_failure is None else shape.one_of(on_failure, f"{field}.on_failure", ON_FAILURE),
    }


def _told(value: dict[str, Any], field: str) -> dict[str, str]:
    """What a run that is blocked says, where the agent has words of its own."""
    told: dict[str, str] = {}
    code, message = value.get("code"), value.get("message")
    if code is not None:
        shape.text(code, f"{field}.code", minimum=1, maximum=MAX_CODE_CHARACTERS)
        if not _CODE_CHARACTERS.issuperset(code):
            raise InvalidRequest(
                f"{field}.code must be of lower-case letters, digits and underscores.", field=f"{field}.code"
            )
        told["code"] = code
    if message is not None:
        told["message"] = shape.label(message, f"{field}.message", maximum=MAX_MESSAGE_CHARACTERS)
    return told

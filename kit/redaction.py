"""Keeps secrets out of what is written down.

    register_secret(api_key)
    mask_text(f"called with {api_key}")   # 'called with ********'

Two nets: a value under a key that sounds like a secret, and every text that was registered as one or looks like a
credential. The second works on finished lines, so it also covers what other libraries log.
"""

import json
import re
from typing import Any

MASK = "********"

_SECRET_KEY = re.compile(
    r"secret|password|passwd|passphrase|authorization|credential|cookie|private[_-]?key|api[_-]?key|dsn|database_url|nats_url"
    r"|(?:^|[_-])token$|(?:^|[_-])(?:access|refresh|bearer|internal|session)[_-]?token",
    re.IGNORECASE,
)
_LOOKS_SECRET = re.compile(
    r"(?P<keep>\b(?:Bearer|Basic)\s+|\b[a-z][a-z0-9+.-]*://(?:[^\s/@:\"]*:)?)"
    r"(?:(?<=://)[^\s/@\"]+(?=@)|(?<=:)(?<!://)[^\s/@\"]+(?=@)|(?<=\s)[A-Za-z0-9._~+/=-]{8,})"
    r"|\bsk-[A-Za-z0-9_-]{16,}"
    # Keys of this platform: an API's and a worker's.
    r"|\b(?:ma|mawk)_[A-Za-z0-9]{32,}"
)
_SHORTEST_SECRET = 6
_secrets: dict[str, None] = {}
_pattern: re.Pattern[str] | None = None


def register_secret(value: str | None) -> None:
    """From now on the value is masked wherever it would be written. Very short ones are left, they match anything."""
    global _pattern
    if not value or len(value) < _SHORTEST_SECRET or value in _secrets:
        return
    _secrets[value] = None
    # As it is, and as it stands in JSON that is written in either way.
    forms = {
        form
        for secret in _secrets
        for form in (secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])
    }
    longest_first = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
    # With the backslashes before it: one that is left alone would spoil the JSON of the line. No more than there must
    # be, since a secret may begin with one: what is left would be another spelling of it, and would end too early.
    _pattern = re.compile(rf"\\*?(?:{longest_first})")


def mask_text(text: str) -> str:
    """The text without registered secrets and without what looks like a credential."""
    if _pattern is not None:
        text = _pattern.sub(MASK, text)
    return _LOOKS_SECRET.sub(lambda found: (found["keep"] or "") + MASK, text)


def mask_keys(_logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """A structlog processor: values under keys that sound like secrets, at any depth."""
    return {key: _mask_value(key, value) for key, value in event.items()}


def _mask_value(key: object, value: Any) -> Any:
    if isinstance(key, str) and _SECRET_KEY.search(key) and value not in (None, "", False, True):
        return MASK
    if isinstance(value, dict):
        return {inner: _mask_value(inner, item) for inner, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mask_value(None, item) for item in value]
    return value

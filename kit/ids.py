"""Ids that say what they name and sort by the time they were made.

    new_id("sess")                       # 'sess_01KE8ZQ4T3F0M9V7X2B6N8R5AC'
    is_id("sess", "sess_01KE8…")         # True

An id is a prefix, `_`, and a version 7 UUID in 26 characters of Crockford's base32. Ids of one process grow strictly;
ids of two processes sort by their millisecond.
"""

import re
from functools import cache

import uuid_utils

# Crockford's base32.
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [high + low for high in ALPHABET for low in ALPHABET]
_SHIFTS = tuple(range(120, -1, -10))
# 50 bits, of which the lower 48 are the milliseconds of the UUID.
MOMENT_CHARS = 10


def new_id(prefix: str) -> str:
    """A fresh id with this prefix."""
    number = uuid_utils.uuid7().int
    return prefix + "_" + "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])


def is_id(prefix: str, value: object) -> bool:
    """Whether the value has the form of an id with this prefix; says nothing of its existence."""
    return isinstance(value, str) and _pattern(prefix).fullmatch(value) is not None


def made_at(value: str) -> float:
    """When an id was made, in seconds since 1970, by the clock of whoever made it; 0 for what tells no time."""
    moment = value.partition("_")[2][:MOMENT_CHARS]
    if not moment or any(letter not in ALPHABET for letter in moment):
        return 0.0
    milliseconds = 0
    for letter in moment:
        milliseconds = milliseconds << 5 | ALPHABET.index(letter)
    return milliseconds / 1000


@cache
def _pattern(prefix: str) -> re.Pattern[str]:
    # 26 characters carry 130 bits: the first one can only be 0 to 7.
    return re.compile(rf"{re.escape(prefix)}_[0-7][{ALPHABET}]{{25}}")

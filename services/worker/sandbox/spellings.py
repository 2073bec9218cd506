"""The ways in which a secret may be written down: as it is, and as common encodings show it.

Base64 of a text that has the secret somewhere inside looks different for each of the
three places in a group of three bytes at which it can begin; what is listed is the part
that depends on nothing but the secret.
"""

import base64
import json
from urllib.parse import quote, quote_plus

# Shorter ones stand in any text by chance, and to take them out would garble it and hide nothing.
LEAST_BYTES = 4
_LEAST_ENCODED = 6
_LEAST_LINE = 16
# Longer ones are looked for in parts: what every text is compared with is short, whatever the secret is.
_MOST_BYTES = 8192


def spellings(value: str) -> list[bytes]:
    """Every spelling, each once, the plain one first; none for a value too short to be one."""
    raw = value.encode("utf-8", "surrogatepass")
    if len(raw) < LEAST_BYTES:
        return []
    found = [raw]
    # A key of several lines is still that key when something stands before each line.
    found += [line for line in raw.splitlines() if len(line) >= _LEAST_LINE]
    for escaped in (json.dumps(value), json.dumps(value, ensure_ascii=False).replace("/", "\\/")):
        found.append(escaped[1:-1].encode("utf-8", "surrogatepass"))
    found.append(json.dumps(value, ensure_ascii=False)[1:-1].encode("utf-8", "surrogatepass"))
    for encoded in (quote(raw, safe=""), quote(raw), quote_plus(raw), quote(raw, safe="!'()*~")):
        found += (encoded.encode(), _lower_escapes(encoded).encode())
    found += (core for core in base64_cores(raw) if len(core) >= _LEAST_ENCODED)
    if len(raw) >= _LEAST_ENCODED:
        found += (raw.hex().encode(), raw.hex().upper().encode())
    return list(dict.fromkeys(part for spelling in found for part in _parts(spelling)))


def _parts(spelling: bytes) -> list[bytes]:
    """All of it in parts of about the same size, none so short that it stands anywhere by chance."""
    count = -(-len(spelling) // _MOST_BYTES)
    size = -(-len(spelling) // count)
    return [spelling[start : start + size] for start in range(0, len(spelling), size)]


def base64_cores(raw: bytes) -> list[bytes]:
    """What is the same in every base64 text that has `raw` inside, in both alphabets."""
    cores: list[bytes] = []
    for before in range(3):
        whole = base64.b64encode(bytes(before) + raw)
        # The character in which the secret begins has bits of what stands before it, the last one of what follows.
        core = whole[(0, 2, 3)[before] : (before + len(raw)) * 8 // 6]
        cores += (core, core.replace(b"+", b"-").replace(b"/", b"_"))
    return cores


def _lower_escapes(encoded: str) -> str:
    parts = encoded.split("%")
    return parts[0] + "".join(f"%{part[:2].lower()}{part[2:]}" for part in parts[1:])

"""What a model calls a tool of a server. Pure.

Model vendors take names of 64 letters, digits, `_` and `-`, each once per request. A tool is shown under its server's
name and its own, so that a tool that appears later never renames one that is there; where those two can't be joined
into a sound name that says which is which, or the name is taken, a hash of both tells it apart. The same tool has the
same name in every request, however its neighbours change, unless a tool of the platform or of the caller has it.
"""

import hashlib
import re
from collections.abc import Collection, Iterable

LONGEST_NAME = 64
SEPARATOR = "__"
_HASH_CHARS = 8
_UNUSABLE = re.compile(r"[^A-Za-z0-9_-]")


def visible_names(tools: Iterable[tuple[str, str]], taken: Collection[str]) -> dict[str, tuple[str, str]]:
    """The name of each `(server, tool)` for the model; `taken` are names of other tools."""
    named: dict[str, tuple[str, str]] = {}
    for tool in tools:
        name = _plain(*tool)
        if not name or name in taken or name in named:
            name = _hashed(*tool)
        if name not in taken and name not in named:
            named[name] = tool
    return named


def _plain(server: str, tool: str) -> str:
    """Both names joined, or empty where that would not tell which is which."""
    joined = f"{server}{SEPARATOR}{tool}"
    ambiguous = SEPARATOR in server or SEPARATOR in tool or server.endswith("_") or tool.startswith("_")
    return "" if ambiguous or _UNUSABLE.search(joined) or len(joined) > LONGEST_NAME else joined


def _hashed(server: str, tool: str) -> str:
    digest = hashlib.sha256(f"{server}\0{tool}".encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    readable = _UNUSABLE.sub("_", f"{server}{SEPARATOR}{tool}")
    return f"{readable[: LONGEST_NAME - _HASH_CHARS - 1]}_{digest}"

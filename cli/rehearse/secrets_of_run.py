"""Headers that a run sends to an agent, with values from the environment, and what keeps those out of reports."""

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from cli.rehearse.faults import Unusable

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# The request's own; whoever sets them breaks it.
_OURS = {"host", "content-length", "content-type", "transfer-encoding", "connection", "accept", "te", "upgrade"}
_LIKE_A_SECRET = re.compile(r"auth|cookie|key|token|secret|password|credential|signature", re.IGNORECASE)
# A shorter value says nothing, and would turn up everywhere by chance.
_SHORTEST_SECRET = 4


class Secrets:
    """Values that no report may show, by the name of the variable that held them."""

    def __init__(self) -> None:
        self._spellings: dict[str, str] = {}

    def add(self, name: str, value: str) -> None:
        if len(value) < _SHORTEST_SECRET:
            return
        encoded = base64.b64encode(value.encode()).decode()
        for spelling in (value, quote(value, safe=""), quote(value), encoded, encoded.rstrip("=")):
            self._spellings[spelling] = f"${{{name}}}"

    def scrubbed(self, told: Any) -> Any:
        """The same data without any of the values."""
        match told:
            case str():
                for spelling in sorted(self._spellings, key=len, reverse=True):
                    told = told.replace(spelling, self._spellings[spelling])
                return told
            case dict():
                return {self.scrubbed(key): self.scrubbed(value) for key, value in told.items()}
            case list():
                return [self.scrubbed(item) for item in told]
        return told


def read_headers(given: Iterable[str], environment: Mapping[str, str], secrets: Secrets) -> dict[str, str]:
    """NAME=VALUE, where `${VARIABLE}` stands for the variable's value. Unusable says what is accepted."""
    found: dict[str, str] = {}
    for told in given:
        name, separator, value = told.partition("=")
        name = name.strip().lower()
        if not separator or not _HEADER.fullmatch(name):
            raise Unusable("A --header is NAME=VALUE, such as --header 'authorization=Bearer ${AGENT_TOKEN}'.")
        if name in _OURS:
            raise Unusable(f"--header {name}: this header is the request's own and can't be set.")
        if name in found:
            raise Unusable(f"--header {name} is given twice.")
        if _LIKE_A_SECRET.search(name) and not _VARIABLE.search(value):
            raise Unusable(
                f"--header {name} looks like a secret. Other users of this machine can see what stands in a command; "
                f"put the value into a variable and write --header '{name}=${{VARIABLE}}' in single quotes."
            )
        found[name] = _filled(name, value, environment, secrets)
    return found


def _filled(header: str, value: str, environment: Mapping[str, str], secrets: Secrets) -> str:
    def put(match: re.Match[str]) -> str:
        variable = match[1]
        if not environment.get(variable):
            raise Unusable(f"--header {header}: the environment has no {variable}, or it is empty.")
        secrets.add(variable, environment[variable])
        return environment[variable]

    filled = _VARIABLE.sub(put, value)
    if not filled.isascii() or not filled.isprintable():
        raise Unusable(f"--header {header}: its value may have printable ASCII characters only.")
    return filled

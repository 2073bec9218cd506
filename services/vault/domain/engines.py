"""The area `loop_engine` of the settings: which engine runs the sessions that name none, and its options.

The options of `http` are judged by `kit.http_engine`, as those of a session are. Headers that are secrets by their
names are sealed beside the document and masked in it; a mask that comes back keeps what is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from kit.http_engine import HTTP_ENGINE, masked_options, read_options, sounds_secret
from services.vault.domain import adapters
from services.vault.domain.adapters import DEFAULT_MAX_STEPS
from services.vault.domain.faults import Faults, joined

AREA = "loop_engine"
SEALED = "loop_engine_headers"
_BOUND = "requires_action_timeout_seconds"
_OPTIONS = f"{AREA}.options"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Which engine, with its options in the clear."""

    provider: str = "builtin"
    default_max_steps: int = DEFAULT_MAX_STEPS
    # How long a session waits for answers to its calls; None: for ever.
    requires_action_timeout_seconds: int | None = None
    # None where the document does not say; it then reads as `interactive`.
    approval_mode: str | None = None
    # Of http.
    http: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def document(self) -> dict[str, Any]:
        """As it is shown."""
        return {"provider": self.provider, "options": masked_options(self._options())}

    def clear(self) -> dict[str, Any]:
        """The same with what is masked there, to be compared."""
        return {"provider": self.provider, "options": self._options()}

    def secret_states(self) -> dict[str, Any]:
        """Whether secret headers are set, for an engine that has headers."""
        if self.provider != HTTP_ENGINE:
            return {}
        return {AREA: {"headers": "configured" if self.sealed() else "not_set"}}

    def sealed(self) -> str:
        """The headers that are sealed beside the document, as JSON; empty without any."""
        headers = {name: value for name, value in (self.http.get("headers") or {}).items() if sounds_secret(name)}
        return orjson.dumps(headers).decode() if headers else ""

    def _options(self) -> dict[str, Any]:
        bound = {} if self.requires_action_timeout_seconds is None else {_BOUND: self.requires_action_timeout_seconds}
        if self.provider == HTTP_ENGINE:
            return {**self.http, **bound}
        mode = {} if self.approval_mode is None else {"approval_mode": self.approval_mode}
        return {"default_max_steps": self.default_max_steps, **bound, **mode}


BUILTIN = EngineSettings()


def read(value: Any, faults: Faults, stored: EngineSettings = BUILTIN) -> EngineSettings:
    """The area as somebody wants it; `stored` is what a mask in it stands for."""
    section = faults.object_at(value, AREA, {"provider", "options"})
    if not isinstance(value, dict):
        return BUILTIN
    count = len(faults.found)
    adapter = adapters.choose(AREA, "provider", section, faults)
    if len(faults.found) > count:
        # The options of what can't be chosen are nobody's.
        return BUILTIN
    if adapter.id == HTTP_ENGINE:
        return _read_http(section.get("options"), faults, stored)
    options = adapters.read_options(AREA, adapter, section.get("options"), faults)
    return EngineSettings(
        adapter.id,
        options.get("default_max_steps", DEFAULT_MAX_STEPS),
        options.get(_BOUND),
        options.get("approval_mode"),
    )


def stored_with(sealed: str) -> EngineSettings:
    """What a mask in a stored document stands for."""
    return EngineSettings(HTTP_ENGINE, http={"headers": orjson.loads(sealed)}) if sealed else BUILTIN


def _read_http(value: Any, faults: Faults, stored: EngineSettings) -> EngineSettings:
    given = {} if value is None else value
    if not isinstance(given, dict):
        faults.add(_OPTIONS, "must be an object")
        return BUILTIN
    bound = given.get(_BOUND)
    if problem := adapters.problem_of(adapters.HTTP_OPTIONS[_BOUND], bound):
        faults.add(joined(_OPTIONS, _BOUND), problem)
        bound = None
    others = {name: option for name, option in given.items() if name != _BOUND}
    count = len(faults.found)
    options = read_options(others, lambda path, problem: _add(faults, path, problem), stored.http)
    if "url" not in options and len(faults.found) == count:
        faults.add(joined(_OPTIONS, "url"), "is required for http")
    return EngineSettings(HTTP_ENGINE, requires_action_timeout_seconds=bound, http=options)


def _add(faults: Faults, path: str, problem: str) -> None:
    faults.add(joined(_OPTIONS, path) if path else _OPTIONS, problem)

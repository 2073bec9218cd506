"""What a candidate is worth: a whole document before it is saved, one area by itself, and what a save would change."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from services.vault.domain import adapters, artifacts, engines, settings
from services.vault.domain.faults import Faults, joined
from services.vault.domain.settings import MASK, Settings

# Nothing that can be set needs a process to be started anew: runners, sessions and the gateway ask for the document.
RESTART_REQUIRED = False
_SOUNDS_SECRET = re.compile(
    r"api[_-]?key|access[_-]?key|private[_-]?key|secret|token(?!s)|passw|passphrase|credential|authorization",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a test of one area found."""

    adapter: str
    status: str
    message: str


def judge(document: Any, stored: Settings, environ: Mapping[str, str]) -> Settings:
    """Reads what somebody wants to save, over what is `stored`. InvalidSettings for whatever speaks against it."""
    candidate = settings.parse(
        document,
        stored_api_key=stored.model.api_key,
        stored_vendor=stored.model.vendor,
        stored_artifacts=stored.artifacts,
        stored_engine=stored.engine,
    )
    faults = Faults()
    settings.check_credentials(candidate.model, environ, faults)
    artifacts.check_reference(candidate.artifacts, environ, faults)
    faults.raise_if_any()
    return candidate


def judge_area(area: str, config: Any, stored: Settings, environ: Mapping[str, str]) -> Verdict:
    """Judges one area without the others. InvalidSettings for a malformed one."""
    faults = Faults()
    if area not in adapters.ADAPTERS:
        faults.add("area", f"must be one of {', '.join(adapters.ADAPTERS)}")
        faults.refuse()
    named = config.get("vendor" if area == "model" else "provider") if isinstance(config, dict) else None
    adapter = adapters.find(area, named)
    if adapter is not None and adapter.reason:
        return Verdict(adapter.id, "unavailable", f"{adapter.label} can't be used: {adapter.reason}.")
    if area == "model":
        settings.check_credentials(settings.read_model(config, faults, stored.model), environ, faults)
    elif area == artifacts.AREA:
        artifacts.check_reference(artifacts.read(config, faults, stored.artifacts), environ, faults)
    elif area == engines.AREA:
        engines.read(config, faults, stored.engine)
    elif area == "memory":
        settings.read_memory(config, faults)
    else:
        settings.read_plain(area, config, faults)
    faults.raise_if_any()
    assert adapter is not None
    return Verdict(adapter.id, "ok", _found(area, adapter.id))


def changed_paths(old: Settings, new: Settings) -> list[str]:
    """Where two documents differ. A secret is compared in the clear, and only its path is told."""
    before, after = dict(_leaves(_clear(old))), dict(_leaves(_clear(new)))
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def masked(value: Any, name: str = "") -> Any:
    """A document of unknown making, without what stands under a name that sounds like a secret."""
    if _SOUNDS_SECRET.search(name) and value is not None:
        return MASK
    if isinstance(value, dict):
        return {key: masked(member, key) for key, member in value.items()}
    return [masked(member) for member in value] if isinstance(value, list) else value


def _found(area: str, adapter: str) -> str:
    if area == "model":
        return "The settings are sound." if adapter == "demo" else "The settings are sound. The vendor was not asked."
    if area == "storage.metadata":
        return "The database answers."
    if area == artifacts.AREA and adapter == "s3":
        return "The settings are sound. The bucket was not asked."
    if area == engines.AREA and adapter == "http":
        return "The settings are sound. The agent was not asked."
    return "The settings are sound."


def _clear(document: Settings) -> dict[str, Any]:
    shown = document.document()
    shown["model"]["api_key"] = document.model.api_key or None
    shown["loop_engine"] = document.engine.clear()
    options = shown["storage"]["artifacts"]["options"]
    if "secret_access_key" in options:
        options["secret_access_key"] = document.artifacts.secret_access_key or None
    return shown


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, member in value.items():
            yield from _leaves(member, joined(path, name))
    else:
        yield path, value

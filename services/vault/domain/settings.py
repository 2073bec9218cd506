"""The settings document: its shape, its secrets and what the environment says first.

A document is a JSON object `{schema_version, model, loop_engine, storage, memory, sandbox}`.
A section that is left out has its defaults. Secrets in it are taken out before it is stored
(they are sealed beside it) and are shown as a mask. `${NAME}` in place of a secret is read from
the process environment when it is used; only names that look like vendor keys are taken, so
that a settings document can't be used to read the platform's own secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from services.vault.domain import adapters, artifacts, engines
from services.vault.domain.adapters import LONGEST_WAIT_SECONDS, default_of
from services.vault.domain.artifacts import LOCAL as LOCAL_ARTIFACTS
from services.vault.domain.artifacts import ArtifactSettings
from services.vault.domain.engines import BUILTIN, EngineSettings
from services.vault.domain.faults import Faults

MASK = "********"
SCHEMA_VERSION = 1
VENDORS = tuple(adapter.id for adapter in adapters.ADAPTERS["model"])
VENDOR_KEYS = {"ANTHROPIC_API_KEY": "anthropic", "OPENAI_API_KEY": "openai"}
VENDOR_HOSTS = {"anthropic": "api.anthropic.com", "openai": "api.openai.com"}
DEFAULT_MODELS = {"demo": "demo", "anthropic": "claude-sonnet-5-5", "openai": "gpt-5.1"}
MAX_TEXT_CHARACTERS = 2048
NO_ADDRESS = "must be a whole address, such as https://models.example.com/v1"
SECTIONS = {"schema_version", "model", "loop_engine", "storage", "memory", "sandbox"}
_BOUND = "requires_action_timeout_seconds"
_REFERENCE = re.compile(r"^\$\{([A-Z][A-Z0-9_]{0,127})\}$")
_REFERABLE = re.compile(r"^(?!MANAGED_AGENTS_)[A-Z0-9_]*(API_KEY|TOKEN)$|^MANAGED_AGENTS_MODEL_API_KEY$")


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which vendor speaks. `api_key` may be a `${NAME}` reference."""

    vendor: str = "demo"
    base_url: str = ""
    api_key: str = field(default="", repr=False)
    default_model: str = "demo"


@dataclass(frozen=True, slots=True)
class Settings:
    """A whole document, in the clear. Areas with one choice and no options have no field."""

    model: ModelSettings = ModelSettings()
    engine: EngineSettings = BUILTIN
    artifacts: ArtifactSettings = LOCAL_ARTIFACTS

    def document(self) -> dict[str, Any]:
        """The public JSON object, with secrets masked."""
        model = {
            "vendor": self.model.vendor,
            "base_url": _shown_url(self.model.base_url) or None,
            "api_key": MASK if self.model.api_key else None,
            "default_model": self.model.default_model,
            "options": {},
        }
        return {
            "schema_version": SCHEMA_VERSION,
            "model": model,
            "loop_engine": self.engine.document(),
            "storage": {
                "metadata": {"provider": default_of("storage.metadata"), "options": {}},
                "artifacts": self.artifacts.document(),
            },
            "memory": {"enabled": False, "provider": default_of("memory"), "options": {}},
            "sandbox": {"provider": default_of("sandbox"), "options": {}},
        }

    @property
    def requires_action_timeout_seconds(self) -> int | None:
        """How long a session waits for answers to its calls; None: for ever."""
        return self.engine.requires_action_timeout_seconds

    def secret_states(self) -> dict[str, Any]:
        """For each secret path whether it is set."""
        model = {"api_key": "configured" if self.model.api_key else "not_set"}
        return {"model": model, **self.engine.secret_states(), **self.artifacts.secret_states()}

    def secrets(self) -> dict[str, str]:
        """What is sealed beside the document, by the names under which `reopen` reads it."""
        kept = {"api_key": self.model.api_key, "secret_access_key": self.artifacts.secret_access_key}
        return kept | ({engines.SEALED: headers} if (headers := self.engine.sealed()) else {})


def from_environment(environ: Mapping[str, str]) -> Settings:
    """What the process environment describes, before anything was saved.

    `MANAGED_AGENTS_MODEL_*` wins; without a vendor the first vendor key that is set
    decides; without any key the built-in demo model speaks. ValueError for a vendor
    that does not exist, and for a bound on waiting that is none.
    """
    vendor = environ.get("MANAGED_AGENTS_MODEL_VENDOR") or next(
        (vendor for name, vendor in VENDOR_KEYS.items() if environ.get(name)), "demo"
    )
    if vendor not in VENDORS:
        raise ValueError(f"MANAGED_AGENTS_MODEL_VENDOR is {vendor!r}; accepted: {', '.join(VENDORS)}")
    vendor_key = next((environ.get(name, "") for name, owner in VENDOR_KEYS.items() if owner == vendor), "")
    api_key = environ.get("MANAGED_AGENTS_MODEL_API_KEY") or vendor_key
    model = ModelSettings(
        vendor=vendor,
        base_url=environ.get("MANAGED_AGENTS_MODEL_BASE_URL", ""),
        api_key=api_key if vendor != "demo" else "",
        default_model=environ.get("MANAGED_AGENTS_MODEL") or DEFAULT_MODELS[vendor],
    )
    return Settings(
        model=model,
        engine=EngineSettings(requires_action_timeout_seconds=_bound_of_environment(environ)),
        artifacts=artifacts.from_environment(environ),
    )


def parse(
    document: Any,
    *,
    stored_api_key: str,
    stored_vendor: str = "",
    stored_artifacts: ArtifactSettings = LOCAL_ARTIFACTS,
    stored_engine: EngineSettings = BUILTIN,
) -> Settings:
    """Reads a document; a mask keeps `stored_api_key`, which belongs to `stored_vendor`, or the secret that it hides.

    InvalidSettings names every fault by its path.
    """
    faults = Faults()
    sections = faults.object_at(document, "", SECTIONS)
    if not isinstance(document, dict):
        # There is nothing more to say of it.
        faults.refuse()
    version = sections.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        faults.add("schema_version", f"must be {SCHEMA_VERSION}")
    model = read_model(sections.get("model"), faults, ModelSettings(stored_vendor, api_key=stored_api_key))
    engine = engines.read(sections.get(engines.AREA, {"provider": default_of(engines.AREA)}), faults, stored_engine)
    kept = _read_others(sections, faults, stored_artifacts)
    faults.raise_if_any()
    return Settings(
        model=model,
        engine=engine,
        artifacts=kept,
    )


def reopen(document: Any, secrets: Mapping[str, str]) -> Settings:
    """Reads a document that was saved, with what was sealed beside it; one of an earlier build may hold less."""
    storage = document.get("storage") if isinstance(document, dict) else None
    kept = storage.get("artifacts") if isinstance(storage, dict) else None
    if isinstance(storage, dict) and isinstance(kept, dict) and kept.get("provider") == "none":
        # The only choice there was, before files could be kept.
        document = document | {"storage": storage | {"artifacts": LOCAL_ARTIFACTS.document()}}
    stored = ArtifactSettings("s3", secret_access_key=secrets.get("secret_access_key", ""))
    return parse(
        document,
        stored_api_key=secrets["api_key"],
        stored_artifacts=stored,
        stored_engine=engines.stored_with(secrets.get(engines.SEALED, "")),
    )


def read_model(value: Any, faults: Faults, stored: ModelSettings) -> ModelSettings:
    """The area `model`."""
    known = {"vendor", "base_url", "api_key", "default_model", "options"}
    section = faults.object_at(value, "model", known)
    if not isinstance(value, dict):
        return ModelSettings()
    count = len(faults.found)
    adapter = adapters.choose("model", "vendor", section, faults)
    knows_vendor = len(faults.found) == count
    base_url = _text(section, "base_url", faults)
    if problem := _problem_of_url(base_url):
        faults.add("model.base_url", problem)
    api_key = _text(section, "api_key", faults)
    if (reference := _REFERENCE.match(api_key)) and not _REFERABLE.match(reference.group(1)):
        faults.add("model.api_key", "may only refer to a variable whose name ends with API_KEY or TOKEN")
    if api_key == MASK:
        api_key = stored.api_key
        if knows_vendor and api_key and _is_anothers(stored.vendor, adapter.id):
            faults.add("model.api_key", f"is the stored key of {stored.vendor}; send the one of {adapter.id}")
    adapters.read_options("model", adapter, section.get("options"), faults)
    default_model = _text(section, "default_model", faults) or DEFAULT_MODELS[adapter.id]
    return ModelSettings(adapter.id, base_url, api_key, default_model)


def read_memory(value: Any, faults: Faults) -> None:
    """The area `memory`."""
    if isinstance(value, dict) and (enabled := value.get("enabled", False)) is not False:
        problem = f"must be false: {adapters.NO_MEMORY}" if enabled is True else "must be true or false"
        faults.add("memory.enabled", problem)
    _read_adapter("memory", value, faults, extra={"enabled"})


def read_plain(area: str, value: Any, faults: Faults) -> None:
    """An area that is `{provider, options}` and nothing else."""
    _read_adapter(area, value, faults)


def check_credentials(model: ModelSettings, environ: Mapping[str, str], faults: Faults) -> None:
    """A vendor's own address needs a key, and a reference must lead to one. What is saved already may lack it."""
    if model.vendor == "demo":
        return
    if reference := _REFERENCE.match(model.api_key):
        if not environ.get(reference.group(1)):
            faults.add("model.api_key", f"refers to {reference.group(1)}, which is not set where the vault runs")
        return
    is_vendors_own = not model.base_url or urlsplit(model.base_url).hostname == VENDOR_HOSTS[model.vendor]
    if is_vendors_own and not model.api_key.strip():
        faults.add("model.api_key", f"is required for {model.vendor}")


def resolve_reference(secret: str, environ: Mapping[str, str]) -> str:
    """The secret itself, or what the environment holds for a `${NAME}`; empty if unset."""
    match = _REFERENCE.match(secret)
    return environ.get(match.group(1), "") if match else secret


def _read_others(sections: Mapping[str, Any], faults: Faults, stored: ArtifactSettings) -> ArtifactSettings:
    kept = LOCAL_ARTIFACTS
    if "storage" in sections:
        storage = faults.object_at(sections["storage"], "storage", {"metadata", "artifacts"})
        if "metadata" in storage:
            read_plain("storage.metadata", storage["metadata"], faults)
        if "artifacts" in storage:
            kept = artifacts.read(storage["artifacts"], faults, stored)
    if "memory" in sections:
        read_memory(sections["memory"], faults)
    if "sandbox" in sections:
        read_plain("sandbox", sections["sandbox"], faults)
    return kept


def _read_adapter(
    area: str, value: Any, faults: Faults, extra: frozenset[str] | set[str] = frozenset()
) -> tuple[str, dict[str, Any]]:
    section = faults.object_at(value, area, {"provider", "options", *extra})
    if not isinstance(value, dict):
        return default_of(area), {}
    count = len(faults.found)
    adapter = adapters.choose(area, "provider", section, faults)
    if len(faults.found) > count:
        # The options of what can't be chosen are nobody's.
        return adapter.id, {}
    return adapter.id, adapters.read_options(area, adapter, section.get("options"), faults)


def _is_anothers(stored: str, vendor: str) -> bool:
    return vendor != "demo" and stored not in ("", "demo", vendor)


def _problem_of_url(url: str) -> str:
    if not url:
        return ""
    if not url.startswith(("http://", "https://")):
        return "must start with http:// or https://"
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return NO_ADDRESS
    if not is_whole or any(character.isspace() for character in url):
        return NO_ADDRESS
    if parts.username is not None or parts.password is not None:
        return "must not hold a name or a password; put the secret into model.api_key"
    if "?" in url or "#" in url:
        return "must end with its path: requests add theirs to it"
    return ""


def _shown_url(url: str) -> str:
    """The address without a password, which only the environment can put there."""
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    return url if "@" not in authority else f"{scheme}{separator}{MASK}@{authority.rpartition('@')[2]}{slash}{path}"


def _bound_of_environment(environ: Mapping[str, str]) -> int | None:
    text = environ.get("MANAGED_AGENTS_REQUIRES_ACTION_TIMEOUT_SECONDS", "")
    if not text:
        return None
    seconds = int(text) if text.isascii() and text.isdigit() else 0
    if adapters.problem_of(adapters.BUILTIN_OPTIONS[_BOUND], seconds):
        raise ValueError(
            f"MANAGED_AGENTS_REQUIRES_ACTION_TIMEOUT_SECONDS is {text!r}; accepted: a whole number of seconds from 1 to"
            f" {LONGEST_WAIT_SECONDS}"
        )
    return seconds


def _text(section: Mapping[str, Any], name: str, faults: Faults) -> str:
    text = section.get(name)
    if text is None:
        return ""
    if not isinstance(text, str) or len(text) > MAX_TEXT_CHARACTERS or not _is_plain(text):
        problem = f"must be a string of at most {MAX_TEXT_CHARACTERS} characters without control characters, or null"
        faults.add(f"model.{name}", problem)
        return ""
    return text


def _is_plain(text: str) -> bool:
    """Whether it can stand in a header and in the database."""
    return not any(ord(each) < 32 or ord(each) == 127 or 0xD800 <= ord(each) < 0xE000 for each in text)

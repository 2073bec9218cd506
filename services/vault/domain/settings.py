"""The settings document: its shape, its secrets and what the environment says first.

A document is a JSON object `{schema_version, model, loop_engine}`. Secrets in it are
taken out before it is stored (they are sealed beside it) and are shown as a mask.
`${NAME}` in place of a secret is read from the process environment when it is used;
only names that look like vendor keys are taken, so that a settings document can't be
used to read the platform's own secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from services.vault.domain.errors import InvalidSettings

MASK = "********"
VENDORS = ("demo", "anthropic", "openai")
VENDOR_KEYS = {"ANTHROPIC_API_KEY": "anthropic", "OPENAI_API_KEY": "openai"}
ENGINES = ("builtin",)
DEFAULT_MODELS = {"demo": "demo", "anthropic": "claude-sonnet-5-5", "openai": "gpt-5.1"}
MAX_TEXT_CHARACTERS = 2048
DEFAULT_MAX_STEPS, LONGEST_MAX_STEPS = 25, 1000
# Ten years: whoever wants to wait longer sets no bound.
LONGEST_WAIT_SECONDS = 315_360_000
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
    """A whole document, in the clear."""

    model: ModelSettings = ModelSettings()
    engine: str = "builtin"
    default_max_steps: int = DEFAULT_MAX_STEPS
    # How long a session waits for answers to its calls; None: for ever.
    requires_action_timeout_seconds: int | None = None

    def document(self) -> dict[str, Any]:
        """The public JSON object, with secrets masked."""
        return {
            "schema_version": 1,
            "model": {
                "vendor": self.model.vendor,
                "base_url": self.model.base_url or None,
                "api_key": MASK if self.model.api_key else None,
                "default_model": self.model.default_model,
            },
            "loop_engine": {"provider": self.engine, "options": self._options()},
        }

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"default_max_steps": self.default_max_steps}
        if self.requires_action_timeout_seconds is not None:
            options["requires_action_timeout_seconds"] = self.requires_action_timeout_seconds
        return options

    def secret_states(self) -> dict[str, Any]:
        """For each secret path whether it is set."""
        return {"model": {"api_key": "configured" if self.model.api_key else "not_set"}}


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
    return Settings(model=model, requires_action_timeout_seconds=_bound_of_environment(environ))


def parse(document: Any, *, stored_api_key: str) -> Settings:
    """Reads a document that a caller wants to save; a mask keeps `stored_api_key`.

    InvalidSettings names the path of the first fault.
    """
    _only(document, "", {"schema_version", "model", "loop_engine"})
    if document.get("schema_version") != 1:
        raise _invalid("schema_version", "must be 1")
    return Settings(
        model=_parse_model(document.get("model"), stored_api_key),
        **_parse_engine(document.get("loop_engine", {"provider": "builtin"})),
    )


def resolve_reference(secret: str, environ: Mapping[str, str]) -> str:
    """The secret itself, or what the environment holds for a `${NAME}`; empty if unset."""
    match = _REFERENCE.match(secret)
    return environ.get(match.group(1), "") if match else secret


def _parse_model(value: Any, stored_api_key: str) -> ModelSettings:
    _only(value, "model", {"vendor", "base_url", "api_key", "default_model"})
    vendor = value.get("vendor")
    if vendor not in VENDORS:
        raise _invalid("model.vendor", f"must be one of {', '.join(VENDORS)}")
    base_url = _text(value, "model", "base_url")
    if base_url and not base_url.startswith(("http://", "https://")):
        raise _invalid("model.base_url", "must start with http:// or https://")
    api_key = _text(value, "model", "api_key")
    if (reference := _REFERENCE.match(api_key)) and not _REFERABLE.match(reference.group(1)):
        raise _invalid("model.api_key", "may only refer to a variable whose name ends with API_KEY or TOKEN")
    return ModelSettings(
        vendor=vendor,
        base_url=base_url,
        api_key=stored_api_key if api_key == MASK else api_key,
        default_model=_text(value, "model", "default_model") or DEFAULT_MODELS[vendor],
    )


def _parse_engine(value: Any) -> dict[str, Any]:
    _only(value, "loop_engine", {"provider", "options"})
    if value.get("provider") not in ENGINES:
        raise _invalid("loop_engine.provider", f"must be one of {', '.join(ENGINES)}")
    options = value.get("options", {})
    _only(options, "loop_engine.options", {"default_max_steps", "requires_action_timeout_seconds"})
    steps = options.get("default_max_steps", DEFAULT_MAX_STEPS)
    if not isinstance(steps, int) or isinstance(steps, bool) or not 1 <= steps <= LONGEST_MAX_STEPS:
        raise _invalid("loop_engine.options.default_max_steps", f"must be a whole number from 1 to {LONGEST_MAX_STEPS}")
    bound = options.get("requires_action_timeout_seconds")
    if bound is not None and not _is_bound(bound):
        path = "loop_engine.options.requires_action_timeout_seconds"
        raise _invalid(path, f"must be a whole number of seconds from 1 to {LONGEST_WAIT_SECONDS}, or null")
    return {"engine": value["provider"], "default_max_steps": steps, "requires_action_timeout_seconds": bound}


def _is_bound(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LONGEST_WAIT_SECONDS


def _bound_of_environment(environ: Mapping[str, str]) -> int | None:
    text = environ.get("MANAGED_AGENTS_REQUIRES_ACTION_TIMEOUT_SECONDS", "")
    if not text:
        return None
    seconds = int(text) if text.isascii() and text.isdigit() else 0
    if not _is_bound(seconds):
        raise ValueError(
            f"MANAGED_AGENTS_REQUIRES_ACTION_TIMEOUT_SECONDS is {text!r}; accepted: a whole number of seconds from 1 to"
            f" {LONGEST_WAIT_SECONDS}"
        )
    return seconds


def _text(value: dict[str, Any], path: str, name: str) -> str:
    text = value.get(name)
    if text is None:
        return ""
    if not isinstance(text, str) or len(text) > MAX_TEXT_CHARACTERS or "\x00" in text:
        raise _invalid(f"{path}.{name}", f"must be a string of at most {MAX_TEXT_CHARACTERS} characters, or null")
    return text


def _only(value: Any, path: str, known: set[str]) -> None:
    if not isinstance(value, dict):
        raise _invalid(path or "the document", "must be an object")
    if unknown := sorted(set(value) - known):
        where = f"{path}.{unknown[0]}" if path else unknown[0]
        raise _invalid(where, f"is not known; accepted here: {', '.join(sorted(known))}")


def _invalid(path: str, problem: str) -> InvalidSettings:
    return InvalidSettings(f"{path} {problem}.", path=path)

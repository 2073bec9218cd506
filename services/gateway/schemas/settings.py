"""Shapes of the runtime settings. The vault judges what a document says; here it only has to be one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from .shapes import AnyObject, Rendered, Shape

MAX_REVISION = 2**63 - 1
_DOCUMENT = {"schema_version": 1, "model": {"vendor": "demo"}}


class SettingsCandidate(Shape):
    """A whole document, or what a save would send: the document under `config`."""

    model_config = ConfigDict(extra="allow", strict=True, json_schema_extra={"examples": [_DOCUMENT]})

    # Judged as for a save, though only the document matters here.
    revision: Annotated[int, Field(ge=0, le=MAX_REVISION)] = 0


class SettingsTest(Shape):
    """One area of a document, such as `storage.artifacts`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"area": "model", "config": {"vendor": "demo"}}]})

    area: Annotated[str, Field(min_length=1, max_length=64)]
    config: AnyObject


class SettingsSave(Shape):
    """A whole document, and the revision that it was made from."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"revision": 0, "config": _DOCUMENT}]})

    revision: Annotated[int, Field(ge=0, le=MAX_REVISION)]
    config: AnyObject


class SettingsFault(Rendered):
    """What is wrong, and where."""

    path: str
    message: str


class RuntimeSettings(Rendered):
    """What is saved and what is in effect; every secret is masked."""

    type: Literal["runtime_settings"]
    schema_version: int
    revision: int
    effective_revision: int
    saved_config: Any
    effective_config: dict[str, Any]
    restart_required: bool
    activation_status: Literal["active", "pending", "failed"]
    activation_errors: list[SettingsFault]
    diagnostics: dict[str, Any]
    secret_states: dict[str, Any]
    adapters: dict[str, list[dict[str, Any]]]


class SettingsValidation(Rendered):
    """What a save of the candidate would do."""

    type: Literal["settings_validation"]
    valid: Literal[True]
    errors: list[SettingsFault]
    config: dict[str, Any]
    changed_paths: list[str]
    restart_required: bool


class SettingsTestResult(Rendered):
    """What was found."""

    type: Literal["settings_test"]
    area: str
    adapter: str
    ok: bool
    status: Literal["ok", "unavailable", "failed"]
    message: str

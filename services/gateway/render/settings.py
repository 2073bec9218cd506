"""Public JSON of the runtime settings. The documents come from the vault, masked, and pass through."""

from __future__ import annotations

from typing import Any

import orjson

from managed_agents.vault.v1.vault_pb2 import GetSettingsResponse, TestSettingsResponse, ValidateSettingsResponse
from managed_agents.worker.v1.runner_pb2 import DescribeRunnerResponse

SCHEMA_VERSION = 1
# Where the settings themselves are kept: schema and table.
METADATA_PATH = "vault.settings"
# What only a runner can tell about.
RUNNER_AREAS = ("loop_engine", "sandbox")
NO_RUNNER = "No runner answers, so nothing can be executed right now."


def render_settings(settings: GetSettingsResponse, runner: DescribeRunnerResponse | None) -> bytes:
    """What is saved, what is in effect, and how what it names is doing."""
    return orjson.dumps(
        {
            "type": "runtime_settings",
            "schema_version": SCHEMA_VERSION,
            "revision": settings.revision,
            "effective_revision": settings.effective_revision,
            "saved_config": orjson.Fragment(settings.saved_document_json),
            "effective_config": orjson.Fragment(settings.document_json),
            "restart_required": settings.restart_required,
            "activation_status": settings.activation_status,
            "activation_errors": orjson.Fragment(settings.activation_errors_json),
            "diagnostics": _diagnostics(runner),
            "secret_states": orjson.Fragment(settings.secret_states_json),
            "adapters": orjson.Fragment(settings.adapters_json),
        }
    )


def render_validation(answer: ValidateSettingsResponse) -> bytes:
    """A candidate that may be saved, with its defaults filled in."""
    return orjson.dumps(
        {
            "type": "settings_validation",
            "valid": True,
            "errors": [],
            "config": orjson.Fragment(answer.document_json),
            "changed_paths": list(answer.changed_paths),
            "restart_required": answer.restart_required,
        }
    )


def render_test(area: str, answer: TestSettingsResponse, runner: DescribeRunnerResponse | None) -> bytes:
    """The vault's verdict, and the runner's where the area is about running."""
    status, message = answer.status, answer.message
    if status == "ok" and area in RUNNER_AREAS:
        status, message = _by_runner(area, answer.adapter, runner)
    return orjson.dumps(
        {
            "type": "settings_test",
            "area": area,
            "adapter": answer.adapter,
            "ok": status == "ok",
            "status": status,
            "message": message,
        }
    )


def _by_runner(area: str, adapter: str, runner: DescribeRunnerResponse | None) -> tuple[str, str]:
    if runner is None:
        return "failed", NO_RUNNER
    if area == "sandbox" and adapter not in runner.sandbox_providers:
        return "failed", f"The runner of this installation does not serve {adapter}."
    if area == "sandbox":
        return "ok", f"A runner serves {adapter}, by {runner.sandbox_kind}."
    if adapter not in ("builtin", *runner.loop_engines):
        return "failed", f"The runner of this installation does not serve {adapter}."
    return "ok", "A runner answers and takes turns."


def _diagnostics(runner: DescribeRunnerResponse | None) -> dict[str, Any]:
    # The database answered: that is where the document came from.
    metadata = {"provider": "postgres", "path": METADATA_PATH, "health": "ok"}
    if runner is None:
        away = {"health": "unreachable", "message": NO_RUNNER}
        return {"metadata": metadata, "loop_engine": away, "sandbox": away}
    sandbox = {"health": "ok", "kind": runner.sandbox_kind, "notes": list(runner.sandbox_notes)}
    return {"metadata": metadata, "loop_engine": {"health": "ok"}, "sandbox": sandbox}

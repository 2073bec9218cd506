"""Public JSON of health, runtime and capabilities.

The contract matrix is data: `contract_matrix.json` beside this module says, per
behaviour, how far this build goes. Its summary is counted, never written by hand.
"""

from __future__ import annotations

from collections import Counter
from importlib.resources import files
from typing import Any

import orjson

from managed_agents.worker.v1.runner_pb2 import DescribeRunnerResponse

STATUSES = ("supported", "partial", "unavailable", "planned", "not_applicable", "unverified")
BUILT_IN_TOOLS = ("bash", "read", "write", "edit", "glob", "grep", "web_fetch", "web_search")
SANDBOX_PROVIDERS = ("local", "docker", "kubernetes", "self_hosted")
LOOP_ENGINES = ("builtin", "pi", "http", "harness", "codex", "claude")
_NO_RUNNER = "No runner answers, so nothing can be executed right now."
_REASONS = {
    "web_search": "No search provider is configured; MANAGED_AGENTS_WEB_SEARCH_URL names one.",
    "docker": "This build has no Docker provider.",
    "kubernetes": "This build has no Kubernetes provider.",
    "pi": "This build has no adapter for the Pi command line.",
    "harness": "The engine is known by name only.",
    "codex": "The engine is known by name only.",
    "claude": "The engine is known by name only.",
}


def load_matrix() -> dict[str, Any]:
    """The contract matrix with its summary counted."""
    entries = orjson.loads(files("services.gateway.render").joinpath("contract_matrix.json").read_bytes())
    counts = Counter(entry["status"] for entry in entries)
    return {
        "type": "capability_matrix",
        "statuses": list(STATUSES),
        "summary": {status: counts.get(status, 0) for status in STATUSES},
        "capabilities": entries,
    }


MATRIX = load_matrix()


def render_health(*, version: str, checks: dict[str, str] | None) -> bytes:
    """The process is alive, and `checks` of what is behind it where asked for."""
    return orjson.dumps({"type": "health", "status": "ok", "version": version, "checks": checks})


def render_runtime(
    *,
    version: str,
    auth_enabled: bool,
    services: dict[str, str],
    settings: dict[str, Any] | None,
    runner: DescribeRunnerResponse | None,
) -> bytes:
    """The state of the installation; parts that can't be asked make it degraded."""
    is_whole = settings is not None and runner is not None and set(services.values()) == {"ok"}
    return orjson.dumps(
        {
            "type": "runtime",
            "status": "running" if is_whole else "degraded",
            "version": version,
            "models": [_model(settings)] if settings is not None else [],
            "auth_enabled": auth_enabled,
            "services": services,
            "runner": _runner(runner) if runner is not None else None,
        }
    )


def render_capabilities(runner: DescribeRunnerResponse | None) -> bytes:
    """What can be executed, told by the runner that would execute it."""
    tools = set(runner.tools) if runner is not None else set()
    providers = set(runner.sandbox_providers) if runner is not None else set()
    engines = {"builtin", *runner.loop_engines} if runner is not None else set()
    capabilities = [
        *(_capability(name, "tool", tools, runner) for name in _joined(BUILT_IN_TOOLS, tools)),
        *(_capability(name, "sandbox_provider", providers, runner) for name in _joined(SANDBOX_PROVIDERS, providers)),
        *(_capability(name, "loop_engine", engines, runner) for name in LOOP_ENGINES),
    ]
    return orjson.dumps({"type": "capability_inventory", "capabilities": capabilities, "contract": MATRIX})


def _capability(name: str, kind: str, available: set[str], runner: DescribeRunnerResponse | None) -> dict[str, str]:
    if name in available:
        return {"id": name, "kind": kind, "status": "available"}
    reason = _REASONS.get(name) or (_NO_RUNNER if runner is None else "The runner of this installation lacks it.")
    return {"id": name, "kind": kind, "status": "unavailable", "reason": reason}


def _joined(known: tuple[str, ...], reported: set[str]) -> list[str]:
    return [*known, *sorted(reported.difference(known))]


def _model(settings: dict[str, Any]) -> dict[str, str]:
    model = settings.get("model") or {}
    return {
        "name": "default",
        "provider": model.get("vendor") or "unknown",
        "model": model.get("default_model") or "unknown",
        "api_key_state": "configured" if model.get("api_key") else "not_set",
        "base_url_state": "configured" if model.get("base_url") else "not_set",
    }


def _runner(runner: DescribeRunnerResponse) -> dict[str, Any]:
    return {
        "id": runner.runner_id,
        "capacity": runner.capacity,
        "held": runner.held,
        "sandbox_kind": runner.sandbox_kind,
        "sandbox_notes": list(runner.sandbox_notes),
        "sandbox_providers": list(runner.sandbox_providers),
        "tools": list(runner.tools),
    }

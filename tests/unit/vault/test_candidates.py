"""Candidates for settings: every fault by its path, no value in a message, credentials, areas by themselves."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from services.sessions.domain.loop_engine import UNAVAILABLE_ENGINES
from services.vault.domain import adapters, candidates, settings
from services.vault.domain.errors import InvalidSettings
from services.vault.domain.settings import MASK, ModelSettings, Settings

KEY = "sk-canary-0123456789"
MODEL = {"vendor": "openai", "base_url": None, "api_key": KEY, "default_model": "m", "options": {}}
WHOLE = settings.Settings(ModelSettings("openai", "", KEY, "m")).document() | {"model": MODEL}
NOBODY = Settings()


def judged(document: Any, stored: Settings = NOBODY, **environ: str) -> Settings:
    return candidates.judge(document, stored, environ)


def faults_of(document: Any, stored: Settings = NOBODY, **environ: str) -> dict[str, str]:
    """Path → message of every fault."""
    with pytest.raises(InvalidSettings) as refusal:
        judged(document, stored, **environ)
    errors = json.loads(refusal.value.metadata["details"])["errors"]
    assert errors[0]["path"] == refusal.value.metadata["path"]
    assert refusal.value.message.startswith(errors[0]["message"])
    return {error["path"]: error["message"] for error in errors}


def changed(path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(WHOLE)
    *holders, last = path.split(".")
    place = document
    for name in holders:
        place = place[name]
    place[last] = value
    return document


@pytest.mark.parametrize("environ", [{}, {"ANTHROPIC_API_KEY": KEY}, {"MANAGED_AGENTS_MODEL_VENDOR": "demo"}])
def test_what_is_shown_may_be_saved_as_it_is(environ: dict[str, str]) -> None:
    stored = settings.from_environment(environ)
    again = judged(stored.document(), stored)
    assert again == stored and candidates.changed_paths(stored, again) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema_version", True),
        ("schema_version", "1"),
        ("surprise", 1),
        ("model", None),
        ("model.vendor", "acme"),
        ("model.vendor", None),
        ("model.vendor", ["openai"]),
        ("model.options", 5),
        ("model.options.temperature", 1),
        ("model.options.api_key", KEY),
        ("model.base_url", "api.example.com"),
        ("model.base_url", "https://"),
        ("model.base_url", "https://x:99999/v1"),
        ("model.base_url", "https://a b/v1"),
        ("model.base_url", f"https://user:{KEY}@x/v1"),
        ("model.base_url", f"https://x/v1?api_key={KEY}"),
        ("model.default_model", "m" * 3000),
        ("model.api_key", f"{KEY}\r\nx: y"),
        ("model.api_key", "\ud800"),
        ("model.api_key", {"a": KEY}),
        ("loop_engine", []),
        ("loop_engine.provider", "acme"),
        ("loop_engine.options.default_max_steps", 1001),
        ("loop_engine.options.default_max_steps", None),
        ("loop_engine.options.approval_mode", "preauthorized_once"),
        ("loop_engine.options.approval_mode", "Interactive"),
        ("loop_engine.options.approval_mode", None),
        ("loop_engine.options.surprise", 1),
        ("storage", 1),
        ("storage.surprise", 1),
        ("storage.metadata.options.path", "data.db"),
        ("storage.metadata.provider", "sqlite"),
        ("storage.artifacts.provider", "none"),
        ("storage.artifacts.provider", "disk"),
        ("storage.artifacts.options.base_path", "elsewhere"),
        ("storage.artifacts.options.bucket", "b"),
        ("storage.artifacts", None),
        ("memory.enabled", True),
        ("memory.enabled", "yes"),
        ("memory.enabled", None),
        ("memory.provider", "sqlite"),
        ("sandbox.provider", "docker"),
        ("sandbox.options.timeout_seconds", 300),
        *(("loop_engine.provider", engine) for engine in UNAVAILABLE_ENGINES),
        *(("sandbox.provider", provider) for provider in ("kubernetes", "self_hosted", "remote")),
    ],
)
def test_a_fault_is_told_by_its_path_and_never_by_its_value(path: str, value: Any) -> None:
    found = faults_of(changed(path, value))
    assert list(found) == [path]
    assert KEY not in str(found)


def test_every_fault_is_told_at_once() -> None:
    document = changed("model.vendor", "acme") | {"schema_version": 3, "memory": {"enabled": True, "provider": "none"}}
    document["loop_engine"] = {"provider": "builtin", "options": {"default_max_steps": 0, "other": 1}}
    assert faults_of(document).keys() == {
        "schema_version",
        "model.vendor",
        "loop_engine.options.other",
        "loop_engine.options.default_max_steps",
        "memory.enabled",
    }


def test_a_document_full_of_faults_is_told_in_bounds() -> None:
    document = WHOLE | {f"{KEY} {number} {'x' * 500}": 1 for number in range(500)} | {f"n{n}": 1 for n in range(500)}
    found = faults_of(document)
    assert len(str(found)) < 4_000 and KEY not in str(found)


@pytest.mark.parametrize("document", [None, [], "x", 1])
def test_what_is_no_object_is_one_fault(document: Any) -> None:
    assert list(faults_of(document)) == ["the document"]


def test_a_section_that_is_left_out_has_its_defaults() -> None:
    found = judged({"schema_version": 1, "model": {"vendor": "demo"}})
    assert found == Settings() and found.document().keys() == settings.SECTIONS


def test_an_approval_mode_is_optional_and_kept() -> None:
    assert "approval_mode" not in judged(WHOLE).document()["loop_engine"]["options"]
    given = judged(changed("loop_engine.options.approval_mode", "interactive"))
    assert given.document()["loop_engine"]["options"]["approval_mode"] == "interactive"


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
@pytest.mark.parametrize("key", [None, "", " ", MASK])
def test_a_vendors_own_address_needs_a_key(vendor: str, key: str | None) -> None:
    document = WHOLE | {"model": {"vendor": vendor, "api_key": key}}
    assert faults_of(document).keys() == {"model.api_key"}
    own = f"https://{settings.VENDOR_HOSTS[vendor]}/v1"
    assert faults_of(document | {"model": document["model"] | {"base_url": own}}).keys() == {"model.api_key"}
    # A server of one's own may want none.
    assert judged(document | {"model": document["model"] | {"base_url": "http://127.0.0.1:1/v1"}})


def test_a_reference_must_lead_to_a_key() -> None:
    document = changed("model.api_key", "${OPENAI_API_KEY}")
    assert judged(document, OPENAI_API_KEY=KEY).model.api_key == "${OPENAI_API_KEY}"
    assert "OPENAI_API_KEY" in faults_of(document)["model.api_key"]
    assert faults_of(changed("model.api_key", "${MANAGED_AGENTS_SECRET_KEY}"), MANAGED_AGENTS_SECRET_KEY="x")


def test_a_mask_keeps_the_key_of_its_own_vendor_only() -> None:
    stored = Settings(ModelSettings("openai", "", KEY, "m"))
    masked = changed("model.api_key", MASK)
    assert judged(masked, stored).model.api_key == KEY
    assert judged(masked | {"model": {"vendor": "demo", "api_key": MASK}}, stored).model.api_key == KEY
    other = masked | {"model": {"vendor": "anthropic", "api_key": MASK}}
    assert faults_of(other, stored).keys() == {"model.api_key"}


def test_changed_paths_name_secrets_and_never_hold_them() -> None:
    old = judged(WHOLE)
    new = judged(changed("model.api_key", "sk-other-0123456789") | {"loop_engine": {"provider": "builtin"}})
    assert candidates.changed_paths(old, new) == ["model.api_key"]
    further = judged(
        changed("model.default_model", "n")
        | {"loop_engine": {"provider": "builtin", "options": {"requires_action_timeout_seconds": 5}}}
    )
    assert candidates.changed_paths(old, further) == [
        "loop_engine.options.requires_action_timeout_seconds",
        "model.default_model",
    ]


@pytest.mark.parametrize(
    ("area", "config", "status"),
    [
        ("model", {"vendor": "demo"}, "ok"),
        ("model", {"vendor": "openai", "api_key": KEY}, "ok"),
        ("model", {"vendor": "openai", "base_url": "http://127.0.0.1:1", "api_key": None}, "ok"),
        ("loop_engine", {"provider": "builtin"}, "ok"),
        ("loop_engine", {"provider": "builtin", "options": {"default_max_steps": 7}}, "ok"),
        ("loop_engine", {"provider": "pi"}, "unavailable"),
        ("storage.metadata", {"provider": "postgres", "options": {}}, "ok"),
        ("storage.metadata", {"provider": "sqlite", "options": {}}, "unavailable"),
        ("storage.artifacts", {"provider": "none"}, "unavailable"),
        ("storage.artifacts", {"provider": "local", "options": {"base_path": "files"}}, "ok"),
        ("storage.artifacts", {"provider": "s3", "options": {"bucket": "files"}}, "ok"),
        ("memory", {"enabled": False, "provider": "none"}, "ok"),
        ("memory", {"enabled": True, "provider": "sqlite", "options": {}}, "unavailable"),
        ("sandbox", {"provider": "local"}, "ok"),
        ("sandbox", {"provider": "docker", "options": {"image": "x"}}, "unavailable"),
    ],
)
def test_an_area_is_judged_by_itself(area: str, config: dict[str, Any], status: str) -> None:
    verdict = candidates.judge_area(area, config, NOBODY, {})
    assert (
        verdict.status == status and verdict.message and verdict.adapter == (config.get("vendor") or config["provider"])
    )


@pytest.mark.parametrize(
    ("area", "config", "path"),
    [
        ("everything", {}, "area"),
        ("storage", {}, "area"),
        ("model", {"vendor": "openai"}, "model.api_key"),
        ("model", {"vendor": "openai", "api_key": "${SOME_API_KEY}"}, "model.api_key"),
        ("model", {"vendor": "openai", "api_key": MASK}, "model.api_key"),
        ("model", [], "model"),
        (
            "storage.artifacts",
            {"provider": "local", "options": {"base_path": "x"}},
            "storage.artifacts.options.base_path",
        ),
        ("storage.metadata", {"provider": "mongo"}, "storage.metadata.provider"),
        ("memory", {"enabled": 1, "provider": "none"}, "memory.enabled"),
        ("sandbox", {"provider": None}, "sandbox.provider"),
        ("sandbox", {}, "sandbox.provider"),
        ("loop_engine", {"provider": "builtin", "surprise": 1}, "loop_engine.surprise"),
    ],
)
def test_a_malformed_area_is_refused_by_path(area: str, config: Any, path: str) -> None:
    with pytest.raises(InvalidSettings) as refusal:
        candidates.judge_area(area, config, NOBODY, {})
    assert refusal.value.metadata["path"] == path


def test_a_masked_key_of_an_area_stands_for_the_stored_one() -> None:
    stored = Settings(ModelSettings("openai", "", KEY, "m"))
    assert candidates.judge_area("model", {"vendor": "openai", "api_key": MASK}, stored, {}).status == "ok"


@pytest.mark.parametrize(
    "name", ["api_key", "apiKey", "access_key", "client_secret", "token", "auth_token", "password", "credential"]
)
def test_what_sounds_secret_is_masked_in_a_document_of_unknown_making(name: str) -> None:
    shown = candidates.masked(
        {"memory": {"options": [{name: KEY, "max_tokens": 5}, {name: {"deep": KEY}}, {name: None}]}}
    )
    assert shown == {"memory": {"options": [{name: MASK, "max_tokens": 5}, {name: MASK}, {name: None}]}}


def test_an_address_of_the_environment_is_shown_without_its_password() -> None:
    environ = {
        "MANAGED_AGENTS_MODEL_VENDOR": "openai",
        "MANAGED_AGENTS_MODEL_BASE_URL": f"https://me:{KEY}@x.test:1/v1",
    }
    shown = settings.from_environment(environ).document()
    assert shown["model"]["base_url"] == f"https://{MASK}@x.test:1/v1"


def test_descriptors_say_what_is_lacking_and_describe_every_option() -> None:
    described = adapters.descriptors()
    assert described.keys() == {
        "model",
        "loop_engine",
        "storage.metadata",
        "storage.artifacts",
        "memory",
        "sandbox",
    }
    for area, found in described.items():
        assert found[0]["status"] == "available", area
        for descriptor in found:
            assert (descriptor["status"] == "unavailable") == bool(descriptor.get("reason"))
            assert descriptor["label"] and descriptor["restart_policy"] == "none"
            assert descriptor["options_schema"]["type"] == "object"
    builtin = described["loop_engine"][0]["options_schema"]["properties"]
    assert builtin["default_max_steps"] == builtin["default_max_steps"] | {
        "type": "integer",
        "minimum": 1,
        "maximum": 1000,
        "default": 25,
    }


def test_an_engine_is_refused_for_a_session_with_the_reason_of_its_descriptor() -> None:
    reasons = {each["id"]: each["reason"] for each in adapters.descriptors()["loop_engine"] if "reason" in each}
    assert reasons == UNAVAILABLE_ENGINES

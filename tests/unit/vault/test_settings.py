"""The settings document: what the environment says, what a caller may save, what is shown."""

from __future__ import annotations

import pytest

from services.vault.domain import settings
from services.vault.domain.errors import InvalidSettings

BOUND = "requires_action_timeout_seconds"
DOCUMENT = {"schema_version": 1, "model": {"vendor": "openai", "api_key": "sk-1", "base_url": "http://127.0.0.1:1/v1"}}


@pytest.mark.parametrize(
    ("environ", "vendor", "key", "model"),
    [
        ({}, "demo", "", "demo"),
        ({"ANTHROPIC_API_KEY": "a"}, "anthropic", "a", settings.DEFAULT_MODELS["anthropic"]),
        ({"OPENAI_API_KEY": "o"}, "openai", "o", settings.DEFAULT_MODELS["openai"]),
        ({"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o"}, "anthropic", "a", settings.DEFAULT_MODELS["anthropic"]),
        ({"MANAGED_AGENTS_MODEL_VENDOR": "demo", "ANTHROPIC_API_KEY": "a"}, "demo", "", "demo"),
        (
            {"MANAGED_AGENTS_MODEL_VENDOR": "openai", "MANAGED_AGENTS_MODEL_API_KEY": "m", "MANAGED_AGENTS_MODEL": "x"},
            "openai",
            "m",
            "x",
        ),
    ],
)
def test_the_environment_decides_before_anything_was_saved(environ, vendor, key, model) -> None:
    found = settings.from_environment(environ).model
    assert (found.vendor, found.api_key, found.default_model) == (vendor, key, model)


def test_an_unknown_vendor_in_the_environment_names_the_accepted_ones() -> None:
    with pytest.raises(ValueError, match="demo, anthropic, openai"):
        settings.from_environment({"MANAGED_AGENTS_MODEL_VENDOR": "acme"})


def test_secrets_are_masked_and_their_state_is_told() -> None:
    found = settings.parse(DOCUMENT, stored_api_key="")
    assert found.model.api_key == "sk-1"
    assert found.document()["model"]["api_key"] == settings.MASK
    assert found.secret_states() == {"model": {"api_key": "configured"}}
    assert "sk-1" not in repr(found)


def test_a_mask_keeps_the_stored_secret() -> None:
    masked = {**DOCUMENT, "model": {**DOCUMENT["model"], "api_key": settings.MASK}}
    assert settings.parse(masked, stored_api_key="kept").model.api_key == "kept"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"extra": 1}, "extra"),
        ({"model": None}, "model"),
        ({"model": {"vendor": "acme"}}, "model.vendor"),
        ({"model": {"vendor": "demo", "temperature": 1}}, "model.temperature"),
        ({"model": {"vendor": "openai", "base_url": "ftp://x"}}, "model.base_url"),
        ({"model": {"vendor": "openai", "api_key": 5}}, "model.api_key"),
        ({"model": {"vendor": "openai", "api_key": "a\x00"}}, "model.api_key"),
        ({"model": {"vendor": "openai", "api_key": "${MANAGED_AGENTS_SECRET_KEY}"}}, "model.api_key"),
        ({"model": {"vendor": "openai", "api_key": "${HOME}"}}, "model.api_key"),
        ({"loop_engine": {"provider": "pi"}}, "loop_engine.provider"),
        ({"loop_engine": {"provider": "builtin", "options": {"default_max_steps": 0}}}, "default_max_steps"),
        ({"loop_engine": {"provider": "builtin", "options": {"default_max_steps": True}}}, "default_max_steps"),
        *(
            ({"loop_engine": {"provider": "builtin", "options": {BOUND: wrong}}}, f"loop_engine.options.{BOUND}")
            for wrong in (0, -1, 1.5, True, "60", 10**9)
        ),
    ],
)
def test_a_faulty_document_is_refused_by_path(change, path) -> None:
    with pytest.raises(InvalidSettings) as refusal:
        settings.parse({**DOCUMENT, **change}, stored_api_key="")
    assert path in refusal.value.message


def test_a_reference_is_read_when_used() -> None:
    environ = {"OPENAI_API_KEY": "from the environment"}
    assert settings.resolve_reference("${OPENAI_API_KEY}", environ) == "from the environment"
    assert settings.resolve_reference("${OTHER_API_KEY}", environ) == ""
    assert settings.resolve_reference("plain", environ) == "plain"


def test_nothing_bounds_the_wait_of_a_session_unless_an_operator_says_so() -> None:
    assert settings.from_environment({}).requires_action_timeout_seconds is None
    found = settings.parse(DOCUMENT, stored_api_key="")
    assert found.requires_action_timeout_seconds is None
    assert BOUND not in found.document()["loop_engine"]["options"]


def test_a_bound_on_waiting_is_saved_shown_and_taken_back() -> None:
    engine = {"provider": "builtin", "options": {BOUND: 3600}}
    found = settings.parse({**DOCUMENT, "loop_engine": engine}, stored_api_key="")
    assert found.requires_action_timeout_seconds == 3600
    assert found.document()["loop_engine"]["options"][BOUND] == 3600
    engine["options"][BOUND] = None
    assert (
        settings.parse({**DOCUMENT, "loop_engine": engine}, stored_api_key="").requires_action_timeout_seconds is None
    )


def test_the_environment_may_bound_the_wait_before_anything_was_saved() -> None:
    variable = "MANAGED_AGENTS_REQUIRES_ACTION_TIMEOUT_SECONDS"
    assert settings.from_environment({variable: "90"}).requires_action_timeout_seconds == 90
    for wrong in ("0", "-5", "1.5", "soon"):
        with pytest.raises(ValueError, match=variable):
            settings.from_environment({variable: wrong})

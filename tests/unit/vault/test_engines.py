"""The engine that settings choose: judged as a session's is, its secret headers sealed, masked and kept by a mask."""

from typing import Any

import pytest

from services.vault.domain import candidates, settings
from services.vault.domain.errors import InvalidSettings
from services.vault.domain.settings import MASK, Settings

URL = "https://agent.example.com/step"
HEADERS = {"Authorization": "Bearer ${AGENT_TOKEN}", "X-Tenant": "acme"}
OPTIONS = {"url": URL, "headers": HEADERS, "max_rounds": 4, "timeout_seconds": 30}


def document(options: Any, provider: str = "http") -> dict[str, Any]:
    engine = {"provider": provider, "options": options}
    return {"schema_version": 1, "model": {"vendor": "demo"}, "loop_engine": engine}


def judged(wanted: Any, stored: Settings | None = None) -> Settings:
    return candidates.judge(wanted, stored or Settings(), {})


def fault(wanted: Any, stored: Settings | None = None) -> InvalidSettings:
    with pytest.raises(InvalidSettings) as caught:
        judged(wanted, stored)
    return caught.value


def test_it_is_shown_with_its_secret_headers_masked_and_says_that_they_are_set() -> None:
    found = judged(document(OPTIONS))
    shown = OPTIONS | {"headers": {"Authorization": MASK, "X-Tenant": "acme"}}
    assert found.document()["loop_engine"] == {"provider": "http", "options": shown}
    assert found.secret_states()["loop_engine"] == {"headers": "configured"}
    assert judged(document({"url": URL})).secret_states()["loop_engine"] == {"headers": "not_set"}
    assert "loop_engine" not in Settings().secret_states()
    assert "AGENT_TOKEN" not in repr(found)


def test_what_was_saved_reads_as_it_was_meant() -> None:
    found = judged(document(OPTIONS | {"requires_action_timeout_seconds": 60}))
    reopened = settings.reopen(found.document(), found.secrets())
    assert reopened == found
    assert (reopened.engine.http, reopened.requires_action_timeout_seconds) == (OPTIONS, 60)


def test_a_document_of_a_former_build_has_nothing_sealed_for_it() -> None:
    kept = {"api_key": "", "secret_access_key": ""}
    assert settings.reopen(Settings().document(), kept) == Settings()


def test_a_mask_keeps_what_is_stored_and_stands_for_nothing_else() -> None:
    stored = judged(document(OPTIONS))
    assert judged(stored.document(), stored) == stored
    assert fault(stored.document()).metadata["path"] == "loop_engine.options.headers.Authorization"


def test_a_changed_header_is_told_by_its_path() -> None:
    stored = judged(document(OPTIONS))
    other = judged(document(OPTIONS | {"headers": HEADERS | {"Authorization": "Bearer ${OTHER}"}}), stored)
    assert candidates.changed_paths(stored, other) == ["loop_engine.options.headers.Authorization"]


@pytest.mark.parametrize(
    ("options", "path"),
    [
        (None, ".url"),
        ({}, ".url"),
        ([], ""),
        ({"url": "agent.example.com"}, ".url"),
        ({"url": URL, "default_max_steps": 3}, ".default_max_steps"),
        ({"url": URL, "max_rounds": 0}, ".max_rounds"),
        ({"url": URL, "timeout_seconds": 3601}, ".timeout_seconds"),
        ({"url": URL, "requires_action_timeout_seconds": 0}, ".requires_action_timeout_seconds"),
        ({"url": URL, "headers": {"Authorization": "Bearer sk-123"}}, ".headers.Authorization"),
        ({"url": URL, "headers": {"Host": "x"}}, ".headers.Host"),
    ],
)
def test_a_fault_is_told_by_its_path_and_never_by_its_value(options: Any, path: str) -> None:
    found = fault(document(options))
    assert found.metadata["path"] == f"loop_engine.options{path}"
    assert "sk-123" not in found.message
    with pytest.raises(InvalidSettings) as caught:
        candidates.judge_area("loop_engine", {"provider": "http", "options": options}, Settings(), {})
    assert caught.value.metadata["path"] == f"loop_engine.options{path}"


def test_a_sound_area_is_told_without_asking_the_agent() -> None:
    verdict = candidates.judge_area("loop_engine", {"provider": "http", "options": OPTIONS}, Settings(), {})
    assert (verdict.adapter, verdict.status) == ("http", "ok")
    assert "not asked" in verdict.message


def test_model_requests_of_sessions_that_stay_with_builtin_have_their_usual_bound() -> None:
    assert judged(document(OPTIONS)).engine.default_max_steps == 25

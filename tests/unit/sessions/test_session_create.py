"""The bodies of session creation and update, judged field by field before anything is looked up."""

from typing import Any

import pytest

from kit.errors import DomainError
from services.sessions.domain.session import NewSession, SessionPatch, read_new_session, read_session_patch


def create(**fields: Any) -> NewSession:
    return read_new_session({"agent": "agent_1", **fields}, published=False)


def refusal(call: Any, *arguments: Any, **fields: Any) -> DomainError:
    with pytest.raises(DomainError) as caught:
        call(*arguments, **fields)
    return caught.value


def test_only_the_agent_is_required() -> None:
    session = create()
    assert session.environment_id == "env_default"
    assert (session.title, session.metadata, session.loop_engine) == (None, {}, None)
    assert (session.has_budget, session.initial_events) == (False, [])


def test_everything_that_may_be_null_counts_as_left_out() -> None:
    names = ("environment_id", "title", "metadata", "resources", "vault_ids", "loop_engine", "loop_engine_options")
    assert create(**dict.fromkeys(names)) == create()


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        pytest.param({"agent": None}, "agent", "INVALID_AGENT_REF", id="agent-null"),
        pytest.param({"environment_id": 3}, "environment_id", "INVALID_REQUEST", id="environment-number"),
        pytest.param({"environment_id": ""}, "environment_id", "INVALID_REQUEST", id="environment-empty"),
        pytest.param({"environment_id": "env_\x00"}, "environment_id", "INVALID_REQUEST", id="environment-nul"),
        pytest.param({"title": 1}, "title", "INVALID_REQUEST", id="title-number"),
        pytest.param({"title": "x" * 1001}, "title", "INVALID_REQUEST", id="title-too-long"),
        pytest.param({"title": "a\x00"}, "title", "INVALID_REQUEST", id="title-nul"),
        pytest.param({"metadata": []}, "metadata", "INVALID_REQUEST", id="metadata-array"),
        pytest.param({"metadata": {"a": 1}}, "metadata.a", "INVALID_REQUEST", id="metadata-value-number"),
        pytest.param({"metadata": {"a": None}}, "metadata.a", "INVALID_REQUEST", id="metadata-value-null"),
        pytest.param({"metadata": {"a": "x" * 513}}, "metadata.a", "INVALID_REQUEST", id="metadata-value-long"),
        pytest.param({"metadata": {"k" * 65: "x"}}, "metadata", "INVALID_REQUEST", id="metadata-key-long"),
        pytest.param({"metadata": {str(n): "" for n in range(17)}}, "metadata", "INVALID_REQUEST", id="17-pairs"),
        pytest.param({"resources": {}}, "resources", "INVALID_REQUEST", id="resources-object"),
        pytest.param({"resources": [{}]}, "resources.0.type", "INVALID_REQUEST", id="resources"),
        pytest.param({"vault_ids": "vlt_1"}, "vault_ids", "INVALID_REQUEST", id="vaults-string"),
        pytest.param({"vault_ids": [1]}, "vault_ids.0", "INVALID_REQUEST", id="vault-number"),
        pytest.param({"vault_ids": ["vlt_1", ""]}, "vault_ids.1", "INVALID_REQUEST", id="vault-empty"),
        pytest.param({"vault_ids": ["vlt_1"] * 51}, "vault_ids", "INVALID_REQUEST", id="51-vaults"),
        pytest.param({"initial_events": None}, "initial_events", "INVALID_INITIAL_EVENTS", id="events-null"),
        pytest.param({"stream": True}, "stream", "UNKNOWN_FIELD", id="unknown-field"),
    ],
)
def test_unsound_fields_are_refused_by_name(fields: dict[str, Any], field: str, reason: str) -> None:
    refused = refusal(create, **fields)
    assert (refused.field, refused.reason, refused.code) == (field, reason, "INVALID_ARGUMENT")


@pytest.mark.parametrize("body", [None, [], "x", 1])
def test_the_body_is_an_object(body: Any) -> None:
    assert refusal(read_new_session, body, published=False).reason == "INVALID_REQUEST"
    assert refusal(read_session_patch, body).reason == "INVALID_REQUEST"


def test_sixteen_pairs_fit() -> None:
    assert len(create(metadata={f"k{n}": "v" * 512 for n in range(16)}).metadata) == 16


class TestPatch:
    def test_only_what_was_sent_is_set(self) -> None:
        assert read_session_patch({}) == SessionPatch()
        assert read_session_patch({"title": None}) == SessionPatch(has_title=True)
        assert read_session_patch({"metadata": {"a": None}}) == SessionPatch(has_metadata=True, metadata={"a": None})
        assert read_session_patch({"agent": {"tools": []}}) == SessionPatch(agent={"tools": []})

    @pytest.mark.parametrize("name", ["vault_ids", "environment_id", "resources", "loop_engine", "initial_events"])
    def test_what_creation_fixes_is_refused_as_such(self, name: str) -> None:
        refused = refusal(read_session_patch, {name: None})
        assert (refused.reason, refused.field) == ("IMMUTABLE_FIELD", name)

    @pytest.mark.parametrize(
        ("body", "field", "reason"),
        [
            ({"status": "idle"}, "status", "UNKNOWN_FIELD"),
            ({"title": 1}, "title", "INVALID_REQUEST"),
            ({"agent": "agent_2"}, "agent", "INVALID_REQUEST"),
            ({"agent": None}, "agent", "INVALID_REQUEST"),
            ({"agent": {"system": "x"}}, "agent.system", "UNKNOWN_FIELD"),
        ],
    )
    def test_unsound_fields(self, body: dict[str, Any], field: str, reason: str) -> None:
        refused = refusal(read_session_patch, body)
        assert (refused.field, refused.reason) == (field, reason)

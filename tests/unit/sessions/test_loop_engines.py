"""The engine that a session is frozen on: who chooses it, what is refused, and what readers see of it."""

from typing import Any

import pytest

from kit.errors import DomainError
from services.sessions.domain import loop_engine
from services.sessions.domain.loop_engine import (
    BUILTIN,
    EngineChoice,
    choice_of,
    frozen,
    public_fields,
    read_choice,
    refuse_budget,
    refuse_other_engines,
    settings_choice,
)
from services.sessions.domain.session import read_new_session

URL = "https://agent.example.com/step"
HEADERS = {"Authorization": "Bearer ${AGENT_TOKEN}", "X-Tenant": "acme"}
HTTP = EngineChoice("http", {"url": URL, "headers": HEADERS})


def choice(**body: Any) -> EngineChoice | None:
    return read_choice(body)


def refusal(call: Any, *arguments: Any, **named: Any) -> DomainError:
    with pytest.raises(DomainError) as caught:
        call(*arguments, **named)
    return caught.value


@pytest.mark.parametrize("engine", ["builtin", {"provider": "builtin"}, {"provider": "builtin", "options": {}}])
def test_builtin_in_every_spelling(engine: Any) -> None:
    assert choice(loop_engine=engine) == BUILTIN
    assert read_new_session({"agent": "agent_1", "loop_engine": engine}, published=False).loop_engine == BUILTIN


@pytest.mark.parametrize(
    "body", [{}, {"loop_engine": None}, {"loop_engine_options": {}}, {"loop_engine_options": None}]
)
def test_who_names_none_leaves_it_to_others(body: dict[str, Any]) -> None:
    assert read_choice(body) is None


@pytest.mark.parametrize(
    "body",
    [
        {"loop_engine": "http", "loop_engine_options": {"url": URL, "max_rounds": 3}},
        {"loop_engine": {"provider": "http", "options": {"url": URL, "max_rounds": 3}}},
        {"loop_engine": {"provider": "http"}, "loop_engine_options": {"url": URL, "max_rounds": 3, "headers": None}},
    ],
)
def test_http_in_both_forms(body: dict[str, Any]) -> None:
    assert read_choice(body) == EngineChoice("http", {"url": URL, "max_rounds": 3})


@pytest.mark.parametrize("engine", ["pi", "harness", "codex", "claude", {"provider": "pi", "options": {}}])
def test_known_ones_that_can_not_run_are_not_supported(engine: Any) -> None:
    assert refusal(choice, loop_engine=engine).reason == "LOOP_ENGINE_NOT_SUPPORTED"


@pytest.mark.parametrize(
    "engine",
    [
        *("", "Builtin", "HTTP", "other", 1, True, [], {}, {"provider": 3}, {"provider": []}, {"provider": None}),
        *({"provider": "http", "url": URL}, {"options": {"url": URL}}),
    ],
)
def test_anything_else_is_invalid(engine: Any) -> None:
    assert refusal(choice, loop_engine=engine).reason == "LOOP_ENGINE_INVALID"


def test_builtin_takes_no_options() -> None:
    assert refusal(choice, loop_engine="builtin", loop_engine_options={"url": URL}).field == "loop_engine_options"
    nested = {"provider": "builtin", "options": {"default_max_steps": 3}}
    assert refusal(choice, loop_engine=nested).field == "loop_engine.options"


def test_options_come_once_and_with_their_engine() -> None:
    nested = {"provider": "http", "options": {}}
    assert refusal(choice, loop_engine=nested, loop_engine_options={}).field == "loop_engine_options"
    assert refusal(choice, loop_engine_options={"url": URL}).field == "loop_engine_options"


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ([], ""),
        ({"uri": URL}, ".uri"),
        ({"url": ""}, ".url"),
        ({"url": 5}, ".url"),
        ({"url": "agent.example.com/step"}, ".url"),
        ({"url": "ftp://agent.example.com/"}, ".url"),
        ({"url": "https://me:secret@agent.example.com/"}, ".url"),
        ({"url": "https://agent.example.com/#x"}, ".url"),
        ({"url": "https://agent.example.com/\n"}, ".url"),
        ({"url": "https://agent.example.com:0/"}, ".url"),
        ({"url": "https://ägent.example.com/"}, ".url"),
        ({"url": "https://agent.example.com/" + "x" * 2048}, ".url"),
        ({"max_rounds": 0}, ".max_rounds"),
        ({"max_rounds": 1001}, ".max_rounds"),
        ({"max_rounds": True}, ".max_rounds"),
        ({"max_rounds": "16"}, ".max_rounds"),
        ({"max_rounds": 1.0}, ".max_rounds"),
        ({"timeout_seconds": 0}, ".timeout_seconds"),
        ({"timeout_seconds": 3601}, ".timeout_seconds"),
        ({"headers": ["X-A: b"]}, ".headers"),
        ({"headers": {f"X-{number}": "x" for number in range(33)}}, ".headers"),
        ({"headers": {"": "x"}}, ".headers"),
        ({"headers": {"X A": "x"}}, ".headers"),
        ({"headers": {"X-A": 5}}, ".headers.X-A"),
        ({"headers": {"X-A": ""}}, ".headers.X-A"),
        ({"headers": {"X-A": " x"}}, ".headers.X-A"),
        ({"headers": {"X-A": "x\r\nHost: y"}}, ".headers.X-A"),
        ({"headers": {"X-A": "ä"}}, ".headers.X-A"),
        ({"headers": {"X-A": "x" * 2049}}, ".headers.X-A"),
        ({"headers": {"X-A": "${not a name}"}}, ".headers.X-A"),
        ({"headers": {"X-A": "x", "x-a": "y"}}, ".headers.x-a"),
        ({"headers": {"Host": "x"}}, ".headers.Host"),
        ({"headers": {"idempotency-key": "${X}"}}, ".headers.idempotency-key"),
        ({"headers": {"Content-Length": "5"}}, ".headers.Content-Length"),
        ({"headers": {"Authorization": "Bearer sk-123"}}, ".headers.Authorization"),
        ({"headers": {"X-Api-Key": "123"}}, ".headers.X-Api-Key"),
        ({"headers": {"Cookie": "a=b"}}, ".headers.Cookie"),
        ({"headers": {"X-Access-Token": "********"}}, ".headers.X-Access-Token"),
    ],
)
def test_each_unsound_option_is_named_and_its_value_is_not(options: Any, path: str) -> None:
    for body, prefix in (
        ({"loop_engine": "http", "loop_engine_options": options}, "loop_engine_options"),
        ({"loop_engine": {"provider": "http", "options": options}}, "loop_engine.options"),
    ):
        refused = refusal(read_choice, body)
        assert (refused.reason, refused.field) == ("INVALID_REQUEST", prefix + path)
        assert "sk-123" not in refused.message


class TestFreezing:
    def test_the_session_goes_before_the_agent_and_that_before_the_settings(self) -> None:
        agents = EngineChoice("http", {"url": "https://two.example.com"})
        assert frozen(None, None, BUILTIN) == BUILTIN
        assert frozen(None, None, HTTP) == HTTP
        assert frozen(None, agents, HTTP).options["url"] == "https://two.example.com"
        assert frozen(BUILTIN, agents, HTTP) == BUILTIN
        assert frozen(HTTP, agents, BUILTIN) == HTTP

    def test_options_that_are_left_out_come_from_the_next_level_of_the_same_engine(self) -> None:
        default = EngineChoice("http", {"url": URL, "headers": HEADERS, "timeout_seconds": 9, "max_rounds": 2})
        own = EngineChoice("http", {"max_rounds": 4})
        assert frozen(own, None, default).options == dict(default.options) | {"max_rounds": 4}
        assert frozen(own, BUILTIN, default).options == dict(default.options) | {"max_rounds": 4}

    def test_headers_stay_with_the_address_that_they_were_given_for(self) -> None:
        default = EngineChoice("http", {"url": URL, "headers": HEADERS, "timeout_seconds": 9})
        own = EngineChoice("http", {"url": "https://elsewhere.example.com"})
        assert frozen(own, None, default).options == {"url": "https://elsewhere.example.com", "timeout_seconds": 9}
        same = EngineChoice("http", {"url": URL, "max_rounds": 5})
        assert frozen(same, None, default).options["headers"] == HEADERS

    @pytest.mark.parametrize("agents", [None, BUILTIN, EngineChoice("http", {"max_rounds": 3})])
    def test_http_needs_an_address_from_somebody(self, agents: EngineChoice | None) -> None:
        refused = refusal(frozen, EngineChoice("http"), agents, BUILTIN)
        assert (refused.reason, refused.field) == ("INVALID_REQUEST", "loop_engine_options.url")

    def test_a_default_that_this_build_lacks_is_not_replaced(self) -> None:
        assert refusal(settings_choice, "pi", {}).reason == "LOOP_ENGINE_NOT_SUPPORTED"
        assert refusal(settings_choice, "later", {}).reason == "LOOP_ENGINE_INVALID"


def test_a_ceiling_is_refused_where_nothing_tells_what_is_spent() -> None:
    assert refusal(refuse_budget, HTTP).reason == "BUDGET_MODEL_WITHOUT_LIST_PRICE"
    refuse_budget(BUILTIN)


def test_an_agent_of_the_roster_may_not_have_another_engine() -> None:
    def document(**member: Any) -> dict[str, Any]:
        return {"multiagent": {"agents": [{"type": "agent", "id": "agent_2", **member}]}}

    refuse_other_engines(HTTP, document())
    refuse_other_engines(HTTP, document(loop_engine="http", loop_engine_options={}))
    refuse_other_engines(HTTP, document(**HTTP.to_fields()))
    other = EngineChoice("http", {"url": "https://elsewhere.example.com"})
    for engine, member in ((BUILTIN, HTTP), (HTTP, BUILTIN), (HTTP, other)):
        refused = refusal(refuse_other_engines, engine, document(**member.to_fields()))
        assert (refused.reason, refused.field) == ("UNSUPPORTED_CAPABILITY", "agent.multiagent.agents.0")


def test_readers_see_no_header_that_is_a_secret_by_its_name() -> None:
    shown = public_fields({"name": "a", **HTTP.to_fields()})
    assert shown["loop_engine_options"] == {"url": URL, "headers": {"Authorization": "********", "X-Tenant": "acme"}}
    assert HTTP.to_fields()["loop_engine_options"]["headers"] == HEADERS
    plain = {"name": "a"}
    assert public_fields(plain) is plain
    assert choice_of(HTTP.to_fields()) == HTTP and choice_of(plain) is None


def test_a_mask_that_comes_back_stands_for_what_is_stored() -> None:
    shown = public_fields(HTTP.to_fields())
    assert read_choice(shown, HTTP) == HTTP
    assert read_choice({"loop_engine_options": {"max_rounds": 2}}, HTTP) == EngineChoice("http", {"max_rounds": 2})
    assert read_choice({"loop_engine": "http"}, HTTP) == HTTP
    assert read_choice({"loop_engine": "builtin"}, HTTP) == BUILTIN
    assert refusal(read_choice, shown, BUILTIN).field == "loop_engine_options.headers.Authorization"


def test_what_is_stored_is_json_for_an_engine_with_options_only() -> None:
    assert BUILTIN.options_json() is None
    assert loop_engine.EngineChoice("http", {"url": URL}).options_json() == f'{{"url":"{URL}"}}'

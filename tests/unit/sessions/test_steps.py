"""Steps of the HTTP agent protocol by themselves: what a request may say, what repeats what, what a session is of."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from kit.errors import Aborted, AlreadyExists, DomainError
from services.sessions.domain import steps
from services.sessions.domain.agent import AgentVersion
from services.sessions.domain.session_errors import InvalidRequest, SessionEnded, UnknownField
from services.sessions.domain.session_state import CallKind, PendingCall, SessionState, Status, TurnState
from services.sessions.domain.step_errors import StepRequiresConfirmation, StepResultsMismatch
from services.sessions.domain.step_sessions import begin
from services.sessions.domain.steps import Conversation, Step, TakenStep, canonical, read_step, repeated

NOW = datetime(2026, 11, 30, tzinfo=UTC)
SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"], "additionalProperties": False}
TOOL = {"name": "get_order", "description": "Reads one order.", "input_schema": SCHEMA}
NAME = "20261018T210512-k3f9/walk-away-above-ceiling#0"


def said(text: str = "hello", key: str = "", **more: Any) -> Step:
    return read_step({"session_id": NAME, "message": text, **more}, key)


def answered(*results: dict[str, Any], key: str = "", **more: Any) -> Step:
    return read_step({"session_id": NAME, "tool_results": list(results), **more}, key)


def ok(call_id: str = "c1", result: Any = None) -> dict[str, Any]:
    return {"id": call_id, "ok": True, "result": result}


def test_a_whole_request_is_read() -> None:
    step = said("I want L-1001.", system="Sell.", tools=[TOOL])
    assert (step.conversation, step.message, step.results, step.system) == (NAME, "I want L-1001.", (), "Sell.")
    assert step.tools == [{"type": "custom", **TOOL}] and step.key is None


@pytest.mark.parametrize("name", ["a", " ", "#", "a/b\\c#d?e&f", "Größe 量 🦆", "x" * 1000, "🦆" * 1000])
def test_any_string_names_a_conversation_as_it_is(name: str) -> None:
    step = read_step({"session_id": name, "message": "hello"})
    assert step.conversation == name and len(step.digest) == 32


def test_names_that_differ_in_anything_are_different() -> None:
    names = ["a", "A", "a ", " a", "\u00e9", "e\u0301", "a\n", "a/b", "a#b"]
    assert len({read_step({"session_id": name, "message": "m"}).digest for name in names}) == len(names)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"id": "L-1", "rows": [1, None]}, '{"id":"L-1","rows":[1,null]}'),
        ([{"a": 1}, {"a": 2}], '[{"a":1},{"a":2}]'),
        ("a fixed response", "a fixed response"),
        ("", ""),
        (17, "17"),
        (1.5, "1.5"),
        (True, "true"),
        (False, "false"),
        (None, "null"),
        ({}, "{}"),
        ("Größe", "Größe"),
    ],
)
def test_any_result_becomes_a_text_for_the_model(result: Any, text: str) -> None:
    [read] = answered(ok(result=result)).results
    assert (read.call_id, read.ok, read.text) == ("c1", True, text)


def test_a_result_may_be_left_out_and_an_error_is_its_text() -> None:
    done, failed = answered({"id": "a", "ok": True}, {"id": "b", "ok": False, "error": "Load is gone"}).results
    assert (done.text, failed.ok, failed.text) == ("null", False, "Load is gone")


def test_null_is_as_good_as_nothing() -> None:
    nothing = {"message": None, "system": None, "tools": None, "step": None}
    step = answered({"id": "a", "ok": True, "result": 1, "error": None}, **nothing)
    assert (step.message, step.system, step.tools, step.key) == (None, None, None, None)
    assert answered({"id": "a", "ok": False, "result": None, "error": ""}).results[0].text == ""
    assert said(tool_results=None).message == "hello"
    assert said(system=" ").system is None


WRONG: list[tuple[dict[str, Any], type[DomainError], str]] = [
    ({}, InvalidRequest, "session_id"),
    ({"session_id": ""}, InvalidRequest, "session_id"),
    ({"session_id": 5}, InvalidRequest, "session_id"),
    ({"session_id": "x" * 1001}, InvalidRequest, "session_id"),
    ({"session_id": "a\x00b"}, InvalidRequest, "session_id"),
    ({"message": None}, InvalidRequest, "message"),
    ({"tool_results": [ok()]}, InvalidRequest, "tool_results"),
    ({"message": ""}, InvalidRequest, "message"),
    ({"message": " \n"}, InvalidRequest, "message"),
    ({"message": ["hello"]}, InvalidRequest, "message"),
    ({"message": "x" * 1_000_001}, InvalidRequest, "message"),
    ({"system": 5}, InvalidRequest, "system"),
    ({"system": "x" * 100_001}, InvalidRequest, "system"),
    ({"tools": {}}, InvalidRequest, "tools"),
    ({"tools": [5]}, InvalidRequest, "tools.0"),
    ({"tools": [{**TOOL, "type": "custom"}]}, UnknownField, "tools.0.type"),
    ({"tools": [{**TOOL, "strict": True}]}, UnknownField, "tools.0.strict"),
    ({"tools": [{**TOOL, "name": "get order"}]}, InvalidRequest, "tools.0.name"),
    ({"tools": [{**TOOL, "name": "bash"}]}, InvalidRequest, "tools.0.name"),
    ({"tools": [{**TOOL, "description": " "}]}, InvalidRequest, "tools.0.description"),
    ({"tools": [{**TOOL, "input_schema": {"type": "array"}}]}, InvalidRequest, "tools.0.input_schema"),
    ({"tools": [TOOL, TOOL]}, InvalidRequest, "tools.1.name"),
    ({"tools": [{**TOOL, "name": f"t{number}"} for number in range(129)]}, InvalidRequest, "tools"),
    ({"step": -1}, InvalidRequest, "step"),
    ({"step": "1"}, InvalidRequest, "step"),
    ({"step": True}, InvalidRequest, "step"),
    ({"messages": []}, UnknownField, "messages"),
]
WRONG_RESULTS: list[tuple[Any, type[DomainError], str]] = [
    ({}, InvalidRequest, "tool_results"),
    ([], InvalidRequest, "tool_results"),
    (["c1"], InvalidRequest, "tool_results.0"),
    ([{"ok": True}], InvalidRequest, "tool_results.0.id"),
    ([{"id": "", "ok": True}], InvalidRequest, "tool_results.0.id"),
    ([{"id": "x" * 257, "ok": True}], InvalidRequest, "tool_results.0.id"),
    ([{"id": "c1"}], InvalidRequest, "tool_results.0.ok"),
    ([{"id": "c1", "ok": "true"}], InvalidRequest, "tool_results.0.ok"),
    ([{"id": "c1", "ok": True, "error": "no"}], InvalidRequest, "tool_results.0.error"),
    ([{"id": "c1", "ok": False}], InvalidRequest, "tool_results.0.error"),
    ([{"id": "c1", "ok": False, "error": {"code": 5}}], InvalidRequest, "tool_results.0.error"),
    ([{"id": "c1", "ok": False, "result": 1, "error": "no"}], InvalidRequest, "tool_results.0.result"),
    ([{"id": "c1", "ok": True, "result": ["\x00"]}], InvalidRequest, "tool_results.0.result"),
    ([{"id": "c1", "ok": True, "result": "x" * 1_000_001}], InvalidRequest, "tool_results.0.result"),
    ([{"id": "c1", "ok": True, "why": "so"}], UnknownField, "tool_results.0.why"),
    ([ok("c1"), ok("c2"), ok("c1")], InvalidRequest, "tool_results.2.id"),
]


@pytest.mark.parametrize(("wrong", "kind", "field"), WRONG)
def test_what_is_wrong_is_refused_by_its_name(wrong: dict[str, Any], kind: type[DomainError], field: str) -> None:
    body = {"session_id": NAME, "message": "hello"} | wrong if wrong else {"message": "hello"}
    with pytest.raises(kind) as refused:
        read_step(body)
    assert refused.value.field == field


@pytest.mark.parametrize(("results", "kind", "field"), WRONG_RESULTS)
def test_a_wrong_result_is_refused_by_its_name(results: Any, kind: type[DomainError], field: str) -> None:
    with pytest.raises(kind) as refused:
        read_step({"session_id": NAME, "tool_results": results})
    assert refused.value.field == field


def test_neither_and_both_are_refused() -> None:
    for body in ({}, {"message": "hello", "tool_results": [ok()]}, {"message": "hello", "tool_results": []}):
        with pytest.raises(InvalidRequest, match="either message or tool_results"):
            read_step({"session_id": NAME, **body})


# Which step repeats which.


def taken(step: Step, number: int = 1) -> TakenStep:
    return TakenStep(number, step.fingerprint, 10 * number)


def test_the_same_message_right_after_itself_is_a_repeat() -> None:
    first = taken(said("yes"))
    assert repeated(said("yes"), newest=first, named=None, same=None) is first
    assert repeated(said("Yes"), newest=first, named=None, same=None) is None


def test_the_same_message_is_said_again_once_something_came_in_between() -> None:
    between = taken(answered(ok()), number=2)
    assert repeated(said("yes"), newest=between, named=None, same=None) is None


def test_a_name_tells_a_second_saying_from_a_repeat() -> None:
    first = taken(said("yes", key="1"))
    assert repeated(said("yes", key="1"), newest=first, named=first, same=None) is first
    assert repeated(said("yes", key="2"), newest=first, named=None, same=None) is None
    # Whenever that was.
    assert repeated(said("yes", key="1"), newest=taken(said("no"), 7), named=first, same=None) is first


def test_a_name_is_used_for_one_step() -> None:
    with pytest.raises(AlreadyExists) as refused:
        repeated(said("no", key="1"), newest=None, named=taken(said("yes", key="1")), same=None)
    assert refused.value.reason == "IDEMPOTENCY_KEY_REUSED"


def test_the_header_is_the_name_before_the_number_and_they_are_never_mistaken() -> None:
    assert said(key="1", step=5).key == said(key="1").key
    assert len({said(key="1").key, said(step=1).key, said(key="step:1").key, said().key}) == 4


def test_results_repeat_the_step_that_brought_the_same_whatever_their_order_or_name() -> None:
    results = [ok("c1", {"a": 1, "b": 2}), {"id": "c2", "ok": False, "error": "no"}]
    first = taken(answered(*results))
    assert answered(*reversed(results)).fingerprint == first.fingerprint
    for key in ("", "a name"):
        assert repeated(answered(*results, key=key), newest=taken(said(), 9), named=None, same=first) is first
    others = [[ok("c1", {"a": 1, "b": 3}), results[1]], [results[0], ok("c2", "no")], results[:1]]
    assert first.fingerprint not in {answered(*other).fingerprint for other in others}


# What a step does in each situation.


def standing(*pending: PendingCall, **fields: Any) -> SessionState:
    state = SessionState("wrkspc_default", "sess_1", "sthr_1", "tester", NOW, NOW)
    if pending:
        fields = {"status": Status.REQUIRES_ACTION, **fields}
    return replace(state, pending=pending, **fields)


CUSTOM = PendingCall("sevt_1", "toolu_1", CallKind.CUSTOM)
ANOTHER = PendingCall("sevt_2", "toolu_2", CallKind.CUSTOM)
ASKING = PendingCall("sevt_3", "toolu_3", CallKind.CONFIRMATION)
AT_WORKER = PendingCall("sevt_4", "toolu_4", CallKind.WORKER)


def kinds(step: Step, state: SessionState) -> list[str] | None:
    events = steps.events_of(step, state)
    return None if events is None else [event.type for event in events]


def test_a_message_starts_a_turn() -> None:
    assert kinds(said(), standing()) == ["user.message"]


def test_a_message_waits_for_a_turn_that_runs_and_for_workers() -> None:
    for state in (TurnState.READY, TurnState.LEASED):
        assert kinds(said(), standing(status=Status.RUNNING, turn_state=state)) is None
    assert kinds(said(), standing(status=Status.RESCHEDULING, turn_state=TurnState.READY)) is None
    assert kinds(said(), standing(AT_WORKER)) is None and kinds(said(), standing(AT_WORKER, CUSTOM)) is None


def test_a_message_in_place_of_results_gives_the_calls_up() -> None:
    assert kinds(said(), standing(CUSTOM, ANOTHER)) == ["user.interrupt", "user.message"]


def test_a_message_never_passes_a_confirmation_that_is_awaited() -> None:
    for state in (standing(ASKING), standing(CUSTOM, ASKING), standing(ASKING, AT_WORKER)):
        with pytest.raises(StepRequiresConfirmation) as refused:
            steps.events_of(said(), state)
        assert orjson.loads(refused.value.metadata["details"])["event_ids"] == ["sevt_3"]


def test_results_answer_the_calls_that_wait() -> None:
    step = answered(ok("sevt_2", {"a": 1}), {"id": "sevt_1", "ok": False, "error": "no"})
    events = steps.events_of(step, standing(CUSTOM, ANOTHER))
    assert events is not None and [event.fields for event in events] == [
        {"custom_tool_use_id": "sevt_2", "content": [{"type": "text", "text": '{"a":1}'}], "is_error": False},
        {"custom_tool_use_id": "sevt_1", "content": [{"type": "text", "text": "no"}], "is_error": True},
    ]


def test_results_wait_for_what_else_waits() -> None:
    """They are of calls that were not handed out yet: the step before has no answer."""
    assert kinds(answered(ok("sevt_1")), standing(CUSTOM, AT_WORKER)) is None
    with pytest.raises(StepRequiresConfirmation):
        steps.events_of(answered(ok("sevt_1")), standing(CUSTOM, ASKING))


@pytest.mark.parametrize(
    ("given", "state", "waiting"),
    [
        (["sevt_9"], standing(CUSTOM), ["sevt_1"]),
        (["toolu_1"], standing(CUSTOM), ["sevt_1"]),
        (["sevt_1"], standing(CUSTOM, ANOTHER), ["sevt_1", "sevt_2"]),
        (["sevt_1", "sevt_2", "sevt_9"], standing(CUSTOM, ANOTHER), ["sevt_1", "sevt_2"]),
        (["sevt_3"], standing(ASKING), []),
        (["sevt_1"], standing(replace(CUSTOM, answered=True), ANOTHER), ["sevt_2"]),
        (["sevt_1"], standing(), []),
        (["sevt_1"], standing(status=Status.RUNNING, turn_state=TurnState.LEASED), []),
    ],
)
def test_results_of_other_calls_than_those_that_wait_are_refused(
    given: list[str], state: SessionState, waiting: list[str]
) -> None:
    with pytest.raises(StepResultsMismatch) as refused:
        steps.events_of(answered(*map(ok, given)), state)
    assert orjson.loads(refused.value.metadata["details"]) == {"session_id": "sess_1", "pending_ids": waiting}


def test_a_conversation_begins_with_a_message() -> None:
    steps.require_message(said())
    with pytest.raises(StepResultsMismatch):
        steps.require_message(answered(ok()))


def test_an_ended_session_takes_no_step() -> None:
    for state in (standing(status=Status.TERMINATED), standing(CUSTOM, archived_at=NOW)):
        for step in (said(), answered(ok("sevt_1"))):
            with pytest.raises(SessionEnded):
                steps.events_of(step, state)


# What the first step fixes.


def agent(**fields: Any) -> AgentVersion:
    document = {"name": "tester", "system": "Be brief.", "tools": [], "metadata": {}} | fields
    return AgentVersion("agent_1", 3, orjson.dumps(document).decode(), '{"id":"m"}', "m", NOW, NOW, None)


TOOLSET = {"type": "agent_toolset_20260401", "default_config": {}, "configs": []}
SERVER = {"type": "mcp_toolset", "mcp_server_name": "docs"}
OWN = {"type": "custom", "name": "own", "description": "Its own.", "input_schema": {"type": "object"}}


def test_the_tools_of_the_request_take_the_place_of_the_agents_own_custom_tools() -> None:
    first = begin(agent(tools=[TOOLSET, OWN, SERVER]), said(tools=[TOOL]))
    assert first.body["agent"]["tools"] == [TOOLSET, SERVER, {"type": "custom", **TOOL}]
    assert first.body["agent"]["version"] == 3 and first.body["title"] == NAME
    assert begin(agent(tools=[TOOLSET, OWN]), said()).body["agent"]["tools"] == [TOOLSET]


def test_an_agent_that_nothing_is_changed_of_is_taken_as_it_is() -> None:
    first = begin(agent(tools=[TOOLSET]), said(system="Sell."))
    assert first.body["agent"] == {"type": "agent", "id": "agent_1", "version": 3}


@pytest.mark.parametrize(
    ("own", "metadata", "sent", "used", "kept"),
    [
        ("Be brief.", {}, "Sell.", None, None),
        ("Be brief.", {"step_system": "request"}, "Sell.", "Sell.", "Sell."),
        ("Be brief.", {"step_system": "request"}, None, None, ""),
        (None, {}, "Sell.", "Sell.", "Sell."),
        (" ", {}, "Sell.", "Sell.", "Sell."),
        (None, {}, None, None, ""),
    ],
)
def test_the_system_prompt_of_the_request_is_used_where_the_agent_has_none_or_asks_for_it(
    own: Any, metadata: dict[str, str], sent: Any, used: Any, kept: Any
) -> None:
    first = begin(agent(system=own, metadata=metadata), said(system=sent))
    assert first.body["agent"].get("system") == used and first.conversation.system == kept


def test_an_agent_that_asks_for_something_unknown_is_told_so() -> None:
    with pytest.raises(InvalidRequest, match="step_system"):
        begin(agent(metadata={"step_system": "both"}), said())


def test_an_agent_names_environment_and_vaults_of_its_conversations() -> None:
    metadata = {"step_environment_id": "env_1", "step_vault_ids": "vlt_1, vlt_2,"}
    body = begin(agent(metadata=metadata), said()).body
    assert (body["environment_id"], body["vault_ids"]) == ("env_1", ["vlt_1", "vlt_2"])
    assert not begin(agent(), said()).body.keys() & {"environment_id", "vault_ids"}


def test_tools_stay_what_they_were() -> None:
    other = {**TOOL, "name": "other"}
    kept = Conversation("sess_1", canonical(said(tools=[TOOL, other]).tools or []), None)
    shuffled = {"input_schema": dict(reversed(SCHEMA.items())), "description": TOOL["description"], "name": "get_order"}
    for same in ({}, {"tools": None}, {"tools": [TOOL, other]}, {"tools": [other, shuffled]}):
        steps.refuse_changes(said(**same), kept)
        steps.refuse_changes(answered(ok(), **same), kept)
    for changed in ([], [TOOL], [TOOL, {**other, "description": "x"}], [TOOL, other, {**TOOL, "name": "third"}]):
        with pytest.raises(Aborted) as refused:
            steps.refuse_changes(said(tools=changed), kept)
        assert refused.value.reason == "STEP_TOOLS_CHANGED"


@pytest.mark.parametrize(
    ("kept", "sent", "refused"),
    [(None, "x", False), ("", None, False), ("", "x", True), ("x", None, False), ("x", "x", False), ("x", "y", True)],
)
def test_a_system_prompt_that_is_in_use_stays_what_it_was(kept: Any, sent: Any, refused: bool) -> None:
    conversation = Conversation("sess_1", "[]", kept)
    if not refused:
        steps.refuse_changes(said(system=sent), conversation)
        return
    with pytest.raises(Aborted) as changed:
        steps.refuse_changes(said(system=sent), conversation)
    assert changed.value.reason == "STEP_SYSTEM_CHANGED"

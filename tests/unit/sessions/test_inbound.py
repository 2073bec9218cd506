"""Client events are judged by form alone: what is taken comes out normalised, one bad event refuses the request."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import DomainError
from services.sessions.domain.inbound import MAX_EVENTS, refuse_ungraded, taken_from_worker, validate_events
from services.sessions.domain.session_errors import OutcomeGraderUnavailable

TEXT = {"type": "text", "text": "Hello"}
PNG = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"png").decode()}
PDF = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(b"pdf").decode()}
MESSAGE = {"type": "user.message", "content": [TEXT]}
RESULT = {"type": "user.custom_tool_result", "custom_tool_use_id": "sevt_1"}
SYSTEM = {"type": "system.message", "content": [TEXT]}
OUTCOME = {"type": "user.define_outcome", "description": "Ship", "rubric": {"type": "text", "content": "200"}}
STEER = {"type": "user.steer", "input_id": "steer_1", "text": "Prefer the smaller change."}


def live(*events: Any, published: bool = False) -> list[tuple[str, dict[str, Any]]]:
    return [(e.type, e.fields) for e in validate_events(list(events), initial=False, published=published)]


def refusal(events: Any, *, initial: bool = False, published: bool = False) -> DomainError:
    with pytest.raises(DomainError) as caught:
        validate_events(events, initial=initial, published=published)
    assert caught.value.code == "INVALID_ARGUMENT"
    return caught.value


def message(*blocks: Any) -> dict[str, Any]:
    return {"type": "user.message", "content": list(blocks)}


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        pytest.param({"type": "user.message", "content": "Hi"}, {"content": [{"type": "text", "text": "Hi"}]}),
        pytest.param(MESSAGE, {"content": [TEXT]}),
        pytest.param({"type": "user.interrupt"}, {}),
        pytest.param({"type": "user.interrupt", "session_thread_id": None}, {}),
        pytest.param({"type": "user.interrupt", "session_thread_id": "sthr_1"}, {"session_thread_id": "sthr_1"}),
        pytest.param(
            {"type": "user.tool_confirmation", "tool_use_id": "sevt_1", "result": "allow", "deny_message": None},
            {"tool_use_id": "sevt_1", "result": "allow"},
        ),
        pytest.param(
            {"type": "user.tool_confirmation", "tool_use_id": "toolu_1", "result": "deny", "deny_message": "no"},
            {"tool_use_id": "toolu_1", "result": "deny", "deny_message": "no"},
        ),
        pytest.param(RESULT, {"custom_tool_use_id": "sevt_1"}),
        pytest.param({**RESULT, "content": ""}, {"custom_tool_use_id": "sevt_1", "content": [TEXT | {"text": ""}]}),
        pytest.param(
            {**RESULT, "content": [], "is_error": True},
            {"custom_tool_use_id": "sevt_1", "content": [], "is_error": True},
        ),
        pytest.param(SYSTEM, {"content": [TEXT]}),
        pytest.param(STEER, {"input_id": "steer_1", "text": "Prefer the smaller change."}),
    ],
)
def test_sound_events_come_out_normalised(event: dict[str, Any], fields: dict[str, Any]) -> None:
    assert live(event) == [(event["type"], fields)]


@pytest.mark.parametrize(
    "block",
    [
        pytest.param({"type": "image", "source": PNG}, id="image-base64"),
        pytest.param({"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}, id="image-url"),
        pytest.param({"type": "document", "source": PDF, "title": "T", "context": None}, id="document-base64"),
        pytest.param(
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}},
            id="document-text",
        ),
        pytest.param({"type": "document", "source": {"type": "url", "url": "http://example.com/a.pdf"}}, id="url"),
    ],
)
def test_blocks_of_a_message_pass_unchanged(block: dict[str, Any]) -> None:
    assert live(message(TEXT, block)) == [("user.message", {"content": [TEXT, block]})]


def test_search_results_are_for_tool_results_only() -> None:
    block = {
        "type": "search_result",
        "source": "https://example.com",
        "title": "Example",
        "content": [TEXT],
        "citations": {"enabled": False},
    }
    assert live({**RESULT, "content": [block]})[0][1]["content"] == [block]
    assert refusal([message(block)]).field == "events.0.content.0.type"
    broken = {**block, "citations": {"enabled": "yes"}}
    assert refusal([{**RESULT, "content": [broken]}]).field == "events.0.content.0.citations"


@pytest.mark.parametrize(
    ("block", "field", "reason"),
    [
        pytest.param({"type": "redacted"}, ".type", "INVALID_REQUEST", id="redacted"),
        pytest.param({"type": "video"}, ".type", "INVALID_REQUEST", id="unknown-type"),
        pytest.param({"type": ["text"]}, ".type", "INVALID_REQUEST", id="type-not-a-string"),
        pytest.param("text", "", "INVALID_REQUEST", id="not-an-object"),
        pytest.param({"type": "text"}, ".text", "INVALID_REQUEST", id="text-missing"),
        pytest.param({"type": "text", "text": " \n\t"}, ".text", "INVALID_REQUEST", id="text-blank"),
        pytest.param({"type": "text", "text": "a\x00b"}, ".text", "INVALID_REQUEST", id="text-nul"),
        pytest.param({"type": "text", "text": "a" * 1_000_001}, ".text", "INVALID_REQUEST", id="text-too-long"),
        pytest.param({**TEXT, "cache_control": {}}, ".cache_control", "UNKNOWN_FIELD", id="unknown-field"),
        pytest.param({"type": "image"}, ".source", "INVALID_REQUEST", id="image-without-source"),
        pytest.param({"type": "image", "source": {"type": "text"}}, ".source.type", "INVALID_REQUEST", id="wrong-kind"),
        pytest.param(
            {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
            ".source",
            "UNSUPPORTED_CAPABILITY",
            id="file-source",
        ),
        pytest.param(
            {"type": "image", "source": {**PNG, "media_type": "image/svg+xml"}},
            ".source.media_type",
            "INVALID_REQUEST",
            id="image-media-type",
        ),
        pytest.param(
            {"type": "image", "source": {**PNG, "data": "not base64!"}},
            ".source.data",
            "INVALID_REQUEST",
            id="bad-base64",
        ),
        pytest.param(
            {"type": "image", "source": {"type": "url", "url": "file:///etc/passwd"}},
            ".source.url",
            "INVALID_REQUEST",
            id="url-scheme",
        ),
        pytest.param(
            {"type": "document", "source": {**PDF, "media_type": "text/html"}},
            ".source.media_type",
            "INVALID_REQUEST",
            id="document-media-type",
        ),
    ],
)
def test_unsound_blocks_are_refused_by_name(block: Any, field: str, reason: str) -> None:
    refused = refusal([message(TEXT, block)])
    assert (refused.field, refused.reason) == (f"events.0.content.1{field}", reason)


@pytest.mark.parametrize(
    ("event", "field", "reason"),
    [
        pytest.param("user.message", "events.0", "INVALID_REQUEST", id="not-an-object"),
        pytest.param({}, "events.0.type", "INVALID_EVENT_TYPE", id="no-type"),
        pytest.param({"type": 7}, "events.0.type", "INVALID_EVENT_TYPE", id="type-not-a-string"),
        pytest.param({"type": "agent.message"}, "events.0.type", "INVALID_EVENT_TYPE", id="agent-event"),
        pytest.param({"type": "user.tool_result"}, "events.0.tool_use_id", "INVALID_REQUEST", id="tool-result"),
        pytest.param({"type": "user.message"}, "events.0.content", "INVALID_REQUEST", id="no-content"),
        pytest.param(
            {"type": "user.message", "content": 1}, "events.0.content", "INVALID_REQUEST", id="content-number"
        ),
        pytest.param({"type": "user.message", "content": []}, "events.0.content", "INVALID_REQUEST", id="no-blocks"),
        pytest.param(
            {"type": "user.message", "content": " "}, "events.0.content", "INVALID_REQUEST", id="blank-string"
        ),
        pytest.param(message(*[TEXT] * 1001), "events.0.content", "INVALID_REQUEST", id="1001-blocks"),
        pytest.param({**MESSAGE, "id": "sevt_1"}, "events.0.id", "UNKNOWN_FIELD", id="unknown-field"),
        pytest.param(
            {"type": "user.interrupt", "session_thread_id": 3},
            "events.0.session_thread_id",
            "INVALID_REQUEST",
            id="thread-id-number",
        ),
        pytest.param(
            {"type": "user.tool_confirmation", "result": "allow"},
            "events.0.tool_use_id",
            "INVALID_REQUEST",
            id="confirmation-without-target",
        ),
        pytest.param(
            {"type": "user.tool_confirmation", "tool_use_id": "sevt_1", "result": "maybe"},
            "events.0.result",
            "INVALID_REQUEST",
            id="confirmation-result",
        ),
        pytest.param(
            {"type": "user.tool_confirmation", "tool_use_id": "sevt_1", "result": "allow", "deny_message": "no"},
            "events.0.deny_message",
            "INVALID_REQUEST",
            id="deny-message-with-allow",
        ),
        pytest.param(
            {"type": "user.custom_tool_result", "content": "x"},
            "events.0.custom_tool_use_id",
            "INVALID_REQUEST",
            id="result-without-target",
        ),
        pytest.param({**RESULT, "is_error": "no"}, "events.0.is_error", "INVALID_REQUEST", id="is-error-string"),
        pytest.param({**STEER, "text": ""}, "events.0.text", "INVALID_REQUEST", id="steer-blank"),
        pytest.param(
            {"type": "user.steer", "text": "x"}, "events.0.input_id", "INVALID_REQUEST", id="steer-no-input-id"
        ),
        pytest.param({**SYSTEM, "content": "x"}, "events.0.content", "INVALID_REQUEST", id="system-bare-string"),
        pytest.param({**SYSTEM, "content": []}, "events.0.content", "INVALID_REQUEST", id="system-empty"),
        pytest.param(
            {**SYSTEM, "content": [{"type": "text", "text": "  "}]},
            "events.0.content.0.text",
            "INVALID_REQUEST",
            id="system-blank",
        ),
    ],
)
def test_unsound_events_are_refused_by_name(event: Any, field: str, reason: str) -> None:
    refused = refusal([event])
    assert (refused.field, refused.reason) == (field, reason)


def test_a_size_violation_names_the_ceiling() -> None:
    assert "at most 1000" in refusal([{**SYSTEM, "content": [TEXT] * 1001}]).message


@pytest.mark.parametrize("events", [None, {}, "x", 1, []])
def test_events_must_be_a_filled_array(events: Any) -> None:
    assert refusal(events).field == "events"


def test_the_number_of_events_in_a_request_is_limited() -> None:
    assert len(live(*[{"type": "user.interrupt"}] * MAX_EVENTS)) == MAX_EVENTS
    assert refusal([{"type": "user.interrupt"}] * (MAX_EVENTS + 1)).field == "events"


def test_one_bad_event_refuses_the_whole_request() -> None:
    assert refusal([MESSAGE, {"type": "nonsense"}, MESSAGE]).field == "events.1.type"


class TestSystemMessagePlace:
    def test_alone_is_taken_from_local_callers(self) -> None:
        assert [kind for kind, _ in live(SYSTEM)] == ["system.message"]

    def test_alone_is_refused_from_published_callers(self) -> None:
        assert refusal([SYSTEM], published=True).reason == "INVALID_SYSTEM_MESSAGE"

    @pytest.mark.parametrize("before", [MESSAGE, RESULT])
    def test_published_callers_send_it_after_an_input(self, before: dict[str, Any]) -> None:
        assert len(live(before, SYSTEM, published=True)) == 2

    def test_published_callers_can_not_send_it_after_an_interrupt(self) -> None:
        assert refusal([{"type": "user.interrupt"}, SYSTEM], published=True).reason == "INVALID_SYSTEM_MESSAGE"

    @pytest.mark.parametrize("published", [True, False])
    def test_must_be_last(self, published: bool) -> None:
        refused = refusal([MESSAGE, SYSTEM, MESSAGE], published=published)
        assert (refused.reason, refused.field) == ("INVALID_SYSTEM_MESSAGE", "events.1")

    @pytest.mark.parametrize("published", [True, False])
    def test_at_most_one(self, published: bool) -> None:
        assert refusal([MESSAGE, SYSTEM, SYSTEM], published=published).reason == "INVALID_SYSTEM_MESSAGE"

    def test_published_ones_are_text_alone(self) -> None:
        picture = {**SYSTEM, "content": [TEXT, {"type": "image", "source": PNG}]}
        assert len(live(MESSAGE, picture)) == 2
        assert refusal([MESSAGE, picture], published=True).field == "events.1.content.1.type"


class TestInitialEvents:
    def test_an_empty_list_is_fine(self) -> None:
        assert validate_events([], initial=True, published=True) == []

    def test_messages_are_normalised(self) -> None:
        (event,) = validate_events([{"type": "user.message", "content": "Go"}], initial=True, published=True)
        assert event.fields == {"content": [{"type": "text", "text": "Go"}]}

    def test_fifty_are_taken_and_fifty_one_refused(self) -> None:
        assert len(validate_events([MESSAGE] * 50, initial=True, published=False)) == 50
        assert refusal([MESSAGE] * 51, initial=True).reason == "TOO_MANY_INITIAL_EVENTS"

    @pytest.mark.parametrize(
        ("events", "reason"),
        [
            pytest.param(None, "INVALID_INITIAL_EVENTS", id="null"),
            pytest.param({}, "INVALID_INITIAL_EVENTS", id="object"),
            pytest.param(["x"], "INVALID_INITIAL_EVENTS", id="element-not-an-object"),
            pytest.param([{}], "INVALID_INITIAL_EVENT_TYPE", id="no-type"),
            pytest.param([{"type": ["user.message"]}], "INVALID_INITIAL_EVENT_TYPE", id="type-not-a-string"),
            pytest.param([{"type": "user.interrupt"}], "INVALID_INITIAL_EVENT_TYPE", id="interrupt"),
            pytest.param([SYSTEM], "INVALID_INITIAL_EVENT_TYPE", id="system-message"),
            pytest.param([{"type": "user.message", "content": 5}], "INVALID_INITIAL_EVENTS", id="content"),
            pytest.param([MESSAGE, {**MESSAGE, "extra": 1}], "INVALID_INITIAL_EVENTS", id="unknown-field"),
        ],
    )
    def test_refusals(self, events: Any, reason: str) -> None:
        refused = refusal(events, initial=True)
        assert refused.reason == reason
        assert str(refused.field).startswith("initial_events")


@pytest.mark.parametrize(
    ("initial", "malformed"), [(True, "INVALID_INITIAL_EVENTS"), (False, "INVALID_DEFINE_OUTCOME")]
)
class TestOutcomes:
    def test_a_sound_one_is_normalised(self, initial: bool, malformed: str) -> None:
        (event,) = validate_events([OUTCOME], initial=initial, published=True)
        assert event.fields == {"description": "Ship", "rubric": OUTCOME["rubric"], "max_iterations": 3}
        with_file = {**OUTCOME, "rubric": {"type": "file", "file_id": "file_1"}, "max_iterations": 20}
        (event,) = validate_events([with_file], initial=initial, published=False)
        assert event.fields == {key: with_file[key] for key in ("description", "rubric", "max_iterations")}
        (event,) = validate_events([{**OUTCOME, "max_iterations": None}], initial=initial, published=False)
        assert event.fields["max_iterations"] == 3

    def test_a_second_one_in_the_same_request(self, initial: bool, malformed: str) -> None:
        refused = refusal([OUTCOME, MESSAGE, OUTCOME], initial=initial)
        assert refused.reason == malformed
        assert str(refused.field).endswith("events.2")

    def test_without_a_grader_none_is_taken(self, initial: bool, malformed: str) -> None:
        events = validate_events([MESSAGE, OUTCOME], initial=initial, published=False)
        with pytest.raises(OutcomeGraderUnavailable) as refused:
            refuse_ungraded(events, "events")
        assert refused.value.field == "events.1"
        refuse_ungraded(events[:1], "events")

    @pytest.mark.parametrize(
        "change",
        [
            {"description": ""},
            {"description": None},
            {"rubric": None},
            {"rubric": {"type": "text"}},
            {"rubric": {"type": "link", "content": "x"}},
            {"rubric": {"type": "text", "content": "x", "file_id": "file_1"}},
            {"max_iterations": 0},
            {"max_iterations": 21},
            {"max_iterations": 2.5},
            {"max_iterations": True},
            {"extra": 1},
        ],
    )
    def test_malformed(self, initial: bool, malformed: str, change: dict[str, Any]) -> None:
        assert refusal([{**OUTCOME, **change}], initial=initial).reason == malformed


KEYS = st.sampled_from(["type", "content", "source", "text", "data", "rubric", "tool_use_id", "result", "url"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)
TYPES = st.sampled_from(
    ["user.message", "user.interrupt", "user.tool_confirmation", "user.define_outcome", "system.message", "user.steer"]
)


@given(st.lists(st.builds(lambda kind, rest: {**rest, "type": kind}, TYPES, st.dictionaries(KEYS, JSON)), max_size=3))
def test_no_input_escapes_the_refusals(events: list[Any]) -> None:
    for initial in (True, False):
        try:
            validate_events(events, initial=initial, published=True)
        except DomainError as refused:
            assert refused.code == "INVALID_ARGUMENT"
            assert refused.field


def test_a_workers_unsound_result_is_an_error_of_its_call() -> None:
    """The tool has run, and the worker sends nothing else: a refusal would leave the call waiting for ever."""
    sound = {"type": "user.tool_result", "tool_use_id": "sevt_1", "content": [{"type": "text", "text": ""}]}
    unsound = sound | {"content": [{"type": "video"}]}
    nameless = {"type": "user.tool_result", "content": "x"}
    taken = taken_from_worker([sound, unsound, nameless, MESSAGE])
    assert taken[0] is sound and taken[2:] == [nameless, MESSAGE]
    assert (taken[1]["tool_use_id"], taken[1]["is_error"]) == ("sevt_1", True)
    assert "events.1.content.0.type" in taken[1]["content"][0]["text"]
    validate_events(taken[:2], initial=False, published=False)
    assert taken_from_worker("x") == "x"

"""The events of the session gateway as a function of a log: what they carry, and that nothing but the log decides."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.render.gateway import ENDS, TYPES, Projector
from services.gateway.streams.gateway_stream import MAX_PLACES, Places
from tests.unit.gateway.gateway_logs import SESSION, Log


def kinds(told: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in told]


def text_of(told: list[dict[str, Any]]) -> str:
    """What a client shows that drops what is replaced."""
    deltas: list[dict[str, Any]] = []
    for event in told:
        if event["type"] == "text-delta":
            deltas = [each for each in deltas if each["index"] < event.get("replaces", 1 << 40)] + [event]
    return "".join(each["delta"] for each in deltas)


def test_a_plain_run() -> None:
    log = Log()
    first = log.start("Summarise it.")
    log.says("It went well.")
    log.idle()
    run = "run_" + first.removeprefix("sevt_")
    assert log.told() == [
        {
            "index": 0,
            "type": "started",
            "sessionId": SESSION,
            "runId": run,
            "turnId": run,
            "message": [{"type": "text", "text": "Summarise it."}],
        },
        {"index": 1, "type": "text-delta", "delta": "It went well."},
        {"index": 2, "type": "completed", "output": "It went well.", "runId": run, "turnId": run},
    ]


def test_text_comes_in_the_parts_of_the_log_and_its_rest_with_the_message() -> None:
    log = Log()
    log.start()
    log.says("one two three", 4, 8)
    log.idle()
    assert [event.get("delta") for event in log.told()[1:-1]] == ["one ", "two ", "three"]
    assert log.told()[-1]["output"] == "one two three"


def test_a_message_that_was_told_whole_brings_no_further_delta() -> None:
    log = Log()
    log.start()
    log.says("all", 3)
    log.idle()
    assert kinds(log.told()) == ["started", "text-delta", "completed"]


def test_a_part_that_is_missing_is_brought_by_the_message() -> None:
    log = Log()
    log.start()
    log.part("sevt_m", 0, "one ")
    log.part("sevt_m", 8, "three")
    log.add("agent.message", "sevt_m", content=[{"type": "text", "text": "one two three"}])
    log.idle()
    assert text_of(log.told()) == "one two three"


def test_two_messages_of_a_run_are_two_paragraphs_of_its_output() -> None:
    log = Log()
    log.start()
    log.says("Let me look.")
    log.add("agent.tool_use", name="bash", input={}, evaluated_permission="allow")
    log.says("There is nothing.", 6)
    log.idle()
    told = log.told()
    assert told[-1]["output"] == "Let me look.\n\nThere is nothing." == text_of(told)


def test_text_that_broke_off_is_replaced_by_what_the_model_says_then() -> None:
    log = Log()
    log.start()
    log.says("First.")
    log.breaks_off("I was going to")
    log.breaks_off("I was about")
    log.says("Second.", 3)
    log.idle()
    told = log.told()
    replacing = [(event["index"], event["replaces"]) for event in told if "replaces" in event]
    assert replacing == [(3, 2), (4, 3)]
    assert text_of(told) == told[-1]["output"] == "First.\n\nSecond."


def test_a_run_that_waits_for_a_decision() -> None:
    log = Log()
    log.start()
    call = log.asks()
    log.waits(call)
    asked = log.told()[-1]
    assert asked["type"] == "input-requested" and asked["requestId"] == call and asked["pending"] == [call]
    assert asked["input"] == {
        "type": "confirmation",
        "tool": "bash",
        "arguments": {"command": "ls"},
        "options": [{"id": "approve", "label": "Approve"}, {"id": "deny", "label": "Deny"}],
    }
    log.add("user.tool_confirmation", tool_use_id=call, result="allow")
    log.running()
    log.add("agent.tool_result", tool_use_id=call, content=[])
    log.says("Done.")
    log.idle()
    told = log.told()
    assert kinds(told) == ["started", "input-requested", "started", "text-delta", "completed"]
    assert told[2]["resumed"] is True and told[2]["runId"] == told[0]["runId"] == told[-1]["runId"]


def test_a_question_shows_what_is_asked() -> None:
    log = Log()
    log.start()
    fields = {"name": "ask_person", "input": {"question": "Which month?"}}
    call = log.asks("agent.custom_tool_use", **fields)
    log.waits(call)
    shown = log.told()[-1]["input"]
    assert shown == {
        "type": "question",
        "tool": "ask_person",
        "prompt": "Which month?",
        "arguments": {"question": "Which month?"},
    }


def test_a_call_of_a_server_names_it() -> None:
    log = Log()
    log.start()
    call = log.asks("agent.mcp_tool_use", mcp_server_name="docs")
    log.waits(call)
    assert log.told()[-1]["input"]["server"] == "docs"


def test_what_still_waits_is_told_again_after_a_part_of_the_answers() -> None:
    log = Log()
    log.start()
    first, second = log.asks(), log.asks()
    log.waits(first, second)
    log.add("user.tool_confirmation", tool_use_id=first, result="allow")
    log.waits(second)
    asked = [(event["requestId"], event["pending"]) for event in log.told() if event["type"] == "input-requested"]
    assert asked == [(first, [first, second]), (second, [first, second]), (second, [second])]


def test_calls_that_only_workers_wait_for_are_no_pause() -> None:
    log = Log()
    log.start()
    call, other = log.asks(), log.asks()
    log.waits(call, other)
    log.add("user.tool_confirmation", tool_use_id=call, result="allow")
    log.add("user.tool_confirmation", tool_use_id=other, result="allow")
    # A worker has yet to make them.
    reason = {"type": "requires_action", "event_ids": [call, other]}
    log.add("session.status_idle", stop_reason=reason, metadata={"client_event_ids": []})
    projector = Projector(SESSION)
    told = [orjson.loads(event.body) for event in log.project(projector)]
    assert kinds(told) == ["started", "input-requested", "input-requested", "started"] and told[3]["resumed"]
    assert not projector.is_at_rest
    log.running()
    log.says("Made.")
    log.idle()
    assert kinds(log.told())[4:] == ["text-delta", "completed"]


def test_an_interrupt_ends_a_run_as_cancelled() -> None:
    log = Log()
    log.start()
    log.part("sevt_m", 0, "I am ")
    log.add("user.interrupt")
    log.add("agent.message", "sevt_m", content=[{"type": "text", "text": "I am say"}])
    log.idle()
    told = log.told()
    assert kinds(told) == ["started", "text-delta", "text-delta", "cancelled"] and text_of(told) == "I am say"


def test_an_interrupt_of_an_idle_session_cancels_no_later_run() -> None:
    log = Log()
    log.add("user.interrupt")
    log.start()
    log.says("Fine.")
    log.idle()
    assert kinds(log.told())[-1] == "completed"


def test_an_interrupt_of_a_thread_cancels_no_run() -> None:
    log = Log()
    log.start()
    log.add("user.interrupt", session_thread_id="sthr_2")
    log.idle()
    assert kinds(log.told())[-1] == "completed"


@pytest.mark.parametrize(
    ("reason", "error", "code"),
    [
        ("retries_exhausted", "model_overloaded_error", "model_overloaded_error"),
        ("retries_exhausted", "", "retries_exhausted"),
        ("refusal", "", "refusal"),
        ("budget_reached", "", "budget_reached"),
    ],
)
def test_a_failure_has_the_code_of_its_cause(reason: str, error: str, code: str) -> None:
    log = Log()
    log.start()
    if error:
        log.add("session.error", error={"type": error, "message": "Busy."})
    log.idle(reason)
    failed = log.told()[-1]
    assert failed["type"] == "failed" and failed["code"] == code and failed["message"]


def test_an_error_that_was_overcome_fails_nothing() -> None:
    log = Log()
    log.start()
    log.add("session.error", error={"type": "model_overloaded_error", "message": "Busy."})
    log.add("session.status_rescheduled")
    log.running()
    log.says("Here I am.")
    log.idle()
    assert kinds(log.told()) == ["started", "text-delta", "completed"]


def test_a_blocked_run_fails_with_the_code_of_the_guardrail() -> None:
    log = Log()
    log.start()
    log.add("session.guardrail_blocked", side="input", code="no_prices", message="Not here.", input_seqs=[1])
    log.add("session.error", error={"type": "no_prices", "message": "Not here."})
    log.idle("retries_exhausted")
    failed = log.told()[-1]
    told = {name: failed[name] for name in ("type", "code", "message", "guardrail")}
    assert told == {"type": "failed", "code": "no_prices", "message": "Not here.", "guardrail": "input"}


@pytest.mark.parametrize("kind", ["session.status_terminated", "session.deleted"])
def test_a_session_that_ends_fails_the_run_that_is_under_way(kind: str) -> None:
    log = Log()
    log.start()
    log.add(kind)
    projector = Projector(SESSION)
    told = log.project(projector)
    assert (told[-1].type, orjson.loads(told[-1].body)["code"]) == ("failed", "session_ended")


def test_a_session_that_ends_at_rest_tells_nothing() -> None:
    log = Log()
    log.add("session.status_terminated")
    assert log.told() == []


def test_a_message_in_the_middle_of_a_run_belongs_to_it() -> None:
    log = Log()
    log.start()
    log.message("And this.")
    log.says("Both.")
    log.idle()
    assert kinds(log.told()) == ["started", "text-delta", "completed"]


def test_a_turn_that_no_message_started_is_a_run_too() -> None:
    log = Log()
    log.add("user.define_outcome")
    log.running()
    log.says("On it.")
    log.idle()
    assert kinds(log.told()) == ["started", "text-delta", "completed"] and "message" not in log.told()[0]


def test_what_threads_say_to_each_other_is_not_shown() -> None:
    log = Log()
    log.start()
    log.add("agent.message", session_thread_id="sthr_2", content=[{"type": "text", "text": "Psst."}])
    log.idle()
    assert kinds(log.told()) == ["started", "completed"] and log.told()[-1]["output"] == ""


WORDS = st.text(alphabet="ab é😀\n", min_size=1, max_size=12)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Any mixture of runs: whole, in parts, broken off, asked about, interrupted, failed, rescheduled."""
    log = Log()
    for _ in range(draw(st.integers(1, 4))):
        log.start(draw(WORDS))
        for _ in range(draw(st.integers(0, 4))):
            _step(log, draw)
        log.idle(draw(st.sampled_from(["end_turn", "end_turn", "retries_exhausted", "refusal", "budget_reached"])))
        if draw(st.booleans()):
            log.add("session.updated", title="x")
    return log


def _step(log: Log, draw: st.DrawFn) -> None:
    match draw(st.sampled_from(["says", "parts", "breaks", "asks", "interrupt", "error", "again", "queued"])):
        case "says":
            log.says(draw(WORDS))
        case "parts":
            text = draw(st.text(alphabet="ab é😀", min_size=4, max_size=12))
            log.says(text, *sorted(draw(st.sets(st.integers(1, 4), min_size=1))))
        case "breaks":
            log.breaks_off(draw(WORDS))
        case "asks":
            calls = [log.asks() for _ in range(draw(st.integers(1, 3)))]
            for answered in range(len(calls)):
                log.waits(*calls[answered:])
                log.add("user.tool_confirmation", tool_use_id=calls[answered], result="allow")
            log.running()
        case "interrupt":
            log.add("user.interrupt")
        case "error":
            log.add("session.error", error={"type": "unknown_error", "message": "m"})
        case "again":
            log.add("session.status_rescheduled")
            log.running()
        case "queued":
            log.message(draw(WORDS))


@given(logs())
def test_indices_are_dense_and_every_run_has_one_beginning_and_one_end(log: Log) -> None:
    told = log.told()
    assert [event["index"] for event in told] == list(range(len(told)))
    assert {event["type"] for event in told} <= set(TYPES)
    begun = [event["runId"] for event in told if event["type"] == "started" and "resumed" not in event]
    ended = [event["runId"] for event in told if event["type"] in ENDS]
    assert begun == ended and len(set(begun)) == len(begun)


@given(logs())
def test_the_deltas_of_a_run_are_its_output(log: Log) -> None:
    run: list[dict[str, Any]] = []
    for event in log.told():
        if event["type"] == "started" and "resumed" not in event:
            run = []
        run.append(event)
        if event["type"] == "completed":
            # Text that broke off last and was never said again stays shown, and is no output.
            assert text_of(run).startswith(event["output"])


@given(logs(), st.data())
def test_a_reconnect_at_any_index_brings_what_a_stream_from_the_beginning_had(log: Log, data: st.DataObject) -> None:
    """Bytes, not only meaning; from whichever place this process knows."""
    whole = [event.frame() for event in log.project()]
    places = Places()
    projector = Projector(SESSION)
    seen_up_to = data.draw(st.integers(0, len(log.events)))
    for entry in log.events[:seen_up_to]:
        if projector.is_between_runs:
            places.keep("w", projector)
        projector.take(*entry)
    for index in range(len(whole) + 1):
        place = places.before("w", SESSION, index=index, seq=None)
        assert place.index <= index
        again = [event.frame() for entry in log.events for event in place.take(*entry) if event.index >= index]
        assert again == whole[index:]


@given(logs(), st.data())
def test_the_first_part_of_a_log_gives_the_first_part_of_the_events(log: Log, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(log.events)))
    projector = Projector(SESSION)
    early = [event.frame() for entry in log.events[:cut] for event in projector.take(*entry)]
    # What comes twice, as at the seam of replay and live, changes nothing.
    late = [event.frame() for entry in log.events[max(0, cut - 3) :] for event in projector.take(*entry)]
    assert early + late == [event.frame() for event in log.project()]


def test_places_are_bounded_and_the_newest_are_kept() -> None:
    places, projector, log = Places(), Projector(SESSION), Log()
    for _ in range(3 * MAX_PLACES):
        log.start()
        log.idle()
    for entry in log.events:
        if projector.is_between_runs:
            places.keep("w", projector)
        projector.take(*entry)
    newest = places.before("w", SESSION, index=projector.index, seq=None)
    assert newest.index == projector.index - 2
    assert places.before("w", SESSION, index=0, seq=None).index == 0
    assert places.before("another", SESSION, index=99, seq=None).seq == 0
    assert places.before("w", SESSION, index=0, seq=newest.seq + 1).seq == newest.seq

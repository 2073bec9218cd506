"""Every state of a steer's receipt: what leads to it, and what the sender and the log are told."""

import pytest

from services.sessions.domain.steering import Channel, Receipt, SteerState, Used, judge, settle

STEER = {"input_id": "steer_1", "text": "smaller"}
CHANNEL = Channel("turn_1")


def test_a_steer_that_the_engine_takes_is_delivered_to_the_turn_that_runs() -> None:
    assert judge(STEER, None, CHANNEL) is None
    assert judge(STEER | {"expected_turn_id": "turn_1"}, None, CHANNEL) is None
    receipt = settle(STEER, CHANNEL, acknowledged=True)
    assert receipt.public() == {"input_id": "steer_1", "state": "delivered", "turn_id": "turn_1"}
    assert receipt.metadata() == {"input_id": "steer_1", "steer_state": "delivered", "turn_id": "turn_1"}


def test_a_repeat_of_what_was_delivered_is_a_duplicate_and_is_not_sent_again() -> None:
    for state in (SteerState.DELIVERED, SteerState.DUPLICATE):
        for channel in (CHANNEL, None):
            receipt = judge(STEER, Used("smaller", state, "turn_1"), channel)
            assert receipt == Receipt("steer_1", SteerState.DUPLICATE, "turn_1")


@pytest.mark.parametrize("state", [*SteerState, None])
def test_an_id_with_another_text_is_a_conflict_whatever_became_of_the_first(state) -> None:
    receipt = judge(STEER, Used("larger", state), CHANNEL)
    assert receipt is not None and receipt.state is SteerState.CONFLICT and receipt.detail


@pytest.mark.parametrize(
    ("steer", "channel"),
    [
        pytest.param({}, None, id="no turn, or an engine without an input"),
        pytest.param({"expected_turn_id": "turn_0"}, CHANNEL, id="another turn"),
        pytest.param({}, Channel("turn_1", open=False), id="the turn is about to end"),
        pytest.param({}, Channel("turn_1", busy=True), id="another steer is under way"),
    ],
)
def test_a_steer_that_nothing_takes_is_rejected_with_the_reason(steer, channel) -> None:
    receipt = judge(STEER | steer, None, channel)
    assert receipt is not None and receipt.state is SteerState.REJECTED and receipt.detail
    assert "turn_id" not in receipt.public()


def test_a_steer_that_the_engine_refuses_is_rejected() -> None:
    assert settle(STEER, CHANNEL, acknowledged=False).state is SteerState.REJECTED


def test_what_was_rejected_may_be_sent_again() -> None:
    assert judge(STEER, Used("smaller", SteerState.REJECTED), CHANNEL) is None


def test_a_steer_without_an_acknowledgement_is_never_replayed() -> None:
    receipt = settle(STEER, CHANNEL, acknowledged=None)
    assert receipt.state is SteerState.OUTCOME_UNKNOWN and receipt.turn_id == "turn_1"
    again = judge(STEER, Used("smaller", receipt.state, "turn_1"), CHANNEL)
    assert again is not None and again.state is SteerState.OUTCOME_UNKNOWN


def test_a_repeat_of_what_is_under_way_waits_for_nothing() -> None:
    receipt = judge(STEER, Used("smaller", None, "turn_1"), CHANNEL)
    assert receipt is not None and receipt.state is SteerState.REJECTED and "under way" in receipt.detail

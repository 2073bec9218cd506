"""The lease machine of the session protocol: who holds a session when, and what a silent worker comes to.

Nothing here has a clock or a database.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import DomainError
from services.worker.queue.domain import session_item as rules
from services.worker.queue.domain.session_errors import HeartbeatPreconditionFailed, WorkAlreadyStopped
from services.worker.queue.domain.session_item import ACTIVE, QUEUED, STARTING, STOPPED, STOPPING, Caller, SessionItem

NOW = datetime(2026, 11, 30, 8, tzinfo=UTC)
TTL = 60
KEY, API = Caller(), Caller(is_worker=False)
FIRST, SECOND = Caller(b"first"), Caller(b"second")


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def queued(**fields: object) -> SessionItem:
    item = SessionItem("work_1", "wrkspc_a", "env_1", "sess_1", "pending", revision=0, attempt=0, created_at=NOW)
    return replace(item, **fields)


def polled() -> SessionItem:
    return queued(polled_at=NOW, attempt=1, token_sha256=b"first")


def starting() -> SessionItem:
    return rules.acknowledge(polled(), FIRST, NOW, TTL)


def active() -> SessionItem:
    return rules.beat(starting(), FIRST, rules.NO_HEARTBEAT, after(1), None)[0]


def test_an_item_goes_from_queued_to_stopped() -> None:
    states = [polled().state, starting().state, active().state]
    stopping = rules.stop(active(), API, after(2), force=False)
    stopped = rules.stop(stopping, FIRST, after(3), force=True)
    assert [*states, stopping.state, stopped.state] == [QUEUED, STARTING, ACTIVE, STOPPING, STOPPED]
    assert (stopped.stop_requested_at, stopped.finished_at) == (after(2), after(3))


def test_a_heartbeat_repeats_the_last_one_exactly() -> None:
    item, extended = rules.beat(active(), KEY, active().last_heartbeat, after(30), None)
    assert extended and item.lease_expires_at == after(30 + TTL) and item.started_at == active().started_at
    for expected in (rules.NO_HEARTBEAT, active().last_heartbeat, "2026-11-30T08:00:30Z"):
        with pytest.raises(HeartbeatPreconditionFailed) as refused:
            rules.beat(item, KEY, expected, after(31), None)
        assert '"lease_extended": false' in refused.value.metadata["details"]
        assert item.last_heartbeat in refused.value.metadata["details"]


def test_a_lost_answer_to_a_heartbeat_is_made_good_once_for_who_has_the_token() -> None:
    first = active()
    second, extended = rules.beat(first, FIRST, rules.NO_HEARTBEAT, after(10), None)
    assert extended
    # Not from anybody who has no token, and not twice in a row: that would be another who shares it.
    for by, expected in ((KEY, first.last_heartbeat), (FIRST, first.last_heartbeat), (FIRST, rules.NO_HEARTBEAT)):
        with pytest.raises(HeartbeatPreconditionFailed):
            rules.beat(second, by, expected, after(11), None)
    third, _ = rules.beat(second, FIRST, second.last_heartbeat, after(12), None)
    fourth, extended = rules.beat(third, FIRST, second.last_heartbeat, after(13), None)
    assert extended and fourth.lease_expires_at == after(13 + TTL)


def test_a_first_heartbeat_says_that_there_was_none() -> None:
    with pytest.raises(HeartbeatPreconditionFailed) as refused:
        rules.beat(starting(), KEY, "2026-11-30T08:00:00.000000Z", NOW, None)
    assert '"last_heartbeat": null' in refused.value.metadata["details"]


def test_without_an_expectation_any_heartbeat_counts() -> None:
    assert rules.beat(active(), KEY, None, after(5), None)[1]


@pytest.mark.parametrize("item", [polled(), queued()])
def test_an_item_that_nobody_acknowledged_has_no_lease_to_renew(item: SessionItem) -> None:
    with pytest.raises(HeartbeatPreconditionFailed):
        rules.beat(item, KEY, rules.NO_HEARTBEAT, NOW, None)


def test_what_stops_is_told_without_looking_at_the_expectation() -> None:
    stopping = rules.stop(active(), API, after(2), force=False)
    stopped = rules.stop(active(), API, after(2), force=True)
    assert rules.beat(stopping, KEY, "whatever", after(3), None) == (stopping, False)
    assert rules.beat(stopped, KEY, "whatever", after(3), None) == (stopped, False)


@pytest.mark.parametrize(("desired", "granted"), [(1, 5), (30, 30), (10_000, 600)])
def test_the_time_to_live_is_bounded(desired: int, granted: int) -> None:
    assert rules.bounded_ttl(desired, default=60) == granted
    assert rules.bounded_ttl(1, default=2) == 2


def test_an_acknowledged_item_without_a_heartbeat_comes_back_untouched() -> None:
    lapsed = rules.lapse(starting(), after(TTL))
    assert (lapsed.state, lapsed.settle_due, lapsed.token_sha256) == (QUEUED, False, None)
    assert lapsed.lost_token_sha256 == b"first"


def test_an_active_item_comes_back_once_its_calls_are_settled() -> None:
    lapsed = rules.lapse(active(), after(1 + TTL))
    assert (lapsed.state, lapsed.settle_due, lapsed.heartbeat_at) == (QUEUED, True, None)
    assert rules.lapse(active(), after(TTL)) == active()


def test_an_item_that_was_to_stop_ends_when_its_holder_is_silent() -> None:
    lapsed = rules.lapse(rules.stop(active(), API, after(2), force=False), after(1 + TTL))
    assert (lapsed.state, lapsed.settle_due, lapsed.follow_up_due) == (STOPPED, True, True)


def test_a_queued_item_is_stopped_at_once() -> None:
    assert rules.stop(polled(), API, NOW, force=False).state == STOPPED
    assert not rules.stop(polled(), API, NOW, force=False).settle_due


def test_only_who_is_not_the_worker_leaves_calls_in_doubt() -> None:
    assert not rules.stop(active(), FIRST, after(2), force=True).settle_due
    assert not rules.stop(active(), KEY, after(2), force=True).settle_due
    assert rules.stop(active(), API, after(2), force=True).settle_due


def test_a_stopped_item_stays_stopped() -> None:
    stopped = rules.stop(active(), API, after(2), force=True)
    for act in (
        lambda: rules.stop(stopped, API, after(3), force=True),
        lambda: rules.acknowledge(stopped, KEY, after(3), TTL),
    ):
        with pytest.raises(WorkAlreadyStopped):
            act()


def test_who_has_lost_an_item_neither_renews_nor_stops_it() -> None:
    taken_over = replace(active(), token_sha256=b"second", lost_token_sha256=b"first")
    with pytest.raises(HeartbeatPreconditionFailed):
        rules.beat(taken_over, FIRST, None, after(2), None)
    with pytest.raises(WorkAlreadyStopped):
        rules.stop(taken_over, FIRST, after(2), force=True)
    assert rules.acknowledge(replace(polled(), token_sha256=b"second"), FIRST, NOW, TTL).state == QUEUED


def test_an_acknowledgement_may_be_repeated() -> None:
    assert rules.acknowledge(starting(), FIRST, after(5), TTL) == starting()
    assert rules.acknowledge(active(), KEY, after(5), TTL) == active()


def test_items_that_change_nothing_come_back_ever_slower() -> None:
    item = rules.end(active(), after(600))
    assert rules.successor_pause(item, "") == (0, timedelta())
    pauses = []
    for fruitless in range(8):
        ended = replace(item, waiting_call_id="sevt_1", fruitless=fruitless)
        pauses.append(rules.successor_pause(ended, "sevt_1")[1].total_seconds())
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert rules.successor_pause(replace(item, waiting_call_id="sevt_1", fruitless=4), "sevt_2") == (0, timedelta())
    short = rules.end(active(), after(1.5))
    assert rules.successor_pause(short, "") == (0, timedelta(seconds=1))
    assert rules.successor_pause(short, "sevt_1") == (0, timedelta(seconds=1))


def test_the_item_after_one_that_served_or_was_stopped_is_not_held_back() -> None:
    at_once = (0, timedelta())
    served = replace(rules.end(active(), after(1.5)), waiting_call_id="sevt_1", fruitless=3)
    assert rules.successor_pause(served, "") == rules.successor_pause(served, "sevt_2") == at_once
    gently = rules.stop(rules.stop(active(), API, after(1.2), force=False), FIRST, after(1.5), force=True)
    assert rules.successor_pause(gently, "") == at_once
    assert rules.successor_pause(rules.stop(active(), API, after(1.5), force=True), "") == at_once
    # What leaves its call waiting comes back slower whoever ended it.
    vain = replace(gently, waiting_call_id="sevt_1")
    assert rules.successor_pause(vain, "sevt_1") == (1, timedelta(seconds=1))


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["poll", "ack", "beat", "stop", "force", "lapse"]),
        st.sampled_from([0, 1]),
        st.integers(min_value=0, max_value=90),
    ),
    max_size=30,
)


@given(ACTS)
def test_two_workers_never_hold_a_lease_at_once(acts: list[tuple[str, int, int]]) -> None:
    """Whatever two workers do, at most one of them renews, and nobody but the current one ever does."""
    item, now, attempts = queued(), NOW, 0
    tokens: dict[int, bytes] = {}
    last: dict[int, str] = {0: rules.NO_HEARTBEAT, 1: rules.NO_HEARTBEAT}
    for act, worker, seconds in acts:
        now += timedelta(seconds=seconds)
        by = Caller(tokens.get(worker, b"none"))
        try:
            if act == "poll" and item.status == "pending" and not item.settle_due:
                attempts += 1
                tokens[worker] = f"token {attempts}".encode()
                last[worker] = rules.NO_HEARTBEAT
                item = replace(item, polled_at=now, token_sha256=tokens[worker], attempt=attempts)
            elif act == "ack":
                item = rules.acknowledge(item, by, now, TTL)
            elif act == "beat":
                item, extended = rules.beat(item, by, last[worker], now, None)
                if extended:
                    last[worker] = item.last_heartbeat
                    assert item.token_sha256 == tokens[worker]
            elif act == "lapse":
                item = replace(rules.lapse(item, now), settle_due=False)
            else:
                item = rules.stop(item, by, now, force=act == "force")
        except DomainError:
            continue
        assert (item.status == "stopped") == (item.finished_at is not None)
        assert item.status != "claimed" or (item.lease_expires_at is not None and item.acknowledged_at is not None)
        if item.status == "stopped":
            assert item.token_sha256 is None

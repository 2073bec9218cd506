"""The lease machine of an item, whoever does whatever in whatever order: at most one run, one end, nothing stuck."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kit.errors import DomainError
from services.worker.queue.domain import item as rules
from services.worker.queue.domain.errors import (
    WorkItemHeld,
    WorkLeaseLost,
    WorkOutcomeUnknown,
    WorkQueueTimeout,
)
from services.worker.queue.domain.item import EndCode, Holder, Item, Status

BEGIN = datetime(2026, 11, 30, 8, 0, tzinfo=UTC)
LEASE = timedelta(seconds=60)
WORKERS = ["w1", "w2", "w3"]


def pending(**changes: object) -> Item:
    item = Item(
        id="work_1",
        workspace_id="wrkspc_a",
        environment_id="env_1",
        session_id="sess_1",
        kind="exec",
        status=Status.PENDING,
        revision=0,
        attempt=0,
        created_at=BEGIN,
        queue_until=BEGIN + timedelta(seconds=300),
        wait_until=BEGIN + timedelta(seconds=600),
    )
    return replace(item, **changes)  # type: ignore[arg-type]


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


class Leases(RuleBasedStateMachine):
    """Workers, a session and a clock that act at random, and what must hold whatever they do."""

    @initialize()
    def put_in(self) -> None:
        self.item = pending()
        self.now = BEGIN
        # Attempts that were told to run the item, with their worker.
        self.runs: list[tuple[str, int]] = []
        # What each worker believes to hold, which a pause may have made wrong.
        self.beliefs: dict[str, int] = {}
        self.results: list[tuple[str, bool]] = []
        self.ended: Item | None = None

    def become(self, item: Item) -> None:
        if item is not self.item:
            assert self.ended is None, "an item that has ended changed"
            item = replace(item, revision=self.item.revision + 1)
        self.item = item
        if item.is_ended and self.ended is None:
            self.ended = item

    @rule(seconds=st.sampled_from([0.0, 1.0, 30.0, 59.0, 61.0, 200.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(worker=st.sampled_from(WORKERS))
    def claim(self, worker: str) -> None:
        before = self.item
        try:
            self.become(rules.claim(self.item, worker, self.now, LEASE))
        except WorkItemHeld:
            assert not rules.is_claimable(before, self.now)
            return
        assert before.status is Status.PENDING
        assert before.stopped_at is None
        assert not self.runs, "an item that was run was handed out again"
        assert self.item.attempt == before.attempt + 1
        self.beliefs[worker] = self.item.attempt

    @rule(worker=st.sampled_from(WORKERS), names_attempt=st.booleans())
    def accept(self, worker: str, names_attempt: bool) -> None:
        before = self.item
        by = Holder(worker, self.beliefs.get(worker, 0) if names_attempt else 0)
        try:
            self.become(rules.accept(self.item, by, self.now, LEASE))
        except (WorkLeaseLost, WorkItemHeld):
            return
        assert before.holder == worker
        assert before.lease_expires_at is not None
        assert before.lease_expires_at > self.now
        assert before.stopped_at is None
        self.runs.append((worker, self.item.attempt))

    @rule(worker=st.sampled_from(WORKERS))
    def renew(self, worker: str) -> None:
        before = self.item
        try:
            self.become(rules.renew(self.item, Holder(worker), self.now, LEASE))
        except WorkLeaseLost:
            assert before.is_ended or before.stopped_at is not None
        except WorkItemHeld:
            assert before.holder != worker or before.status is Status.PENDING
        else:
            assert before.holder == worker
            assert before.stopped_at is None

    @rule(worker=st.sampled_from(WORKERS), failed=st.booleans())
    def complete(self, worker: str, failed: bool) -> None:
        before = self.item
        try:
            self.become(rules.complete(self.item, Holder(worker), self.now, failed=failed))
        except WorkItemHeld:
            assert before.holder != worker or before.status is Status.PENDING
        except WorkLeaseLost:
            assert before.is_ended
            assert before.end_code is not None
        else:
            assert before.holder == worker
            if not before.is_ended:
                self.results.append((worker, failed))

    @rule(worker=st.sampled_from(WORKERS))
    def give_back(self, worker: str) -> None:
        before = self.item
        self.become(rules.give_back(self.item, Holder(worker, self.beliefs.get(worker, -1))))
        if self.item is not before:
            assert before.accepted_at is None
            assert self.item.attempt == before.attempt - 1

    @rule()
    def lapse(self) -> None:
        before = self.item
        self.become(rules.lapse(self.item, self.now))
        if self.item is not before:
            assert before.accepted_at is None
            assert before.lease_expires_at is not None
            assert before.lease_expires_at <= self.now

    @rule()
    def stop(self) -> None:
        before = self.item
        self.become(rules.stop(self.item, self.now))
        assert self.item.is_ended or self.item.stopped_at is not None
        if before.status is Status.CLAIMED:
            assert not self.item.is_ended, "what a holder may still tell is waited for"

    @precondition(lambda self: not self.item.is_ended)
    @rule()
    def expire(self) -> None:
        before, moment = self.item, rules.due(self.item)
        self.become(rules.expire(self.item, self.now))
        assert moment is not None
        assert self.item.is_ended == (moment <= self.now)
        if not self.item.is_ended:
            return
        with pytest.raises(DomainError) as told:
            rules.require_result(self.item)
        if before.stopped_at is not None:
            assert isinstance(told.value, WorkLeaseLost)
        elif before.attempt:
            assert isinstance(told.value, WorkOutcomeUnknown)
        else:
            assert isinstance(told.value, WorkQueueTimeout)

    @invariant()
    def at_most_one_attempt_runs(self) -> None:
        assert len(set(self.runs)) <= 1

    @invariant()
    def a_retry_is_offered_only_for_what_nobody_ran(self) -> None:
        if self.item.end_code is EndCode.QUEUE_TIMEOUT:
            assert not self.runs

    @invariant()
    def an_end_is_for_good_and_is_told_once(self) -> None:
        assert len(self.results) <= 1
        if self.ended is not None:
            assert self.item is self.ended
            assert (self.item.end_code is None) == (len(self.results) == 1)

    @invariant()
    def the_row_is_one_that_the_table_takes(self) -> None:
        item = self.item
        assert item.is_ended == (item.status in (Status.COMPLETED, Status.FAILED, Status.STOPPED))
        if item.status is Status.PENDING:
            assert item.holder is None
            assert item.lease_expires_at is None
        if item.status is Status.CLAIMED:
            assert item.holder is not None
            assert item.lease_expires_at is not None

    @invariant()
    def it_can_always_come_to_an_end(self) -> None:
        assert rules.expire(self.item, self.now + timedelta(days=1)).is_ended


def test_whatever_is_done_in_whatever_order_at_most_one_run_and_one_end() -> None:
    run_state_machine_as_test(Leases, settings=settings(max_examples=120, stateful_step_count=30, deadline=None))


def claimed(**changes: object) -> Item:
    return replace(rules.claim(pending(), "w1", at(0), LEASE), **changes)  # type: ignore[arg-type]


def test_an_acceptance_needs_a_live_lease_and_a_renewal_does_not() -> None:
    item = claimed()
    assert rules.accept(item, Holder("w1"), at(59.9), LEASE).lease_expires_at == at(119.9)
    with pytest.raises(WorkLeaseLost, match="lapsed"):
        rules.accept(item, Holder("w1"), at(60), LEASE)
    assert rules.renew(item, Holder("w1"), at(90), LEASE).lease_expires_at == at(150)


def test_accepting_again_is_answered_alike_and_keeps_the_first_moment() -> None:
    once = rules.accept(claimed(), Holder("w1"), at(10), LEASE)
    twice = rules.accept(once, Holder("w1"), at(20), LEASE)
    assert (once.accepted_at, twice.accepted_at) == (at(10), at(10))
    assert twice.lease_expires_at == at(80)


def test_the_number_of_a_claim_tells_two_workers_of_one_name_apart() -> None:
    lapsed = rules.lapse(claimed(), at(61))
    again = rules.claim(lapsed, "w1", at(62), LEASE)
    assert again.attempt == 2
    with pytest.raises(WorkItemHeld):
        rules.accept(again, Holder("w1", 1), at(63), LEASE)
    assert rules.accept(again, Holder("w1", 2), at(63), LEASE).accepted_at == at(63)


@pytest.mark.parametrize("act", [rules.accept, rules.renew])
def test_a_stop_is_told_to_the_holder_alone(act) -> None:
    stopped = rules.stop(claimed(), at(5))
    with pytest.raises(WorkLeaseLost, match="stop"):
        act(stopped, Holder("w1"), at(6), LEASE)
    with pytest.raises(WorkItemHeld):
        act(stopped, Holder("w2"), at(6), LEASE)


@pytest.mark.parametrize("before", ["stopped", "lapsed"])
def test_a_late_report_is_taken_from_who_holds_the_item(before: str) -> None:
    item = rules.accept(claimed(), Holder("w1"), at(1), LEASE)
    item = rules.stop(item, at(2)) if before == "stopped" else item
    ended = rules.complete(item, Holder("w1"), at(500), failed=False)
    assert (ended.status, ended.end_code) == (Status.COMPLETED, None)
    rules.require_result(ended)


def test_a_report_after_the_end_changes_nothing() -> None:
    item = rules.accept(claimed(), Holder("w1"), at(1), LEASE)
    ended = rules.complete(item, Holder("w1"), at(2), failed=False)
    assert rules.complete(ended, Holder("w1"), at(3), failed=True) is ended
    with pytest.raises(WorkItemHeld):
        rules.complete(ended, Holder("w2"), at(3), failed=False)
    expired = rules.expire(item, at(601))
    with pytest.raises(WorkLeaseLost):
        rules.complete(expired, Holder("w1"), at(602), failed=False)


def test_the_time_in_the_queue_bounds_only_what_nobody_took() -> None:
    assert rules.expire(pending(), at(299)).status is Status.PENDING
    assert rules.expire(pending(), at(300)).end_code is EndCode.QUEUE_TIMEOUT
    assert rules.expire(claimed(), at(300)).status is Status.CLAIMED
    assert rules.expire(claimed(), at(600)).end_code is EndCode.OUTCOME_UNKNOWN
    taken_once = rules.lapse(claimed(), at(61))
    assert rules.expire(taken_once, at(301)).status is Status.PENDING
    assert rules.expire(taken_once, at(600)).end_code is EndCode.OUTCOME_UNKNOWN


def test_a_claim_that_never_reached_its_worker_counts_for_nothing() -> None:
    back = rules.give_back(claimed(), Holder("w1", 1))
    assert (back.status, back.attempt, back.holder) == (Status.PENDING, 0, None)
    accepted = rules.accept(claimed(), Holder("w1"), at(1), LEASE)
    assert rules.give_back(accepted, Holder("w1", 1)) is accepted


def test_what_is_overdue_is_not_handed_out() -> None:
    assert rules.is_claimable(pending(), at(299))
    assert not rules.is_claimable(pending(), at(300))
    with pytest.raises(WorkItemHeld):
        rules.claim(pending(), "w1", at(300), LEASE)

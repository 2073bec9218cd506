"""Whoever waits for an item whose worker died is told so soon after its lease, and not at the end of the wait."""

from datetime import UTC, datetime, timedelta

import pytest

from services.worker.queue.domain import item as rules
from services.worker.queue.domain.errors import WorkLeaseLost
from services.worker.queue.domain.item import SILENCE, EndCode, Holder, Item, Status

START = datetime(2026, 11, 1, tzinfo=UTC)
LEASE = timedelta(seconds=60)
BY = Holder("w")


def accepted() -> Item:
    item = Item("work_1", "ws", "env", "sess", "exec", Status.PENDING, 1, 0, START)
    waited_for = rules.replace(item, queue_until=START + timedelta(hours=1), wait_until=START + timedelta(hours=2))
    return rules.accept(rules.claim(waited_for, "w", START, LEASE), BY, START, LEASE)


def test_it_ends_as_unknown_soon_after_the_lease() -> None:
    item, silent = accepted(), START + LEASE + SILENCE
    assert rules.due(item) == silent
    assert rules.expire(item, silent - timedelta(seconds=1)) is item
    ended = rules.expire(item, silent)
    assert (ended.status, ended.end_code) == (Status.FAILED, EndCode.OUTCOME_UNKNOWN)
    with pytest.raises(WorkLeaseLost):
        rules.complete(ended, BY, silent, failed=False)


def test_a_result_within_the_silence_is_taken_and_a_heartbeat_ends_it() -> None:
    item, late = accepted(), START + LEASE + SILENCE - timedelta(seconds=1)
    assert rules.complete(item, BY, late, failed=False).status is Status.COMPLETED
    assert rules.due(rules.renew(item, BY, late, LEASE)) == late + LEASE + SILENCE


def test_the_wait_itself_ends_no_later() -> None:
    item = rules.replace(accepted(), wait_until=START + LEASE)
    assert rules.due(item) == START + LEASE

"""Whose turn it is: however much one session puts in, another's item waits for no more than a round."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from services.worker.queue.domain.backlog import Backlog
from services.worker.queue.domain.item import Item
from tests.unit.queue.test_lease_machine import pending


def of(session: str, number: int) -> Item:
    return replace(pending(), id=f"{session}-{number}", session_id=session)


def drained(backlog: Backlog) -> list[str]:
    found: list[str] = []
    while (item := backlog.take()) is not None:
        found.append(item.id)
    return found


def test_sessions_are_served_in_turn_and_each_in_its_order() -> None:
    backlog = Backlog()
    backlog.add([of("noisy", n) for n in range(4)])
    backlog.add([of("quiet", 0), of("other", 0), of("other", 1)])
    assert drained(backlog) == ["noisy-0", "quiet-0", "other-0", "noisy-1", "other-1", "noisy-2", "noisy-3"]
    assert not backlog


def test_an_item_that_is_put_back_is_next_again() -> None:
    backlog = Backlog()
    backlog.add([of("a", 0), of("b", 0)])
    first = backlog.take()
    assert first is not None
    backlog.put_back(first)
    backlog.put_back(first)
    assert drained(backlog) == ["a-0", "b-0"]


def test_a_session_that_is_dropped_leaves_nothing() -> None:
    backlog = Backlog()
    backlog.add([of("a", 0), of("a", 1), of("b", 0)])
    backlog.drop_session("a")
    assert "a-0" not in backlog
    assert drained(backlog) == ["b-0"]


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 30)), max_size=120), st.data())
def test_nobody_is_starved_and_nothing_is_lost_or_doubled(puts: list[tuple[str, int]], data: st.DataObject) -> None:
    backlog = Backlog()
    present: dict[str, list[str]] = {}
    # For each session that waits: how often others were served since it began to, or was served last.
    passed: dict[str, int] = {}
    for session, number in puts:
        item = of(session, number)
        if item.id not in backlog:
            present.setdefault(session, []).append(item.id)
            passed.setdefault(session, 0)
        backlog.add([item])
        if data.draw(st.booleans()):
            taken = backlog.take()
            assert taken is not None
            lane = present[taken.session_id]
            assert lane.pop(0) == taken.id
            passed.pop(taken.session_id)
            for other in passed:
                passed[other] += 1
            if lane:
                passed[taken.session_id] = 0
            else:
                del present[taken.session_id]
            assert all(count <= 5 for count in passed.values())
    assert len(backlog) == sum(map(len, present.values()))
    assert sorted(drained(backlog)) == sorted(item for lane in present.values() for item in lane)

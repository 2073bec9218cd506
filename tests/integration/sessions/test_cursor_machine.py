"""Cursors while what they walk over changes: sessions come, go and are archived, logs grow, pages are read on and back.

Whatever the order: a walk is in order, shows nothing twice, and shows all that was there from its start to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from kit.errors import InvalidArgument
from kit.nats import connect
from kit.testing.fixtures import MakeDatabase
from managed_agents.sessions.v1 import sessions_pb2
from services.sessions.domain import turn
from services.sessions.domain.inbound import ClientEvent
from services.sessions.operations.core import new_event_id
from tests.integration.sessions.harness import MIGRATIONS, WORKSPACE, Harness, harness

MOST_SESSIONS = 12
MESSAGE = ClientEvent("user.message", {"content": [{"type": "text", "text": "go"}]})


@dataclass
class Walk:
    """A listing that is read page by page."""

    ascending: bool
    limit: int
    # What has to be shown: there from the start, and not gone since.
    due: set[str]
    shown: list[str] = field(default_factory=list)
    cursor: str = ""
    is_over: bool = False


class Cursors(RuleBasedStateMachine):
    """Sessions of one agent of this example's own, and the log of one of them."""

    def __init__(self, loop: asyncio.Runner, harness: Harness) -> None:
        super().__init__()
        self.loop, self.harness = loop, harness
        self.agent_id = loop.run(harness.agent())
        # In the order of their creation.
        self.created: list[str] = []
        self.alive: set[str] = set()
        self.walks: list[Walk] = []
        self.log_cursor, self.log_shown = "", []
        self.create()
        self.session_id = self.created[0]

    @precondition(lambda self: len(self.created) < MOST_SESSIONS)
    @rule()
    def create(self) -> None:
        session_id = self.loop.run(self.harness.create(self.agent_id)).id
        self.created.append(session_id)
        self.alive.add(session_id)
        for walk in self.walks:
            # Whoever walks towards the newest meets it in any case.
            if walk.ascending and not walk.is_over:
                walk.due.add(session_id)

    @precondition(lambda self: len(self.alive) > 1)
    @rule(which=st.integers(0, MOST_SESSIONS), archives=st.booleans())
    def remove(self, which: int, archives: bool) -> None:
        """An archived session is not in a plain listing, as a deleted one is not."""
        gone = sorted(self.alive - {self.session_id})[which % (len(self.alive) - 1)]
        self.loop.run(self._remove(gone, archives))
        self.alive.discard(gone)
        for walk in self.walks:
            walk.due.discard(gone)

    async def _remove(self, session_id: str, archives: bool) -> None:
        async with self.harness.operations.unit(WORKSPACE) as unit:
            state = await unit.lock(session_id)
            moved = (
                turn.archive(state, unit.now, new_event_id)
                if archives
                else turn.delete(state, unit.now, new_event_id, refuse_running=False)
            )
            await unit.apply(moved)

    def page(self, walk: Walk, cursor: str) -> Any:
        listed = self.harness.listed(agent_id=self.agent_id, limit=walk.limit, cursor=cursor, ascending=walk.ascending)
        return self.loop.run(listed)

    @rule(ascending=st.booleans(), limit=st.integers(1, 4))
    def begin(self, ascending: bool, limit: int) -> None:
        self.walks.append(Walk(ascending, limit, set(self.alive)))

    @precondition(lambda self: any(not walk.is_over for walk in self.walks))
    @rule(which=st.integers(0, 9))
    def read_on(self, which: int) -> None:
        under_way = [walk for walk in self.walks if not walk.is_over]
        walk = under_way[which % len(under_way)]
        answer = self.page(walk, walk.cursor)
        ids = [session.id for session in answer.sessions]
        assert set(ids) <= self.alive and len(ids) <= walk.limit
        walk.shown += ids
        places = [self.created.index(name) for name in walk.shown]
        assert places == sorted(places, reverse=not walk.ascending) and len(set(places)) == len(places)
        if answer.page_info.previous_cursor:
            self.look_back(walk, answer, ids)
        walk.cursor = answer.page_info.next_cursor
        if not walk.cursor:
            walk.is_over = True
            assert walk.due <= set(walk.shown)

    def look_back(self, walk: Walk, answer: Any, ids: list[str]) -> None:
        """The page before, and the one that follows it, are where they were."""
        before = self.page(walk, answer.page_info.previous_cursor)
        shown = [session.id for session in before.sessions]
        assert shown == [name for name in self._in_order(walk) if self._is_before(walk, name, ids[0])][-walk.limit :]
        if shown:
            again = self.page(walk, before.page_info.next_cursor)
            assert [session.id for session in again.sessions] == ids

    def _in_order(self, walk: Walk) -> list[str]:
        found = [name for name in self.created if name in self.alive]
        return found if walk.ascending else found[::-1]

    def _is_before(self, walk: Walk, name: str, other: str) -> bool:
        return (self.created.index(name) < self.created.index(other)) == walk.ascending and name != other

    @precondition(lambda self: any(walk.cursor for walk in self.walks))
    @rule(which=st.integers(0, 9))
    def use_a_cursor_elsewhere(self, which: int) -> None:
        """It belongs to its own query, and no byte of it may change."""
        with_cursor = [walk for walk in self.walks if walk.cursor]
        walk = with_cursor[which % len(with_cursor)]
        turned = Walk(not walk.ascending, walk.limit, set())
        broken = walk.cursor[:-1] + ("A" if walk.cursor[-1] != "A" else "B")
        for other, cursor in ((turned, walk.cursor), (walk, broken), (walk, walk.cursor + "A")):
            with pytest.raises(InvalidArgument):
                self.page(other, cursor)

    @rule(count=st.integers(1, 3))
    def append(self, count: int) -> None:
        self.loop.run(self.harness.append(self.session_id, [MESSAGE] * count))

    @rule(limit=st.integers(1, 5))
    def read_on_in_the_log(self, limit: int) -> None:
        """Pages of any size, read while the log grows, make the log."""
        answer: sessions_pb2.ListEventsResponse = self.loop.run(
            self.harness.page(self.session_id, limit=limit, cursor=self.log_cursor)
        )
        self.log_shown += [event.seq for event in answer.events]
        assert self.log_shown == list(range(1, len(self.log_shown) + 1))
        if answer.page_info.next_cursor:
            self.log_cursor = answer.page_info.next_cursor
        else:
            session = self.loop.run(self.harness.get(self.session_id))
            assert len(self.log_shown) == session.last_seq
            self.log_cursor, self.log_shown = "", []

    def teardown(self) -> None:
        while any(not walk.is_over for walk in self.walks):
            self.read_on(0)


@asynccontextmanager
async def _opened(dsn: str, nats_url: str) -> AsyncIterator[Harness]:
    nats = await connect(nats_url, "cursors")
    try:
        async with harness(dsn, nats) as started:
            yield started
    finally:
        await nats.close()


@pytest.fixture
async def dsn(make_database: MakeDatabase) -> str:
    return await make_database("sessions", MIGRATIONS)


def test_a_walk_is_complete_whatever_comes_and_goes(dsn: str, nats_url: str) -> None:
    with asyncio.Runner() as runner:
        opened = _opened(dsn, nats_url)
        started = runner.run(opened.__aenter__())
        try:
            run_state_machine_as_test(
                lambda: Cursors(runner, started),
                settings=settings(
                    max_examples=20, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
                ),
            )
        finally:
            runner.run(opened.__aexit__(None, None, None))

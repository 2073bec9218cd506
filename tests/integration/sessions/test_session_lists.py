"""Listings of sessions over a real database: pages are complete in both directions, whatever comes meanwhile."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from managed_agents.sessions.v1 import sessions_pb2
from managed_agents.sessions.v1.sessions_pb2 import SessionStatus
from tests.integration.sessions.harness import MESSAGE, Harness, refusal

pytestmark = pytest.mark.asyncio(loop_scope="package")


class TestList:
    async def test_pages_are_complete_in_both_directions(self, h: Harness) -> None:
        ids = await self._some(h, 11)
        for ascending in (False, True):
            expected = ids if ascending else ids[::-1]
            pages, cursor = [], ""
            while True:
                page = await h.listed(limit=4, cursor=cursor, ascending=ascending)
                pages.append(page)
                cursor = page.page_info.next_cursor
                if not cursor:
                    break
            assert [s.id for page in pages for s in page.sessions] == expected
            assert not pages[0].page_info.previous_cursor
            back = await h.listed(limit=4, cursor=pages[-1].page_info.previous_cursor, ascending=ascending)
            assert [s.id for s in back.sessions] == expected[4:8]
            first = await h.listed(limit=4, cursor=back.page_info.previous_cursor, ascending=ascending)
            assert [s.id for s in first.sessions] == expected[:4]
            assert not first.page_info.previous_cursor
            again = await h.listed(limit=4, cursor=first.page_info.next_cursor, ascending=ascending)
            assert [s.id for s in again.sessions] == expected[4:8]

    async def test_sessions_of_one_moment_are_all_listed(self, h: Harness) -> None:
        ids = await self._some(h, 7)
        await h.execute("UPDATE sessions SET created_at = '2026-01-01Z' WHERE workspace_id = %(workspace_id)s")
        seen, cursor = [], ""
        while True:
            page = await h.listed(limit=2, cursor=cursor)
            seen += [session.id for session in page.sessions]
            cursor = page.page_info.next_cursor
            if not cursor:
                break
        assert seen == sorted(ids, reverse=True)

    async def test_what_comes_meanwhile_does_not_shift_the_pages(self, h: Harness) -> None:
        ids = await self._some(h, 4)
        first = await h.listed(limit=2)
        await self._some(h, 3)
        second = await h.listed(limit=2, cursor=first.page_info.next_cursor)
        assert [s.id for s in (*first.sessions, *second.sessions)] == ids[::-1]

    async def test_a_cursor_belongs_to_its_filters_and_order(self, h: Harness) -> None:
        await self._some(h, 3)
        cursor = (await h.listed(limit=1)).page_info.next_cursor
        assert (await h.listed(limit=2, cursor=cursor)).sessions
        for fields in (
            {"ascending": True},
            {"include_archived": True},
            {"agent_id": "agent_1"},
            {"statuses": [SessionStatus.SESSION_STATUS_IDLE]},
            {"created_at_gt": "2026-01-01T00:00:00Z"},
            {"cursor": cursor + "A"},
            {"cursor": "nonsense"},
        ):
            assert (await refusal(h.listed(**({"cursor": cursor} | fields)))).reason == "INVALID_CURSOR"

    async def test_filters(self, h: Harness) -> None:
        one, two = await h.agent(), await h.agent(name="other")
        idle, running = await h.create(one), await h.create(two, initial_events=[MESSAGE])
        archived = await h.create(one)
        await h.call(h.sessions.ArchiveSession, sessions_pb2.ArchiveSessionRequest(session_id=archived.id))

        async def found(**fields: Any) -> set[str]:
            return {session.id for session in (await h.listed(**fields)).sessions}

        assert await found() == {idle.id, running.id}
        assert await found(include_archived=True) == {idle.id, running.id, archived.id}
        assert await found(agent_id=one) == {idle.id}
        assert await found(agent_id=one, agent_version=2) == set()
        assert await found(statuses=[SessionStatus.SESSION_STATUS_RUNNING]) == {running.id}
        both = [SessionStatus.SESSION_STATUS_RUNNING, SessionStatus.SESSION_STATUS_IDLE]
        assert await found(statuses=both) == {idle.id, running.id}
        assert await found(deployment_id="dep_1") == set()
        assert await found(memory_store_id="memstore_1") == set()
        assert await found(created_at_gt=idle.created_at) == {running.id}
        assert await found(created_at_gte=idle.created_at) == {idle.id, running.id}
        assert await found(created_at_lt=running.created_at) == {idle.id}
        assert await found(created_at_lte=running.created_at) == {idle.id, running.id}

    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"created_at_gt": "yesterday"}, "created_at[gt]"),
            ({"created_at_lte": "2026-01-01T00:00:00"}, "created_at[lte]"),
            ({"created_at_gte": "0001-01-01T00:00:00+23:00"}, "created_at[gte]"),
            ({"agent_version": 1}, "agent_version"),
            ({"agent_id": "a\x00"}, "agent_id"),
        ],
    )
    async def test_unsound_filters_are_named(self, h: Harness, fields: dict[str, Any], field: str) -> None:
        assert (await refusal(h.listed(**fields))).field == field

    async def test_a_listing_shows_what_single_reads_show(self, h: Harness) -> None:
        agent_id = await h.agent()
        first = await h.create(agent_id)
        await h.save_another_version(agent_id)
        override = {"type": "agent_with_overrides", "id": agent_id, "system": "Own.", "model": "other"}
        ids = [first.id, (await h.create(agent_id)).id, (await h.create(override)).id]
        for _ in range(2):
            listed = (await h.listed(ascending=True)).sessions
            assert list(listed) == [await h.get(session_id) for session_id in ids]

    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(steps=st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=8), ascending=st.booleans())
    async def test_any_walk_over_the_pages_agrees_with_the_whole(
        self, h: Harness, steps: list[tuple[bool, int]], ascending: bool
    ) -> None:
        if not await h.count("sessions"):
            await self._some(h, 9)
        ids = [session.id for session in (await h.listed(limit=100, ascending=ascending)).sessions]
        assert len(ids) == 9
        page, start = await h.listed(limit=3, ascending=ascending), 0
        for forward, limit in steps:
            info, size = page.page_info, len(page.sessions)
            cursor = info.next_cursor if forward else info.previous_cursor
            assert bool(cursor) == (start + size < len(ids) if forward else start > 0)
            if not cursor:
                return
            page = await h.listed(limit=limit, cursor=cursor, ascending=ascending)
            end = start + size + limit if forward else start
            start = start + size if forward else max(0, start - limit)
            assert [session.id for session in page.sessions] == ids[start:end]

    @staticmethod
    async def _some(h: Harness, count: int) -> list[str]:
        agent_id = await h.agent()
        return [(await h.create(agent_id)).id for _ in range(count)]

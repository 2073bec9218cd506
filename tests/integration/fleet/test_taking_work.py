"""When a worker asks for work, how much of it it takes, and how it ends."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kit.testing import await_until
from services.worker.fleet.errors import AccessRefused, Unreachable
from tests.integration.fleet.harness import done, fleet, gaps, named
from tests.support.work_server import WorkServer


async def test_work_is_begun_as_soon_as_it_is_there(tmp_path: Path, server: WorkServer) -> None:
    async with fleet(server, tmp_path, interval_seconds=60.0):
        await await_until(lambda: server.count("claim") == 1)
        began = time.monotonic()
        item = server.put("read", {"path": "x"})
        await done(server, item)
        # Far less than the pause, and than the time for which the question is held.
        assert time.monotonic() - began < 4.0


async def test_a_platform_that_does_not_hold_is_asked_no_more_often_than_told(tmp_path: Path) -> None:
    async with WorkServer(holds=False) as server:
        async with fleet(server, tmp_path, interval_seconds=0.2):
            await await_until(lambda: server.count("claim") >= 4)
        times = server.times["claim"]
    # Each by itself may be late, and the next one then comes sooner after it.
    assert sum(gaps(times)) >= 0.2 * (len(times) - 2)


async def test_several_items_run_side_by_side_and_no_more_than_told(tmp_path: Path, server: WorkServer) -> None:
    items = [server.put("exec", {"command": f"touch began{n}; until [ -e go ]; do sleep 0.02; done"}) for n in range(5)]
    async with fleet(server, tmp_path, concurrency=3) as worker:
        await await_until(lambda: len(named(tmp_path, "began*")) == 3)
        assert worker.metrics.running == 3
        # Nothing is claimed that can't be begun.
        assert sum(each["status"] == "claimed" for each in server.items.values()) == 3
        (tmp_path / "go").touch()
        await done(server, *items)
        await await_until(lambda: worker.metrics.count("completed") == 5)


async def test_a_platform_that_is_away_is_waited_for(tmp_path: Path, server: WorkServer) -> None:
    server.refuse("environment", 503, times=2)
    server.refuse("claim", 502, times=2)
    server.cut("claim", times=2)
    item = server.put("exec", {"command": "echo hi"})
    async with fleet(server, tmp_path) as worker:
        await done(server, item)
        assert worker.heard("waiting for the platform") and worker.heard("the platform answers again")
    times = server.times["claim"]
    # Each wait was longer than half of the first one.
    assert sum(gaps(times[:5])) >= 0.1 + 0.2 + 0.4


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_a_refused_worker_says_why_and_ends_after_what_runs(
    tmp_path: Path, server: WorkServer, status: int
) -> None:
    item = server.put("exec", {"command": "until [ -e go ]; do sleep 0.02; done; echo whole"})
    async with fleet(server, tmp_path, concurrency=2) as worker:
        await await_until(lambda: item in server.accepted)
        server.refuse("claim", status, message="This key is revoked.")
        server.put("exec", {"command": "true"})
        await await_until(lambda: bool(worker.heard("finishing what runs")))
        (tmp_path / "go").touch()
        with pytest.raises(AccessRefused, match="revoked"):
            await worker.task
    assert server.completed[item]["result"]["stdout"] == "whole\n"


async def test_an_environment_of_another_kind_is_refused(tmp_path: Path) -> None:
    async with WorkServer(protocol=None) as server, fleet(server, tmp_path) as worker:
        with pytest.raises(AccessRefused, match="not a self-hosted environment"):
            await worker.task


async def test_without_an_environment_the_key_says_whose_work_it_is(tmp_path: Path, server: WorkServer) -> None:
    item = server.put("exec", {"command": "echo hi"})
    async with fleet(server, tmp_path, environment_id=None):
        await done(server, item)
    assert server.count("environment") == 0
    assert "environment_id" not in server.calls[0][1]


async def test_once_takes_one_item_and_ends(tmp_path: Path, server: WorkServer) -> None:
    items = [server.put("exec", {"command": "echo hi"}) for _ in range(2)]
    async with fleet(server, tmp_path, once=True) as worker:
        assert await worker.task == 0
    assert list(server.completed) == items[:1]


async def test_once_with_nothing_to_do_ends_at_once(tmp_path: Path, server: WorkServer) -> None:
    async with fleet(server, tmp_path, once=True) as worker:
        async with asyncio.timeout(15):
            assert await worker.task == 0
    assert server.count("claim") == 1 and "wait_ms" not in server.calls[0][1]


async def test_once_at_a_platform_that_is_away_says_so(tmp_path: Path, server: WorkServer) -> None:
    server.refuse("claim", 503)
    async with fleet(server, tmp_path, once=True) as worker:
        with pytest.raises(Unreachable):
            await worker.task


async def test_a_stop_finishes_what_runs_and_takes_nothing_new(tmp_path: Path, server: WorkServer) -> None:
    item = server.put("exec", {"command": "until [ -e go ]; do sleep 0.02; done; echo whole"})
    async with fleet(server, tmp_path) as worker:
        await await_until(lambda: item in server.accepted)
        other = server.put("exec", {"command": "touch other"})
        worker.stopping.asked.set()
        await await_until(lambda: bool(worker.heard("finishing what runs")))
        (tmp_path / "go").touch()
        assert await worker.task == 0
    assert server.completed[item]["result"]["stdout"] == "whole\n"
    assert other not in server.completed and not (tmp_path / "other").exists()


async def test_a_stop_does_not_wait_for_a_question_that_is_held(tmp_path: Path, server: WorkServer) -> None:
    async with fleet(server, tmp_path, wait_seconds=30.0) as worker:
        await await_until(lambda: server.count("claim") == 1)
        async with asyncio.timeout(15):
            assert await worker.stop() == 0


async def test_a_platform_that_is_elsewhere_is_not_looked_for_there(tmp_path: Path, server: WorkServer) -> None:
    server.refuse("claim", 307)
    async with fleet(server, tmp_path) as worker:
        with pytest.raises(AccessRefused, match="not at this address"):
            await worker.task


class Page(WorkServer):
    """What a proxy shows when nothing is behind it."""

    async def _claim(self, request: web.Request, body: Any) -> web.Response:
        return web.Response(status=404, text="<html>not here</html>", content_type="text/html")


async def test_an_answer_that_is_no_platforms_is_waited_out(tmp_path: Path) -> None:
    async with Page() as server, fleet(server, tmp_path) as worker:
        await await_until(lambda: server.count("claim") >= 3)
        assert not worker.task.done()
        assert "no managed-agents platform" in worker.heard("no work can be taken")[0]["reason"]

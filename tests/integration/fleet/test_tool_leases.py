"""A claimed item is run once at most: accepted strictly, renewed while it runs, told until somebody has heard."""

import datetime
from pathlib import Path

import pytest

from kit.testing import await_until
from tests.integration.fleet.harness import done, fleet, gaps, named
from tests.support.work_server import WorkServer

LOST = "work_lease_lost"


async def test_a_claim_that_no_longer_holds_is_neither_run_nor_told(tmp_path: Path, server: WorkServer) -> None:
    refusals = [(409, LOST), (409, ""), (404, "")]
    items = []
    for number, (status, code) in enumerate(refusals):
        items.append(server.put("exec", {"command": f"touch ran{number}"}))
        server.refuse("accept", status, code)
    last = server.put("exec", {"command": "echo last"})
    async with fleet(server, tmp_path) as worker:
        await done(server, last)
        assert worker.metrics.count("refused") == 3
    assert list(server.completed) == [last]
    assert not named(tmp_path, "ran*")


async def test_an_accept_without_an_answer_is_asked_again_and_never_taken_for_granted(
    tmp_path: Path, server: WorkServer
) -> None:
    item = server.put("exec", {"command": "echo ran >> ran.txt"})
    server.cut("accept", after=True)
    server.refuse("accept", 503, times=2)
    async with fleet(server, tmp_path):
        await done(server, item)
    assert (tmp_path / "ran.txt").read_text() == "ran\n"
    assert server.count("accept") == 4


async def test_an_item_whose_accept_is_never_answered_is_left(tmp_path: Path) -> None:
    async with WorkServer(lease_seconds=0.5) as server:
        item = server.put("exec", {"command": "touch ran"})
        server.cut("accept", times=100)
        async with fleet(server, tmp_path) as worker:
            await await_until(lambda: bool(worker.heard("not run: no answer")))
        assert item not in server.completed and not (tmp_path / "ran").exists()


async def test_a_lease_is_a_length_whatever_the_clocks_say(tmp_path: Path, server: WorkServer) -> None:
    for hours in (-1, 1):
        server.clock_offset = datetime.timedelta(hours=hours)
        item = server.put("exec", {"command": "echo hi"})
        async with fleet(server, tmp_path):
            (report,) = await done(server, item)
        assert report["result"]["stdout"] == "hi\n"


async def test_a_long_item_is_renewed_as_often_as_told(tmp_path: Path, server: WorkServer) -> None:
    item = server.put("exec", {"command": "until [ -e go ]; do sleep 0.05; done"})
    async with fleet(server, tmp_path, heartbeat_seconds=0.1) as worker:
        await await_until(lambda: server.count("heartbeat") >= 2)
        # While it asks for nothing, its renewals say that it is connected.
        worker.metrics.heard_at = None
        await await_until(lambda: worker.metrics.connected)
        await await_until(lambda: server.count("heartbeat") >= 4)
        times = server.times["heartbeat"]
        assert sum(gaps(times)) >= 0.1 * (len(times) - 2)
        (tmp_path / "go").touch()
        await done(server, item)


async def test_a_renewal_that_says_lease_lost_ends_the_item(tmp_path: Path, server: WorkServer) -> None:
    command = "trap 'echo told > told.txt; exit' TERM; touch began; sleep 60 & wait"
    item = server.put("exec", {"command": command})
    async with fleet(server, tmp_path, heartbeat_seconds=0.1) as worker:
        await await_until(lambda: (tmp_path / "began").exists())
        server.stopped.add(item)
        (report,) = await done(server, item, seconds=10)
        await await_until(lambda: worker.metrics.count("stopped") == 1)
    assert report["failed"] is True and report["result"]["error"]["code"] == LOST
    # It was signalled before it was killed.
    assert (tmp_path / "told.txt").exists()


async def test_any_other_renewal_failure_leaves_the_item_running(tmp_path: Path, server: WorkServer) -> None:
    async with fleet(server, tmp_path, heartbeat_seconds=0.05):
        for status in (409, 500, 503, 401, 403, 400, 429, 0):
            go = tmp_path / f"go{status}"
            item = server.put("exec", {"command": f"until [ -e {go.name} ]; do sleep 0.02; done; echo whole"})
            await await_until(lambda item=item: item in server.accepted)
            before = server.count("heartbeat")
            if status:
                server.refuse("heartbeat", status, times=3)
            else:
                server.cut("heartbeat", times=3)
            await await_until(lambda before=before: server.count("heartbeat") >= before + 3)
            go.touch()
            (report,) = await done(server, item)
            assert report["result"]["stdout"] == "whole\n" and "failed" not in report, status


async def test_an_item_that_is_gone_is_asked_about_once_and_work_goes_on(tmp_path: Path, server: WorkServer) -> None:
    item = server.put("exec", {"command": "until [ -e go ]; do sleep 0.02; done"})
    async with fleet(server, tmp_path, heartbeat_seconds=0.05) as worker:
        await await_until(lambda: item in server.accepted)
        del server.items[item]
        await await_until(lambda: bool(worker.heard("a renewal was refused")))
        (tmp_path / "go").touch()
        following = server.put("exec", {"command": "echo next"})
        await done(server, following)
        # One when it had gone, and none after.
        refused = worker.heard("a renewal was refused")
        assert len(refused) == 1 and refused[0]["item"] == item
        assert bool(worker.heard("nobody takes the result"))
    assert item not in server.completed


async def test_a_result_is_sent_until_it_is_taken(tmp_path: Path, server: WorkServer) -> None:
    item = server.put("exec", {"command": "echo ran >> ran.txt; cat ran.txt"})
    server.cut("complete")
    server.refuse("complete", 503, times=2)
    server.cut("complete", after=True)
    async with fleet(server, tmp_path, heartbeat_seconds=0.1):
        await await_until(lambda: server.count("complete") == 5)
        assert server.completed[item]["result"]["stdout"] == "ran\n"
    # The lease is kept while nobody has heard.
    assert server.count("heartbeat") > 0
    assert (tmp_path / "ran.txt").read_text() == "ran\n"


@pytest.mark.parametrize("status", [401, 403, 404, 409])
async def test_a_result_that_is_refused_is_let_go(tmp_path: Path, server: WorkServer, status: int) -> None:
    server.put("exec", {"command": "echo one"})
    server.refuse("complete", status)
    following = server.put("exec", {"command": "echo two"})
    async with fleet(server, tmp_path) as worker:
        await done(server, following)
        assert worker.metrics.count("lost") == 1
    assert server.count("complete") == 2


@pytest.mark.parametrize("status", [400, 413])
async def test_a_result_that_is_too_much_is_told_as_a_failure(tmp_path: Path, server: WorkServer, status: int) -> None:
    item = server.put("exec", {"command": "echo one"})
    server.refuse("complete", status)
    async with fleet(server, tmp_path):
        (report,) = await done(server, item)
    assert report["failed"] is True and report["result"]["error"]["code"] == "result_refused"

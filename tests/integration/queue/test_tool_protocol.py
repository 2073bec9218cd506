"""Claim, accept, heartbeat, complete: the rules of the tool protocol over real Postgres, gRPC and NATS."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import orjson
import pytest

from kit.clock import rfc3339
from kit.errors import DomainError, InvalidArgument, PermissionDenied
from kit.nats import connect
from kit.rpc.context import CallContext
from kit.testing import await_until
from services.worker.queue.domain.item import Item, Status
from services.worker.queue.operations.hints import ENQUEUED, as_told
from tests.integration.queue.harness import PLATFORM, Queue, Replica, worker_context


async def in_queue(replica: Replica, *item_ids: str, environment_id: str = "env_1") -> None:
    """Waits until the items can be claimed."""

    async def all_there() -> bool:
        there = {item.id: item.status for item in await replica.items(environment_id, limit=1000)}
        return all(there.get(item_id) == "pending" for item_id in item_ids)

    await await_until(all_there)


async def reason_of(call) -> str:
    with pytest.raises(DomainError) as refused:
        await call
    return refused.value.reason


async def test_an_item_goes_from_the_runner_to_a_worker_and_its_result_back(ground: Queue) -> None:
    replica = await ground.replica()
    running = replica.run("work_1", payload={"command": "echo hi"})

    item = await replica.claim("w1", environment_id="env_1", wait_seconds=10)
    assert item is not None
    assert (item.id, item.kind, json.loads(item.payload_json)) == ("work_1", "exec", {"command": "echo hi"})
    assert (item.status, item.claimed_by, item.attempt) == ("claimed", "w1", 1)
    accepted = await replica.accept("work_1")
    assert accepted.lease_expires_at > item.lease_expires_at
    renewed = await replica.heartbeat("work_1")
    assert renewed.lease_expires_at > accepted.lease_expires_at
    await replica.complete("work_1", result={"stdout": "hi\x00\n", "exitCode": 0})

    answer = await running
    assert json.loads(answer.result_json) == {"stdout": "hi\x00\n", "exitCode": 0}
    assert not answer.failed
    ended = await replica.item("work_1")
    assert ended is not None
    assert (ended.status, ended.claimed_by, ended.end_code) == ("completed", "w1", "")


async def test_a_waiting_claim_is_answered_right_after_the_item_is_put_in(ground: Queue) -> None:
    replica = await ground.replica()
    claiming = asyncio.create_task(replica.claim("w1", wait_seconds=30))
    assert await replica.claim("w2") is None  # by now the first one waits
    running = replica.run("work_1")

    async with asyncio.timeout(5):
        item = await claiming
    assert item is not None
    await replica.complete(item.id, result=1)
    assert (await running).result_json == b"1"


async def test_a_claim_that_does_not_wait_is_answered_at_once_and_empty(ground: Queue) -> None:
    replica = await ground.replica()
    assert await replica.claim("w1", environment_id="env_1") is None


async def test_only_the_holder_may_go_on_and_others_are_told_so_without_harm(ground: Queue) -> None:
    replica = await ground.replica()
    running = replica.run("work_1")
    assert await replica.claim("w1", wait_seconds=10)

    for call in (replica.accept, replica.heartbeat, replica.complete):
        assert await reason_of(call("work_1", "w2")) == "WORK_ITEM_HELD"
        assert await reason_of(call("work_unknown", "w1")) == "WORK_ITEM_NOT_FOUND"
        assert await reason_of(call("work_1", "w1", attempt=2)) == "WORK_ITEM_HELD"
    await replica.accept("work_1", attempt=1)
    await replica.accept("work_1")
    await replica.complete("work_1", result="first", attempt=1)
    await replica.complete("work_1", result="again")
    assert await reason_of(replica.complete("work_1", "w2")) == "WORK_ITEM_HELD"
    assert await reason_of(replica.accept("work_1")) == "WORK_LEASE_LOST"
    assert await reason_of(replica.heartbeat("work_1")) == "WORK_LEASE_LOST"
    assert (await running).result_json == b'"first"'


async def test_another_workspaces_or_environments_item_does_not_exist(ground: Queue) -> None:
    replica = await ground.replica()
    running = replica.run("work_1")
    await in_queue(replica, "work_1")
    strangers = [CallContext("wrkspc_b", "req_1", "key_1"), worker_context("env_2"), worker_context(workspace_id="b")]

    for stranger in strangers:
        assert await replica.claim("w1", context=stranger) is None
    assert await replica.claim("w1", context=worker_context())
    for stranger in strangers:
        for call in (replica.accept, replica.heartbeat, replica.complete):
            assert await reason_of(call("work_1", "w1", context=stranger)) == "WORK_ITEM_NOT_FOUND"
    await replica.complete("work_1", context=worker_context())
    await running


async def test_a_worker_asks_for_its_own_environment_only_and_puts_nothing_in(ground: Queue) -> None:
    replica = await ground.replica()
    refused = replica.claim("w1", environment_id="env_2", context=worker_context("env_1"))
    assert await reason_of(refused) == "WORK_ENVIRONMENT_REFUSED"
    with pytest.raises(PermissionDenied):
        await replica.run("work_1", context=worker_context())


async def test_a_claim_that_lapsed_unaccepted_goes_to_another_worker_and_its_holder_may_not_begin(
    ground: Queue,
) -> None:
    replica = await ground.replica(work_lease_seconds=1.5)
    running = replica.run("work_1")
    first = await replica.claim("paused", wait_seconds=10)
    assert first is not None
    second = await replica.claim("w2", wait_seconds=10)

    assert second is not None
    assert (second.id, second.attempt) == ("work_1", 2)
    assert await reason_of(replica.accept("work_1", "paused")) == "WORK_ITEM_HELD"
    await replica.accept("work_1", "w2")
    await replica.complete("work_1", "w2", result=2)
    assert (await running).result_json == b"2"


async def test_a_worker_that_only_polls_gets_what_lapsed_too(ground: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.worker.queue.operations.pool.FRESH_SECONDS", 0.3)
    replica = await ground.replica(work_lease_seconds=0.2)
    running = replica.run("work_1")
    assert await replica.claim("gone", wait_seconds=10)

    async def comes_back() -> bool:
        return await replica.claim("w2", environment_id="env_1") is not None

    await await_until(comes_back)
    running.cancel()


async def test_the_lease_must_be_live_for_an_acceptance_and_not_for_a_renewal(ground: Queue) -> None:
    # Nobody else asks, so nobody takes it over.
    replica = await ground.replica(work_lease_seconds=1.5)
    running = replica.run("work_1")
    item = await replica.claim("w1", wait_seconds=10)
    assert item is not None
    await await_until(lambda: rfc3339(datetime.now(UTC)) > item.lease_expires_at)

    assert await reason_of(replica.accept("work_1", "w1")) == "WORK_LEASE_LOST"
    await replica.heartbeat("work_1", "w1")
    await replica.accept("work_1", "w1")
    await replica.complete("work_1", "w1")
    await running


async def test_what_was_accepted_is_never_handed_out_again_and_its_late_result_counts(
    ground: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What lapsed is looked for several times while the second worker waits.
    monkeypatch.setattr("services.worker.queue.operations.pool.FRESH_SECONDS", 0.1)
    replica = await ground.replica(work_lease_seconds=1.0)
    running = replica.run("work_1")
    assert await replica.claim("paused", wait_seconds=10)
    await replica.accept("work_1", "paused")

    assert await replica.claim("w2", wait_seconds=1.6) is None
    await replica.complete("work_1", "paused", result="late")
    assert (await running).result_json == b'"late"'


async def test_what_another_installation_tells_of_its_items_hands_out_nothing_of_ours(ground: Queue) -> None:
    """Two may share a message bus, and their items' names; here even the revision is that of our row."""
    replica = await ground.replica()
    running = replica.run("work_1")
    assert await replica.claim("w1", wait_seconds=10)
    await replica.accept("work_1", "w1")
    long_ago = datetime.now(UTC) - timedelta(minutes=1)
    pending = Item(
        "work_1", PLATFORM.workspace_id, "env_1", "sess_1", "exec", Status.PENDING, 2, 1, long_ago,
        queue_until=long_ago + timedelta(hours=1), wait_until=long_ago + timedelta(hours=1),
    )  # fmt: skip
    claiming = asyncio.create_task(replica.claim("w2", wait_seconds=1))
    bus = await connect(ground.nats_url, "elsewhere")
    while not claiming.done():
        await bus.publish(f"{ENQUEUED}.env_1", orjson.dumps({"replica": "elsewhere", "items": [as_told(pending)]}))
        await asyncio.wait({claiming}, timeout=0.1)
    await bus.close()

    assert claiming.result() is None
    await replica.complete("work_1", "w1", result="ours")
    assert (await running).result_json == b'"ours"'


@pytest.mark.parametrize("ask", [{}, {"environment_id": "env_1"}, {"session_id": "sess_1"}])
async def test_a_filter_lets_through_what_it_names_and_nothing_else(ground: Queue, ask: dict[str, str]) -> None:
    replica = await ground.replica()
    runs = [replica.run(f"work_{n}", environment_id=f"env_{n}", session_id=f"sess_{n}") for n in (1, 2)]
    for n in (1, 2):
        await in_queue(replica, f"work_{n}", environment_id=f"env_{n}")

    found = [item.id for _ in range(3) if (item := await replica.claim("w1", **ask)) is not None]
    assert sorted(found) == (["work_1"] if ask else ["work_1", "work_2"])
    waiting = asyncio.create_task(replica.claim("w1", wait_seconds=20, **ask))
    runs.append(replica.run("work_3"))
    got = await waiting
    assert got is not None
    assert got.id == "work_3"
    for run in runs:
        run.cancel()


async def test_every_item_goes_to_one_worker_however_many_ask(ground: Queue) -> None:
    replicas = [await ground.replica(), await ground.replica()]
    claims = [
        asyncio.create_task(replicas[n % 2].claim(f"w{n}", environment_id="env_1", wait_seconds=30)) for n in range(50)
    ]
    runs = [replicas[n % 2].run(f"work_{n:02}", session_id=f"sess_{n % 3}") for n in range(20)]

    await await_until(lambda: sum(claim.done() for claim in claims) == 20)
    got = [item for claim in claims if claim.done() and (item := claim.result()) is not None]
    # Nothing is left for those who still wait.
    assert await replicas[0].claim("w99", environment_id="env_1") is None
    assert sum(claim.done() for claim in claims) == 20
    for claim in claims:
        claim.cancel()
    assert Counter(item.id for item in got) == Counter(f"work_{n:02}" for n in range(20))
    assert len({item.claimed_by for item in got}) == 20
    for n, item in enumerate(got):
        await replicas[n % 2].complete(item.id, item.claimed_by, result=item.id)
    for n, answer in enumerate(await asyncio.gather(*runs)):
        assert json.loads(answer.result_json) == f"work_{n:02}"


async def test_a_noisy_session_or_environment_starves_nobody(ground: Queue) -> None:
    replica = await ground.replica()
    runs = [replica.run(f"noisy_{n:03}", session_id="sess_noisy") for n in range(100)]
    await in_queue(replica, "noisy_099")
    runs += [replica.run(f"quiet_{n}", session_id="sess_quiet") for n in range(3)]
    runs += [replica.run(f"far_{n}", session_id="sess_far", environment_id="env_2") for n in range(3)]
    await in_queue(replica, "quiet_2")
    await in_queue(replica, "far_2", environment_id="env_2")

    scoped = [(await replica.claim("w1", environment_id="env_1")).id for _ in range(4)]
    assert sum(item_id.startswith("quiet") for item_id in scoped) == 2
    unscoped = [(await replica.claim("w1")).id for _ in range(7)]
    assert sum(item_id.startswith("far") for item_id in unscoped) == 3
    assert sum(item_id.startswith("quiet") for item_id in unscoped) == 1
    for run in runs:
        run.cancel()


async def test_a_worker_that_hangs_up_takes_nothing_along(ground: Queue) -> None:
    replica = await ground.replica()
    gone = [asyncio.create_task(replica.claim(f"gone{n}", wait_seconds=30)) for n in range(5)]
    assert await replica.claim("w1") is None
    runs = [replica.run(f"work_{n}") for n in range(5)]
    for claim in gone:
        claim.cancel()

    found = [await replica.claim("w1", wait_seconds=10) for _ in range(5)]
    kept = [claim.result() for claim in gone if not claim.cancelled()]
    assert len({item.id for item in [*found, *kept] if item is not None}) == 5
    for run in runs:
        run.cancel()


async def test_what_makes_no_sense_is_refused_by_name(ground: Queue) -> None:
    replica = await ground.replica()
    for wrong in (
        {"kind": "dance"},
        {"wait_seconds": 0.0},
        {"queue_seconds": -1.0},
        {"payload_json": b"{"},
        {"session_id": ""},
        {"item_id": "x" * 300},
    ):
        with pytest.raises(InvalidArgument) as refused:
            await replica.run(**wrong)
        assert refused.value.field == next(iter(wrong))
    for wrong in ({"worker_id": ""}, {"wait_seconds": 31.0}, {"wait_seconds": -1.0}):
        with pytest.raises(InvalidArgument):
            await replica.claim(**wrong)


async def test_items_are_listed_newest_first_page_by_page_and_counted(ground: Queue) -> None:
    replica = await ground.replica()
    runs = [replica.run(f"work_{n}") for n in range(5)]
    await in_queue(replica, *(f"work_{n}" for n in range(5)))
    claimed = await replica.claim("w1")
    assert claimed is not None
    await replica.complete(claimed.id, failed=True)

    everything = await replica.items()
    assert len(everything) == 5
    assert [item.created_at for item in everything] == sorted((item.created_at for item in everything), reverse=True)
    assert {item.status for item in await replica.items(status="pending")} == {"pending"}
    paged = await replica.pages(limit=2)
    assert [item.id for item in paged] == [item.id for item in everything]
    stats = await replica.stats()
    assert (stats.pending, stats.claimed, stats.failed) == (4, 0, 1)
    assert await reason_of(replica.items(cursor="no cursor")) == "INVALID_CURSOR"
    for run in runs:
        run.cancel()

"""One ticker at a time, under a fenced lease in a real Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from kit.postgres import Database
from kit.rpc.client import channel
from kit.rpc.context import CallContext
from kit.testing import await_until
from managed_agents.scheduler.v1 import scheduler_pb2 as pb
from managed_agents.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from services.scheduler.app import MIGRATIONS, SCHEMA, compose
from services.scheduler.config import SchedulerSettings
from services.scheduler.domain.lease import LEASE_SECONDS, TRUST_MARGIN_SECONDS, Term
from services.scheduler.store.leases import LeaseStore
from services.scheduler.ticker import Ticker

OPERATOR = CallContext("", "req_1", "operator")


@pytest.fixture
async def dsn(make_database) -> str:
    return await make_database(SCHEMA, MIGRATIONS)


@pytest.fixture
async def database(dsn: str) -> AsyncIterator[Database]:
    database = Database(dsn, SCHEMA)
    await database.open()
    yield database
    await database.close()


async def expire(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await connection.execute("UPDATE ticker_leases SET expires_at = now() - interval '1 second'")


async def test_of_many_that_ask_at_once_one_gets_the_term(database: Database) -> None:
    async def ask(holder: str) -> int | None:
        async with database.platform_transaction() as tx:
            return await LeaseStore(tx).grant(holder, LEASE_SECONDS)

    granted = await asyncio.gather(*(ask(f"scheduler_{number}") for number in range(8)))
    assert [epoch for epoch in granted if epoch] == [1]


async def test_an_old_term_neither_renews_nor_resigns_a_newer_one(database: Database, dsn: str) -> None:
    async with database.platform_transaction() as tx:
        assert await LeaseStore(tx).grant("old", LEASE_SECONDS) == 1
    await expire(dsn)
    async with database.platform_transaction() as tx:
        store = LeaseStore(tx)
        assert not await store.renew("old", 1, LEASE_SECONDS, ticked=True)
        assert await store.grant("new", LEASE_SECONDS) == 2
        assert not await store.renew("old", 1, LEASE_SECONDS, ticked=True)
        await store.resign("old", 1)
        lease = await store.load()
        assert lease is not None and (lease.holder, lease.epoch) == ("new", 2)
        assert await store.renew("new", 2, LEASE_SECONDS, ticked=True)


async def test_a_stopped_ticker_hands_over_at_once(database: Database) -> None:
    first, second = Ticker(database, "first"), Ticker(database, "second")
    running = asyncio.create_task(first.run())
    await await_until(lambda: _holder(database, "first"))
    await first.stop()
    await running
    running = asyncio.create_task(second.run())
    await await_until(lambda: _holder(database, "second"))
    await second.stop()
    await running


async def _holder(database: Database, holder: str) -> bool:
    async with database.platform_read() as tx:
        lease = await LeaseStore(tx).load()
    return lease is not None and lease.holder == holder and lease.last_tick_at is not None


async def test_jobs_run_only_under_a_trusted_term(database: Database) -> None:
    terms: list[Term] = []

    async def job(term: Term) -> None:
        terms.append(term)

    holder, waiter = Ticker(database, "holder", [job]), Ticker(database, "waiter", [job])
    running = [asyncio.create_task(ticker.run()) for ticker in (holder, waiter)]
    await await_until(lambda: bool(terms))
    await asyncio.gather(holder.stop(), waiter.stop())
    await asyncio.gather(*running)
    assert len({term.holder for term in terms}) == 1


def test_a_holder_stops_trusting_its_term_before_the_database_ends_it() -> None:
    term = Term("holder", 1, asked_at=100.0)
    assert term.is_trusted(100.0 + LEASE_SECONDS - TRUST_MARGIN_SECONDS - 0.1)
    assert not term.is_trusted(100.0 + LEASE_SECONDS - TRUST_MARGIN_SECONDS)


@asynccontextmanager
async def scheduler(dsn: str, folder: Path, name: str):
    listen = f"unix:{folder}/{name}.sock"
    service = compose(SchedulerSettings(database_url=dsn, listen=listen))
    await service.start()
    client = channel(listen)
    try:
        yield client.stub(SchedulerServiceStub)
    finally:
        await client.close()
        await service.stop()


async def test_of_two_processes_one_says_that_it_ticks(dsn: str, tmp_path: Path) -> None:
    async with scheduler(dsn, tmp_path, "a") as one, scheduler(dsn, tmp_path, "b") as other:

        async def ticking() -> bool:
            found = await one.GetTicker(pb.GetTickerRequest(), context=OPERATOR)
            return bool(found.last_tick_at)

        await await_until(ticking)
        answers = [await stub.GetTicker(pb.GetTickerRequest(), context=OPERATOR) for stub in (one, other)]
        assert sorted(answer.is_self for answer in answers) == [False, True]
        assert answers[0].holder == answers[1].holder and answers[0].epoch == 1

"""What the platform holds on to: processes, file descriptors, connections to its servers, subscriptions, consumers.

Taken while all is quiet, before and after a run; what is more afterwards was leaked.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

import orjson

from kit.embedded.nats import EmbeddedNats
from kit.nats import connect
from tests.e2e.leftovers import processes_of
from tests.faults.ground import SERVERS, SERVICES, Ground
from tests.support.rows import database_of

# What may come and go by chance: a pool that has grown, a keep-alive connection that is about to close.
DESCRIPTORS_SPARE, CONNECTIONS_SPARE = 6, 14


async def census(ground: Ground) -> Counter[str]:
    """Counts by what they are of."""
    counts: Counter[str] = Counter()
    for name in (*SERVICES, *SERVERS):
        # The connections that both servers have to the services are counted below; Postgres' own are processes.
        counts[f"descriptors of {_kind(name)}"] += _descriptors(ground.pid(name))
    counts["descriptors of supervisor"] = _descriptors(ground.platform.process.pid)
    counts["processes"] = sum(not command.startswith("postgres:") for command in processes_of(ground.data_dir))
    with database_of(ground.platform) as rows:
        found = rows.execute(
            "SELECT application_name, count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' "
            "AND application_name LIKE 'managed-agents %' AND usename <> 'postgres' GROUP BY 1"
        ).fetchall()
        counts["prepared or open transactions"] = rows.execute(
            "SELECT (SELECT count(*) FROM pg_prepared_xacts) + count(*) FROM pg_stat_activity "
            "WHERE state LIKE 'idle in transaction%'"
        ).fetchone()[0]
    counts.update({f"database connections of {name.split()[-1]}": count for name, count in found})
    counts.update(await _bus(ground))
    return counts


def grown(before: Counter[str], after: Counter[str]) -> dict[str, tuple[int, int]]:
    """What is more than it was, beyond what chance explains."""
    return {name: (before[name], count) for name, count in after.items() if count > before[name] + _spare(name)}


def _spare(name: str) -> int:
    if name.startswith("descriptors"):
        # A pool may have grown to its full size, and each of its connections is a descriptor.
        return DESCRIPTORS_SPARE + CONNECTIONS_SPARE
    return CONNECTIONS_SPARE if name.startswith("database connections") else 0


def _kind(name: str) -> str:
    return name.partition("-")[0]


def _descriptors(pid: int | None) -> int:
    with contextlib.suppress(OSError):
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return 0


async def _bus(ground: Ground) -> Counter[str]:
    """What the message server says of its clients; each runner has a name of its own that changes with each life."""
    nats = await connect(EmbeddedNats(ground.data_dir / "nats").address(), "census")
    try:
        answer = await nats.request("$SYS.REQ.ACCOUNT.PING.CONNZ", b'{"limit": 10000}', 5)
        consumers = (await nats.client.jetstream().stream_info("SESSIONS")).state.consumer_count
    finally:
        await nats.close()
    counts = Counter({"consumers of the stream": consumers or 0})
    for connection in orjson.loads(answer.data)["data"]["connections"]:
        name = connection.get("name", "").partition("_")[0]
        if name not in ("census", "faults", "reader"):
            counts[f"bus connections of {name}"] += 1
            counts[f"subscriptions of {name}"] += connection["subscriptions"]
    return counts

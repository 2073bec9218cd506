"""`python -m bench`: start a platform, load it, say what was reached. See README.md.

python -m bench                      everything, once
python -m bench --runs 3             medians of three
python -m bench --quick --only turns,fan_out
python -m bench --growth             the tables of growth instead
"""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import uvloop

from bench import files, growth, records, report, streams, turns, workers
from bench.client import Client
from bench.machine import fixed_work_ms
from bench.platform import Platform
from kit.embedded.nats import EmbeddedNats
from kit.embedded.postgres import EmbeddedPostgres

Scenario = Callable[[Client, Platform, float], Awaitable[dict[str, float]]]
# In this order: what fills the database comes last.
SCENARIOS: dict[str, Scenario] = {
    "turns": turns.plain,
    "tools": turns.with_tool,
    "append": records.appends,
    "agents": records.agents,
    "read": records.reading,
    "long": turns.long_session,
    "fan_out": streams.fan_out,
    "idle": streams.idle,
    "workers": workers.outside,
    "files": files.large,
    "sessions": records.sessions,
}
_QUICK = 0.1
_STARTS = 3


def main() -> int:
    options = _options()
    wanted = options.only.split(",") if options.only else [*SCENARIOS, "footprint"]
    if unknown := set(wanted) - {*SCENARIOS, "footprint"}:
        print(
            f"Unknown: {', '.join(sorted(unknown))}. There are {', '.join(SCENARIOS)} and footprint.", file=sys.stderr
        )
        return 2
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    if options.growth:
        tables = {name: uvloop.run(_grow(make)) for name, make in growth.TABLES.items()}
        print("\n\n".join(report.growth_table(rows) for rows in tables.values()))
        print(f"\nwritten to {report.save(f'growth-{stamp}', tables)}")
        return 0
    runs = [uvloop.run(_run(wanted, _QUICK if options.quick else 1.0)) for _ in range(options.runs)]
    figures = report.medians(runs)
    machine = {"cpus": os.cpu_count(), "load": os.getloadavg(), "python": sys.version}
    document = {"at": stamp, "machine": machine, "median": figures, "runs": runs}
    print(report.table(figures))
    print(f"\nmedian of {len(runs)}; written to {report.save(f'bench-{stamp}', document)}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Load a platform of its own and measure it.")
    parser.add_argument("--runs", type=int, default=1, help="repeat on a fresh platform each time, show medians")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: shows that it runs, not how fast")
    parser.add_argument("--only", help=f"some of {', '.join(SCENARIOS)}, footprint; separated by commas")
    parser.add_argument("--growth", action="store_true", help="how cost grows, as tables for the README")
    return parser.parse_args()


async def _run(wanted: list[str], scale: float) -> dict[str, float]:
    platform, figures = Platform(), {}
    speeds: list[float] = []
    try:
        if "footprint" in wanted:
            figures |= await _starts(platform)
        else:
            platform.start()
        client = Client(platform.port)
        try:
            for name, scenario in SCENARIOS.items():
                if name in wanted:
                    began = time.perf_counter()
                    await platform.settle()
                    speeds.append(fixed_work_ms())
                    figures |= await scenario(client, platform, scale)
                    print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        finally:
            await client.close()
        if speeds:
            figures["fixed_work_ms"] = median(speeds)
        figures["loaded_python_rss_mb"] = platform.memory()["python_rss"]
        figures["stop_seconds"] = platform.stop()
    finally:
        platform.close()
    return figures


async def _starts(platform: Platform) -> dict[str, float]:
    """What a platform takes to start, and what it holds then. Leaves it running."""
    external_seconds = _start_with_external_servers()
    seconds = _median_start(platform)
    await asyncio.sleep(3)
    memory = platform.memory()
    return {
        "start_seconds": seconds,
        "start_external_seconds": external_seconds,
        "idle_python_rss_mb": memory["python_rss"],
        "idle_python_pss_mb": memory["python_pss"],
        "idle_all_rss_mb": memory["all_rss"],
    }


def _start_with_external_servers() -> float:
    folder = Path(tempfile.mkdtemp(prefix="bench-servers-"))
    postgres, nats = EmbeddedPostgres(folder), EmbeddedNats(folder)
    try:
        servers = {"MANAGED_AGENTS_DATABASE_URL": postgres.start(), "MANAGED_AGENTS_NATS_URL": nats.start()}
        platform = Platform(servers)
        try:
            return _median_start(platform)
        finally:
            platform.close()
    finally:
        nats.stop()
        postgres.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _median_start(platform: Platform) -> float:
    """The first start makes the data; the others find it. Leaves the platform running."""
    platform.start()
    taken = []
    for _ in range(_STARTS):
        platform.stop()
        taken.append(platform.start())
    return sorted(taken)[len(taken) // 2]


async def _grow(make: Callable[[Client, Platform], Awaitable[list[growth.Row]]]) -> list[growth.Row]:
    platform = Platform()
    try:
        platform.start()
        client = Client(platform.port)
        try:
            return await make(client, platform)
        finally:
            await client.close()
    finally:
        platform.close()


if __name__ == "__main__":
    sys.exit(main())

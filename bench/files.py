"""Uploads and downloads of large files."""

import os

from bench.client import Client, milliseconds, work
from bench.platform import Platform

Figures = dict[str, float]
_SIZE = 9 * 1024 * 1024
_MEGABYTE = 1e6


async def large(client: Client, platform: Platform, scale: float) -> Figures:
    """Nine megabytes, one file at a time and four at a time, and the memory that stays behind."""
    content, made = os.urandom(_SIZE), []

    async def up(number: int) -> None:
        made.append(await client.upload(content, f"bench-{number}.bin"))

    async def down(number: int) -> None:
        if len(await client.get(f"/v1/files/{made[number % len(made)]}/content")) != _SIZE:
            raise RuntimeError("a download came back with another length")

    await up(0)
    await down(0)
    figures: Figures = {}
    before = platform.memory()["python_rss"]
    for name, task in (("upload", up), ("download", down)):
        for at_once in (1, 4):
            await platform.settle()
            spent = platform.cpu().total()
            each, seconds = await work(max(4, int(40 * scale)), at_once, task)
            figures[f"{name}_c{at_once}_mb_per_s"] = len(each) * _SIZE / _MEGABYTE / seconds
            figures[f"{name}_c{at_once}_p99_ms"] = milliseconds(each, 99)
            figures[f"{name}_c{at_once}_cpu_ms"] = (platform.cpu().total() - spent) / len(each) * 1000
    figures["files_rss_growth_mb"] = platform.memory()["python_rss"] - before
    return figures

"""No job is left behind, however workers and callers come and go."""

from __future__ import annotations

import asyncio
from typing import Any

from kit.waiting import within
from services.sessions.operations.committer import WORKERS, Committer, Job


class Held(Committer):
    """Every commit of the first round ends in the same step of the loop."""

    def __init__(self) -> None:
        nothing: Any = None
        super().__init__(nothing, nothing, nothing, nothing)
        self.together = asyncio.Event()

    async def _commit(self, jobs: list[Job]) -> None:
        await self.together.wait()
        for job in jobs:
            job.succeed(job)  # type: ignore[arg-type]


def _job(number: int) -> Job:
    nothing: Any = None
    return Job("wrkspc_a", f"sess_{number}", nothing)


async def test_a_job_that_comes_as_the_last_workers_leave_is_done() -> None:
    committer = Held()

    async def caller(number: int) -> None:
        await committer.submit(_job(number))
        if number == 0:
            # At once: the workers have just found nothing more to do, and nobody else comes to wake one.
            await committer.submit(_job(number))

    callers = []
    for number in range(WORKERS):
        callers.append(asyncio.create_task(caller(number)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    committer.together.set()
    await within(asyncio.gather(*callers), 30)
    await committer.stop()

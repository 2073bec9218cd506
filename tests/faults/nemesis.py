"""What goes wrong, one thing after another: kills in a good and in the worst moment, pauses, the end of everything."""

from __future__ import annotations

import random
import signal
from collections import Counter

from tests.faults.durable import DurableConsumer
from tests.faults.ground import LEASE_SECONDS, MOMENTS, RUNNERS, SERVERS, SERVICES, Ground, seen

# Each kind of harm that a short run does at least once, the least patient first.
KINDS = (
    *("mid request", "mid tool", "gateway", "sessions", "pause", "postgres", "nats", "vault", "everything"),
    *("unpublished", "consumer", "scheduler", "queue", "runner-2", "supervisor"),
)
MOMENT_SECONDS = 90


class Nemesis:
    """Does harm, and waits until the platform has recovered before the next."""

    def __init__(self, ground: Ground, chance: random.Random, durable: DurableConsumer) -> None:
        self._ground = ground
        self._durable = durable
        self._chance = chance
        self.done: Counter[str] = Counter()

    async def strike(self, kind: str) -> None:
        """One harm of a kind, and its recovery."""
        if kind in SERVICES or kind in SERVERS:
            await self._kill(kind)
        elif kind in MOMENTS:
            await self._kill(await self._holder(kind))
        elif kind == "unpublished":
            # Committed, and not yet (or just) published.
            await seen(self._ground.has_unpublished, MOMENT_SECONDS, "an append is not published yet")
            await self._kill("sessions")
        elif kind == "consumer":
            self._durable.kill()
            self._durable.start()
        elif kind == "pause":
            await self._pause()
        else:
            await self._kill_whole(everything=kind == "everything")
        self.done[kind] += 1

    async def strike_at_random(self, kills: int) -> None:
        """All kinds once, then any, now and then two at a time."""
        for kind in KINDS[:kills]:
            await self.strike(kind)
        while self.done.total() < kills:
            if self._chance.random() < 0.2:
                self._ground.signal(self._chance.choice(SERVICES + SERVERS), signal.SIGKILL)
            await self.strike(self._chance.choice(KINDS))

    async def _kill(self, name: str) -> None:
        killed = self._ground.signal(name, signal.SIGKILL)
        await self._ground.until_back(name, killed)

    async def _holder(self, moment: str) -> str:
        """The runner that holds a turn in this moment."""
        found = await seen(lambda: self._ground.holders(moment), MOMENT_SECONDS, f"a turn stands in {moment}")
        return self._chance.choice(found)

    async def _pause(self) -> None:
        """Stop a runner in the middle of a turn until another has that turn, then let it go on."""
        name = await self._holder("mid request")
        runner_id = self._ground.runner_id(name)
        self._ground.signal(name, signal.SIGSTOP)
        try:
            await seen(
                lambda: self._ground.held_by(runner_id) == 0, LEASE_SECONDS * 10, f"{name} holds no turn any more"
            )
        finally:
            self._ground.signal(name, signal.SIGCONT)
        await self._ground.until_ready()

    async def _kill_whole(self, *, everything: bool) -> None:
        if everything:
            self._ground.kill_everything()
        else:
            self._ground.platform.process.kill()
        self._ground.start_again()
        await self._ground.until_ready()
        for name in RUNNERS:
            await seen(lambda: self._ground.runner_id(name), MOMENT_SECONDS, f"{name} answers")  # noqa: B023

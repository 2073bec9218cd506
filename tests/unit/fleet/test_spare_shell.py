"""Proves that a shell that comes up while its command is given up is ended, and not forgotten."""

import asyncio
from typing import Any

import pytest

from services.worker.fleet.tool.commands import Command, Commands


class Recorded(Commands):
    """Commands whose shells are names."""

    def __init__(self) -> None:
        nothing: Any = None
        super().__init__(nothing, nothing, {})
        self.may_start = asyncio.Event()
        self.released: list[Any] = []

    async def _start(self) -> Any:
        await self.may_start.wait()
        return "shell"

    async def _release(self, prepared: Any) -> None:
        self.released.append(prepared)


async def test_a_shell_that_comes_up_as_its_command_is_given_up_is_ended() -> None:
    commands = Recorded()
    commands.prepare()
    spare = commands._spare
    assert spare is not None
    spare.add_done_callback(lambda _: running.cancel())
    running = asyncio.create_task(commands.run(Command("true", "", {}, 1.0, "work_1")))
    # It waits for the shell before that is there.
    await asyncio.sleep(0)
    commands.may_start.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert commands.released == ["shell"]

"""Proves: shells that are started in advance are used or ended, and none is forgotten, whatever becomes of another."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from services.worker.fleet.tool.commands import Command, Commands
from services.worker.tools import ShellUnavailable


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
    commands._spares[0].add_done_callback(lambda _: running.cancel())
    running = asyncio.create_task(commands.run(Command("true", "", {}, 1.0, "work_1")))
    # It waits for the shell before that is there.
    await asyncio.sleep(0)
    commands.may_start.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert commands.released == ["shell"]
    await commands.aclose()


async def test_each_command_finds_a_shell_that_was_started_before_it_and_all_are_ended() -> None:
    commands = Recorded()
    commands.prepare()
    started = [*commands._spares]
    assert len(started) == 2
    commands.may_start.set()
    await asyncio.gather(*started)
    commands.prepare()
    assert [*commands._spares] == started
    await commands.aclose()
    commands.prepare()
    assert commands.released == ["shell", "shell"]


async def test_a_shell_that_did_not_come_up_leaves_the_command_to_the_next_one() -> None:
    up = SimpleNamespace(shell=SimpleNamespace(ended=False))

    class Failing(Recorded):
        starts = 0

        async def _start(self) -> Any:
            self.starts += 1
            if self.starts == 1:
                raise ShellUnavailable("not now")
            return up

    commands = Failing()
    commands.prepare()
    assert (await commands._take(), commands.starts) == (up, 2)
    assert not commands._spares

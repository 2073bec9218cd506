"""A process that runs a service and prints what happens to it; the argument names what it does."""

import asyncio
import sys
from contextlib import suppress

from pydantic import SecretStr

from kit.config import BaseServiceSettings, load
from kit.lifecycle import Service, run

MODE = sys.argv[1]


def say(what: str):
    def action() -> None:
        print(what, flush=True)

    return action


class Settings(BaseServiceSettings):
    needed: SecretStr
    number: int = 1


async def hang() -> None:
    print("hanging", flush=True)
    await asyncio.Event().wait()


async def dies() -> None:
    raise ValueError("the cause")


async def works() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        print("task ended", flush=True)


async def swallows() -> None:
    """What a library does that takes a cancellation for an answer."""
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    print("swallowed", flush=True)
    await asyncio.Event().wait()


def fail() -> None:
    raise ValueError("the cause")


async def build() -> Service:
    if MODE == "config":
        load(Settings)
    service = Service("child", supervisor_fd=int(sys.argv[2]) if len(sys.argv) > 2 else None)
    service.add("one", say("start one"), say("stop one"))
    service.add_task("work", works)
    service.add("two", say("start two"), say("stop two"))
    if MODE == "dies":
        service.add_task("dying", dies)
    if MODE == "swallows":
        service.add_task("deaf", swallows)
    if MODE == "ends":
        service.add_task("ending", lambda: asyncio.sleep(0))
    if MODE == "fails":
        service.add("failing", fail, say("stop failing"))
        service.add("never", say("start never"), say("stop never"))
    if MODE == "start-hangs":
        service.add("slow", hang, say("stop slow"))
    if MODE == "stop-hangs":
        service.add("stuck", say("start stuck"), hang, stop_seconds=0.2)
    if MODE == "stop-hangs-long":
        service.add("stuck", say("start stuck"), hang, stop_seconds=600)
    if MODE == "stop-fails":
        service.add("broken", say("start broken"), fail)
    service.add("three", say("start three"), say("stop three"))
    service.add("ready", say("ready"))
    return service


run(build)

"""Named points at which a test can break a process.

    await failpoints.point("outbox.published")

A point does nothing unless `MANAGED_AGENTS_FAILPOINTS` arms it when the process starts, as `name=action` pairs joined
by commas: `raise` (FailpointHit), `kill` (SIGKILL to itself, so nothing cleans up), `pause` (the
task stays here for good while the rest of the process goes on). `name=kill@3` acts at the third pass only.
"""

import asyncio
import os
import signal

_ACTIONS = ("raise", "pause", "kill")


class FailpointHit(Exception):
    """An armed point was reached."""


class _Armed:
    def __init__(self, action: str, at: int) -> None:
        self.action, self.at, self.passes = action, at, 0


def parse(text: str) -> dict[str, _Armed]:
    """Read the variable; a part that is not understood stops the process, since a test relies on it."""
    armed: dict[str, _Armed] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, action = part.partition("=")
        action, count, at = action.partition("@")
        if not name or action not in _ACTIONS or (count and not at.isdigit()):
            raise ValueError(f"failpoint {part!r} is not name=action with one of {', '.join(_ACTIONS)}, maybe @count")
        armed[name] = _Armed(action, int(at or 0))
    return armed


_armed = parse(os.environ.get("MANAGED_AGENTS_FAILPOINTS", ""))


def arm(text: str) -> None:
    """Arm points inside this process, for a test; an empty text disarms all."""
    _armed.clear()
    _armed.update(parse(text))


async def point(name: str) -> None:
    """Pass the point, unless it is armed."""
    if not _armed or (armed := _armed.get(name)) is None:
        return
    armed.passes += 1
    if armed.at and armed.passes != armed.at:
        return
    if armed.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if armed.action == "raise":
        raise FailpointHit(name)
    await asyncio.Event().wait()

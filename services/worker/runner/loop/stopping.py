"""How a turn is told to stop, whatever it waits for.

A turn is one task. Model requests, tools and waits happen inside `scope()`: a stop that comes meanwhile cancels what
the scope awaits and leaves it as Stopped. Between scopes nothing is cut off; the next scope, or `check()`, tells. A
lost lease is different: it ends the task wherever it is, since nothing may be written any more.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum


class StopKind(IntEnum):
    """Why a turn should stop; a higher one outweighs a lower one."""

    NONE = 0
    # A user.interrupt: write what there is, end the turn, perhaps go on with what waits.
    INTERRUPT = 1
    # The process stops: write what there is and give the turn back.
    HAND_OVER = 2
    # Somebody else holds the turn, or the session is gone: write nothing.
    LOST = 3


class Stopped(Exception):
    """The turn was told to stop while it waited, or before."""

    def __init__(self, kind: StopKind) -> None:
        super().__init__(kind.name)
        self.kind = kind

    @property
    def by_user(self) -> bool:
        """Whether a user.interrupt did it."""
        return self.kind is StopKind.INTERRUPT


class StopSignal:
    """The one place where a turn learns that it should stop."""

    def __init__(self) -> None:
        self.kind = StopKind.NONE
        self._task: asyncio.Task[None] | None = None
        self._in_scope = False
        self._fired = False

    def bind(self, task: "asyncio.Task[None]") -> None:
        """The task that `stop` acts on."""
        self._task = task
        if self.kind is StopKind.LOST:
            task.cancel()

    def stop(self, kind: StopKind) -> None:
        """Ask the turn to stop. Safe to call at any time, from any task of the loop, and more than once."""
        if kind <= self.kind:
            return
        self.kind = kind
        if self._task is None or self._task.done():
            return
        if kind is StopKind.LOST:
            self._task.cancel()
        elif self._in_scope and not self._fired:
            self._fired = True
            self._task.cancel()

    def clear_interrupt(self) -> None:
        """The interrupt was obeyed; the turn may go on."""
        if self.kind is StopKind.INTERRUPT:
            self.kind = StopKind.NONE

    def check(self) -> None:
        """Raise Stopped where a stop was asked for."""
        if self.kind:
            raise Stopped(self.kind)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A block that a stop cuts off."""
        self.check()
        self._in_scope = True
        try:
            yield
        except asyncio.CancelledError:
            # Only our own cancellation is taken back; one from outside must go through.
            if self._fired and self.kind is not StopKind.LOST and self._task and self._task.uncancel() == 0:
                raise Stopped(self.kind) from None
            raise
        else:
            if self._fired and self._task is not None:
                self._task.uncancel()
                raise Stopped(self.kind)
        finally:
            self._in_scope = self._fired = False

"""Workers that wait on this replica for an item: in memory, since their calls are open here."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from kit.errors import Unavailable
from services.worker.queue.domain.item import Item

# An item that was handed out, and what it is to do.
Grant = tuple[Item, str]
# Which items a claim takes: of an environment and of a session, empty for any.
Scope = tuple[str, str]

# Waits of at least so long may end so much earlier.
LONG_SECONDS = 5.0
TOGETHER_SECONDS = 0.5

_numbers = itertools.count()


@dataclass(eq=False, slots=True)
class Claim:
    """One open call of a worker."""

    workspace_id: str
    scope: Scope
    worker_id: str
    number: int = field(default_factory=lambda: next(_numbers))
    # Whether an item is being written for it right now.
    is_paired: bool = False
    # Whether it takes nothing that is not there already.
    is_over: bool = False
    granted: asyncio.Future[Grant | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def answer(self, grant: Grant | None) -> bool:
        """Whether the worker is still there to hear it."""
        if self.granted.done():
            return False
        self.granted.set_result(grant)
        return True

    @property
    def grant(self) -> Grant | None:
        """What the worker was given, whether it has heard or not."""
        granted = self.granted
        if not granted.done() or granted.cancelled() or granted.exception() is not None:
            return None
        return granted.result()

    def refuse(self, error: Exception) -> None:
        """Tells why nothing can be handed out now."""
        if not self.granted.done():
            self.granted.set_exception(error)


class Ends:
    """Ends claims when their time is over, many at once.

    Workers that wait in vain ask again at once. If each ended by itself, an idle platform would be woken for every one
    of them; so long waits end up to `TOGETHER_SECONDS` early, together with others, and come back together.
    """

    def __init__(self) -> None:
        self._due: dict[float, dict[int, Claim]] = {}

    def end_within(self, seconds: float, claim: Claim) -> Callable[[], object]:
        """Ends the claim in time; call what this gives when it is over before."""
        loop = asyncio.get_running_loop()
        moment = loop.time() + seconds
        if seconds >= LONG_SECONDS:
            moment -= moment % TOGETHER_SECONDS
        due = self._due.get(moment)
        if due is None:
            due = self._due[moment] = {}
            loop.call_at(moment, self._end, moment)
        due[claim.number] = claim
        return partial(due.pop, claim.number, None)

    def _end(self, moment: float) -> None:
        for claim in self._due.pop(moment).values():
            claim.is_over = True
            if not claim.is_paired:
                claim.answer(None)


class WaitingRoom:
    """Claims by what they take, the oldest first. However many wait, one comes and goes at the same cost."""

    def __init__(self) -> None:
        # By number, in their order.
        self._by_workspace: dict[str, dict[Scope, dict[int, Claim]]] = {}
        # Those that don't wait, and are answered by the next round.
        self._over: dict[str, list[Claim]] = {}
        self._closed = False

    def enter(self, claim: Claim) -> None:
        """Has a claim wait."""
        if self._closed:
            raise Unavailable("This replica is stopping; claim at another one.")
        self._line(claim)[claim.number] = claim
        self._note(claim)

    def return_to(self, claim: Claim) -> None:
        """A claim that was to get an item and did not is the first one again; if it is over, for one more round."""
        claim.is_paired = False
        if self._closed:
            claim.answer(None)
        elif not claim.granted.done():
            lines = self._by_workspace.setdefault(claim.workspace_id, {})
            lines[claim.scope] = {claim.number: claim, **lines.get(claim.scope, {})}
            self._note(claim)

    def leave(self, claim: Claim) -> None:
        """Takes a claim out, if it is in here."""
        line = self._by_workspace.get(claim.workspace_id, {}).get(claim.scope)
        if line is not None and line.pop(claim.number, None) is not None:
            self._tidy(claim.workspace_id, claim.scope)

    def close(self) -> None:
        """Lets everybody go: the process stops."""
        self._closed = True
        for claim in self._all():
            claim.answer(None)
        self._by_workspace.clear()

    def workspaces(self) -> list[str]:
        """Those in which somebody waits."""
        return list(self._by_workspace)

    def scopes(self, workspace_id: str) -> list[Scope]:
        """What is waited for."""
        return list(self._by_workspace.get(workspace_id, ()))

    def next(self, workspace_id: str, *scopes: Scope) -> Claim | None:
        """Takes out the oldest claim of these scopes."""
        lines = self._by_workspace.get(workspace_id, {})
        heads = [next(iter(line.values())) for scope in scopes if (line := lines.get(scope))]
        if not heads:
            return None
        claim = min(heads, key=lambda head: head.number)
        self.leave(claim)
        claim.is_paired = True
        return claim

    def waits(self, workspace_id: str, *scopes: Scope) -> bool:
        """Whether anybody waits for one of these."""
        lines = self._by_workspace.get(workspace_id, {})
        return any(scope in lines for scope in scopes)

    def end_those_over(self, workspace_id: str) -> None:
        """Answers claims that don't wait, and found nothing."""
        for claim in self._over.pop(workspace_id, ()):
            if not claim.is_paired:
                self.leave(claim)
                claim.answer(None)

    def refuse_all(self, workspace_id: str, error: Exception) -> None:
        """Nothing can be handed out now."""
        self._over.pop(workspace_id, None)
        for line in self._by_workspace.pop(workspace_id, {}).values():
            for claim in line.values():
                claim.refuse(error)

    def _all(self) -> list[Claim]:
        return [claim for lines in self._by_workspace.values() for line in lines.values() for claim in line.values()]

    def _line(self, claim: Claim) -> dict[int, Claim]:
        return self._by_workspace.setdefault(claim.workspace_id, {}).setdefault(claim.scope, {})

    def _note(self, claim: Claim) -> None:
        if claim.is_over:
            self._over.setdefault(claim.workspace_id, []).append(claim)

    def _tidy(self, workspace_id: str, scope: Scope) -> None:
        lines = self._by_workspace[workspace_id]
        if not lines[scope]:
            del lines[scope]
            if not lines:
                del self._by_workspace[workspace_id]

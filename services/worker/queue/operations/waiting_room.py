"""Workers that wait on this replica for an item: in memory, since their calls are open here."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from dataclasses import dataclass, field

from kit.errors import Unavailable
from services.worker.queue.domain.item import Item

# An item that was handed out, and what it is to do.
Grant = tuple[Item, str]
# Which items a claim takes: of an environment and of a session, empty for any.
Scope = tuple[str, str]

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

    def refuse(self, error: Exception) -> None:
        """Tells why nothing can be handed out now."""
        if not self.granted.done():
            self.granted.set_exception(error)


class WaitingRoom:
    """Claims by what they take, the oldest first."""

    def __init__(self) -> None:
        self._by_workspace: dict[str, dict[Scope, deque[Claim]]] = {}
        self._closed = False

    def enter(self, claim: Claim) -> None:
        """Has a claim wait."""
        if self._closed:
            raise Unavailable("This replica is stopping; claim at another one.")
        self._line(claim).append(claim)

    def return_to(self, claim: Claim) -> None:
        """A claim that was to get an item and did not is the first one again; if it is over, for one more round."""
        claim.is_paired = False
        if self._closed:
            claim.answer(None)
        elif not claim.granted.done():
            self._line(claim).appendleft(claim)

    def leave(self, claim: Claim) -> None:
        """Takes a claim out, if it is in here."""
        lines = self._by_workspace.get(claim.workspace_id, {})
        line = lines.get(claim.scope)
        if line is None:
            return
        if claim in line:
            line.remove(claim)
        self._tidy(claim.workspace_id, claim.scope)

    def close(self) -> None:
        """Lets everybody go: the process stops."""
        self._closed = True
        for lines in self._by_workspace.values():
            for line in lines.values():
                for claim in line:
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
        found = [(line[0].number, scope) for scope in scopes if (line := lines.get(scope))]
        if not found:
            return None
        scope = min(found)[1]
        claim = lines[scope].popleft()
        self._tidy(workspace_id, scope)
        claim.is_paired = True
        return claim

    def waits(self, workspace_id: str, *scopes: Scope) -> bool:
        """Whether anybody waits for one of these."""
        lines = self._by_workspace.get(workspace_id, {})
        return any(scope in lines for scope in scopes)

    def end_those_over(self, workspace_id: str) -> None:
        """Answers claims that don't wait, and found nothing."""
        for scope in self.scopes(workspace_id):
            line = self._by_workspace[workspace_id][scope]
            if any(claim.is_over for claim in line):
                for claim in [claim for claim in line if claim.is_over]:
                    line.remove(claim)
                    claim.answer(None)
                self._tidy(workspace_id, scope)

    def refuse_all(self, workspace_id: str, error: Exception) -> None:
        """Nothing can be handed out now."""
        for line in self._by_workspace.pop(workspace_id, {}).values():
            for claim in line:
                claim.refuse(error)

    def _line(self, claim: Claim) -> deque[Claim]:
        return self._by_workspace.setdefault(claim.workspace_id, {}).setdefault(claim.scope, deque())

    def _tidy(self, workspace_id: str, scope: Scope) -> None:
        lines = self._by_workspace.get(workspace_id)
        if lines is None:
            return
        if not lines.get(scope):
            lines.pop(scope, None)
        if not lines:
            del self._by_workspace[workspace_id]

"""Which worker protocol environments have, remembered for a while."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from kit.errors import FailedPrecondition, NotFound
from managed_agents.sessions.v1.environments_pb2 import GetEnvironmentRequest, GetEnvironmentResponse

# An environment never changes its protocol, and a worker comes again and again; but it may be deleted, and its workers
# are to hear of that soon.
KNOWN_SECONDS = 15.0
MAX_KNOWN = 10_000

# Reads an environment for the caller.
Ask = Callable[[GetEnvironmentRequest], Awaitable[GetEnvironmentResponse]]


class WorkEnvironmentRefused(FailedPrecondition):
    """The environment is not one whose work this caller may have by this protocol."""

    reason = "WORK_ENVIRONMENT_REFUSED"


class WorkerProtocols:
    """What is known, of all workspaces."""

    def __init__(self) -> None:
        # By workspace and id, with when it was read; of self-hosted environments alone.
        self._known: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()

    async def of(self, workspace_id: str, environment_id: str, ask: Ask) -> str:
        """The protocol, empty where the environment is not self-hosted; NotFound where the workspace has none such."""
        key = (workspace_id, environment_id)
        protocol, read_at = self._known.get(key, ("", 0.0))
        if protocol:
            if time.monotonic() - read_at < KNOWN_SECONDS:
                return protocol
            # One asks; whoever comes meanwhile goes on with what was known.
            self._known[key] = (protocol, time.monotonic())
        try:
            answer = await ask(GetEnvironmentRequest(environment_id=environment_id))
        except NotFound:
            self._known.pop(key, None)
            raise
        protocol = answer.environment.worker_protocol
        if protocol:
            self._known[key] = (protocol, time.monotonic())
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        return protocol

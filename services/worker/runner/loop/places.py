"""Where the calls of a turn run: in the session's sandbox, with the web over it; with a server; or with a worker."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.loop import retry, threads
from services.worker.runner.loop.agent import SANDBOX_NOTE, AgentProfile, system_prompt
from services.worker.runner.loop.calls import Call
from services.worker.runner.loop.servers import ServerPlace
from services.worker.runner.loop.services import TurnServices
from services.worker.runner.loop.tools import Place, Sandbox
from services.worker.runner.mcp.turn import TurnServers
from services.worker.runner.models.base import ToolDefinition
from services.worker.runner.outside import OutsideSandbox, is_self_hosted, sessions
from services.worker.runner.outside.items import is_remembered
from services.worker.runner.outside.sandbox import NOTE, can_be_joined, described
from services.worker.tools import VisibleRoot


class Places:
    """Of one turn."""

    def __init__(
        self,
        services: TurnServices,
        grant: TurnGrant,
        profile: AgentProfile,
        write: Callable[[str, Mapping[str, Any]], object],
        roots: Callable[[], Sequence[VisibleRoot]],
        check: Callable[[], None],
    ) -> None:
        """`roots` tells what the sandbox shows beside the usual folders, when it is asked for; `check` raises where the
        turn is not held any more."""
        self._services = services
        self._grant = grant
        self._profile = profile
        self._roots = roots
        self._outside: OutsideSandbox | None = None
        # Whether a worker serves the session as a whole: nothing of it is run here then.
        self._serves_session = sessions.serves_sessions(grant)
        if services.outside is not None and is_self_hosted(grant) and not self._serves_session:
            self._outside = services.outside.of(grant, write, retry.error_fields, check)

    @property
    def built_in(self) -> Mapping[str, ToolDefinition]:
        """The built-in tools, as the model is to be told of them."""
        if self._serves_session:
            return sessions.described(self._services.built_in)
        return self._services.built_in if self._outside is None else described(self._services.built_in)

    @property
    def is_here(self) -> bool:
        """Whether the session's own tools run in a sandbox of this runner."""
        return self._outside is None and not self._serves_session

    def prompt(self, notes: Sequence[str], *, uses_sandbox: bool) -> str:
        """What the model is told first."""
        about = SANDBOX_NOTE if self.is_here else NOTE
        if self._serves_session:
            about, notes = sessions.NOTE, (*notes, *sessions.prompt_notes(self._grant))
        return system_prompt(self._profile.system, uses_sandbox=uses_sandbox, notes=notes, sandbox_note=about)

    def sandbox(self) -> Sandbox:
        """Where the session's own tools run."""
        if self._outside is not None:
            return self._outside
        if self._serves_session:
            return sessions.NoSandbox()
        return threads.sandbox_for(self._services.sandboxes, self._grant, self._roots())

    def with_web(self) -> Sandbox:
        """The same, with the tools that the runner itself has."""
        web = self._services.web
        return self.sandbox() if web is None else web.over(self.sandbox(), self._profile.configs)

    def of(self, call: Call, sandbox: Sandbox, servers: TurnServers | None) -> Place:
        """Where the call runs, which is the next one to run."""
        if call.server_name:
            return ServerPlace(servers, call)
        if self._outside is not None:
            self._outside.begin(call.event_id)
        return sandbox

    def joins(self, call: Call) -> bool:
        """Whether a call that is made again only asks for what was begun, or was not."""
        return self._outside is not None and not call.server_name and not call.custom and can_be_joined(call.name)

    def joins_still(self, call: Call) -> bool:
        """The same of one that an attempt before this one may have made, however long ago."""
        return self.joins(call) and is_remembered(call.allowed_by or call.event_id)

    def give_up(self, calls: Iterable[Call]) -> None:
        """Nobody waits for these calls any more: what is left of them to workers ends, or does not begin."""
        if self._outside is not None:
            wanted = [call for call in calls if not call.server_name and "allow" in (call.permission, call.decision)]
            self._outside.give_up([call.event_id for call in wanted])

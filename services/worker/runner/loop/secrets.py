"""A session's secrets, as a turn uses them: results without them, and what the log is told when one was stopped."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from kit.failpoints import FailpointHit
from kit.telemetry import log
from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.loop import retry
from services.worker.runner.loop.stopping import Stopped
from services.worker.runner.secrets import SecretsRegistry, SessionSecrets
from services.worker.sandbox.placeholders import SecretsUnavailable
from services.worker.tools import ToolOutcome

Write = Callable[[str, Mapping[str, Any]], object]
_NOTE = (
    "These environment variables hold credentials: {names}. What you see in them are placeholders; the real value is "
    "put in on the way out when a request over HTTP or HTTPS goes to a host that the credential is for. Use them as "
    "they are, in a header or in a body, and never write them into URLs. They do not work for signatures that are "
    "computed inside the sandbox."
)


class Place(Protocol):
    """Where a call runs."""

    async def run_tool(self, name: str, value: object) -> ToolOutcome:
        """Run one tool to its end."""
        ...

    def interrupt(self) -> bool:
        """Kill what runs."""
        ...


def of_turn(registry: SecretsRegistry | None, grant: TurnGrant, write: Write) -> "TurnSecrets":
    """The secrets of a turn's session; one without vaults pays for nothing but this look."""
    return TurnSecrets(registry.begin_turn(grant) if registry is not None else None, write)


class TurnSecrets:
    """For one turn. Keeps the session's secrets alive while it runs."""

    def __init__(self, secrets: SessionSecrets | None, write: Write) -> None:
        self._secrets = secrets
        self._write = write

    async def notes(self, others: Sequence[str], *, uses_sandbox: bool) -> Sequence[str]:
        """Notes for the prompt, with what the model has to know of its variables where the vault tells it now."""
        if self._secrets is None or not uses_sandbox:
            return others
        try:
            names = [each.name for each in await self._secrets.placeholders()]
        except SecretsUnavailable:
            return others
        return (*others, _NOTE.format(names=", ".join(names))) if names else others

    async def open_for_header(self, host: str, port: int, names: Collection[str]) -> Mapping[str, str]:
        """Values of these variables for a header of a request that the platform itself makes to this host.

        Without those that the session's vaults do not hold, or not for this. Raises SecretsUnavailable.
        """
        if self._secrets is None:
            return {}
        fit = {each.name for each in await self._secrets.placeholders() if each.in_headers}
        return await self._secrets.open(host, port, fit & set(names)) if fit & set(names) else {}

    def scrub(self, value: Any) -> Any:
        """A JSON value without the session's secrets."""
        return value if self._secrets is None else self._secrets.scrubber.value(value)

    def over(self, place: Place) -> Place:
        """The same place, from which no secret comes back."""
        return place if self._secrets is None else ScrubbedPlace(place, self._secrets, self._tell)

    def _tell(self) -> None:
        for problem in self._secrets.take_problems() if self._secrets is not None else ():
            # The next turn tries again.
            fields = retry.error_fields("credential_host_unreachable_error", problem.message, asks_again=True)
            fields["error"] |= {"vault_id": problem.vault_id, "credential_id": problem.credential_id}
            self._write("session.error", fields)


class ScrubbedPlace:
    """Where calls run, with the session's secrets taken out of whatever comes back."""

    def __init__(self, place: Place, secrets: SessionSecrets, tell: Callable[[], None]) -> None:
        self._place = place
        self._secrets = secrets
        self._tell = tell

    async def run_tool(self, name: str, value: object) -> ToolOutcome:
        """Run one tool to its end."""
        try:
            outcome = await self._place.run_tool(name, value)
        except (Stopped, FailpointHit):
            raise
        except Exception as error:
            log.exception("a tool could not be run", tool=name)
            outcome = ToolOutcome(f"The tool could not be run: {error}", is_error=True)
        self._tell()
        return self._secrets.scrubber.outcome(outcome)

    def interrupt(self) -> bool:
        """Kill what runs."""
        return self._place.interrupt()

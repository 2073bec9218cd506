"""What a sandbox is told of its session's secrets: placeholders, and where the real values may go.

Owns the contract between sandboxes and whoever keeps the secrets. Inside of a sandbox a
variable holds a placeholder; the egress proxy asks for the real value when it meets one
on its way to a host, and never before.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from services.worker.sandbox.egress import HostRule
from services.worker.sandbox.replacing import Replacer
from services.worker.tools.overflow import Scrub

if TYPE_CHECKING:
    # What makes certificates takes its time to load, and few sessions need it.
    from services.worker.sandbox.authority import Authority


class SecretsUnavailable(Exception):
    """Whoever keeps the secrets cannot be asked now; the text says so, for the model and for people."""


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One environment variable of a session, without its value."""

    # The variable.
    name: str
    # What it holds inside: letters, digits and `_`, so that no encoding changes it.
    text: str
    # Where the value may go; `unrestricted` is any host that the environment allows.
    unrestricted: bool = False
    rules: tuple[HostRule, ...] = ()
    in_headers: bool = True
    in_body: bool = True

    def allows(self, host: str, port: int) -> bool:
        """Whether the value may be put into a request to this host."""
        return self.unrestricted or any(rule.allows(host, port) for rule in self.rules)


class SandboxSecrets(Protocol):
    """The secrets of one session, for its sandboxes and their proxies."""

    @property
    def authority(self) -> "Authority":
        """Signs the certificates that the session's proxies show; made when first asked for."""
        ...

    @property
    def echoes(self) -> Replacer:
        """Finds the values that were opened so far, in every spelling, and puts placeholders in their place."""
        ...

    @property
    def scrubber(self) -> Scrub:
        """Takes the values that were opened so far out of what tools say."""
        ...

    async def placeholders(self) -> Sequence[Placeholder]:
        """What the session has; asked for often, so not asked on every time. Raises SecretsUnavailable."""
        ...

    async def open(self, host: str, port: int, names: Collection[str]) -> Mapping[str, str]:
        """Values of those of these variables that may go to this host. Raises SecretsUnavailable."""
        ...

    async def open_for_process(self) -> Mapping[str, str]:
        """Values by variable for a shell whose requests nobody sees: unrestricted ones. Raises SecretsUnavailable."""
        ...

    def note_refusal(self, name: str, host: str) -> None:
        """A variable's placeholder was on its way to a host that its policy does not allow, and was stopped."""
        ...

    def note_unreachable(self, name: str, hosts: Sequence[str]) -> None:
        """A variable is allowed for hosts that the environment's network policy does not let the session reach."""
        ...


# The secrets of a session by its id; None for one without.
SecretsOf = Callable[[str], SandboxSecrets | None]


def no_secrets(_session_id: str) -> SandboxSecrets | None:
    """For whoever has none."""
    return None

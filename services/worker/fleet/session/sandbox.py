"""Sandboxes of sessions on an operator's machine: the local ones, with the network and variables of its options."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from services.worker.fleet.ground import network_policy, require_usable, sandbox_kind
from services.worker.sandbox.egress import NetworkPolicy
from services.worker.sandbox.isolation import Isolation
from services.worker.sandbox.limits import SandboxLimits
from services.worker.sandbox.local import LocalProvider, LocalSandbox
from services.worker.sandbox.variables import ShellVariables
from services.worker.tools import VisibleRoot

# Who runs commands with the rights of a user runs them with that user's limits.
UNLIMITED = SandboxLimits(
    memory_bytes=2**50,
    address_space_bytes=2**60,
    processes=2**20,
    cpu_seconds=2**31,
    file_bytes=2**50,
    open_files=2**16,
    disk_bytes=2**50,
)


class FleetProvider(LocalProvider):
    """Makes sandboxes below one folder."""

    def __init__(self, root: Path, *, kind: str, allow_hosts: tuple[str, ...], passed: Mapping[str, str]) -> None:
        super().__init__(root, limits=UNLIMITED if kind == "none" else SandboxLimits(), kind=sandbox_kind(kind))
        self.policy = network_policy(allow_hosts)
        self.passed = dict(passed)

    def require_usable(self) -> None:
        """OptionUnusable where this machine can't do what was asked for. Blocking."""
        require_usable(self.isolation, self.policy)

    def open(
        self, session_id: str, environment: Mapping[str, Any], roots: Sequence[VisibleRoot] = ()
    ) -> "FleetSandbox":
        """A session's sandbox; what the environment says of the network is the operator's to say here."""
        return FleetSandbox(self, session_id, self.policy, roots)


class FleetSandbox(LocalSandbox):
    """One session."""

    def __init__(
        self, provider: FleetProvider, session_id: str, policy: NetworkPolicy, roots: Sequence[VisibleRoot] = ()
    ) -> None:
        super().__init__(provider, session_id, policy, roots)
        self._passed = provider.passed

    async def _shell_variables(self, isolation: Isolation, *, proxied: bool) -> ShellVariables:
        return ShellVariables(self._passed)

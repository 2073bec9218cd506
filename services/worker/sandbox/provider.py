"""What a sandbox provider is, for callers and for new providers.

A provider isolates sessions in one way (`local`, later others). The conformance
suite in `tests/integration/sandbox` holds every registered kind to this.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from services.worker.tools import ToolOutcome, VisibleRoot


class SandboxProviderNotRegistered(Exception):
    """An environment names a provider that this build does not have."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"Sandbox provider {name!r} is not registered.")


@dataclass(frozen=True, slots=True)
class SandboxDescription:
    """How this host isolates sessions.

    `kind` is `bubblewrap`, `landlock`, `process`, or `none` where nothing works;
    `notes` say for people what holds and what does not.
    """

    kind: str
    notes: tuple[str, ...]

    @property
    def usable(self) -> bool:
        """Whether commands can be run at all."""
        return self.kind != "none"


class Sandbox(Protocol):
    """One session's place to work. Starts what it needs when it needs it."""

    async def run_tool(self, name: str, value: object) -> ToolOutcome:
        """Run a tool; never raises for what the tool or its input did."""
        ...

    def limit_output(self, text: str, *, is_error: bool = False) -> ToolOutcome:
        """Apply the overflow contract to output that was made elsewhere."""
        ...

    def interrupt(self) -> bool:
        """End everything that runs, within a second; True if there was a shell."""
        ...

    async def close(self) -> None:
        """End everything that runs and release the host's resources; files stay."""
        ...


class SandboxProvider(Protocol):
    """Makes sandboxes of one kind."""

    def describe(self) -> SandboxDescription:
        """Say what isolates here; cheap after the first call."""
        ...

    def open(self, session_id: str, environment: Mapping[str, Any], roots: Sequence[VisibleRoot] = ()) -> Sandbox:
        """Return the sandbox of a session, not started yet; with `roots` beside the folders that every one has."""
        ...

    def folder(self, session_id: str, roots: Sequence[VisibleRoot] = ()) -> Path:
        """The session's folder as this host sees it, with its roots made."""
        ...

    async def remove(self, session_id: str) -> None:
        """Delete the session's files."""
        ...

    async def aclose(self) -> None:
        """Release what the provider holds."""
        ...

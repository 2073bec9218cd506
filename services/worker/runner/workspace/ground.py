"""What a mount works on: one session's folder, and a way to tell the session."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.workspace.attachments import Attachment, attachments_of


@dataclass(slots=True)
class Ground:
    """One session within one turn. Folder and memory are shared by the turns and threads of the session here."""

    grant: TurnGrant
    # The session's folder on the host; `host` maps paths of the agent into it.
    folder: Path
    # Appends an event to the log of the turn.
    write: Callable[[str, Mapping[str, Any]], object]
    # By mount name: what mounts remember of this session for as long as this process knows its folder.
    memory: dict[str, Any] = field(default_factory=dict)
    # Set by a mount whose preparation is to be tried again in the next turn.
    incomplete: bool = False

    @property
    def workspace_id(self) -> str:
        """The tenant."""
        return self.grant.workspace_id

    @property
    def session_id(self) -> str:
        """The session whose sandbox it is; never that of a thread."""
        return self.grant.root_session_id or self.grant.session.id

    def attachments(self, *types: str) -> tuple[Attachment, ...]:
        """What is attached, in position order; only the given types where any is given."""
        return attachments_of(self.grant, *types)

    def host(self, inside: str) -> Path:
        """The host's path of a path in the sandbox. The agent may have put links on the way: open with care."""
        return Path(f"{self.folder}{inside}")

    def tell(self, error_type: str, message: str, *, again: bool = False, **details: Any) -> None:
        """Append a session.error; `again` has the mounts prepared once more in the next turn.

        Whatever is missing from its folder, a session goes on: clients are told that nothing has ended.
        """
        error = {"type": error_type, "message": message, "retry_status": "retryable", **details}
        self.write("session.error", {"error": error, "content": [{"type": "text", "text": message}]})
        self.incomplete = self.incomplete or again

"""What a mount is, for the workspace and for new kinds of mounts."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from nats.aio.msg import Msg

from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.workspace.ground import Ground
from services.worker.tools import ToolOutcome, VisibleRoot


class ToolRun(Protocol):
    """A call of a tool, as far as mounts have to know it."""

    event_id: str
    name: str
    input: Mapping[str, Any]


class MountFailed(Exception):
    """A mount could not do its part; the session hears of it as a session.error of this type."""

    def __init__(self, message: str, *, error_type: str = "unknown_error", again: bool = True) -> None:
        """`again`: the next turn is to try once more."""
        super().__init__(message)
        self.message = message
        self.error_type = error_type
        self.again = again


class Mount:
    """One kind of thing that a session works with. A kind overrides what it needs; the rest costs nothing.

    One instance serves all sessions of a runner: what it remembers of one stands in `ground.memory`. `applies`,
    `roots` and `prompt_notes` are pure and fast. The others run within the turn's task, whose call context their rpcs
    inherit; a stop of the turn may cancel them anywhere, so each must leave what it can go on from. What they raise is
    told to the session, and the turn goes on.
    """

    # Names it in logs and in `ground.memory`.
    name = "mount"
    # Hints on the message bus that the kind wants to hear.
    subjects: Sequence[str] = ()

    async def hear(self, message: Msg) -> None:
        """A hint on one of its subjects."""

    def doubt(self) -> None:
        """Hints may have been missed."""

    def applies(self, grant: TurnGrant) -> bool:
        """Whether the session of a turn has anything of this kind. Nothing else is called where it has not."""
        return False

    def roots(self, grant: TurnGrant) -> Sequence[VisibleRoot]:
        """Folders that tools and shell see beside the usual ones (/workspace, /mnt/session/uploads and outputs)."""
        return ()

    def prompt_notes(self, grant: TurnGrant) -> Sequence[str]:
        """Paragraphs for the system prompt."""
        return ()

    async def prepare(self, ground: Ground) -> None:
        """Put into the folder what belongs there, and take out what does not any more.

        Called before the first model request or tool after the runner got to know the session, its resources changed,
        or its folder was made anew. Idempotent: it may have run before, here or on another runner.
        """

    async def follow(self, ground: Ground) -> None:
        """Before each model request and each run of tools: take in what changed elsewhere. Costs nothing where nothing
        did, so it asks nobody unless the turn has just begun or something was heard.
        """

    async def after_tool(self, ground: Ground, call: ToolRun, outcome: ToolOutcome) -> Sequence[str]:
        """A tool ran that may have changed files (bash, write, edit). What is returned is added to its result."""
        return ()

    async def before_idle(self, ground: Ground) -> None:
        """The turn is about to end, and tools may have changed files in it, or in an attempt before it."""
